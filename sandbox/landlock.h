/*
 * Landlock: the files that a process can still open. What it has open already,
 * memfds and sockets are not concerned. All threads and programs that it starts
 * later inherit it, so it is entered before other threads run; it cannot be
 * left. A process in it cannot trace those outside, nor read their
 * /proc/PID/maps.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct error;

enum landlock_use {
	LANDLOCK_READ, /* read files, list directories, start programs */
	LANDLOCK_OWN,  /* and write, make and remove files */
};

/* What may be done with a file, or below a directory. */
struct landlock_rule {
	const char *path; /* one that does not exist is skipped */
	enum landlock_use use;
};

/*
 * Forbid to open any file that no rule allows, and to connect by TCP. Sets
 * `no_new_privs`. -EOPNOTSUPP: the kernel has no Landlock, or it is turned off;
 * kernels before 6.7 know no rules for TCP.
 */
int landlock_enter(const struct landlock_rule *rules, size_t n,
		   struct error *err);
