/*
 * Calls: the gathers, or the reductions, of a communicator.
 *
 * The ranks make the same calls in one common order. A list of calls has this
 * order, from the present call of the slowest rank to the newest. A rank's next
 * call is the first one of the list that it has not made; past the end of the
 * list it begins a new one.
 *
 * A rank is late if it has not made a call that others made within the
 * communicator's time-out, counted from the start of that call or from the time
 * when that rank made the one before it. For each rank only its next call
 * counts, because it cannot be expected to make later ones yet. A call can also
 * wait too long for resources that other calls keep, such as memory.
 */
#pragma once
#include "proto/error.h"
#include <stdbool.h>
#include <stdint.h>

struct comm;
struct group;

struct call {
	struct group *group;
	uint64_t sequence; /* number within the group */
	uint64_t turn;     /* comm_worker.h */
	uint64_t made;     /* mask of the ranks that made it */
	/* The start of the time-out of ranks that have not made it. */
	uint64_t since_ms;
	/* The time since which it waits for resources that other calls keep; 0:
	 * it does not wait. */
	uint64_t waits_since_ms;
	struct error shortage; /* says which memory it waits for */
	struct call *next;
};

struct calls {
	struct call *first, *last;
};

/* Append a call to the list, or remove it. The caller owns the call. */
void calls_append(struct calls *calls, struct call *call);
void calls_remove(struct calls *calls, struct call *call);

/* Returns the call of that number within the group, or NULL. */
struct call *calls_find(const struct calls *calls, const struct group *group,
			uint64_t sequence);

/* Returns the first call that others have made and the rank has not, or
 * NULL. */
struct call *calls_next(const struct calls *calls, uint32_t rank);

uint32_t calls_count(const struct calls *calls);

/* Note that the rank has made the call, so that it is expected to make the next
 * one. */
void call_note_made(struct call *call, uint32_t rank);

struct late_call {
	struct call *call; /* NULL: no rank is late, and no call waits */
	uint64_t since_ms;
	/* The call waits for resources; otherwise it waits for ranks. */
	bool is_waiting;
};

/* Find the call that will be late first. */
struct late_call calls_find_late(const struct calls *calls,
				 const struct comm *comm);

/* Returns the time at which that call is late; UINT64_MAX means never. */
uint64_t calls_deadline(const struct calls *calls, const struct comm *comm);
