/*
 * The broker under test: fsdpd in a directory of the row, on the servers' CPU.
 */
#pragma once
#include "bench.h"
#include <stdbool.h>
#include <sys/types.h>

struct daemon_options {
	bool is_supervised;
	bool is_unpinned; /* broker and worker may use all CPUs */
	/* has the priority of the unit, if the user may set it */
	bool is_service;
	const char *config;        /* lines of fsdpd.conf; NULL for defaults */
	const char *notify_socket; /* socket of the fd store; may be NULL */
};

struct daemon {
	pid_t pid; /* process of the supervisor, if there is one */
	char socket[108];
};

/* Start the broker, and wait until it replies. */
void daemon_start(struct daemon *daemon, const struct bench *bench,
		  const struct daemon_options *options);
void daemon_stop(struct daemon *daemon);

/* Returns the child of `pid`, or 0. */
pid_t process_child(pid_t pid);

/* Returns how often the present threads of `pid` went to sleep. */
uint64_t process_switches(pid_t pid, uint32_t *ret_n_threads);

/* Returns the resident bytes of `pid`, except for mapped chunks. */
uint64_t process_rss(pid_t pid);
