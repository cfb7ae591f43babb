/*
 * A rank unshards a group, uses the whole parameters, and reshards the group.
 *
 * On host memory the ranks do this without the broker. Most groups are gathered
 * (host_gather.h). But the committed shards of a group whose plan is in place
 * are its whole parameters, and each rank has them mapped from registering to
 * leaving. So an unshard of such a group copies nothing, takes no memory that a
 * limiter would have to count, and needs no other rank: it makes no system
 * call. Its ranks may come in any order, and one of them may be ahead of the
 * others by any number of unshards, up to the next commit.
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
bool unshard_is_by_ranks(const struct fsdp_group *group);

/* For such groups this does as fsdp_wait(). */
int unshard_wait_by_ranks(struct fsdp_group *group, uint64_t sequence,
			  int32_t timeout_ms, struct error *err);

/* Checks that the groups of this kind let this rank commit: -EBUSY. */
int unshard_check_commit(const struct fsdp_comm *comm, struct error *err);

/* Call this if the broker does not know an unshard that is open here. If the
 * broker has refused it, this closes it and returns true with the reason. */
bool unshard_is_refused(struct fsdp_group *group, struct error *ret);
/* Does this rank know, without asking, that the unshard is done? */
bool unshard_is_whole(const struct fsdp_group *group, uint64_t sequence);
