/*
 * fsdp-exporter: metrics and a status page of a broker, by HTTP.
 *
 * Exit status: 0 it was told to stop, 1 it failed, 2 wrong usage.
 */
#include "client/exporter/collector.h"
#include "client/exporter/options.h"
#include "client/exporter/server.h"
#include "proto/error.h"
#include "sandbox/sandbox.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#define EXIT_USAGE 2
/* How often it looks for requests that have waited too long. */
#define CHECK_NS 250000000

static int fail(const struct error *err, int status)
{
	fprintf(stderr, "fsdp-exporter: %s\n", err->msg);
	return status;
}

static int write_port(const char *path, uint16_t port, struct error *err)
{
	FILE *file = path ? fopen(path, "we") : NULL;

	if (!path)
		return 0;
	if (!file)
		return error_errno(err, -errno, "open %s", path);
	fprintf(file, "%u\n", port);
	if (fclose(file) != 0)
		return error_errno(err, -errno, "write %s", path);
	return 0;
}

static void wait_for_end(struct collector *collector, const sigset_t *signals)
{
	const struct timespec pause = {.tv_nsec = CHECK_NS};

	while (sigtimedwait(signals, NULL, &pause) < 0)
		collector_check(collector);
}

/* All files are open and all threads run. */
static void enter_sandbox(const struct options *options)
{
	struct error err = ERROR_NULL;

	if (!options->has_no_sandbox &&
	    sandbox_enter(SANDBOX_EXPORTER, &err) < 0)
		fprintf(stderr, "fsdp-exporter: %s\n", err.msg);
}

static int run(const struct options *options, const sigset_t *signals,
	       struct error *err)
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
		return r;
	}
	r = write_port(options->port_file, server_port(server), err);
	if (r == 0) {
		enter_sandbox(options);
		fprintf(stderr, "fsdp-exporter: listening at port %u\n",
			server_port(server));
		sd_notify(0, "READY=1");
		wait_for_end(collector, signals);
	}
	collector_close(collector);
	server_stop(server);
	collector_free(collector);
	return r;
}

int main(int argc, char **argv)
{
	struct error err = ERROR_NULL;
	struct options options;
	sigset_t signals;
	int r;

	r = options_parse(argc, argv, &options, &err);
	if (r < 0)
		return fail(&err, EXIT_USAGE);
	if (r == OPTIONS_DONE)
		return EXIT_SUCCESS;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	/* All threads inherit this. */
	sigprocmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	return run(&options, &signals, &err) < 0 ? fail(&err, EXIT_FAILURE)
						 : EXIT_SUCCESS;
}
