/*
 * Who has a memory file mapped writable: what the kernel does not say when it
 * refuses to seal one.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Where to look: at this process first (0: none), then at those of this user
 * and of root. A stranger's are not read: he could make that take long. */
struct mapper_suspect {
	pid_t pid;
	uid_t uid;
};

/*
 * Look through /proc for a writable shared mapping of `fd`'s file. True: one
 * was found, and `ret` has "process 123 (python3)". It takes as long as the
 * processes have mappings, up to a limit: not for the broker's loop.
 */
bool mapper_find(int fd, const struct mapper_suspect *suspect, char *ret,
		 size_t size);
