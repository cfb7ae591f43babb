/*
 * Handles, and the descriptors of their tensors.
 *
 * A handle is one cache line with everything that calls without a system call
 * need. The data that all handles of a tensor share (type, name, address) is in
 * its *descriptor*, which the cache of names uses too. Both belong to stripes:
 * each stripe has a lock, so that threads seldom contend.
 *
 * A handle counts its own holds, so that one release too many is refused before
 * it reaches the ref-counter file. At every moment
 *
 *     granted + delta  >=  sum of the holds of all handles of the slot,
 *
 * because delta is raised before the handle's count and lowered after it.
 */
#pragma once
#include "proto/message.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct device;
struct fsdp_client;

/*
 * What the process knows of one tensor version. It is in the memory of its
 * stripe, and is changed under the stripe's lock. A get by name reads only the
 * first cache line, which has the beginning of the name; struct desc_rest
 * follows the name.
 */
struct desc {
	uint64_t generation;
	uint8_t *data; /* NULL: no elements */
	uint32_t slot;
	uint32_t n_users; /* handles, and the cache's entry */
	/* in the cache: the trusted user of the request */
	uint32_t trusted_uid;
	uint32_t name_size;
	uint8_t dtype;
	uint8_t n_dims : 4;
	uint8_t is_trust_set : 1;
	uint8_t is_contiguous : 1;
	uint8_t is_on_device : 1;
	char name[];
};

struct desc_rest {
	/* the descriptor of the handle before fsdp_publish() */
	struct desc *older;
	uint64_t size, version;
	uint32_t chunk; /* 0: no memory */
	int64_t dims[]; /* shape; then strides, if it is not contiguous */
};

/* The progress of the work that writes a device tensor. */
enum written {
	WRITTEN_PENDING = 0, /* not written, as far as is known */
	WRITTEN_YES = 1,
	WRITTEN_NEVER = 2, /* tainted */
};

/* Follows the dims, if the tensor is on a device. */
struct desc_device {
	const struct device *device;
	/* when this is reached, the tensor is written */
	struct fence fence;
	/* enum written; it never becomes PENDING again */
	_Atomic uint8_t written;
	bool is_legacy; /* its memory ends with the process that shared it */
};

static inline struct desc_rest *desc_rest(const struct desc *desc)
{
	uintptr_t end = (uintptr_t)desc->name + desc->name_size + 1u;

	return (void *)((end + 7u) & ~(uintptr_t)7u);
}

static inline struct desc_device *desc_device(const struct desc *desc)
{
	size_t n = (size_t)desc->n_dims * (desc->is_contiguous ? 1 : 2);

	return desc->is_on_device ? (void *)&desc_rest(desc)->dims[n] : NULL;
}

/* Return the name for a message. */
static inline const char *desc_name(const struct desc *desc)
{
	return *desc->name ? desc->name : "an unnamed tensor";
}

void desc_type(const struct desc *desc, struct tensor_type *ret);

struct fsdp_tensor {
	_Alignas(64) struct fsdp_client *client;
	uint64_t generation;
	uint32_t slot;
	_Atomic uint32_t holds;
	_Atomic(struct desc *) desc; /* replaced by fsdp_publish() */
	uint8_t *data;
	uint64_t bundle; /* the staged bundle it was allocated in; 0: none */
	struct fsdp_tensor *next_free;
	_Atomic bool is_writable; /* fsdp_data_mut() returns the address */
	bool is_live;
	uint8_t stripe;
	/* The broker may have dropped one hold more than `holds` shows (see
	 * fsdp_unshare()). */
	_Atomic bool is_in_doubt;
};

struct cache_entry;
struct free_desc;
struct desc_slab;
struct slab;

/* A stripe allocates descriptors of 1 to DESC_CLASSES cache lines. */
#define DESC_CLASSES 5

struct stripe {
	_Alignas(64) pthread_mutex_t lock;
	struct fsdp_tensor *first_free;
	struct cache_entry *entries; /* owned; the entries of the cache */
	size_t n_entries, n_cached;
	struct slab *slabs; /* owned */
	struct free_desc *free_descs[DESC_CLASSES];
	struct desc_slab *desc_slabs; /* owned */
};

/* A power of two; the top bits of a hash select the stripe. */
#define STRIPES 16

void stripe_init(struct stripe *stripe);
/* Free everything but the cache, which must have been dropped. Takes no
 * lock. */
void stripe_deinit(struct stripe *stripe);

/* The location of a tensor in this process. */
struct location {
	uint8_t *data;               /* NULL: no elements */
	const struct device *device; /* NULL: host memory, or no elements */
	bool is_legacy;              /* see struct desc_device */
};

/* Make the descriptor of a place, with one user. The name is copied. Returns
 * NULL if there is no memory. This and the next functions are called with the
 * lock of the stripe. */
struct desc *desc_new(struct stripe *stripe, const struct tensor_place *place,
		      const char *name, struct location location);
/* Set the fence after which the tensor is written; for host memory this does
 * nothing. No other thread may have the descriptor yet. */
void desc_set_fence(struct desc *desc, const struct fence *fence);
/* Remove one user; the last one frees the descriptor. */
void desc_drop(struct stripe *stripe, struct desc *desc);

/*
 * Make a handle with one hold, which the caller already has. On success it
 * takes over the caller's use of `desc`. Returns NULL if there is no memory.
 */
struct fsdp_tensor *tensor_new(struct fsdp_client *client, uint8_t stripe,
			       struct desc *desc);

/* Free the handle; its holds must have been dropped before. Takes the lock of
 * the stripe. */
void tensor_free(struct fsdp_tensor *tensor);

static inline struct desc *tensor_desc(const struct fsdp_tensor *tensor)
{
	/* Acquire: publish fills in the descriptor before it stores the
	 * pointer. */
	return atomic_load_explicit(&tensor->desc, memory_order_acquire);
}

/* Drop `n` holds of the slot in the ref-counter file, and ring the doorbell if
 * it is in limbo. */
void tensor_give_back(struct fsdp_client *client, uint32_t slot, uint32_t n);
/* Do the same without ringing. Returns true if the caller must ring. */
bool tensor_give_back_unrung(struct fsdp_client *client, uint32_t slot,
			     uint32_t n);

/* Do the same as fsdp_free() without ringing, just before a request after which
 * the broker looks for released tensors anyway. `tensor` may be NULL. */
void tensor_end(struct fsdp_tensor *tensor);

/* Take one of the handle's holds away. Returns false if it has none. */
bool tensor_take_hold(struct fsdp_tensor *tensor);

/* Find the first live handle for which `fn` returns true. `fn` is called under
 * the lock of the handle's stripe. */
typedef bool tensor_is_fn(struct fsdp_tensor *tensor, void *data);
struct fsdp_tensor *tensor_find(struct fsdp_client *client, tensor_is_fn *fn,
				void *data);
