/*
 * A call: a request under way, and its answer.
 *
 * Every call has a receive buffer of its own. The reader receives into its own
 * call's; a frame for another call is delivered by swapping the buffers, so
 * receiving needs no memory and no copy.
 */
#pragma once
#include "client/interrupt.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "proto/message.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* An answer: the decoded reply and the fds that came with it. */
struct answer {
	struct reply reply;
	int fds[FRAME_MAX_FDS]; /* owned; -1 once taken */
	uint16_t n_fds;
};

/* Close the descriptors that were not taken, and free the reply. */
void answer_deinit(struct answer *answer);

/* A posted request, `number` among those of `data`, was refused. Called by
 * whoever reads, with the connection's lock held. */
typedef void connection_refused_fn(void *data, uint64_t number,
				   const struct error *cause);

/* Whom to tell of a refusal; `refused` may be NULL. */
struct post {
	connection_refused_fn *refused;
	void *data;
	uint64_t number;
};

struct call {
	uint16_t kind;
	uint64_t number;
	uint8_t *body; /* owned */
	uint32_t body_size;
	int fd;             /* owned; travels along; -1: none */
	uint8_t *buffer;    /* owned, FRAME_MAX_SIZE */
	struct frame frame; /* the answer, lies in `buffer` */
	pthread_cond_t changed;
	bool was_sent;  /* at least once: it may have been done */
	bool is_done;   /* `frame`, or `error`, is there */
	bool is_orphan; /* its caller gave up, or never waited */
	bool is_posted; /* orphan from birth: must be done */
	bool is_begun;  /* to be collected: no thread waits for it */
	bool is_interrupted;
	struct post post;
	struct error error;
	struct call *next, *prev;
};

/* The calls of a connection, by their numbers. */
struct calls {
	struct call *first, *last; /* unanswered, by number */
	struct call *first_unsent;
	struct call *idle; /* for reuse */
	uint64_t next_number;
	uint32_t n_posted; /* whose answers nobody has read yet */
};

#define CALLS_NULL ((struct calls){.next_number = 1})

/* Free all calls. */
void calls_deinit(struct calls *calls);

/* An empty call; NULL: out of memory. It goes back by call_give(). */
struct call *call_take(struct calls *calls);
void call_give(struct calls *calls, struct call *call);

/* Give the call the next number, and put it at the end of those to be sent. */
void call_append(struct calls *calls, struct call *call);
void call_detach(struct calls *calls, struct call *call);

/* May the broker have given, or be about to give, us something for it? */
bool call_may_be_granted(const struct call *call);

/* May the caller's function end the wait for its answer? Not if what we hold
 * must change as the broker has changed it. */
bool call_may_be_cut(const struct call *call);

/* `interrupt` if the call may be cut, else none. */
struct interrupt call_interrupt(const struct call *call,
				const struct interrupt *interrupt);

/* The broker cannot remember more answers of this session now: many threads
 * asked at once. Nothing was done. */
#define CALL_AGAIN 1

/* The answer in the call's buffer, with its fds. CALL_AGAIN, or the error with
 * which the broker refused. */
int call_decode(const struct call *call, struct answer *ret, struct error *err);

/* Take the fds of the answer. */
void call_take_fds(const struct call *call, struct answer *ret);
