/* Internals of the files that use the memory of groups. */
#pragma once
#include "client/rank/comm.h"

/* Return the communicator, or NULL, which comm_check() refuses, if `group` is
 * NULL. */
static inline struct fsdp_comm *group_comm(const struct fsdp_group *group)
{
	return group ? group->comm : NULL;
}

/* Map memory that has only a lazy mapping. If a rank cannot map memory that
 * other ranks wait for, the run fails. */
int group_map(struct fsdp_group *group, struct lazy_mapping *lazy_mapping,
	      struct fsdp_tensor **ret, struct error *err);

/* Ask the broker for writable memory: one place of at least `size` bytes. If
 * only fsdp-worker uses the device, the mapping is lazy; on host memory
 * `lazy_mapping` may be NULL. */
int group_ask_one(struct fsdp_comm *comm, const struct request *request,
		  uint64_t size, struct lazy_mapping *lazy_mapping,
		  struct fsdp_tensor **ret, struct error *err);

/* Zero the bytes after this rank's part of each parameter. After the first
 * commit the committed shards have these zeros already. */
int group_zero_padding(struct fsdp_group *group, struct error *err);

/* Check that the group has this parameter. Returns -EINVAL if not. */
int group_check_param(const struct fsdp_group *group, size_t param,
		      struct error *err);

/* End the handle or the lazy mapping of the whole parameters. */
void group_end_whole(struct fsdp_group *group);

/* Return the size of memory of collectives, whose type is bytes; 0 for any
 * other place. */
static inline uint64_t place_bytes(const struct tensor_place *place)
{
	const struct tensor_type *type = &place->type;

	if (type->dtype != DTYPE_U8 || type->n_dims != 1 ||
	    !tensor_type_is_contiguous(type))
		return 0;
	return (uint64_t)type->shape[0];
}

/* Return the address at an offset, or NULL if there is no memory, as for
 * trained parameters without elements. */
static inline uint8_t *memory_at(const struct fsdp_tensor *tensor,
				 uint64_t offset)
{
	return tensor && tensor->data ? tensor->data + offset : NULL;
}
