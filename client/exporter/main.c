/*
 * fsdp-exporter serves metrics and a status page of a broker by HTTP.
 *
 * Exit status: 0 if it was told to stop, 1 if it failed, 2 after wrong usage.
 */
#include "client/exporter/collector.h"
#include "client/exporter/options.h"
#include "client/exporter/server.h"
#include "proto/error.h"
#include "proto/std_fds.h"
#include "sandbox/landlock.h"
#include "sandbox/sandbox.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#define EXIT_USAGE 2
/* The interval of looking for requests that have waited too long. */
#define CHECK_NS 250000000

static int fail(const struct error *err, int status)
{
	fprintf(stderr, "fsdp-exporter: %s\n", err->msg);
	return status;
}

/* `*ret` is NULL if `path` is. */
static int open_port_file(const char *path, FILE **ret, struct error *err)
{
	*ret = path ? fopen(path, "we") : NULL;
	if (path && !*ret)
		return error_errno(err, -errno, "cannot open %s", path);
	return 0;
}

/* Write the port. Consumes `file`, which may be NULL. */
static int write_port(FILE *file, uint16_t port, struct error *err)
{
	if (!file)
		return 0;
	fprintf(file, "%u\n", port);
	if (fclose(file) != 0)
		return error_errno(err, -errno,
				   "cannot write the file with the port");
	return 0;
}

static void wait_for_end(struct collector *collector, const sigset_t *signals)
{
	const struct timespec pause = {.tv_nsec = CHECK_NS};

	while (sigtimedwait(signals, NULL, &pause) < 0)
		collector_check(collector);
}

static void report(int r, const struct error *err)
{
	if (r < 0)
		fprintf(stderr, "fsdp-exporter: %s\n", err->msg);
}

/* Give up the right to write files. This must be called before there are
 * threads. */
static void give_up_files(const struct options *options)
{
	const struct landlock_rule all = {"/", LANDLOCK_READ};
	struct error err = ERROR_NULL;

	if (!options->has_no_sandbox)
		report(landlock_enter(&all, 1, &err), &err);
}

/* Give up system calls. This must be called when all files are open and all
 * threads run. */
static void give_up_calls(const struct options *options)
{
	struct error err = ERROR_NULL;

	if (!options->has_no_sandbox)
		report(sandbox_enter(SANDBOX_EXPORTER, &err), &err);
}

static void say_where(const struct options *options, uint16_t port)
{
	bool is_ipv6 = options->address.ss_family == AF_INET6;

	fprintf(stderr, "fsdp-exporter: listening at http://%s%s%s:%u/\n",
		is_ipv6 ? "[" : "", options->host, is_ipv6 ? "]" : "", port);
}

static int serve(const struct options *options, const sigset_t *signals,
		 FILE *port_file, struct error *err)
{
	struct collector *collector;
	struct server *server;
	int r;

	r = collector_start(options->socket, &collector, err);
	if (r < 0)
		return r;
	r = server_start(&options->address, collector, &server, err);
	if (r < 0) {
		collector_close(collector);
		collector_free(collector);
		return error_wrap(err, r, "cannot listen at %s", options->host);
	}
	r = write_port(port_file, server_port(server), err);
	if (r == 0) {
		give_up_calls(options);
		say_where(options, server_port(server));
		sd_notify(0, "READY=1");
		wait_for_end(collector, signals);
	}
	collector_close(collector);
	server_stop(server);
	collector_free(collector);
	return r;
}

static int run(const struct options *options, const sigset_t *signals,
	       struct error *err)
{
	FILE *port_file;
	int r = open_port_file(options->port_file, &port_file, err);

	if (r < 0)
		return r;
	give_up_files(options);
	return serve(options, signals, port_file, err);
}

int main(int argc, char **argv)
{
	struct error err = ERROR_NULL;
	struct options options;
	sigset_t signals;
	int r;

	std_fds_open();
	r = options_parse(argc, argv, &options, &err);
	if (r < 0)
		return fail(&err, EXIT_USAGE);
	if (r == OPTIONS_DONE)
		return EXIT_SUCCESS;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	/* All threads inherit this mask. */
	sigprocmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	return run(&options, &signals, &err) < 0 ? fail(&err, EXIT_FAILURE)
						 : EXIT_SUCCESS;
}
