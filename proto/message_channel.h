/*
 * Messages of channels: requests, then replies. broker/tensor/channel.h and
 * shm/slots.h describe channels.
 */
#pragma once
#include "proto/message_part.h"
#include <stdbool.h>
#include <stdint.h>

/* --- requests ------------------------------------------------------------ */

enum channel_role {
	CHANNEL_PRODUCER = 1,
	CHANNEL_CONSUMER = 2,
};

#define CHANNEL_MAX_SLOTS 64
#define CHANNEL_MAX_WAY   1 /* enum slots_mode, shm/slots.h */

/* Opens a channel. The reply is sent when the session has its place in the
 * channel. */
struct channel_open_request {
	const char *name;
	struct access_class access;
	/* of a buffer, in bytes; 0: the channel must exist, and `access`,
	 * `n_slots` and `way` are ignored */
	uint64_t capacity;
	uint32_t n_slots;   /* 0 is decoded as 8 */
	uint32_t way;       /* enum slots_mode */
	uint32_t role;      /* enum channel_role */
	bool writes;        /* it writes to the buffers, as producers do */
	int32_t timeout_ms; /* for memory, and for the channel to exist */
	uint32_t lag_ms;    /* of a broadcast; 0: no consumer is cut */
	bool knows_limit;   /* it supports channels that are resized */
};

/*
 * The body of channel_slots and channel_lag. The first gets the file of the
 * channel's words as an fd. By the second, a producer reports that it has
 * waited `lag_ms` for a buffer; the broker cuts consumers that have kept the
 * oldest item from it for that long. The replies are empty.
 */
struct channel_place_request {
	uint64_t channel;
	uint32_t place;
};

/* Tells the broker that the process of this user seems to be ending (ending.h).
 * The broker looks itself. The reply is empty. */
struct channel_look_request {
	uint64_t channel;
	uint32_t place;
	uint32_t user; /* its place */
};

/* Gets one of the buffers as a tensor, with a hold: struct places_reply.
 * Returns -ESTALE if the slot has no buffer now. */
struct channel_buffer_request {
	uint64_t channel;
	uint32_t place;
	uint32_t at;
};

/* Gives up the place. With `is_end` the producer keeps its place but sends no
 * more items. */
struct channel_close_request {
	uint64_t channel;
	uint32_t place;
	bool is_end;
};

/* Removes this buffer from the channel, because its item is kept. */
struct channel_keep_request {
	uint64_t channel;
	uint32_t place;
	uint32_t at;
	struct slot_ref ref;
};

/* Changes the number of buffers of the channel. */
struct channel_resize_request {
	uint64_t channel;
	uint32_t place;
	uint32_t n_slots;
	int32_t timeout_ms; /* for memory */
};

/* --- replies ------------------------------------------------------------- */

struct channel_reply {
	uint64_t channel;
	uint32_t place;
	uint64_t capacity;
	uint32_t way;
	uint32_t lag_ms;
};

#define CHANNEL_MAX_WANT 2 /* enum slots_want, shm/slots.h */

/* One user of a channel, and the channel. */
struct channel_item {
	const char *name;
	uint32_t uid; /* the user who made it */
	uint32_t way;
	uint64_t capacity;
	uint32_t n_slots; /* slots that have a buffer now */
	uint32_t n_queued;
	uint32_t pid;
	const char *command;
	uint32_t role;
	/* a producer that sends no more items, or a consumer that was cut */
	bool is_ended;
	uint64_t n_items;
	uint64_t n_waits; /* how often it has waited */
	uint64_t age_ms;  /* since it opened the channel */
	uint32_t want;    /* what it waits for now: enum slots_want */
	uint64_t wait_ms; /* how long it has waited for that */
};

struct channels_reply PAGE_OF(struct channel_item);
