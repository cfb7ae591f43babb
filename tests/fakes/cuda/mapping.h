/*
 * What is where: every range that the driver knows, by address, and who may do
 * what there.
 *
 * All functions: with the process's lock, unless they say otherwise.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include "tests/fakes/cuda/settings.h"
#include <stdbool.h>

struct allocation;
struct context;
struct memory;
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
	struct context *context;       /* it belongs to; NULL: VMM */
	struct mapping *alias;         /* REGISTERED: its ALIAS, or NULL */
	/* CUmemAccess_flags of each of this process's devices */
	uint8_t access[FAKE_MAX_DEVICES];
	bool is_portable;     /* host kinds: for all contexts */
	bool is_unified;      /* REGISTERED: devices have the same address */
	bool is_exported;     /* ALLOC: somebody has its handle */
	unsigned int n_opens; /* IPC */
	uint64_t buffer_id;   /* never used again in this process */
	uint64_t changed_at;  /* VMM: mapping_clock() at its last change */
};

/* `mapping` is from calloc(), and the table's until it is removed. False: no
 * memory, or there is something. */
bool mapping_add(struct mapping *mapping);
void mapping_remove(struct mapping *mapping); /* and free() */
/* What has this byte; NULL. */
struct mapping *mapping_find(uint64_t address);
/* The one behind it, of ascending addresses; the first for NULL. */
struct mapping *mapping_next(const struct mapping *mapping);
/* Is anything in there? */
bool mapping_overlaps(uint64_t address, uint64_t size);
unsigned int mapping_count(enum mapping_kind kind);

/* Is it memory of the host? */
bool mapping_is_host(const struct mapping *mapping);
/* Can devices use an address of it? */
bool mapping_is_device(const struct mapping *mapping);

/*
 * Is all of it something that devices can address (whether they may or not)?
 * What no kind has heard of, or a part of it, is refused by calls.
 */
bool mapping_has_device(uint64_t address, uint64_t size);
/*
 * May the work do that on its device? Else it is a fault: also if the range was
 * mapped, or its access changed, after the work had been queued. A driver takes
 * the old pages away before it maps the new ones, and work that is under way
 * meanwhile finds nothing; here that is every such piece of work.
 */
bool mapping_allows(const struct work *work, uint64_t address, uint64_t size,
		    bool is_write);
/* The same of a value that may or may not be an address. */
bool mapping_has_changed(const struct work *work, uint64_t value);

/* Of changes to the table. */
uint64_t mapping_clock(void);
void mapping_note_change(struct mapping *mapping);
