/*
 * Bytes of the host to and from what a rank has of a group.
 */
#include "client/comm.h"
#include "client/engine.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

static bool is_in(const struct fsdp_tensor *tensor, const void *at,
		  uint64_t size)
{
	uintptr_t begin, where = (uintptr_t)at;
	uint64_t all;

	if (!tensor || !tensor->data)
		return false;
	begin = (uintptr_t)tensor->data;
	all = known_rest(tensor_known(tensor))->size;
	return where >= begin && where - begin <= all &&
	       size <= all - (where - begin);
}

/* What was waited for is read, and what is the rank's own also written. */
static int check_range(const struct fsdp_group *group, const void *at,
		       uint64_t size, bool is_written, struct error *err)
{
	const struct fsdp_tensor *own[] = {group->shards[!group->side],
					   group->grads, group->input};
	const struct fsdp_tensor *others[] = {group->shards[group->side],
					      group->full};

	for (size_t i = 0; i < 3; i++) {
		if (is_in(own[i], at, size))
			return 0;
	}
	for (size_t i = 0; i < 2 && !is_written; i++) {
		if (is_in(others[i], at, size))
			return 0;
	}
	return error_set(err, -ERANGE,
			 "%" PRIu64 " bytes at %p are not what this rank may "
			 "%s of the group",
			 size, at, is_written ? "write" : "read");
}

int fsdp_group_put(struct fsdp_group *group, void *to, const void *from,
		   uint64_t size)
{
	struct error *err = error_of_thread();
	int r = comm_check_idle(group->comm, err);

	if (r < 0 || size == 0)
		return r;
	r = check_range(group, to, size, true, err);
	if (r < 0)
		return r;
	if (group->engine)
		return engine_put(group->comm->engine, to, from, size, err);
	memcpy(to, from, size);
	return 0;
}

int fsdp_group_get(struct fsdp_group *group, void *to, const void *from,
		   uint64_t size)
{
	struct error *err = error_of_thread();
	int r = comm_check_idle(group->comm, err);

	if (r < 0 || size == 0)
		return r;
	r = check_range(group, from, size, false, err);
	if (r < 0)
		return r;
	if (group->engine)
		return engine_get(group->comm->engine, to, from, size, err);
	memcpy(to, from, size);
	return 0;
}
