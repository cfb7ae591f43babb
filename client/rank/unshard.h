/*
 * A rank unshards a group, uses the whole parameters, and reshards the group.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_group;

/* Call this if the broker does not know an unshard that is open here. If the
 * broker has refused it, this closes it and returns true with the reason. */
bool unshard_is_refused(struct fsdp_group *group, struct error *ret);
/* Does this rank know, without asking, that the unshard is done? */
bool unshard_is_whole(const struct fsdp_group *group, uint64_t sequence);
