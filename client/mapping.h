/*
 * Mappings: chunks as this process sees them, each mapped once.
 *
 * A chunk is mapped read-only when it is first met, also where its fd allows
 * more: then a forked child may go on reading it, and a stray store faults. It
 * becomes writable, in place and not inherited, when something is allocated in
 * it. No fd is kept. A mapping of host memory can be *reserved*: its addresses
 * are kept and nothing is there (a bundle that is being committed).
 *
 * A chunk of a device is mapped by the driver instead, at an address of the
 * device, and is not there in a forked child. It is mapped once and for all:
 * writable if the broker says that this process may write it, else read-only,
 * which is agreed among libraries, since its fd gives every right. A change in
 * place would take the pages away from kernels that use them.
 *
 * Memory that a process shares is its own, and not mapped a second time there;
 * elsewhere it is mapped by its fd like the broker's, or opened by its handle
 * (legacy IPC, cuda/ipc.h).
 */
#pragma once
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
	struct ipc_export *export;   /* shared by this process by a handle, */
	struct vmm_export *donation; /* or by an fd, kept to be sent again */
	uint32_t n_keepers;          /* mappings_keep() */
	bool is_own;                 /* shared by this process */
	bool may_write;              /* its fd allowed it */
	bool is_writable;
	bool is_reserved;
};

struct mappings {
	pthread_mutex_t lock;
	struct mapping *list; /* owned */
	size_t n, capacity;
	uint64_t n_retired; /* table's chunks_retired when we last looked */
};

void mappings_init(struct mappings *mappings);

/* Wait until the devices that chunks are mapped on are idle, or have failed:
 * nothing uses the mappings. -ETIMEDOUT, for each. */
int mappings_synchronize(const struct mappings *mappings, int32_t timeout_ms,
			 struct error *err);

/* In a forked child writable mappings are not there: they are left alone,
 * since something else may lie at their addresses; so are devices'. */
void mappings_deinit(struct mappings *mappings, bool is_forked);

/* Map a chunk, or map a reserved one again; one that is mapped already is left
 * as it is. Of a device's, the driver may wait for work of this process; nobody
 * else waits for that. Consumes `fd` (-1: it has a handle), also on failure.
 * -ENODEV: of a device that this process does not see. */
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
/* Nothing of it is shared any more: the fd goes, which would keep it. */
void mappings_end_own(struct mappings *mappings, uint32_t chunk);

enum mapping_outcome {
	MAPPING_OK = 0,
	MAPPING_MISSING = 1, /* not mapped, or reserved: ask for its fd */
};

/* Where a chunk is. Stays while something in it is granted to us. */
struct span {
	uint32_t chunk; /* 0: none */
	uint8_t *address;
	uint64_t size;
	const struct device *device; /* NULL: host memory */
	bool is_own;                 /* shared by this process */
	bool is_legacy;              /* it ends with who shared it */
};

/* Find a chunk; if asked, one of the host is made writable. -EPROTO: it is
 * read-only. */
int mappings_find(struct mappings *mappings, uint32_t chunk, bool is_writable,
		  struct span *ret, struct error *err);

/* Which chunk these bytes of a device are mapped from. */
bool mappings_find_address(struct mappings *mappings, const void *address,
			   struct span *ret);

/* Unmap a chunk of the host but keep its addresses. Unknown ones are left
 * alone. */
int mappings_reserve(struct mappings *mappings, uint32_t chunk,
		     struct error *err);

/* The same, of one that stays mapped until it is let go of as often, also when
 * nothing in it is granted to us any more. -ENOENT: it is not mapped. */
int mappings_keep(struct mappings *mappings, uint32_t chunk, struct span *ret,
		  struct error *err);
void mappings_let_go(struct mappings *mappings, uint32_t chunk);

/* Has the table's chunk list this one no more? */
bool mappings_is_gone(struct mappings *mappings, uint32_t chunk,
		      const struct table *table);

/* Does a handle hold something of this chunk? */
typedef bool mapping_is_held_fn(uint32_t chunk, void *data);

/*
 * Unmap chunks that the table's chunk list has no more, if any went since the
 * last look. Cheap if none did. Work of a device on one of them is over: the
 * broker lets no chunk go while a fence of ours is open (shm/refs.h). But a
 * driver may wait for other work before it unmaps; nobody else waits for that.
 */
void mappings_retire(struct mappings *mappings, const struct table *table,
		     mapping_is_held_fn *is_held, void *data);
