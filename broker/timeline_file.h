/*
 * Timeline files (shm/timeline.h): one for each session that has work on
 * devices, made when it first asks.
 *
 * The broker reads the counters, and poisons them when the session has ended.
 * A file outlives the broker in the fd store: what waits for a counter, and
 * which fences were reached, must not change by a restart.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct error;
struct session;

/* Descriptors in the fd store that they may take; chunks need them too. */
#define TIMELINE_FILES_MAX 256

/* A file for a session that has none. -EDQUOT, -ENFILE; FDSTORE_WAIT: not now,
 * try again when room is woken. */
int timeline_file_make(struct session *session, struct error *err);

/* The file for a peer; borrowed. */
int timeline_file_fd(struct session *session, bool is_writable, int *ret_fd,
		     struct error *err);

/* Has the session's timeline come to `value`? Not where it has no file. */
bool timeline_file_has_reached(const struct session *session, uint32_t timeline,
			       uint64_t value);

/* After a restart: take back the file of a session that had one. */
void timeline_file_adopt(struct session *session);
/* Files of sessions that are none any more: after all were adopted. */
void timeline_file_drop_strays(struct broker *broker);

/* The session is over, and what it had to say of its tensors was said: let go
 * of those who wait. Nothing if it has no file. */
void timeline_file_end(struct session *session);
