/*
 * A client's process: whether it still runs, and how it ended.
 *
 * A pid can be reused. A pidfd, or a pid with the start time of its process,
 * identifies one process.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct error;

#define PROCESS_COMMAND_SIZE 16
#define PROCESS_END_SIZE     64

/* Reads the start time, which is field 22 of /proc/PID/stat. */
int process_start_time(pid_t pid, uint64_t *ret, struct error *err);

/* Reads the process's own name, for display; it is "?" if it cannot be read. */
void process_command(pid_t pid, char ret[PROCESS_COMMAND_SIZE]);

/*
 * Opens a pidfd of the process with this pid and start time. -ESRCH: it has
 * ended. Any other error means that this cannot be determined now (for example
 * for lack of descriptors): it may be running.
 */
int process_open(pid_t pid, uint64_t start_time, int *ret_pidfd);

bool process_has_ended(int pidfd);

/* Reads the first `size - 1` bytes of a file in /proc, and appends a 0. */
int process_read_file(const char *path, char *buffer, size_t size,
		      struct error *err);

enum process_end {
	PROCESS_END_UNKNOWN = 0, /* the kernel does not report it */
	PROCESS_END_FAILED,
	PROCESS_END_NORMAL, /* it exited with status 0 */
};

/*
 * Describes how the process ended, to follow its name in a sentence: "was
 * killed by signal 9 (Killed)", "exited with status 1", or "has ended" if it is
 * unknown. Linux before 6.15 reports it only until the parent has waited for
 * the process, and from then on later kernels do. The pidfd may be -1.
 */
enum process_end process_describe_end(int pidfd, pid_t pid,
				      char ret[PROCESS_END_SIZE]);
