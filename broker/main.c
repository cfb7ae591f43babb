/*
 * fsdpd: parses arguments, sets the broker up, runs it and stops it.
 */
#include "broker/base/priority.h"
#include "broker/broker.h"
#include "broker/session/listener.h"
#include "broker/supervise.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/socket_path.h"
#include "proto/std_fds.h"
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#define MAX_SETTINGS 64

/* A service that cannot start waits before it exits, because systemd would
 * start it again ten times a second, for as long as the cause stays. */
#define FAILED_START_S 3

static const char *arg_socket_path;
static struct config_source arg_config;
static const char *arg_settings[MAX_SETTINGS];
static bool arg_is_check;
static bool arg_is_supervised;
static bool has_left_mps;

static const char help[] =
	"usage: fsdpd [--supervised] [--socket PATH] [--config PATH]\n"
	"             [--set KEY=VALUE]...\n"
	"       fsdpd --check-config [--config PATH] [--set KEY=VALUE]...\n"
	"\n"
	"The node's tensor memory broker.\n"
	"\n"
	"  --supervised    keep the memory in a parent process that starts "
	"the\n"
	"                  broker again when it dies (systemd does that "
	"itself)\n"
	"  --socket PATH   listen here; default: $FSDP_SOCKET, else\n"
	"                  $XDG_RUNTIME_DIR/fsdpd.sock, else\n"
	"                  /run/fsdpd/fsdpd.sock for root, and for others\n"
	"                  /tmp/fsdpd-UID/fsdpd.sock\n"
	"  --config PATH   default: /etc/fsdpd/fsdpd.conf, if it is there; "
	"the\n"
	"                  files PATH.d/*.conf are read after it\n"
	"  --set KEY=VALUE set a key of the configuration; overrides files\n"
	"  --check-config  read the configuration, print every value and where "
	"it\n"
	"                  is from, and exit with status 1 if anything is "
	"wrong\n"
	"  --version       print the version\n"
	"  --help          print this\n";

enum {
	ARG_SUPERVISED = 256,
	ARG_SOCKET,
	ARG_CONFIG,
	ARG_SET,
	ARG_CHECK_CONFIG,
	ARG_VERSION,
	ARG_HELP,
};

static const struct option options[] = {
	{"supervised", no_argument, NULL, ARG_SUPERVISED},
	{"socket", required_argument, NULL, ARG_SOCKET},
	{"config", required_argument, NULL, ARG_CONFIG},
	{"set", required_argument, NULL, ARG_SET},
	{"check-config", no_argument, NULL, ARG_CHECK_CONFIG},
	{"version", no_argument, NULL, ARG_VERSION},
	{"help", no_argument, NULL, ARG_HELP},
	{0},
};

static bool add_setting(const char *text)
{
	if (arg_config.n_settings == MAX_SETTINGS) {
		fprintf(stderr, "fsdpd: more than %d times --set\n",
			MAX_SETTINGS);
		return false;
	}
	arg_settings[arg_config.n_settings++] = text;
	arg_config.settings = arg_settings;
	return true;
}

/* Returns true to continue; if it is false, the program exits with
 * `*ret_status`. */
static bool parse_arguments(int argc, char **argv, int *ret_status)
{
	int option;

	*ret_status = 2;
	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (option) {
		case ARG_SUPERVISED:
			arg_is_supervised = true;
			break;
		case ARG_SOCKET:
			arg_socket_path = optarg;
			break;
		case ARG_CONFIG:
			arg_config.path = optarg;
			break;
		case ARG_SET:
			if (!add_setting(optarg))
				return false;
			break;
		case ARG_CHECK_CONFIG:
			arg_is_check = true;
			break;
		case ARG_VERSION:
			printf("fsdpd " FSDP_VERSION "\ncatalog layout %d\n",
			       CATALOG_LAYOUT_VERSION);
			*ret_status = EXIT_SUCCESS;
			return false;
		case ARG_HELP:
			fputs(help, stdout);
			*ret_status = EXIT_SUCCESS;
			return false;
		default:
			fputs("fsdpd: see fsdpd --help\n", stderr);
			return false;
		}
	}
	if (optind == argc)
		return true;
	fprintf(stderr, "fsdpd: unexpected argument \"%s\"; see --help\n",
		argv[optind]);
	return false;
}

