/*
 * Gathers by the ranks themselves, on host memory and on the board of their run
 * (shm/gathers.h). This is for groups that are not whole in place (unshard.h).
 *
 * A rank that unshards a group only writes that on the board. A rank that waits
 * for the gather applies the limiter's rule, which depends only on the gathers
 * that have ended. It finds the memory that was chosen for the gather, or
 * chooses it, and copies pieces until none is left. So the waiting ranks do the
 * work, and one of them is enough: a rank waits for another only for the
 * limiter, or for a piece that the other has begun. The broker is only asked
 * for memory that this rank has not mapped yet, and for the reason when a run
 * is over.
 *
 * The run keeps the memory of whole parameters, and uses it for one gather
 * after another. It is returned when memory is short.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct comm_join_request;
struct error;
struct fsdp_comm;
struct fsdp_group;
struct gatherer; /* of one communicator; host_gather.c */

/* Make the gatherer of a communicator if `direct` (enum comm_direct) says that
 * the ranks of this run gather; otherwise fsdp-worker gathers. */
int host_gather_init(struct fsdp_comm *comm,
		     const struct comm_join_request *joined, uint32_t direct,
		     struct error *err);
/* Call host_gather_end_handles() before the run is left, and
 * host_gather_deinit() after it. */
void host_gather_end_handles(struct fsdp_comm *comm);
void host_gather_deinit(struct fsdp_comm *comm);

/* Tell whether the ranks gather this group themselves. */
bool host_gather_is_group(const struct fsdp_group *group);

/* Implement the public functions for such groups. unshard.c has checked that
 * the run is alive, and that the group may be unsharded, waited for or
 * resharded to this mesh; host_gather_test() checks the first two itself. */
int host_gather_unshard(struct fsdp_group *group, struct error *err);
int host_gather_wait(struct fsdp_group *group, uint64_t sequence,
		     int32_t timeout_ms, struct error *err);
/* Returns -EAGAIN if the group is not whole yet. One piece was then copied, if
 * there was one to copy. */
int host_gather_test(struct fsdp_group *group, uint64_t sequence,
		     struct error *err);
int host_gather_reshard(struct fsdp_group *group, uint32_t n_mesh,
			struct error *err);

/* Call host_gather_begin_commit() before a commit of this rank. It returns
 * -EINVAL if another rank has begun a gather that this rank has not. Call
 * host_gather_undo_commit() if the broker refuses the commit. */
int host_gather_begin_commit(struct fsdp_comm *comm, struct error *err);
void host_gather_undo_commit(struct fsdp_comm *comm);
/* Return the number of gathers that this rank has begun. */
uint64_t host_gather_count(const struct fsdp_comm *comm);
