/*
 * Mappings: the chunks in this process's address space, each mapped once.
 *
 * A chunk of host memory is mapped read-only at its first use, even if its
 * descriptor allows more, so that a forked child can go on reading it and a
 * stray store faults. When the process allocates something in it, the mapping
 * becomes writable in place, and is no longer inherited by children
 * (client/hidden.h). The descriptor is not kept. A mapping can be *reserved*:
 * it keeps its addresses but has no pages, while a bundle is being committed.
 *
 * A chunk of a device is mapped by the driver, at an address of the device, and
 * does not exist in a forked child. Its access never changes, since a change
 * would take the pages away from running kernels for a moment: it is writable
 * if the broker says that this process may write it, otherwise read-only. The
 * descriptor of such a chunk gives every right, so read-only access depends on
 * the cooperation of the library.
 *
 * Memory that this process shares is its own, and is not mapped a second time
 * here. Other processes map it by its descriptor, like the broker's memory, or
 * open it by its handle (legacy IPC, cuda/ipc.h).
 */
#pragma once
#include "client/unmap.h"
#include "cuda/ipc.h"
#include "cuda/vmm.h"
#include "proto/message.h"
#include "shm/table.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

struct mapping {
	uint32_t chunk;
	uint32_t index; /* its index in the state table's chunk list */
	uint64_t size;
	uint8_t *address;
	const struct device *device; /* NULL: host memory */
	struct vmm_mapping vmm;      /* the mapping on the device */
	/* if it was opened by its handle instead */
	struct ipc_import *import;
	/* Memory that this process shares has one of these: the first by a
	 * handle, the second by a descriptor, which is kept to be sent
	 * again. */
	struct ipc_export *export;
	struct vmm_export *donation;
	uint32_t n_keepers; /* calls of mappings_keep() that were not undone */
	bool is_own;        /* shared by this process */
	bool may_write;     /* the broker lets this process write it */
	bool is_writable;
	bool is_reserved;
};

struct mappings {
	pthread_mutex_t lock;
	struct mapping *list; /* owned */
	size_t n, capacity;
	uint64_t n_retired; /* chunks_retired of the table at the last look */
	struct unmapper unmapper;
};

void mappings_init(struct mappings *mappings);

/* Wait until the devices that have mapped chunks are idle or have failed, so
 * that they do not use the mappings any more. -ETIMEDOUT: a device has not
 * become idle within `timeout_ms`, which applies to each device. */
int mappings_synchronize(const struct mappings *mappings, int32_t timeout_ms,
			 struct error *err);

/* Unmap everything. In a forked child, writable mappings and those of devices
 * do not exist and are not unmapped, since other memory may be at their
 * addresses. */
void mappings_deinit(struct mappings *mappings, bool is_forked);

/* Map a chunk, or map a reserved one again; a chunk that is mapped does not
 * change. For a chunk of a device the driver may wait for work of this process,
 * while other threads can use `mappings`. Consumes `fd` (-1: the chunk has a
 * handle), also on failure. -ENODEV: this process does not see the device. */
int mappings_add(struct mappings *mappings, const struct chunk_ref *chunk,
		 int fd, struct error *err);

/* Memory that this process shares, by one of the two exports. */
struct own_memory {
	const struct device *device;
	uint8_t *address;
	struct ipc_export *export;   /* a handle, or NULL */
	struct vmm_export *donation; /* a descriptor, or NULL */
};

/* Add a chunk that is memory which this process shares. Consumes the exports,
 * also on failure. */
int mappings_add_own(struct mappings *mappings, const struct chunk_ref *chunk,
		     const struct own_memory *own, struct error *err);
/* Close the descriptor of a chunk of which nothing is shared any more, since
 * the descriptor would keep the memory. */
void mappings_end_own(struct mappings *mappings, uint32_t chunk);

enum mapping_outcome {
	MAPPING_OK = 0,
	MAPPING_MISSING = 1, /* it is not mapped, or reserved: request it */
};

/* The location of a chunk, which is valid while something in the chunk is
 * granted to this process. */
struct range {
	uint32_t chunk; /* 0: no chunk */
	uint8_t *address;
	uint64_t size;
	const struct device *device; /* NULL: host memory */
	bool is_own;                 /* shared by this process */
	bool is_legacy; /* its memory ends with the process that shared it */
};

/* Find a chunk; if `is_writable`, make a chunk of host memory writable. Returns
 * an enum mapping_outcome. -EACCES: this process may only read the chunk. */
int mappings_find(struct mappings *mappings, uint32_t chunk, bool is_writable,
		  struct range *ret, struct error *err);

/* Find the chunk of a device that contains this address. Returns false if there
 * is none. */
bool mappings_find_address(struct mappings *mappings, const void *address,
			   struct range *ret);

/* Unmap a chunk of host memory but keep its addresses. A chunk that is not
 * mapped is ignored. */
int mappings_reserve(struct mappings *mappings, uint32_t chunk,
		     struct error *err);

/* Find a chunk, and keep it mapped until mappings_end_keep() was called as
 * often, even if nothing in it is granted to this process any more. -ENOENT: it
 * is not mapped. */
int mappings_keep(struct mappings *mappings, uint32_t chunk, struct range *ret,
		  struct error *err);
void mappings_end_keep(struct mappings *mappings, uint32_t chunk);

/* Tell whether this chunk is missing from the table's chunk list. */
bool mappings_is_gone(struct mappings *mappings, uint32_t chunk,
		      const struct table *table);

/* Tells whether a handle holds a tensor of this chunk. */
typedef bool mapping_is_held_fn(uint32_t chunk, void *data);

/*
 * Unmap the chunks that are no longer in the table's chunk list. This is cheap
 * if no chunk was retired since the last look. Devices do not use such a chunk
 * any more: the broker retires no chunk while a fence of ours is open
 * (shm/refs.h). But a driver may wait for other work before it unmaps, while
 * other threads can use `mappings`.
 */
void mappings_retire(struct mappings *mappings, const struct table *table,
		     mapping_is_held_fn *is_held, void *data);
