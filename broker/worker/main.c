/*
 * The main program of fsdp-worker: it parses arguments, ties this process to
 * its broker, and runs.
 */
#include "broker/worker/link.h"
#include "broker/worker/worker.h"
#include "collective/job.h"
#include "cuda/driver.h"
#include "cuda/nccl.h"
#include "proto/error.h"
#include "sandbox/sandbox.h"
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#define DEFAULT_MAX_THREADS 16
#define MAX_THREADS         1024

static uint32_t arg_n_threads; /* 0: as many as there are CPUs */
static bool arg_has_no_sandbox;

static const char help[] =
	"usage: fsdp-worker [--threads N] [--no-sandbox]\n"
	"\n"
	"Gathers and reduces tensors for fsdpd, in host memory and, where "
	"ranks want\n"
	"it, on devices. fsdpd starts it and talks to it over a socket at "
	"descriptor\n"
	"3. There is no other use for it.\n"
	"\n"
	"  --threads N     1 to 1024; default: one for each CPU that it may "
	"use,\n"
	"                  at most 16\n"
	"  --no-sandbox    keep the right to all system calls that the broker "
	"has\n"
	"  --version       print the version\n"
	"  --help          print this\n";

enum { ARG_THREADS = 256, ARG_NO_SANDBOX, ARG_VERSION, ARG_HELP };

static const struct option options[] = {
	{"threads", required_argument, NULL, ARG_THREADS},
	{"no-sandbox", no_argument, NULL, ARG_NO_SANDBOX},
	{"version", no_argument, NULL, ARG_VERSION},
	{"help", no_argument, NULL, ARG_HELP},
	{0},
};

static bool parse_threads(const char *text)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(text, &end, 10);
	if (errno != 0 || end == text || *end || n < 1 || n > MAX_THREADS) {
		fprintf(stderr,
			"fsdp-worker: --threads \"%s\" is not a number from 1 "
			"to %d\n",
			text, MAX_THREADS);
		return false;
	}
	arg_n_threads = (uint32_t)n;
	return true;
}

/* Returns true to go on; else the program exits with `ret_status`. */
static bool parse_arguments(int argc, char **argv, int *ret_status)
{
	int option;

	*ret_status = 2;
	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (option) {
		case ARG_THREADS:
			if (!parse_threads(optarg))
				return false;
			break;
		case ARG_NO_SANDBOX:
			arg_has_no_sandbox = true;
			break;
		case ARG_VERSION:
			puts("fsdp-worker " FSDP_VERSION);
			*ret_status = EXIT_SUCCESS;
			return false;
		case ARG_HELP:
			fputs(help, stdout);
			*ret_status = EXIT_SUCCESS;
			return false;
		default:
			fputs("fsdp-worker: see fsdp-worker --help\n", stderr);
			return false;
		}
	}
	if (optind == argc)
		return true;
	fprintf(stderr, "fsdp-worker: unexpected argument \"%s\"; see --help\n",
		argv[optind]);
	return false;
}

static uint32_t count_threads(void)
{
	cpu_set_t cpus;
	int n = 1;

	if (arg_n_threads > 0)
		return arg_n_threads;
	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
		n = CPU_COUNT(&cpus);
	return n < DEFAULT_MAX_THREADS ? (uint32_t)n : DEFAULT_MAX_THREADS;
}

/*
 * The process dies with its broker, also in the middle of a job: a broker that
 * takes over the memory must not find us writing there. A broker that died
 * before this request has closed the link, unless we have another parent by
 * now: so ask.
 */
static bool follow_parent(void)
{
	pid_t parent = getppid();

	return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent;
}

/* The broker must start programs; this process never does. */
static void give_up_calls(void)
{
	struct error err = ERROR_NULL;
	int r;

	if (arg_has_no_sandbox)
		return;
	r = sandbox_enter(driver_is_installed() ? SANDBOX_WORKER_DEVICES
						: SANDBOX_WORKER,
			  &err);
	if (r < 0 && r != -EOPNOTSUPP)
		fprintf(stderr, "fsdp-worker: %s\n", err.msg);
}

int main(int argc, char **argv)
{
	struct error err = ERROR_NULL;
	int status;

	if (!parse_arguments(argc, argv, &status))
		return status;
	if (!link_is_socket(WORKER_FD)) {
		fputs("fsdp-worker: there is no broker at descriptor 3; fsdpd "
		      "starts this program itself (see --help)\n",
		      stderr);
		return 2;
	}
	(void)fcntl(WORKER_FD, F_SETFD, FD_CLOEXEC);
	/* The terminal's signals are for the broker, which will close the
	 * link. */
	(void)signal(SIGINT, SIG_IGN);
	(void)signal(SIGTERM, SIG_DFL);
	if (!follow_parent())
		return EXIT_FAILURE;
	driver_ask_for_queues();
	nccl_connect_early();
	give_up_calls();
	if (worker_run(WORKER_FD, count_threads(), &err) == 0)
		return EXIT_SUCCESS;
	fprintf(stderr, "fsdp-worker: %s\n", err.msg);
	return EXIT_FAILURE;
}
