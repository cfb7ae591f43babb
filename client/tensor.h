/*
 * Handles, and what is known of the tensors behind them.
 *
 * A handle is one cache line with all that the calls without system call
 * need. What does not change per handle (type, name, address) is *known* once
 * and shared by the handles of one tensor and by the cache of names. Both live
 * on shelves: each has a lock, so that threads seldom meet.
 *
 * A handle counts its own holds, so that a release too many is refused before
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
 * What a process knows of one tensor version. Changed under its shelf's lock,
 * and lies on that shelf. What a get by name reads is in the first cache line,
 * and the beginning of the name with it; behind the name comes the rest.
 */
struct known {
	uint64_t generation;
	uint8_t *data; /* NULL: no elements */
	uint32_t slot;
	uint32_t n_users;     /* handles, and the cache */
	uint32_t trusted_uid; /* cached: how it was asked for */
	uint32_t name_size;
	uint8_t dtype;
	uint8_t n_dims : 4;
	uint8_t is_trust_set : 1;
	uint8_t is_contiguous : 1;
	uint8_t is_on_device : 1;
	char name[];
};

struct known_rest {
	struct known *older; /* what a handle showed before it was published */
	uint64_t size, version;
	uint32_t chunk; /* 0: no memory */
	int64_t dims[]; /* shape; then strides, if it is not contiguous */
};

/* How far the work is that writes a device tensor. */
enum written {
	WRITTEN_PENDING = 0, /* as far as we know */
	WRITTEN_YES = 1,
	WRITTEN_NEVER = 2, /* tainted */
};

/* Of a tensor on a device, behind the dims. */
struct known_device {
	const struct device *device;
	struct tensor_order order; /* when it is written */
	_Atomic uint8_t written;   /* enum written; never goes back */
	bool is_legacy; /* memory that ends with the process that shared it */
};

static inline struct known_rest *known_rest(const struct known *known)
{
	uintptr_t end = (uintptr_t)known->name + known->name_size + 1u;

	return (void *)((end + 7u) & ~(uintptr_t)7u);
}

static inline struct known_device *known_device(const struct known *known)
{
	size_t n = (size_t)known->n_dims * (known->is_contiguous ? 1 : 2);

	return known->is_on_device ? (void *)&known_rest(known)->dims[n] : NULL;
}

void known_type(const struct known *known, struct tensor_type *ret);

struct fsdp_tensor {
	_Alignas(64) struct fsdp_client *client;
	uint64_t generation;
	uint32_t slot;
	_Atomic uint32_t holds;
	_Atomic(struct known *) known; /* replaced by publish */
	uint8_t *data;
	uint64_t bundle; /* staged one that it was allocated in; 0: none */
	struct fsdp_tensor *next_free;
	_Atomic bool is_writable; /* by fsdp_data_mut() */
	bool is_live;
	uint8_t shelf;
};

struct cache_entry;
struct free_known;
struct known_slab;
struct slab;

/* Sizes of what lies on a shelf, in cache lines: 1 to KNOWN_CLASSES. */
#define KNOWN_CLASSES 5

struct shelf {
	_Alignas(64) pthread_mutex_t lock;
	struct fsdp_tensor *first_free;
	struct cache_entry *entries; /* owned; the cache's */
	size_t n_entries, n_cached;
	struct slab *slabs; /* owned */
	struct free_known *free_knowns[KNOWN_CLASSES];
	struct known_slab *known_slabs; /* owned */
};

/* A power of two; the top bits of a hash choose. */
#define SHELVES 16

void shelf_init(struct shelf *shelf);
/* Frees all its handles; no lock is taken. */
void shelf_deinit(struct shelf *shelf);

/* Where a place is, in this process. */
struct spot {
	uint8_t *data;               /* NULL: no elements */
	const struct device *device; /* NULL: host memory, or no elements */
	bool is_legacy;              /* as known_device's */
};

/* Describe a place; `name` is the caller's to know. One user. With the shelf's
 * lock held, as all that follows. NULL: no memory. */
struct known *known_new(struct shelf *shelf, const struct tensor_place *place,
			const char *name, struct spot spot);
/* It is written when `order` says; nothing if it is not on a device. Nobody
 * else has it yet. */
void known_set_order(struct known *known, const struct tensor_order *order);
/* One user less; the last frees it. */
void known_drop(struct shelf *shelf, struct known *known);

/*
 * A handle with one hold, which the caller has already got. Takes over the
 * caller's use of `known` on success; NULL: no memory.
 */
struct fsdp_tensor *tensor_new(struct fsdp_client *client, uint8_t shelf,
			       struct known *known);

/* Back to the shelf; its holds are given back already. Takes the lock. */
void tensor_free(struct fsdp_tensor *tensor);

/* What the handle shows now. */
static inline struct known *tensor_known(const struct fsdp_tensor *tensor)
{
	/* Acquire: publish fills it first. */
	return atomic_load_explicit(&tensor->known, memory_order_acquire);
}

/* Drop `n` holds of the slot in the ref-counter file; rings if in limbo. */
void tensor_give_back(struct fsdp_client *client, uint32_t slot, uint32_t n);
/* The same; true: the broker shall look, and was not rung. */
bool tensor_give_back_unrung(struct fsdp_client *client, uint32_t slot,
			     uint32_t n);

/* fsdp_free() just before a request at which the broker looks by itself: it
 * need not be woken for both. NULL is fine. */
void tensor_end(struct fsdp_tensor *tensor);

/* Take one of the handle's holds away. Returns false if no hold is left. */
bool tensor_take_hold(struct fsdp_tensor *tensor);

/* The first live handle for which `fn` says true; it is called under the
 * handle's shelf's lock. */
typedef bool tensor_is_fn(struct fsdp_tensor *tensor, void *data);
struct fsdp_tensor *tensor_find(struct fsdp_client *client, tensor_is_fn *fn,
				void *data);
