/*
 * Unshards: one struct gather for each time a group is unsharded.
 *
 * Gathers are calls (call.h): the ranks unshard in one common order. The first
 * rank to request a gather starts its work: it reads committed shards, which do
 * not change, so no other rank is needed. The memory is released when every
 * rank has started and resharded it.
 *
 *     GATHER_LIMITED -> GATHER_WANTS_ROOM -> GATHER_RUNNING -> GATHER_DONE
 *
 * A gather whose plan is in place, or that finds the copy that a reshard to a
 * smaller mesh kept, is done as soon as it is admitted.
 *
 * The limiter's ticket is freed when all ranks have resharded. With the FSDP1
 * limiter the first rank's reshard enqueues the event, and the last rank's
 * reshard completes it. A group that stays unsharded does not count against the
 * limit, and a plan in place counts no bytes.
 *
 * A gather also waits too long if other gathers keep the limiter's capacity or
 * the memory that it needs. That time-out counts from the last change of
 * either.
 *
 * gather_progress.h starts gathers; gather_late.h describes why one waits.
 */
#pragma once
#include "broker/comm/call.h"
#include "broker/comm/comm.h"
#include "broker/comm/rank_memory.h"
#include <stdint.h>

enum gather_state {
	GATHER_LIMITED,
	GATHER_WANTS_ROOM,
	GATHER_RUNNING,
	GATHER_DONE,
};

#define GATHER_MAX 1024 /* how far a rank may be ahead of another */
/* The limit for one communicator, since all share the engine. */
#define GATHER_MAX_RUNNING 16

struct gather {
	struct call call; /* first, see gather_of() */
	enum gather_state state;
	uint64_t ticket; /* of the limiter */
	bool is_ticket_freed;
	/* The memory of the unsharded parameters, or the committed shards,
	 * pinned. Empty until the gather is admitted. */
	struct rank_memory full;
	uint64_t ended; /* mask of ranks that have resharded it */
	/* The size of the mesh that the ranks resharded to; 0: fully
	 * resharded. */
	uint32_t n_mesh;
};

static inline struct gather *gather_of(struct call *call)
{
	return (struct gather *)call;
}

static inline struct gather *gathers_first(const struct comm *comm)
{
	return gather_of(comm->gathers.first);
}

static inline struct gather *gather_next(const struct gather *gather)
{
	return gather_of(gather->call.next);
}

/*
 * Unshard the group for the rank: by the gather that it has open already, by
 * the one that others began, or by a new one. Returns -EINVAL if another group
 * is next in the ranks' common order, -ENODATA if no shards were committed, and
 * -EBUSY if the rank is committing or too far ahead.
 */
int gather_start(struct group *group, uint32_t rank, uint64_t *ret_sequence,
		 struct error *err);

/* Reshard the group for the rank, fully if `n_mesh` is 0. Returns -EINVAL if
 * the rank has not unsharded it, the mesh does not fit, or other ranks gave
 * another mesh. */
int gather_stop(struct group *group, uint32_t rank, uint32_t n_mesh,
		struct error *err);

/* Find the gather of that sequence number (0: any), if the rank has it open.
 * Returns -EINVAL if it has not. */
int gather_find(const struct group *group, uint32_t rank, uint64_t sequence,
		struct gather **ret, struct error *err);

/* Returns whether any rank has the parameters of the group. */
bool group_is_unsharded(const struct group *group);

/* Free the limiter's ticket if it is no longer needed. */
void gather_free_ticket_if_due(struct gather *gather);

/* End the gather if all ranks have resharded it. This may free it. */
void gather_end_if_over(struct gather *gather);

/* Restart the time-outs of waiting gathers, because the limiter's capacity or
 * the memory has changed. */
void gathers_restart_waits(struct comm *comm);

/* Check that the rank may commit. Returns -EBUSY if it has unsharded groups,
 * and -EINVAL if it has not started a gather that others did. */
int gathers_check_commit(const struct comm *comm, uint32_t rank,
			 struct error *err);

/* Drop the copies that are kept for smaller meshes, which are stale, because
 * all ranks have committed. */
void gathers_on_commit(struct comm *comm);

/* Unpin and free everything at the end of the run, except the limiter's
 * tickets. */
void gathers_free(struct comm *comm);
