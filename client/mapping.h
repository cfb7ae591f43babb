/*
 * Mappings: the chunks in this process's address space, each mapped once.
 *
 * A chunk is mapped read-only at its first use, even if its descriptor allows
 * more: then a forked child can go on reading it, and a stray store faults. It
 * becomes writable, in place and not inherited by children, when the process
 * allocates something in it. The descriptor is not kept. A mapping of host
 * memory can be *reserved*: it keeps its addresses and has no pages (a bundle
 * that is being committed).
 *
 * A chunk of a device is mapped by the driver, at an address of the device, and
 * does not exist in a forked child. Its access never changes: it is writable if
 * the broker says that this process may write it, else read-only. Libraries
 * keep to that by agreement, since the descriptor gives every right. A change
 * in place would take the pages away from running kernels.
 *
 * Memory that this process shares is its own, and is not mapped a second time
 * here. In other processes it is mapped by its descriptor like the broker's
 * memory, or opened by its handle (legacy IPC, cuda/ipc.h).
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
	uint32_t index; /* in the state table's chunk list */
	uint64_t size;
	uint8_t *address;
	const struct device *device; /* NULL: host memory */
	struct vmm_mapping vmm;      /* of the device */
	struct ipc_import *import;   /* opened by its handle instead */
	/* Shared by this process by a handle, or by a descriptor, which is kept
	 * to be sent again. */
	struct ipc_export *export;
	struct vmm_export *donation;
	uint32_t n_keepers; /* mappings_keep() */
	bool is_own;        /* shared by this process */
	bool may_write;     /* its fd allowed it */
	bool is_writable;
	bool is_reserved;
};

struct mappings {
	pthread_mutex_t lock;
	struct mapping *list; /* owned */
	size_t n, capacity;
	uint64_t n_retired; /* table's chunks_retired at the last look */
	struct unmapper unmapper;
};

void mappings_init(struct mappings *mappings);

/* Wait until the devices that have mapped chunks are idle or have failed, so
 * that nothing uses the mappings. -ETIMEDOUT, for each device. */
int mappings_synchronize(const struct mappings *mappings, int32_t timeout_ms,
			 struct error *err);

/* In a forked child writable mappings do not exist: they are not unmapped,
 * since other memory may be at their addresses. The same holds for devices. */
void mappings_deinit(struct mappings *mappings, bool is_forked);

/* Map a chunk, or map a reserved one again; a chunk that is mapped stays as it
 * is. For a chunk of a device the driver may wait for work of this process; no
 * other thread waits for that. Consumes `fd` (-1: the chunk has a handle), also
 * on failure. -ENODEV: this process does not see the device. */
int mappings_add(struct mappings *mappings, const struct chunk_ref *chunk,
		 int fd, struct error *err);

/* What this process shares. */
struct own_memory {
	const struct device *device;
	uint8_t *address;
	struct ipc_export *export;   /* by a handle; else NULL */
	struct vmm_export *donation; /* by an fd; else NULL */
};

/* The chunk is memory that this process shares. Consumes the exports, also on
 * failure. */
int mappings_add_own(struct mappings *mappings, const struct chunk_ref *chunk,
		     const struct own_memory *own, struct error *err);
/* Nothing of the chunk is shared any more: close its descriptor, which would
 * keep the memory. */
void mappings_end_own(struct mappings *mappings, uint32_t chunk);

enum mapping_outcome {
	MAPPING_OK = 0,
	MAPPING_MISSING = 1, /* not mapped, or reserved: ask for its fd */
};

/* The location of a chunk. It is valid while something in the chunk is granted
 * to this process. */
struct span {
	uint32_t chunk; /* 0: none */
	uint8_t *address;
	uint64_t size;
	const struct device *device; /* NULL: host memory */
	bool is_own;                 /* shared by this process */
	bool is_legacy; /* it ends with the process that shared it */
};

/* Find a chunk; on request, make one of the host writable. -EACCES: this
 * process may only read it. */
int mappings_find(struct mappings *mappings, uint32_t chunk, bool is_writable,
		  struct span *ret, struct error *err);

/* The chunk that contains these bytes of a device. */
bool mappings_find_address(struct mappings *mappings, const void *address,
			   struct span *ret);

/* Unmap a chunk of the host but keep its addresses. Unknown chunks are ignored.
 */
int mappings_reserve(struct mappings *mappings, uint32_t chunk,
		     struct error *err);

/* Find a chunk that stays mapped until it is released as often, even if nothing
 * in it is granted to this process any more. -ENOENT: it is not mapped. */
int mappings_keep(struct mappings *mappings, uint32_t chunk, struct span *ret,
		  struct error *err);
void mappings_let_go(struct mappings *mappings, uint32_t chunk);

/* Is this chunk missing from the table's chunk list? */
bool mappings_is_gone(struct mappings *mappings, uint32_t chunk,
		      const struct table *table);

/* Does a handle hold a tensor of this chunk? */
typedef bool mapping_is_held_fn(uint32_t chunk, void *data);

/*
 * Unmap the chunks that are no longer in the table's chunk list, if any were
 * retired since the last look. It is cheap if none were. No work of a device
 * uses them any more: the broker retires no chunk while a fence of ours is open
 * (shm/refs.h). But a driver may wait for other work before it unmaps; no other
 * thread waits for that.
 */
void mappings_retire(struct mappings *mappings, const struct table *table,
		     mapping_is_held_fn *is_held, void *data);