static int report(const struct error *err)
{
	log_line(LOG_LEVEL_ERROR, "%s", err->msg);
	return EXIT_FAILURE;
}

/* Print the configuration in the format of a configuration file. */
static int check_config(void)
{
	struct error err = ERROR_NULL;
	struct config_entry entry;
	const char *section = "";
	struct config config;

	if (config_load(&config, &arg_config, &err) < 0)
		return report(&err);
	for (size_t i = 0; config_entry(&config, i, &entry); i++) {
		if (strcmp(section, entry.section) != 0)
			printf("%s[%s]\n", i > 0 ? "\n" : "", entry.section);
		section = entry.section;
		printf("%s = %s ; %s\n", entry.name, entry.value, entry.origin);
	}
	config_deinit(&config);
	return EXIT_SUCCESS;
}

/* systemd ends the process by SIGTERM if the unit is stopped or restarted
 * meanwhile. The supervisor has delays of its own. */
static int fail_to_start(const struct error *err)
{
	(void)report(err);
	if (error_is_short(err->code))
		return EX_TEMPFAIL;
	if (getenv("NOTIFY_SOCKET") && !arg_is_supervised) {
		failpoint("fsdpd.waits");
		(void)sleep(FAILED_START_S);
	}
	return EXIT_FAILURE;
}

static int run_broker(void)
{
	struct broker_options broker_options = {
		.socket_path = arg_socket_path,
		.config = arg_config,
		.listen_fd = -1,
		.has_left_mps = has_left_mps,
		.is_supervised = arg_is_supervised,
	};
	struct error err = ERROR_NULL;
	struct broker *broker = calloc(1, sizeof(*broker));
	int r;

	if (!broker) {
		error_nomem(&err, "the broker");
		return fail_to_start(&err);
	}
	if (priority_set(&err) < 0)
		log_line(LOG_LEVEL_WARNING, "%s", err.msg);
	r = broker_open(broker, &broker_options, &err);
	if (r < 0) {
		free(broker);
		return fail_to_start(&err);
	}
	r = broker_run(broker, &err);
	broker_close(broker);
	free(broker);
	return r < 0 ? report(&err) : EXIT_SUCCESS;
}

/* Run the supervisor. It owns the socket, so connections wait there while the
 * broker is restarted. */
static int run_supervised(void)
{
	const char *path = arg_socket_path;
	struct error err = ERROR_NULL;
	char default_path[SOCKET_PATH_SIZE];
	int listen_fd, r, status;

	if (!path) {
		if (socket_path_to_listen(default_path, &err) < 0)
			return report(&err);
		path = default_path;
	}
	if (listener_bind(path, &listen_fd, &err) < 0)
		return report(&err);
	r = supervise(listen_fd, &status, &err);
	/* This is the child, which gets the socket among its inherited
	 * descriptors. */
	if (r == 1)
		return run_broker();
	close(listen_fd);
	(void)unlink(path);
	return r < 0 ? report(&err) : status;
}

int main(int argc, char **argv)
{
	int status;

	std_fds_open();
	/* This comes early, while no other thread can read the environment. */
	has_left_mps = device_leave_mps();
	if (!parse_arguments(argc, argv, &status))
		return status;
	if (arg_is_check)
		return check_config();
	(void)signal(SIGPIPE, SIG_IGN);
	/* The signal is ignored until it has its handler, because closing the
	 * terminal must not lose the tensors. */
	(void)signal(SIGHUP, SIG_IGN);
	return arg_is_supervised ? run_supervised() : run_broker();
}
