/* Copies between host memory of the caller and a rank's memory of a group. */
#include "client/rank/comm.h"
#include "client/rank/engine.h"
#include "client/rank/group_impl.h"
#include "client/rank/plain_device.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

static bool is_in(const struct fsdp_tensor *tensor, const void *at,
		  uint64_t size)
{
	uintptr_t begin, end, where = (uintptr_t)at;

	if (!tensor || !tensor->data)
		return false;
	begin = (uintptr_t)tensor->data;
	/* The handle may begin later than its memory. */
	end = (uintptr_t)tensor_desc(tensor)->data +
	      desc_rest(tensor_desc(tensor))->size;
	return where >= begin && where <= end && size <= end - where;
}

/* Check the range. Memory that was waited for can be read, and the rank's own
 * memory can also be written. */
static int check_range(const struct fsdp_group *group, const void *at,
		       uint64_t size, bool is_written, struct error *err)
{
	const struct fsdp_tensor *own[] = {group->shards[!group->side],
					   group->grads, group->input};
	const struct fsdp_tensor *others[] = {group->shards[group->side],
					      group->full, group->gathered};

	for (size_t i = 0; i < 3; i++) {
		if (is_in(own[i], at, size))
			return 0;
	}
	for (size_t i = 0; i < 3 && !is_written; i++) {
		if (is_in(others[i], at, size))
			return 0;
	}
	return error_set(err, -ERANGE,
			 "the %" PRIu64 " bytes at %p are not all in memory of "
			 "the group that this rank may %s",
			 size, at, is_written ? "write" : "read");
}

/* Tell whether the memory is on the device. Call check_range() before. */
static bool is_on_device(const struct fsdp_group *group, const void *at,
			 uint64_t size)
{
	if (!group->engine || !group->is_offloaded)
		return group->engine;
	return is_in(group->full, at, size) || is_in(group->input, at, size);
}

/* Copy to the group if `is_put`, otherwise from it. */
static int copy(struct fsdp_group *group, void *to, const void *from,
		uint64_t size, bool is_put)
{
	struct error *err = error_of_thread();
	const void *at = is_put ? to : from;
	struct fsdp_comm *comm = group_comm(group);
	int r = comm_check_idle(comm, err);

	if (r < 0 || size == 0)
		return r;
	r = check_range(group, at, size, is_put, err);
	if (r < 0)
		return r;
	if (is_on_device(group, at, size))
		return is_put ? engine_put(comm->engine, to, from, size, err)
			      : engine_get(comm->engine, to, from, size, err);
	if (plain_is_device(comm))
		return is_put ? plain_put(comm, to, from, size, err)
			      : plain_get(comm, to, from, size, err);
	memcpy(to, from, size);
	return 0;
}

int fsdp_group_put(struct fsdp_group *group, void *to, const void *from,
		   uint64_t size)
{
	return copy(group, to, from, size, true);
}

int fsdp_group_get(struct fsdp_group *group, void *to, const void *from,
		   uint64_t size)
{
	return copy(group, to, from, size, false);
}
