/*
 * A process that is ending for as long as a test likes: killed, with no thread
 * that could run again, but not reported by its pidfd, as a process whose
 * memory takes the kernel long to free.
 *
 * The test traces one of its threads other than the first, so that this thread
 * stays a zombie until the test has waited for it, and the process exists as
 * long as it.
 */
#pragma once
#include <sys/types.h>

/* Starts such a thread; the process calls it. Returns its number. */
pid_t ending_thread(void);

/* Kill this child, which has called ending_thread(). Returns when the process
 * is ending. */
void ending_begin(pid_t pid, pid_t thread);

/* Let the kernel report that it has ended. */
void ending_end(pid_t thread);
