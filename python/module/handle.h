/*
 * A tensor handle of libfsdp that is counted: the Tensor object and each export
 * (buffer, DLPack capsule, torch storage) keep it, and each of them has a hold
 * of its own. So the object may be released or freed in any order with what was
 * made from it.
 */
#pragma once
#include "client/fsdp.h"
#include "link.h"
#include <stdatomic.h>
#include <stdint.h>

struct handle {
	struct fsdp_tensor *tensor;
	struct link *link;
	_Atomic uint32_t n_users;
};

/* One user. Consumes `tensor`, also on failure (NULL: no memory). */
struct handle *handle_new(struct link *link, struct fsdp_tensor *tensor);

/* No Python, as link_drop(). The last user drops all holds. */
void handle_drop(struct handle *handle);

/* The same of a user who has `n` holds: if others stay, these go. */
void handle_drop_holds(struct handle *handle, uint32_t n);

/* One more user, with a hold. -EINVAL: the tensor is not held. -ECHILD. */
int handle_export(struct handle *handle);
/* Drops both. No Python. */
void handle_unexport(struct handle *handle);

/* What an export shows. */
struct view {
	struct fsdp_info info;
	void *data; /* never NULL */
	bool is_writable;
};

/* Of a handle that is held. -EOPNOTSUPP, without a message of libfsdp's: it is
 * on a device, and `on_device` is false. */
int handle_view(struct handle *handle, bool on_device, struct view *ret);

bool handle_is_on_device(const struct fsdp_info *info);

/* Bytes of the elements; info->size has those between them, too. */
uint64_t handle_n_bytes(const struct fsdp_info *info);
