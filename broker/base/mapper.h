/*
 * The search for the process that has a memory file mapped writable, since the
 * kernel does not name it when it refuses to seal the file.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The processes to search: first this one (0: no process), then those of this
 * user and of root. Processes of other users are not read, since they could
 * make the search slow. */
struct mapper_suspect {
	pid_t pid;
	uid_t uid;
};

/*
 * Searches /proc for a writable shared mapping of `fd`'s file. Returns true if
 * one was found; `ret` is then "process 123 (python3)". The time grows with the
 * mappings of the processes, up to a limit, so it must not run on the broker's
 * loop.
 */
bool mapper_find(int fd, const struct mapper_suspect *suspect, char *ret,
		 size_t size);
