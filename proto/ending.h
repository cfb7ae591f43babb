/*
 * Tells whether a process is ending before its pidfd does.
 *
 * The kernel reports an exit through pidfds and closed sockets only after it
 * has freed the memory of the process, which takes hundreds of milliseconds for
 * some GiB. Long before that, each of its threads has dropped the address
 * space, and a thread without one never runs its program again.
 *
 * The memory that the process had mapped may be in use until the pidfd reports
 * the exit.
 */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

/*
 * Returns whether the process has dropped its address space, so that none of
 * its threads will run again. It reads three files in /proc. The result true is
 * certain if the number is of the caller's PID namespace and is not used again.
 * The result is false if the process runs, if its parent has waited for it, if
 * it cannot be seen, or if its oom_score_adj is below -900.
 */
bool process_is_ending(pid_t pid);
