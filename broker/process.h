/*
 * A client's process: whether it still runs, and how it ended.
 *
 * A number of a process can be used again; a pidfd and the time at which the
 * process started cannot be mistaken for another's.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct error;

#define PROCESS_COMMAND_SIZE 16
#define PROCESS_END_SIZE     64

/* When it started: /proc/PID/stat field 22. */
int process_start_time(pid_t pid, uint64_t *ret, struct error *err);

/* What it calls itself, for people to read; "?" if that cannot be seen. */
void process_command(pid_t pid, char ret[PROCESS_COMMAND_SIZE]);

/*
 * A pidfd of the process of that number that started at that time. -ESRCH: it
 * has ended. Every other error means that this cannot be known now (for want of
 * descriptors, say): it may be running.
 */
int process_open(pid_t pid, uint64_t start_time, int *ret_pidfd);

bool process_has_ended(int pidfd);

/* The first `size - 1` bytes of a file in /proc, with a 0 behind them. */
int process_read_file(const char *path, char *buffer, size_t size,
		      struct error *err);

/*
 * How it ended, to follow its name in a sentence: "was killed by signal 9
 * (Killed)", "exited with status 1"; false, and "has ended", where the kernel
 * does not tell (before Linux 6.15 it does so only until the parent has waited
 * for the process). The pidfd may be -1.
 */
bool process_describe_end(int pidfd, pid_t pid, char ret[PROCESS_END_SIZE]);
