/*
 * Shared by group.c and group_register.c only.
 */
#pragma once
#include "client/rank/comm.h"

/* NULL if `group` is NULL, which comm_check() refuses. */
static inline struct fsdp_comm *group_comm(const struct fsdp_group *group)
{
	return group ? group->comm : NULL;
}

/* Have addresses of the shards and gradients, where they are only claimed. */
int group_map_own(struct fsdp_group *group, struct error *err);

/* The one place of an answer, of at least `size` bytes; nothing stays held on
 * failure. On a device that only fsdp-worker works on it is claimed. */
int group_adopt_one(const struct fsdp_comm *comm, struct answer *answer,
		    bool is_writable, uint64_t size,
		    struct lazy_mapping *lazy_mapping, struct fsdp_tensor **ret,
		    struct error *err);

/* Behind this rank's part of each parameter; what is committed has its zeros.
 */
int group_zero_padding(struct fsdp_group *group, struct error *err);

/* Memory of collectives is bytes; 0 for any other place. */
static inline uint64_t place_bytes(const struct tensor_place *place)
{
	const struct tensor_type *type = &place->type;

	if (type->dtype != DTYPE_U8 || type->n_dims != 1 ||
	    !tensor_type_is_contiguous(type))
		return 0;
	return (uint64_t)type->shape[0];
}

/* NULL: the place has no memory, or there is none: what is trained of a group
 * may have no elements. */
static inline uint8_t *memory_at(const struct fsdp_tensor *tensor,
				 uint64_t offset)
{
	return tensor && tensor->data ? tensor->data + offset : NULL;
}
