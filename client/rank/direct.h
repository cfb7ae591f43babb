/*
 * A rank on host memory does these collectives without the broker.
 *
 * The committed shards of a group whose plan is in place are its whole
 * parameters, and each rank has them mapped from registering to leaving. So an
 * unshard of such a group copies nothing, takes no memory that a limiter would
 * have to count, and needs no other rank: it makes no system call. Its ranks
 * may come in any order, and one of them may be ahead of the others by any
 * number of unshards, up to the next commit.
 *
 * But a rank must not miss the end of the run, such as the death of another
 * rank. It looks at the run's word of the state table (shm/table.h), and asks
 * the broker for the reason only when the run is over.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_comm;
struct fsdp_group;

/* Is the group unsharded without the broker? */
bool direct_is_group(const struct fsdp_group *group);

/* For such groups these do as the public functions. -ENODATA, -ECONNABORTED,
 * -EINVAL. */
int direct_unshard(struct fsdp_group *group, struct error *err);
int direct_wait_unshard(struct fsdp_group *group, uint64_t sequence,
			struct error *err);
int direct_reshard(struct fsdp_group *group, uint32_t n_mesh,
		   struct error *err);

/* Checks that the groups of this kind let this rank commit: -EBUSY. */
int direct_check_commit(const struct fsdp_comm *comm, struct error *err);
