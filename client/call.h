/*
 * A call: a request under way, and its reply.
 *
 * Every call has a receive buffer of its own. The reader receives into the
 * buffer of its own call; a frame for another call is delivered by swapping the
 * buffers, so receiving needs no allocation and no copy.
 */
#pragma once
#include "client/interrupt.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "proto/message.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The decoded reply and the descriptors that came with it. */
struct received {
	struct reply reply;
	int fds[FRAME_MAX_FDS]; /* owned; -1 once taken */
	uint16_t n_fds;
};

/* Close the descriptors that were not taken, and free the reply. */
void received_deinit(struct received *received);

/* The broker refused one-way request `number` among those of `data`. The
 * reading thread calls this with the connection's lock held. */
typedef void connection_refused_fn(void *data, uint64_t number,
				   const struct error *cause);

/* The function that is told of a refusal; `refused` may be NULL. */
struct one_way {
	connection_refused_fn *refused;
	void *data;
	uint64_t number;
};

struct call {
	uint16_t kind;
	uint64_t number;
	uint8_t *body; /* owned */
	uint32_t body_size;
	int fd;             /* owned; sent with the request; -1: none */
	uint8_t *buffer;    /* owned, FRAME_MAX_SIZE */
	struct frame frame; /* the reply, lies in `buffer` */
	pthread_cond_t changed;
	bool was_sent;   /* at least once, so the broker may have done it */
	bool is_done;    /* `frame` or `error` is set */
	bool is_orphan;  /* its caller gave up, or never waited */
	bool is_one_way; /* one-way: nobody waits, but it must be done */
	bool is_begun; /* begun: it is collected, and no thread waits for it */
	bool is_interrupted;
	struct one_way one_way;
	struct error error;
	struct call *next, *prev;
};

/* The calls of a connection, by their numbers. */
struct calls {
	struct call *first, *last; /* unanswered, by number */
	struct call *first_unsent;
	struct call *idle; /* for reuse */
	uint64_t next_number;
	uint32_t n_one_way; /* one-way requests whose replies were not read yet
			     */
};

#define CALLS_NULL ((struct calls){.next_number = 1})

/* Free all calls. */
void calls_deinit(struct calls *calls);

/* An empty call; NULL: out of memory. call_give() takes it back. */
struct call *call_take(struct calls *calls);
void call_give(struct calls *calls, struct call *call);

/* Give the call the next number, and append it to the calls to be sent. */
void call_append(struct calls *calls, struct call *call);
void call_detach(struct calls *calls, struct call *call);

/* Can the broker have granted something for it, or be about to? */
bool call_may_be_granted(const struct call *call);

/* May the caller's interrupt function end the wait for the reply? No, if our
 * holds must change as the broker has changed them. */
bool call_may_be_cut(const struct call *call);

/* `interrupt` if the call may be interrupted, else none. */
struct interrupt call_interrupt(const struct call *call,
				const struct interrupt *interrupt);

/* The broker cannot record more replies of this session now, because many
 * threads asked at the same time. Nothing was done. */
#define CALL_AGAIN 1

/* Decode the reply in the call's buffer, with its descriptors. CALL_AGAIN, or
 * the error of the broker's refusal. */
int call_decode(const struct call *call, struct received *ret,
		struct error *err);

/* One 64-bit number of the reply, which is `at` bytes into struct reply, before
 * it is decoded; 0 if it has none, or was refused. */
uint64_t call_peek(const struct call *call, size_t at);

/* Take the descriptors of the reply. */
void call_take_fds(const struct call *call, struct received *ret);
