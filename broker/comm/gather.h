/*
 * Unshards: one struct gather for each time a group is unsharded.
 *
 * The ranks of a communicator unshard in one common order. The list of gathers
 * is that order, from the present one of the slowest rank to the newest. A
 * rank's next unshard is the first gather of the list that it has not started,
 * and must be of the same group; past the end of the list it begins a new
 * gather. The first rank to request a gather has its work started: it reads
 * committed shards, which do not change, so no other rank is needed. The memory
 * is released when every rank has started and resharded it.
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
 * A rank is late if it has not started what others did within the
 * communicator's time-out, counted from the start of that gather or from the
 * time when that rank started the one before it. A rank is also late if it
 * keeps the limiter's capacity or the memory from a gather that waits, counted
 * from the last change of either.
 */
#pragma once
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
	struct group *group;
	uint64_t sequence; /* within the group */
	uint64_t turn;     /* comm_worker.h */
	enum gather_state state;
	uint64_t ticket; /* of the limiter */
	bool is_ticket_freed;
	/* `full`, or the committed shards; pinned. Empty until admitted. */
	struct rank_memory full;
	uint64_t started, ended; /* masks of ranks */
	/* Size of the mesh that the ranks resharded to; 0: fully resharded. */
	uint32_t n_mesh;
	/* Start of the time-out of ranks that have not started it. */
	uint64_t since_ms;
	/* Since when it waits for the limiter or for memory. */
	uint64_t waits_since_ms;
	struct error shortage; /* GATHER_WANTS_ROOM: the cause of the wait */
	struct gather *next;
};

/* Device memory of former unsharded parameters, kept pinned for reuse. */
struct full_aside {
	struct rank_memory memory;
	uint64_t size; /* bytes of each slot */
	struct full_aside *next;
};

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

/* The gather of that sequence number (0: any), if the rank has it
 * open. -EINVAL. */
int gather_find(const struct group *group, uint32_t rank, uint64_t sequence,
		struct gather **ret, struct error *err);

/* The gather is not done: -ETIMEDOUT, with what it waits for. */
int gather_refuse_wait(const struct gather *gather, struct error *err);

/* Start what the limiter and the memory allow. Collects limbo
 * first. Commits. */
void gathers_progress(struct comm *comm);

/* When a rank is too late for a gather (UINT64_MAX: never), and the message for
 * that case. */
uint64_t gathers_deadline(const struct comm *comm);
void gathers_describe_late(const struct comm *comm, struct error *ret);

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
