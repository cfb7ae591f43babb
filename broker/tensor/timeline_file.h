/*
 * Timeline files (shm/timeline.h): one for each session that has work on
 * devices, made when the session first asks for it.
 *
 * The broker reads the counters, and poisons them when the session has ended. A
 * file outlives the broker in the fd store: a restart must change neither the
 * waits for a counter nor the fences that were reached.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct store;
struct error;
struct holdings;

/* The maximum number of these descriptors in the fd store, which chunks need,
 * too. */
#define TIMELINE_FILES_MAX 256

/* Makes a file for a session that has none. Errors: -EDQUOT, -ENFILE.
 * FDSTORE_WAIT: the fd store is busy; call again after wake_room(). */
int timeline_file_make(struct holdings *holdings, struct error *err);

/* Returns the file for a peer, borrowed. */
int timeline_file_fd(struct holdings *holdings, bool is_writable, int *ret_fd,
		     struct error *err);

/* Returns whether the session's timeline has reached `value`; false without a
 * file. */
bool timeline_file_has_reached(const struct holdings *holdings,
			       uint32_t timeline, uint64_t value);

/* Adopts the file of a session that had one before a restart. */
void timeline_file_adopt(struct holdings *holdings);
/* Drops the files of sessions that have ended. Call it after all files were
 * adopted. */
void timeline_file_drop_strays(struct store *store);

/* Wakes the streams that wait for the timelines of an ended session, after the
 * states of its tensors were updated. It has no effect without a file. */
void timeline_file_end(struct holdings *holdings);
