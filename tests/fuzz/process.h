/*
 * Processes of several users: connections with invented pids, sessions, and the
 * files that they share with the broker.
 */
#pragma once
#include "proto/message.h"
#include "shm/refs.h"
#include <stdbool.h>
#include <stdint.h>

#define N_PROCESSES 4
#define N_FILES     8

struct process {
	uint32_t uid, pid;
	int life_fd; /* an eventfd in the place of a pidfd; readable: dead */
	int sock_fd; /* -1: not connected */
	bool has_session; /* then the following four are valid */
	uint64_t session;
	uint8_t token[TOKEN_SIZE];
	struct refs refs;
	int doorbell_fd;
	uint64_t number, answered; /* of requests */
	/* Files that came with replies, the oldest of which is replaced; -1:
	 * none. */
	int files[N_FILES];
	uint32_t n_files;
};

extern struct process processes[N_PROCESSES];

/* Returns the process with this pid, or NULL. */
const struct process *process_find(uint32_t pid);

void process_begin(struct process *process, uint32_t uid);

/* The process exits. */
void process_end(struct process *process);

/* The process exits, and another of the same user begins. */
void process_die(struct process *process);

/* Connect without a hello. */
void process_connect(struct process *process);

void process_disconnect(struct process *process);

/* Connect and say hello, for the session that the process has, with these files
 * or (NULL) its own, or for a new session. */
void process_hello(struct process *process, uint64_t budget, const int fds[2]);

/* Read the replies that have come. */
void process_read(struct process *process);
