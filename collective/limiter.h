/*
 * The limiter decides how much unsharded memory may be in flight. A request is
 * in flight from its admission until its ticket is freed. There are two kinds:
 *
 * LIMITER_WINDOW, the default: a request is admitted while fewer than `limit`
 * groups are in flight *and* their bytes and its own are at most `limit_bytes`.
 * A request that is larger than `limit_bytes` is admitted when only exempt
 * groups are in flight. Requests are admitted in order; freeing a ticket admits
 * as many of them as fit.
 *
 * LIMITER_FSDP1: this is _FreeEventQueue of PyTorch's FSDP1. Freeing a ticket
 * enqueues an event. A request takes at most one event, only if `limit` or more
 * are queued, and waits for it. The queue is not drained at the end of an
 * iteration. In FSDP1 the requesting thread waits; here later requests can
 * arrive meanwhile, and are admitted after the one that waits.
 *
 * The limiter only keeps records, and never blocks. The caller has a ticket (a
 * number from 1, which grows) for each request, and asks whether it is
 * admitted.
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
	uint32_t limit;       /* groups; 0 means LIMITER_DEFAULT_LIMIT */
	uint64_t limit_bytes; /* LIMITER_WINDOW; 0 means no limit */
};

/*
 * The rule of LIMITER_WINDOW without tickets, for a caller that records itself
 * which requests are in flight. It must pass those that are not finished to
 * window_admit(), in the order of the requests. A window with fewer requests in
 * flight never admits fewer, so a request that was admitted once is admitted
 * again.
 */
struct window {
	uint32_t limit;       /* groups; at least 1 */
	uint64_t limit_bytes; /* UINT64_MAX means no limit */
	uint32_t n_counted;   /* in flight and not exempt */
	uint64_t bytes;       /* in flight, with exempt ones */
};

/* Returns the window of these options, with nothing in flight. */
struct window window_of(const struct limiter_options *options);
/* Returns whether the next request is admitted, and counts it if so. If it is
 * not, no later request is admitted either. */
bool window_admit(struct window *window, uint64_t bytes, bool is_exempt);

struct limiter; /* defined in limiter.c */

int limiter_new(const struct limiter_options *options, struct limiter **ret,
		struct error *err);
void limiter_free(struct limiter *limiter); /* `limiter` may be NULL */

/*
 * Requests an unshard of `bytes` bytes. `is_exempt` is for a group that stays
 * unsharded on purpose: it does not count as a group, but its bytes count
 * (LIMITER_FSDP1 ignores this, since it counts freed groups). Returns -ENOMEM,
 * or -EOVERFLOW if the bytes of all tickets would exceed 2^64.
 */
int limiter_request(struct limiter *limiter, uint64_t bytes, bool is_exempt,
		    uint64_t *ret_ticket, struct error *err);

/* Returns whether the unshard may begin. Admission is never withdrawn. A ticket
 * that was freed is not admitted. */
bool limiter_is_admitted(const struct limiter *limiter, uint64_t ticket);

/*
 * Frees a ticket, because its memory was resharded or its request is withdrawn.
 * This admits other requests. `enqueues` says whether LIMITER_FSDP1 queues an
 * event for it; LIMITER_WINDOW ignores it. A ticket is freed only once.
 */
void limiter_free_ticket(struct limiter *limiter, uint64_t ticket,
			 bool enqueues);

/*
 * LIMITER_FSDP1: The event that was queued when `ticket` was freed has
 * completed: nothing uses the memory any more. This admits tickets that wait
 * for the event.
 */
void limiter_complete(struct limiter *limiter, uint64_t ticket);

struct limiter_state {
	uint32_t n_in_flight, n_waiting, n_events;
	uint64_t bytes_in_flight;
	uint64_t n_waits; /* requests that were not admitted immediately */
};
void limiter_state(const struct limiter *limiter, struct limiter_state *ret);

/* LIMITER_FSDP1: Returns the ticket for whose event `ticket` waits or has
 * waited, or 0 if it never waited. `ticket` must not be freed yet. */
uint64_t limiter_waited_for(const struct limiter *limiter, uint64_t ticket);
