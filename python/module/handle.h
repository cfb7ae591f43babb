/*
 * A tensor handle of libfsdp with a count of users. The Tensor object and each
 * export (buffer, DLPack capsule, torch storage) are users, and each of them
 * has a hold of its own. So the object and the things that were made from it
 * can be released or freed in any order.
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

/* Makes a handle with one user. Consumes `tensor`, also on failure. Returns
 * NULL if there is no memory. */
struct handle *handle_new(struct link *link, struct fsdp_tensor *tensor);

/* Drops a user that has `n` holds. If there are other users, only these holds
 * are dropped; the last user drops all. Like link_drop(), this calls no
 * Python. */
void handle_drop_holds(struct handle *handle, uint32_t n);

/* Adds a user with a hold. Returns -EINVAL if the tensor is not held, and
 * -ECHILD in a forked child. */
int handle_export(struct handle *handle);
/* Drops a user and its hold. This calls no Python. */
void handle_unexport(struct handle *handle);

/* The memory that an export shows. */
struct view {
	struct fsdp_info info;
	void *data; /* never NULL */
	bool is_writable;
};

/* Fills in the view; the caller has a hold. Returns -EOPNOTSUPP if the tensor
 * is on a device and `on_device` is false. libfsdp has no message for this
 * error. */
int handle_view(struct handle *handle, bool on_device, struct view *ret);

bool handle_is_on_device(const struct fsdp_info *info);

/* Returns the bytes of the elements. info->size also counts the bytes between
 * them. */
uint64_t handle_n_bytes(const struct fsdp_info *info);

/* Returns whether the elements are one after another, in the order of C. */
bool handle_is_contiguous(const struct fsdp_info *info);
