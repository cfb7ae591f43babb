/*
 * Is a process ending, though its pidfd does not say so yet?
 *
 * The kernel reports an exit by pidfds and closed sockets only after it has
 * freed the memory of the process, which takes hundreds of milliseconds for
 * some GiB. Long before that, each of its threads has dropped the address
 * space, and a thread without one never runs its program again.
 *
 * What the process had mapped may be in use until the pidfd reports the exit.
 */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

/*
 * Has the process with this number dropped its address space, so that none of
 * its threads will run again? Reads three files in /proc. True is certain if
 * the number is of the caller's PID namespace and is not used again. False: it
 * runs, or its parent has waited for it, or it cannot be seen, or its
 * oom_score_adj is below -900.
 */
bool process_is_ending(pid_t pid);
