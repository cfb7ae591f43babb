/*
 * Unshards: one struct gather for each time a group is unsharded.
 *
 * Gathers are calls (call.h): the ranks unshard in one common order. The first
 * rank to request a gather has its work started: it reads committed shards,
 * which do not change, so no other rank is needed. The memory is released when
 * every rank has started and resharded it.
 *
 *     GATHER_LIMITED -> GATHER_WANTS_ROOM -> GATHER_RUNNING -> GATHER_DONE
 *
 * A gather whose plan is in place, or that finds the copy kept by a reshard to
 * a smaller mesh, is done as soon as it is admitted.
 *
 * The limiter's ticket is freed when all ranks have resharded. With the FSDP1
 * limiter the first rank's reshard enqueues the event, and the last rank's
 * reshard completes it. A group that stays unsharded does not count against the
 * limit, and a plan in place counts no bytes.
 *
 * Ranks also wait for one that keeps the limiter's capacity or the memory from
 * a gather. That time-out counts from the last change of either.
 *
 * gather_progress.h starts gathers; gather_late.h describes what one waits for.
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
/* Limit for one communicator, since all share the engine. */
#define GATHER_MAX_RUNNING 16

struct gather {
	struct call call; /* first: see gather_of() */
	enum gather_state state;
	uint64_t ticket; /* of the limiter */
	bool is_ticket_freed;
	/* `full`, or the committed shards; pinned. Empty until admitted. */
	struct rank_memory full;
	uint64_t ended; /* mask of ranks */
	/* Size of the mesh that the ranks resharded to; 0: fully resharded. */
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
 * The rank unshards the group: the gather that it has open already, the one
 * that others began, or a new one. -EINVAL: the ranks' common order has another
 * group next. -ENODATA: no shards were committed. -EBUSY: the rank is
 * committing, or too far ahead.
 */
int gather_start(struct group *group, uint32_t rank, uint64_t *ret_sequence,
		 struct error *err);

/* The rank reshards the group; `n_mesh` 0: fully. -EINVAL: the rank has not
 * unsharded it, the mesh does not fit, or other ranks gave another mesh. */
int gather_stop(struct group *group, uint32_t rank, uint32_t n_mesh,
		struct error *err);

/* Find the gather of that sequence number (0: any), if the rank has it open.
 * -EINVAL. */
int gather_find(const struct group *group, uint32_t rank, uint64_t sequence,
		struct gather **ret, struct error *err);

/* Does any rank have the parameters of the group? */
bool group_is_unsharded(const struct group *group);

/* Free the limiter's ticket if nobody needs it any more. */
void gather_free_ticket_if_due(struct gather *gather);

/* End a gather that all ranks have resharded. It may have been freed
 * afterwards. */
void gather_end_if_over(struct gather *gather);

/* What waiting gathers wait for has changed: restart their time-outs. */
void gathers_restart_waits(struct comm *comm);

/* -EBUSY: the rank has unsharded groups, or -EINVAL: it has not started a
 * gather that others did, so it cannot commit. */
int gathers_check_commit(const struct comm *comm, uint32_t rank,
			 struct error *err);

/* All ranks have committed: drop the copies kept for smaller meshes, which
 * are stale. */
void gathers_on_commit(struct comm *comm);

/* The run is over: unpin and free everything. The limiter's tickets are left as
 * they are. */
void gathers_free(struct comm *comm);
