/*
 * The table of every range that the driver knows, by address, with the access
 * rights. The caller of each function holds the process's lock, unless its
 * comment says otherwise.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include "tests/fakes/cuda/settings.h"
#include <stdbool.h>

struct allocation;
struct context;
struct memory;
struct stream;
struct work;

enum mapping_kind {
	MAPPING_VMM,        /* cuMemMap() */
	MAPPING_ALLOC,      /* cuMemAlloc() */
	MAPPING_IPC,        /* cuIpcOpenMemHandle() */
	MAPPING_HOST,       /* cuMemHostAlloc(): for host and devices */
	MAPPING_REGISTERED, /* cuMemHostRegister(): for the host ... */
	MAPPING_ALIAS,      /* ... and the same for devices */
};

struct mapping {
	uint64_t address, size;
	uint64_t span; /* bytes that are mapped: size, rounded up to pages */
	enum mapping_kind kind;
	struct memory *memory;         /* VMM, ALLOC, IPC: a reference */
	struct allocation *allocation; /* VMM: a reference */
	struct context *context;       /* owner; NULL for VMM */
	struct mapping *alias;         /* REGISTERED: its ALIAS, or NULL */
	/* CUmemAccess_flags of each of this process's devices */
	uint8_t access[FAKE_MAX_DEVICES];
	bool is_portable;     /* host kinds: accessible in all contexts */
	bool is_unified;      /* REGISTERED: devices have the same address */
	bool is_exported;     /* ALLOC: another process may have its handle */
	unsigned int n_opens; /* IPC: number of opens */
	uint64_t buffer_id;   /* never reused in this process */
	uint64_t changed_at;  /* VMM: mapping_clock() at its last change */
};

/* `mapping` is from calloc(), and belongs to the table until it is removed.
 * Returns false if there is no memory, or if the range overlaps another
 * mapping. */
bool mapping_add(struct mapping *mapping);
void mapping_remove(struct mapping *mapping); /* also calls free() */
/* Returns the mapping of this byte, or NULL. */
struct mapping *mapping_find(uint64_t address);
/* Returns the mapping with the next higher address, or the first for NULL. */
struct mapping *mapping_next(const struct mapping *mapping);
/* Returns whether a mapping overlaps this range. */
bool mapping_overlaps(uint64_t address, uint64_t size);
unsigned int mapping_count(enum mapping_kind kind);

/* Returns whether it is host memory. */
bool mapping_is_host(const struct mapping *mapping);
/* Returns whether devices can use an address of it. */
bool mapping_is_device(const struct mapping *mapping);

/*
 * Returns whether devices can address all of it, even if they have no access.
 * Calls refuse a range if a part of it belongs to no kind of memory.
 */
bool mapping_has_device(uint64_t address, uint64_t size);
/* Returns whether the stream's device may write to all of it. Calls that copy
 * or fill refuse other memory; a kernel is queued, and faults. */
bool mapping_is_writable(const struct stream *stream, uint64_t address,
			 uint64_t size);
/*
 * Returns whether the work has this access on its device. If not, it is a
 * fault, even if the range was mapped, or its access changed, after the work
 * was queued. A driver removes the old pages before it maps the new ones, and
 * work that runs meanwhile may find no pages. With the fake all such work
 * faults.
 */
bool mapping_allows(const struct work *work, uint64_t address, uint64_t size,
		    bool is_write);
/* Returns whether the mapping of the address has changed since the work was
 * queued. `value` need not be an address. */
bool mapping_has_changed(const struct work *work, uint64_t value);

/* Returns the number of changes to the table. */
uint64_t mapping_clock(void);
void mapping_note_change(struct mapping *mapping);
