/*
 * Landlock restricts the files that a process can open. It does not affect
 * files that are already open, memfds and sockets. Threads and programs that
 * the process starts later inherit the restriction, so it must be entered
 * before other threads run; it cannot be left. A restricted process cannot
 * trace processes outside of the restriction, nor read their /proc/PID/maps.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct error;

enum landlock_use {
	LANDLOCK_READ, /* read files, list directories, start programs */
	LANDLOCK_OWN,  /* also write, make and remove files */
};

/* The permitted use of a file, or of all files below a directory. */
struct landlock_rule {
	const char *path; /* ignored if it does not exist */
	enum landlock_use use;
};

/*
 * Forbids to open any file that no rule allows, and to connect by TCP. Sets
 * `no_new_privs`. Returns -EOPNOTSUPP if the kernel does not have Landlock, or
 * has it turned off. Kernels before 6.7 do not restrict TCP.
 */
int landlock_enter(const struct landlock_rule *rules, size_t n,
		   struct error *err);
