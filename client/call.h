/*
 * A call: a request that was not answered yet, or whose reply was not taken
 * yet.
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
	int fds[FRAME_MAX_FDS]; /* owned; -1: taken by the caller */
	uint16_t n_fds;
	/* The interrupt function ended the wait just when the reply came; set
	 * by connection_call(), also if the broker refused the request. */
	bool is_interrupted;
	/* The broker has refused the request; false if it is not known whether
	 * the broker carried the request out. */
	bool is_refused;
};

/* Close the descriptors that were not taken, and free the reply. */
void received_deinit(struct received *received);

/* Reports that the broker refused one-way request `number` of `data`. The
 * reading thread calls this function with the connection's lock held. */
typedef void connection_refused_fn(void *data, uint64_t number,
				   const struct error *cause);

/* The function that reports a refusal; `refused` may be NULL. */
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
	struct frame frame; /* the reply; its body is in `buffer` */
	pthread_cond_t changed;
	bool was_sent;   /* at least once, so the broker may have executed it */
	bool is_done;    /* `frame` or `error` is set */
	bool is_orphan;  /* its caller gave up, or never waited */
	bool is_one_way; /* one-way: no thread waits for it */
	bool is_begun;   /* it is collected later, and no thread waits for it */
	bool is_interrupted;
	int64_t asked_ms; /* when the interrupt function was last called */
	struct one_way one_way;
	struct error error;
	struct call *next, *prev;
};

/* The calls of a connection, by their numbers. */
struct calls {
	/* unanswered, in the order of their numbers */
	struct call *first, *last;
	struct call *first_unsent;
	struct call *idle; /* for reuse */
	uint64_t next_number;
	uint32_t n_one_way; /* one-way requests without a reply so far */
};

#define CALLS_NULL ((struct calls){.next_number = 1})

/* Free all calls. */
void calls_deinit(struct calls *calls);

/* Take an unused call, or allocate one; NULL: out of memory. call_give()
 * returns it. */
struct call *call_take(struct calls *calls);
void call_give(struct calls *calls, struct call *call);

/* call_append() gives the call the next number and appends it to the calls to
 * be sent; call_detach() removes it from the list. */
void call_append(struct calls *calls, struct call *call);
void call_detach(struct calls *calls, struct call *call);

/* Tell whether the broker may have changed the holds of this process for this
 * call, or may still do so: without a reply the call must stay in the list. */
bool call_may_change_holds(const struct call *call);

/* Tell whether the caller's interrupt function may end the wait for the reply.
 * It may not if the request changes the holds of this process, since the
 * process must then know whether the broker has changed them. */
bool call_may_be_cut(const struct call *call);

/* Tell whether the call ends something that its caller does not use any more,
 * whatever the reply is. */
bool call_is_farewell(const struct call *call);

/* Tell whether the reply is read although the caller has given up, and the
 * request is sent again if the broker goes away: the call is a farewell, or the
 * broker may have opened something that nobody knows of. */
bool call_must_be_read(const struct call *call);

/* Let the request, if it is sent again, not wait at the broker, because its
 * caller has given up. Without memory it stays as it is. */
void call_hurry(struct call *call);

/* Turn an orphan into another request, which the caller appends again. */
int call_become(struct call *call, const struct request *request);

/* Return `interrupt` if the call may be interrupted, otherwise one that never
 * interrupts. */
struct interrupt call_interrupt(const struct call *call,
				const struct interrupt *interrupt);

/* The broker cannot record more replies of this session now, because many
 * threads sent requests at the same time. The request was not executed. */
#define CALL_AGAIN 1

/* Decode the reply in the call's buffer, with its descriptors. If the broker
 * refused the request, this returns its error, or CALL_AGAIN for -EAGAIN. */
int call_decode(const struct call *call, struct received *ret,
		struct error *err);

/* Read one 64-bit number of the reply, at offset `at` in struct reply, before
 * the reply is decoded. Returns 0 if the reply does not contain it, or is a
 * refusal. */
uint64_t call_peek(const struct call *call, size_t at);

/* Move the descriptors of the reply to `ret`. */
void call_take_fds(const struct call *call, struct received *ret);
