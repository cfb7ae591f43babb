/*
 * Timeline files (shm/timeline.h): one for each session that has work on
 * devices, made when the session first asks for it.
 *
 * The broker reads the counters, and poisons them when the session has ended. A
 * file outlives the broker in the fd store: a restart must neither change what
 * waits for a counter nor which fences were reached.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct store;
struct error;
struct holdings;

/* Limit on these descriptors in the fd store, which chunks need, too. */
#define TIMELINE_FILES_MAX 256

/* Make a file for a session that has none. -EDQUOT, -ENFILE; FDSTORE_WAIT: not
 * now, try again after wake_room(). */
int timeline_file_make(struct holdings *holdings, struct error *err);

/* The file for a peer; borrowed. */
int timeline_file_fd(struct holdings *holdings, bool is_writable, int *ret_fd,
		     struct error *err);

/* Has the session's timeline reached `value`? False without a file. */
bool timeline_file_has_reached(const struct holdings *holdings,
			       uint32_t timeline, uint64_t value);

/* After a restart: adopt the file of a session that had one. */
void timeline_file_adopt(struct holdings *holdings);
/* Drop files of sessions that ended. Call it after all were adopted. */
void timeline_file_drop_strays(struct store *store);

/* The session has ended, and the states of its tensors were updated: wake the
 * streams that wait for its timelines. No effect without a file. */
void timeline_file_end(struct holdings *holdings);
