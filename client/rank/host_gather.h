/*
 * Gathers on host memory by the ranks themselves, on the board of their run
 * (shm/gathers.h): groups that are not whole as they lie, which direct.h does.
 *
 * A rank that unshards a group only says so on the board. Who waits for it asks
 * the limiter's rule, which is a function of what is over; finds the memory
 * that was chosen for the gather, or chooses it; and copies pieces until none
 * is left. So the ranks that wait do the work, and one of them is enough: no
 * rank waits for another but for the limiter, or for a piece that it has begun.
 * The broker is asked for memory that this rank has not seen yet, and why, when
 * a run is over.
 *
 * Memory of whole parameters stays the run's, and is used for one gather after
 * another. It is given up when memory is short.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct comm_join_request;
struct error;
struct fsdp_comm;
struct fsdp_group;
struct fsdp_tensor;
struct gatherer; /* of one communicator; host_gather.c */

/* If `direct` (enum comm_direct) says that the ranks of this run gather;
 * otherwise fsdp-worker does. */
int host_gather_init(struct fsdp_comm *comm,
		     const struct comm_join_request *joined, uint32_t direct,
		     struct error *err);
/* Before the run is left; after it. */
void host_gather_end_handles(struct fsdp_comm *comm);
void host_gather_deinit(struct fsdp_comm *comm);

/* Is the group unsharded so? */
bool host_gather_is_group(const struct fsdp_group *group);

/* Of such groups: as the public functions. */
int host_gather_unshard(struct fsdp_group *group, struct error *err);
int host_gather_wait(struct fsdp_group *group, uint64_t sequence,
		     int32_t timeout_ms, struct error *err);
/* -EAGAIN: it is not whole yet; one piece was copied, if there was one. */
int host_gather_test(struct fsdp_group *group, uint64_t sequence,
		     struct error *err);
int host_gather_reshard(struct fsdp_group *group, uint32_t n_mesh,
			struct error *err);

/* The rank commits next: -EBUSY, -EINVAL. When the broker refuses it, it has
 * not. */
int host_gather_begin_commit(struct fsdp_comm *comm, struct error *err);
void host_gather_undo_commit(struct fsdp_comm *comm);
/* How many gathers it has begun. */
uint64_t host_gather_count(const struct fsdp_comm *comm);
