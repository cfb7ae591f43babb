#include "client/exporter/options.h"
#include "proto/error.h"
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_ADDRESS "127.0.0.1"
#define DEFAULT_PORT    "9471"

static const char usage[] =
	"Usage: fsdp-exporter [OPTION]...\n"
	"\n"
	"Serves metrics (/metrics), the broker's state (/status.json) and a\n"
	"status page (/) by HTTP.\n"
	"\n"
	"  --address ADDRESS  IPv4 or IPv6 address to listen at (127.0.0.1)\n"
	"  --port PORT        port (9471); 0: any free one\n"
	"  --port-file FILE   write the port to FILE when it listens\n"
	"  --socket PATH      socket of the broker, if not in the usual "
	"places\n"
	"  --no-sandbox       keep the right to all system calls and files\n"
	"  --version          print the version\n"
	"  --help             print this\n";

static int parse_port(const char *text, in_port_t *ret, struct error *err)
{
	char *end;
	long port;

	errno = 0;
	port = strtol(text, &end, 10);
	if (errno || end == text || *end || port < 0 || port > 65535)
		return error_set(err, -EINVAL,
				 "--port %.16s is not a number from 0 to 65535",
				 text);
	*ret = htons((in_port_t)port);
	return 0;
}

static int parse_address(const char *address, const char *port,
			 struct sockaddr_storage *ret, struct error *err)
{
	struct sockaddr_in *in4 = (struct sockaddr_in *)ret;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ret;

	memset(ret, 0, sizeof(*ret));
	if (inet_pton(AF_INET, address, &in4->sin_addr) == 1) {
		in4->sin_family = AF_INET;
		return parse_port(port, &in4->sin_port, err);
	}
	if (inet_pton(AF_INET6, address, &in6->sin6_addr) == 1) {
		in6->sin6_family = AF_INET6;
		return parse_port(port, &in6->sin6_port, err);
	}
	return error_set(err, -EINVAL,
			 "--address %.64s is neither an IPv4 nor an IPv6 "
			 "address",
			 address);
}

int options_parse(int argc, char **argv, struct options *ret, struct error *err)
{
	static const struct option known[] = {
		{"address", required_argument, NULL, 'a'},
		{"port", required_argument, NULL, 'p'},
		{"port-file", required_argument, NULL, 'f'},
		{"socket", required_argument, NULL, 's'},
		{"no-sandbox", no_argument, NULL, 'n'},
		{"version", no_argument, NULL, 'v'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	const char *port = DEFAULT_PORT;
	int c;

	*ret = (struct options){.host = DEFAULT_ADDRESS};
	while ((c = getopt_long(argc, argv, "h", known, NULL)) != -1) {
		switch (c) {
		case 'a':
			ret->host = optarg;
			break;
		case 'p':
			port = optarg;
			break;
		case 'f':
			ret->port_file = optarg;
			break;
		case 's':
			ret->socket = optarg;
			break;
		case 'n':
			ret->has_no_sandbox = true;
			break;
		case 'v':
			printf("fsdp-exporter %s\n", FSDP_VERSION);
			return OPTIONS_DONE;
		case 'h':
			fputs(usage, stdout);
			return OPTIONS_DONE;
		default:
			return error_set(err, -EINVAL,
					 "see fsdp-exporter --help");
		}
	}
	if (optind < argc)
		return error_set(
			err, -EINVAL,
			"unexpected argument '%.64s': see fsdp-exporter --help",
			argv[optind]);
	return parse_address(ret->host, port, &ret->address, err);
}
