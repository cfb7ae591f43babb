/*
 * Unshards: one struct gather for each time a group becomes whole.
 *
 * The ranks of a communicator unshard in one common order: its list of
 * gathers is that order, from the slowest rank's present one to the newest.
 * A rank's next unshard is the first gather of the list that it has not
 * started, and must be of the same group; past the end it begins a new one.
 * The first rank to ask has the work begun: the committed shards stand still,
 * so nobody else is needed. The memory goes when every rank has started and
 * resharded it.
 *
 *     GATHER_LIMITED -> GATHER_WANTS_ROOM -> GATHER_RUNNING -> GATHER_DONE
 *
 * A gather whose plan is in place, or that finds the copy kept by a reshard to
 * a smaller mesh, is done as soon as it is admitted.
 *
 * The limiter's ticket goes when all ranks have resharded. In its faithful
 * form the first rank's reshard is what enqueues the event, and the last
 * rank's completes it. A group that stays unsharded takes no place in the
 * count, and one that is in place no bytes.
 *
 * Somebody is late who has not started what others did within the
 * communicator's time-out, counted from when it was begun or from when that
 * rank started what comes before it; and so is whoever keeps the limiter or
 * the memory from a gather that waits, counted from when either last changed.
 */
#pragma once
#include "broker/comm.h"
#include "broker/rank_memory.h"
#include <stdint.h>

enum gather_state {
	GATHER_LIMITED,
	GATHER_WANTS_ROOM,
	GATHER_RUNNING,
	GATHER_DONE,
};

#define GATHER_MAX 1024 /* that a rank may be ahead of another */
/* Of one communicator, at the engine: it is for others too. */
#define GATHER_MAX_RUNNING 16

struct gather {
	struct group *group;
	uint64_t sequence; /* in the group */
	uint64_t turn;     /* comm_worker.h */
	enum gather_state state;
	uint64_t ticket; /* limiter's */
	bool is_ticket_freed;
	/* `full`, or the committed shards: pinned. None yet. */
	struct rank_memory full;
	uint64_t started, ended; /* masks of ranks */
	uint32_t n_mesh;         /* what the ranks resharded to; 0: whole */
	uint64_t since_ms;       /* who has not started it is late since */
	uint64_t waits_since_ms; /* for the limiter, or for room */
	struct error shortage;   /* GATHER_WANTS_ROOM: why it waits */
	struct gather *next;
};

/* Memory that was whole parameters, on devices, to be so again; pinned. */
struct full_aside {
	struct rank_memory memory;
	uint64_t size; /* bytes of each slot */
	struct full_aside *next;
};

/*
 * The rank unshards the group: the instance it has open already, the one that
 * others began, or a new one. -EINVAL: something else is next in the ranks'
 * order. -ENODATA: nothing was committed. -EBUSY: it is committing, or too far
 * ahead.
 */
int gather_start(struct group *group, uint32_t rank, uint64_t *ret_sequence,
		 struct error *err);

/* The rank needs it no more; `n_mesh` 0: whole. -EINVAL: it has not unsharded
 * it, the mesh does not fit, or others gave another one. */
int gather_stop(struct group *group, uint32_t rank, uint32_t n_mesh,
		struct error *err);

/* The one of that sequence, 0: any, if the rank has it open. -EINVAL. */
int gather_find(const struct group *group, uint32_t rank, uint64_t sequence,
		struct gather **ret, struct error *err);

/* It is not done: -ETIMEDOUT, with what it waits for. */
int gather_refuse_wait(const struct gather *gather, struct error *err);

/* Start what the limiter and the memory allow. Collects limbo first. Commits.
 */
void gathers_progress(struct comm *comm);

/* When somebody is too late for one of them (UINT64_MAX: nobody), and what to
 * say then. */
uint64_t gathers_deadline(const struct comm *comm);
void gathers_describe_late(const struct comm *comm, struct error *ret);

/* Has the rank unsharded something, or not started what others did? -EBUSY,
 * -EINVAL: it cannot commit. */
int gathers_check_commit(const struct comm *comm, uint32_t rank,
			 struct error *err);

/* All ranks have committed: copies kept for smaller meshes are stale. */
void gathers_on_commit(struct comm *comm);

/* The run is over: unpin, forget. The limiter's tickets are left alone. */
void gathers_free(struct comm *comm);
