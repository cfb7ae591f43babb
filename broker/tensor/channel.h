/*
 * The broker's records of channels: their users, the slots that are their
 * buffers, and the clean-up after a process that has ended. Items go from
 * process to process without the broker (shm/slots.h).
 *
 * A channel is made by the first process that opens it, and ends with the last
 * process that has it open. Its buffers are slots like any other, of `capacity`
 * bytes, which the channel keeps. Its file outlives the broker in the fd store,
 * and its record in the catalog. So processes can use the file during a
 * restart, and the new broker removes the users that died meanwhile.
 *
 * A buffer leaves the channel when a consumer keeps it (channel_keep()), and a
 * new one takes its place as soon as there is memory. channel_resize.h
 * describes how the number of buffers changes.
 */
#pragma once
#include "broker/base/log.h"
#include "broker/catalog/catalog.h"
#include "broker/tensor/chore.h"
#include "shm/slots.h"
#include <stdbool.h>
#include <stdint.h>

struct error;
struct holdings;
struct store;

struct channels {
	struct slots slots[CATALOG_CHANNELS]; /* indexed by record */
	/* The replacement of buffers that have left; indexed by record. */
	struct channel_refill {
		struct chore chore;
		bool waits_room;   /* there was no memory for a buffer */
		bool is_made;      /* the memory was being made */
		uint32_t position; /* of the deadline of the next attempt */
	} refills[CATALOG_CHANNELS];
	bool has_waiting; /* a refill waits for memory */
	bool has_surplus; /* there may be buffers that must leave */
	/* limits the log lines about consumers that were cut */
	struct log_limit cuts;
};

void channels_init(struct store *store);
void channels_deinit(struct store *store);

enum channel_outcome {
	CHANNEL_OK = 0,
	/* until the channel exists: see channel_key() */
	CHANNEL_WAIT_OTHER = 1,
	/* There is no memory until others release some: call again after
	 * wake_room(). */
	CHANNEL_WAIT_ROOM = 2,
	/* The memory is being made: call again after wake_room(). */
	CHANNEL_WAIT_MADE = 3,
};

struct channel_place {
	uint32_t record, place;
};

/*
 * Gives the session a place in the channel, and makes the channel if it does
 * not exist. Commits. For CHANNEL_WAIT_ROOM `err` has the error for a caller
 * that gives up. Errors: -EACCES, -EINVAL, -ENOENT, -EPERM, -EUSERS.
 */
int channel_open(struct holdings *holdings,
		 const struct channel_open_request *request,
		 struct channel_place *ret, struct error *err);

/* Writes the key of requests that wait for a channel of this name. */
#define CHANNEL_KEY_SIZE 300
void channel_key(const char *name, char ret[CHANNEL_KEY_SIZE]);

/* Finds a place of the session. -ENOENT: the session does not have this
 * place. */
int channel_find(const struct holdings *holdings, uint64_t id, uint32_t place,
		 struct channel_place *ret, struct error *err);

/* Ends a producer, which will send nothing more. */
void channel_end(struct store *store, struct channel_place place);
/* Removes a user whose process closed the channel. */
void channel_close(struct store *store, struct channel_place place);

/*
 * Takes the buffer in which the user holds an item out of the channel; it then
 * lives as long as sessions hold it. It has no effect if the buffer has left
 * already. -EINVAL: the user does not hold it. -EOPNOTSUPP: the channel is a
 * broadcast.
 */
int channel_keep(struct holdings *holdings, struct channel_place place,
		 uint32_t at, const struct slot_ref *ref, struct error *err);

/* Returns the users in the record, without those that have ended or were
 * cut. */
struct slots_present channel_present(const struct channel_record *record);

/* Tells the other users if the process of this place is ending (ending.h). What
 * it has stays until channels_end_session(). */
void channel_look(struct store *store, struct channel_place place);

/* Removes the users of a session that has ended. `died`: its process ended
 * without closing the session. */
void channels_end_session(const struct holdings *holdings, bool died);

/* Returns the first user at or after a cursor, and moves the cursor past it.
 * The cursor is 0 at first. If there is no further user, it returns false and
 * sets the cursor to 0. */
bool channel_next_user(const struct store *store, uint64_t *cursor,
		       struct channel_place *ret);

/* Adopts the channels after a restart. Call it before slot_adopt_all(). */
int channels_adopt(struct store *store, struct error *err);
/* Drops the files in the fd store that belong to no channel. */
void channels_drop_strays(struct store *store);
