/*
 * The broker's records of channels: their users, which slots are its
 * buffers, and what is left when a process is gone. Items go from process to
 * process without the broker (shm/slots.h).
 *
 * A channel is made by the first process that opens it, and ends with the last
 * one that has it open. Its buffers are slots like any other, of `capacity`
 * bytes, which the channel keeps. Its file outlives the broker in the fd store,
 * and its record in the catalog. So a restart changes nothing: the words in the
 * file go on meanwhile, and the new broker ends what died in between.
 *
 * A buffer leaves the channel when a consumer keeps it (channel_keep()), and a
 * new one takes its place as soon as there is memory. channel_resize.h says how
 * a channel gets another number of buffers.
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
	struct slots slots[CATALOG_CHANNELS]; /* by record */
	/* Of buffers that have left; by record. */
	struct channel_refill {
		struct chore chore;
		bool waits_room;   /* there was no memory */
		bool is_made;      /* it was being made */
		uint32_t position; /* of the next attempt's deadline */
	} refills[CATALOG_CHANNELS];
	bool has_waiting;      /* one of them waits for room */
	bool has_surplus;      /* there may be buffers that are to leave */
	struct log_limit cuts; /* of consumers */
};

void channels_init(struct store *store);
void channels_deinit(struct store *store);

enum channel_outcome {
	CHANNEL_OK = 0,
	CHANNEL_WAIT_OTHER = 1, /* until it exists: see channel_key() */
	/* Until others release memory: call again after wake_room(). */
	CHANNEL_WAIT_ROOM = 2,
	/* The same, and the memory is being made. */
	CHANNEL_WAIT_MADE = 3,
};

struct channel_place {
	uint32_t record, place;
};

/*
 * Give the session a place, and make the channel if need be. Commits. For
 * CHANNEL_WAIT_ROOM `err` has the sentence should the caller give up. -EACCES,
 * -EINVAL, -ENOENT, -EPERM, -EUSERS.
 */
int channel_open(struct holdings *holdings,
		 const struct channel_open_request *request,
		 struct channel_place *ret, struct error *err);

/* The key of requests that wait for a channel of this name. */
#define CHANNEL_KEY_SIZE 300
void channel_key(const char *name, char ret[CHANNEL_KEY_SIZE]);

/* The place of a session; -ENOENT: it has no such. */
int channel_find(const struct holdings *holdings, uint64_t id, uint32_t place,
		 struct channel_place *ret, struct error *err);

/* It sends nothing more. */
void channel_end(struct store *store, struct channel_place place);
/* It is given up by its process. */
void channel_close(struct store *store, struct channel_place place);

/*
 * The buffer in which the user holds an item leaves the channel, and lives as
 * long as sessions hold it. No effect if it has left already. -EINVAL: the user
 * does not hold it. -EOPNOTSUPP: a broadcast.
 */
int channel_keep(struct holdings *holdings, struct channel_place place,
		 uint32_t at, const struct slot_ref *ref, struct error *err);

/* Those that are there, from the record; one that was cut is not. */
struct slots_roll channel_roll(const struct channel_record *record);

/* The session has ended. `died`: its process did not say goodbye. */
void channels_end_session(struct store *store, uint32_t session, bool died);

/* The user at or after a cursor, which is 0 at first and moves behind it.
 * After the last user it returns false, and a cursor of 0. */
bool channel_next_user(const struct store *store, uint64_t *cursor,
		       struct channel_place *ret);

/* After a restart, before slot_adopt_all(). */
int channels_adopt(struct store *store, struct error *err);
/* Drop the files in the fd store that no channel has. */
void channels_drop_strays(struct store *store);
