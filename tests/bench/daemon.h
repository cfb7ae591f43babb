/*
 * The broker under test: fsdpd in a directory of the row, on the servers' CPU.
 */
#pragma once
#include "bench.h"
#include <stdbool.h>
#include <sys/types.h>

struct daemon_options {
	bool is_supervised;
	bool is_unpinned;          /* on all CPUs, as is its worker then */
	const char *config;        /* lines of fsdpd.conf; NULL: defaults */
	const char *notify_socket; /* of what keeps descriptors; NULL: none */
};

struct daemon {
	pid_t pid; /* of the supervisor if there is one */
	char socket[108];
};

/* Start it and wait until it answers. */
void daemon_start(struct daemon *daemon, const struct bench *bench,
		  const struct daemon_options *options);
void daemon_stop(struct daemon *daemon);

/* The child of `pid`, or 0. */
pid_t process_child(pid_t pid);

/* Times that any thread of `pid` went to sleep. */
uint64_t process_switches(pid_t pid);

/* Resident bytes of `pid` but for what is mapped of chunks. */
uint64_t process_rss(pid_t pid);
