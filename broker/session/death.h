/*
 * Lines of the log about clients that ended without a goodbye.
 *
 * A line is written a second after the death. The kernel tells a broker in its
 * sandbox how a process ended only when the parent has waited for it (Linux
 * 6.15; process.h), which parents do within that time. A process that exited
 * with status 0 is not mentioned, because a program that does not close its
 * connection is no trouble.
 */
#pragma once
#include "broker/base/process.h"
#include <stdint.h>
#include <sys/types.h>

struct session;

/* The number of deaths of one second that are looked at. */
#define DEATHS_MAX 16

struct death {
	int pidfd; /* owned, or -1 if it could not be duplicated */
	pid_t pid;
	uid_t uid;
	char command[PROCESS_COMMAND_SIZE];
};

struct deaths {
	struct death waiting[DEATHS_MAX];
	uint32_t n_waiting;
	uint32_t position; /* in the deadlines */
	uint64_t n;        /* since the start, of all kinds */
};

/* Notes that the process of a session has ended. Of the deaths of one second
 * the line names one, if possible one that was not normal. */
void death_note(const struct session *session);

void deaths_deinit(struct deaths *deaths);
