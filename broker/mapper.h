/*
 * Who has a memory file mapped writable: what the kernel does not say when it
 * refuses to seal one.
 */
#pragma once
#include <stddef.h>
#include <sys/types.h>

/*
 * Look through /proc for a writable shared mapping of `fd`'s file, first at
 * process `first` (0: none). Writes "process 123 (python3)", or "some process"
 * if none is found among those that we may look at in 20 ms.
 */
void mapper_describe(int fd, pid_t first, char *ret, size_t size);
