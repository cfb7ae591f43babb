/*
 * The all-gather limiter: how much unsharded memory may be in flight.
 *
 * Two forms of one thing, chosen at creation:
 *
 * LIMITER_WINDOW, the default: a request is admitted while fewer than `limit`
 * groups are in flight *and* their bytes and its own are at most `limit_bytes`;
 * one that is larger than that is admitted alone: with nothing in flight but
 * exempt groups. In flight is what was admitted and is not freed. Requests are
 * admitted in order; freeing admits as many as fit.
 *
 * LIMITER_FSDP1: PyTorch FSDP1's _FreeEventQueue. Freeing enqueues an
 * event; an unshard pops at most one, and only if `limit` or more are queued,
 * and waits for it. Nothing is drained at the end of an iteration. There a
 * thread waits; here later requests may come meanwhile, and are admitted behind
 * the one that waits.
 *
 * Pure bookkeeping: who waits holds a ticket (a number from 1, growing) and
 * asks whether it was admitted; nothing blocks.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;

#define LIMITER_DEFAULT_LIMIT 2

enum limiter_kind {
	LIMITER_WINDOW = 0,
	LIMITER_FSDP1 = 1,
};

struct limiter_options {
	enum limiter_kind kind;
	uint32_t limit;       /* groups; 0: LIMITER_DEFAULT_LIMIT */
	uint64_t limit_bytes; /* LIMITER_WINDOW; 0: no limit of bytes */
};

/*
 * The rule of LIMITER_WINDOW alone, for a caller that knows what is in flight:
 * give it what is not over, in the order of the requests. With fewer gathers in
 * flight it never admits fewer, so what was admitted once is admitted again.
 */
struct window {
	uint32_t limit;       /* groups; not 0 */
	uint64_t limit_bytes; /* UINT64_MAX: no limit */
	uint32_t n_counted;   /* in flight and not exempt */
	uint64_t bytes;       /* in flight */
};

/* The window of these options, with nothing in flight. */
struct window window_of(const struct limiter_options *options);
/* Is the next one admitted? False: neither it nor any after it. */
bool window_admit(struct window *window, uint64_t bytes, bool is_exempt);

struct limiter; /* limiter.c */

int limiter_new(const struct limiter_options *options, struct limiter **ret,
		struct error *err);
void limiter_free(struct limiter *limiter); /* NULL is fine */

/*
 * An unshard of `bytes` asks to begin. `is_exempt`: a group that stays
 * unsharded on purpose takes no place in the count (its bytes do count; FSDP1's
 * limiter ignores this, since it counts what is freed). -ENOMEM;
 * -EOVERFLOW: with what was asked for before over 2^64 bytes.
 */
int limiter_request(struct limiter *limiter, uint64_t bytes, bool is_exempt,
		    uint64_t *ret_ticket, struct error *err);

/* May it begin? Tickets are never un-admitted; one that was freed is gone. */
bool limiter_is_admitted(const struct limiter *limiter, uint64_t ticket);

/*
 * What was admitted is resharded. `enqueues` (FSDP1): whether an event
 * is queued for it; the window always counts it out. Admits others.
 * Freeing a ticket that still waits withdraws it. A ticket is freed once.
 */
void limiter_free_ticket(struct limiter *limiter, uint64_t ticket,
			 bool enqueues);

/*
 * Faithful form: the event that freeing `ticket` queued has completed (all
 * that used the memory are through). Tickets that wait for it are admitted.
 */
void limiter_complete(struct limiter *limiter, uint64_t ticket);

struct limiter_state {
	uint32_t n_in_flight, n_waiting, n_events;
	uint64_t bytes_in_flight;
	uint64_t n_waits; /* requests that were not admitted at once */
};
void limiter_state(const struct limiter *limiter, struct limiter_state *ret);

/* Faithful: the ticket whose event `ticket`, which is not freed yet, waits for
 * or waited for; 0: it waited for none. */
uint64_t limiter_waited_for(const struct limiter *limiter, uint64_t ticket);
