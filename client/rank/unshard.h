/*
 * Unsharding: a rank unshards a group, uses the whole parameters, and reshards
 * the group.
 *
 * On host memory the ranks do this without the broker. Most groups are gathered
 * (host_gather.h). But if the plan of a group is in place, its committed shards
 * are its whole parameters, which each rank has mapped from the registration
 * until it leaves. An unshard of such a group copies nothing, takes no memory
 * that a limiter would have to count, and needs no other rank: it makes no
 * system call. Its ranks may unshard in any order, and one of them may be ahead
 * of the others by any number of unshards, up to the next commit.
 *
 * But a rank must not miss the end of the run, such as the death of another
 * rank. It reads the run's word of the state table (shm/table.h), and asks the
 * broker for the reason only when the run is over.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_comm;
struct fsdp_group;

/* Tell whether the group is unsharded without the broker. */
bool unshard_is_by_ranks(const struct fsdp_group *group);

/* Implement fsdp_wait() for such groups. */
int unshard_wait_by_ranks(struct fsdp_group *group, uint64_t sequence,
			  int32_t timeout_ms, struct error *err);

/* Check that the groups of this kind allow this rank to commit. Returns -EBUSY
 * if not. */
int unshard_check_commit(const struct fsdp_comm *comm, struct error *err);

/* Tell whether the broker has refused the unshard that is open here. Call this
 * if the broker does not know it. If it was refused, this closes it and returns
 * the reason in `ret`. */
bool unshard_is_refused(struct fsdp_group *group, struct error *ret);
/* Tell whether this rank knows, without a request, that the unshard is done. */
bool unshard_is_whole(const struct fsdp_group *group, uint64_t sequence);
