/*
 * A process that is ending for as long as a test wants: it was killed, and none
 * of its threads can run again, but its pidfd does not report its end yet. A
 * process whose memory the kernel frees slowly looks like this.
 *
 * The test traces one of its threads other than the first. So this thread stays
 * a zombie until the test has waited for it, and the process exists that long.
 */
#pragma once
#include <sys/types.h>

/* Starts such a thread in the calling process. Returns its number. */
pid_t ending_thread(void);

/* Kills this child, which has called ending_thread(). Returns when the process
 * is ending. */
void ending_begin(pid_t pid, pid_t thread);

/* Lets the kernel report that it has ended. */
void ending_end(pid_t thread);
