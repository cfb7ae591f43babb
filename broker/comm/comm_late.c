#include "broker/comm/comm_late.h"
#include "broker/comm/comm_commit.h"
#include "broker/comm/gather_late.h"
#include "broker/comm/group.h"
#include "broker/comm/reduce_late.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>

/* While ranks wait for others, the time between two looks whether ranks are
 * ending. It doubles until no rank waits. */
#define LOOK_MS     20
#define MAX_LOOK_MS 1000

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t joined_mask(const struct comm *comm)
{
	uint64_t mask = 0;

	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (comm->ranks[i].session)
			mask |= rank_bit(i);
	}
	return mask;
}

static uint64_t commit_deadline(const struct comm *comm)
{
	if (!comm->committing || comm->comparing == comm->committing)
		return UINT64_MAX;
	return comm->committing_since_ms + (uint64_t)comm->timeout_ms;
}

static uint64_t find_deadline(const struct comm *comm)
{
	uint64_t at_ms = UINT64_MAX;

	/* While the worker opens the communicator, the worker's time-out
	 * applies. */
	if (comm->state == COMM_JOINING && !comm_has_all(comm))
		return comm->begun_ms + (uint64_t)comm->timeout_ms;
	if (comm->state == COMM_RUNNING) {
		at_ms = min_u64(groups_deadline(comm),
				calls_deadline(&comm->gathers, comm));
		at_ms = min_u64(at_ms, calls_deadline(&comm->reductions, comm));
		at_ms = min_u64(at_ms, commit_deadline(comm));
	}
	return at_ms;
}

/* A rank that is ending will be late for what others wait for. */
static uint64_t find_next(const struct comm *comm)
{
	return min_u64(find_deadline(comm),
		       comm->look_ms ? comm->look_at_ms : UINT64_MAX);
}

/* Plan the next look if ranks wait, unless it is planned already. */
static void plan_look(struct comm *comm)
{
	if (find_deadline(comm) == UINT64_MAX) {
		comm->look_ms = 0;
	} else if (!comm->look_ms) {
		comm->look_ms = LOOK_MS;
		comm->look_at_ms = now_ms() + LOOK_MS;
	}
}

static void look_again(struct comm *comm)
{
	comm_look_all(comm);
	comm->look_ms = min_u64(2 * comm->look_ms, MAX_LOOK_MS);
	comm->look_at_ms = now_ms() + comm->look_ms;
}

static void fail_join(struct comm *comm)
{
	char missing[RANK_TEXT];

	comm_name_missing(comm, joined_mask(comm), missing);
	comm_fail(comm, -ETIMEDOUT,
		  "%s did not join communicator '%s' within %d ms", missing,
		  comm->name, comm->timeout_ms);
}

static void fail_commit(struct comm *comm)
{
	char missing[RANK_TEXT];

	comm_name_missing(comm, comm_committed(comm), missing);
	comm_fail(comm, -ECONNABORTED,
		  "%s has not committed step %llu of communicator '%s' within "
		  "%d ms",
		  missing, (unsigned long long)comm->committing, comm->name,
		  comm->timeout_ms);
}

/* Find out which deadline has expired, and fail the communicator. */
static void fail_expired_deadline(struct comm *comm, uint64_t now)
{
	struct error late = ERROR_NULL;

	if (comm->state == COMM_JOINING) {
		fail_join(comm);
		return;
	}
	if (groups_deadline(comm) <= now) {
		groups_on_late(comm);
		return;
	}
	if (commit_deadline(comm) <= now) {
		fail_commit(comm);
		return;
	}
	if (calls_deadline(&comm->gathers, comm) <= now)
		gathers_describe_late(comm, &late);
	else
		reductions_describe_late(comm, &late);
	comm_fail(comm, late.code, "communicator '%s': %s", comm->name,
		  late.msg);
}

static void set_deadline(struct comm *comm, uint64_t at_ms);

static void on_deadline(void *data, uint32_t index)
{
	struct comm *comm = data;

	(void)index;
	set_deadline(comm, UINT64_MAX);
	if (find_deadline(comm) <= now_ms())
		fail_expired_deadline(comm, now_ms());
	else
		look_again(comm);
	comm_late_update(comm);
	catalog_commit(&comm->comms->store->catalog);
}

static int add_deadline(struct comm *comm, uint64_t at_ms, struct error *err)
{
	struct deadline deadline = {
		.at_ms = at_ms,
		.fn = on_deadline,
		.data = comm,
		.position = &comm->deadline_position,
	};

	return deadlines_add(&comm->comms->store->base->deadlines, &deadline,
			     err);
}

static void set_deadline(struct comm *comm, uint64_t at_ms)
{
	int r;

	deadlines_remove(&comm->comms->store->base->deadlines,
			 &comm->deadline_position);
	r = add_deadline(comm, at_ms, NULL);
	assert(r == 0); /* the old entry left space */
	(void)r;
}

void comm_late_update(struct comm *comm)
{
	plan_look(comm);
	set_deadline(comm, find_next(comm));
}

int comm_late_init(struct comm *comm, struct error *err)
{
	return add_deadline(comm, UINT64_MAX, err);
}

void comm_late_deinit(struct comm *comm)
{
	deadlines_remove(&comm->comms->store->base->deadlines,
			 &comm->deadline_position);
}
