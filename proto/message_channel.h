/*
 * Messages of channels: requests, then replies. What they mean is in
 * broker/tensor/channel.h and shm/slots.h.
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

/* Answered when the session has a place in the channel, in one role. */
struct channel_open_request {
	const char *name;
	struct access_class access;
	uint64_t capacity;  /* of a buffer, bytes; 0: it must exist already, and
			       `access`, `n_slots` and `way` are ignored */
	uint32_t n_slots;   /* decoding makes 0 8 */
	uint32_t way;       /* enum slots_mode */
	uint32_t role;      /* enum channel_role */
	bool writes;        /* the buffers; producers do */
	int32_t timeout_ms; /* for memory, and until it exists */
	uint32_t lag_ms;    /* of a broadcast, or 0: no consumer is cut */
	bool knows_limit;   /* of slots: a library that can be resized */
};

/* The file of its words: the reply is empty, and the file comes along. */
struct channel_slots_request {
	uint64_t channel;
	uint32_t place;
};

/* One of its buffers, as a tensor that is held: struct places_reply. -ESTALE:
 * there is none now. */
struct channel_buffer_request {
	uint64_t channel;
	uint32_t place;
	uint32_t at;
};

/* The place is given up; `is_end`: it sends nothing more, and stays. */
struct channel_close_request {
	uint64_t channel;
	uint32_t place;
	bool is_end;
};

/* This buffer leaves the channel, since its item is kept. */
struct channel_keep_request {
	uint64_t channel;
	uint32_t place;
	uint32_t at;
	struct slot_ref ref;
};

/* This producer has waited `lag_ms` for a buffer: consumers that keep the
 * oldest item from it for so long are cut. */
struct channel_lag_request {
	uint64_t channel;
	uint32_t place;
};

/* The channel should have so many buffers. */
struct channel_resize_request {
	uint64_t channel;
	uint32_t place;
	uint32_t n_slots;
	int32_t timeout_ms; /* for memory */
};

/* Page by page: struct channels_reply. */
struct channels_request {
	uint64_t cursor;
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

/* A process that has a channel open, and the channel. */
struct channel_item {
	const char *name;
	uint32_t uid; /* made it */
	uint32_t way;
	uint64_t capacity;
	uint32_t n_slots; /* that have a buffer now */
	uint32_t n_queued;
	uint32_t pid;
	const char *command;
	uint32_t role;
	bool is_ended; /* a producer that sends nothing more; a consumer that
			  was cut */
	uint64_t n_items;
	uint64_t n_waits; /* how often it waited */
	uint64_t age_ms;  /* since it opened the channel */
	uint32_t want;    /* what it waits for now */
	uint64_t wait_ms; /* since when */
};

struct channels_reply {
	uint32_t n_items;
	struct channel_item *items;
	uint64_t next_cursor; /* 0: that was all */
};
