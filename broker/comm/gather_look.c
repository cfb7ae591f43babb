#include "broker/comm/gather_look.h"
#include "broker/comm/comm.h"
#include "broker/comm/full_memory.h"
#include "broker/comm/group.h"
#include "collective/limiter.h"
#include "shm/gathers.h"

/* The greatest number of a gather (shm/gathers.h); a run may have counted more.
 * Totals must not fall if a rank writes an invalid number. */
#define MAX_COUNT (UINT64_C(1) << 48)

static const struct group *find_group(const struct comm *comm, uint32_t index)
{
	const struct group *group = comm->first_group;

	while (group && !(group->is_ready && group->index == index))
		group = group->next;
	return group;
}

static uint64_t find_newest(const struct comm *comm)
{
	uint64_t newest = 0;

	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		uint64_t began = atomic_load_explicit(
			&gathers_of(&comm->board, i)->began,
			memory_order_relaxed);

		if (began > newest && began < MAX_COUNT)
			newest = began;
	}
	return newest;
}

static void add(struct window *window, const struct group *group,
		struct limiter_state *ret)
{
	uint64_t bytes = full_memory_size(group);

	/* All gathers after the first that waits also wait. */
	if (ret->n_waiting ||
	    !window_admit(window, bytes, group->plan.policy.stays_unsharded)) {
		ret->n_waiting++;
		return;
	}
	ret->n_in_flight++;
	ret->bytes_in_flight += bytes;
}

void gathers_look_up(const struct comm *comm, struct limiter_state *ret)
{
	const struct limiter_options options = {
		.limit = comm->asked.limit,
		.limit_bytes = comm->asked.limit_bytes,
	};
	struct window window = window_of(&options);
	uint64_t newest, number;

	if (!comm->board.page)
		return;
	newest = find_newest(comm);
	number = newest > GATHERS_PLACES ? newest - GATHERS_PLACES : 0;
	while (++number <= newest) {
		const struct group *group;
		struct gathers_turn turn;

		if (!gathers_look(&comm->board, number, &turn) ||
		    !gathers_open(&comm->board, number, turn.group))
			continue;
		group = find_group(comm, turn.group);
		if (group)
			add(&window, group, ret);
	}
}

bool gather_is_on_board(const struct group *group)
{
	const struct comm *comm = group->comm;
	uint64_t last;

	if (!comm->board.page || !group->is_ready)
		return false;
	last = gathers_last(&comm->board, group->index);
	return last && gathers_open(&comm->board, last, group->index);
}

/* --- totals -------------------------------------------------------------- */

static void add_count(const _Atomic uint64_t *counter, uint64_t *ret)
{
	uint64_t n = atomic_load_explicit(counter, memory_order_relaxed);

	*ret += n < MAX_COUNT ? n : MAX_COUNT;
}

static void add_run(const struct comm *comm, struct gather_totals *ret)
{
	for (uint32_t i = 0; comm->board.page && i < comm->n_ranks; i++) {
		const struct gathers_rank *rank = gathers_of(&comm->board, i);

		add_count(&rank->n_unshards, &ret->n_unshards);
		add_count(&rank->n_limited, &ret->n_limited);
		add_count(&rank->n_gathers, &ret->n_gathers);
		add_count(&rank->n_bytes, &ret->n_bytes);
	}
}

void gathers_end_totals(struct comm *comm)
{
	add_run(comm, &comm->comms->gathered);
}

void gathers_add_totals(const struct comms *comms, struct gather_totals *ret)
{
	ret->n_unshards += comms->gathered.n_unshards;
	ret->n_limited += comms->gathered.n_limited;
	ret->n_gathers += comms->gathered.n_gathers;
	ret->n_bytes += comms->gathered.n_bytes;
	for (const struct comm *comm = comms->first; comm; comm = comm->next)
		add_run(comm, ret);
}
