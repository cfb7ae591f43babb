/*
 * A broker, and processes that share memory of their own: this one, and two
 * actors. The functions of the middle part are for any of them; those of the
 * last are commands for actors, which find in the page what they are to do, and
 * leave there what they saw.
 *
 * The test must not touch a device before sharing_open() is through.
 */
#pragma once
#include "client/fsdp.h"
#include "tests/lib/actor.h"
#include "tests/lib/chaos.h"
#include "tests/lib/daemon.h"
#include "tests/lib/device.h"

#define SHARED_SIZE 0x4000 /* bytes of an allocation of cuMemAlloc() */
#define PATIENCE_MS 30000  /* for what must come */

struct sharing_page {
	char socket[80];
	/* for the command */
	char name[64];
	struct fsdp_ticket ticket;
	int32_t timeout_ms;
	uint8_t value;
	/* of it */
	uint64_t address;
	uint8_t seen;
	uint64_t n;
	char sentence[512];
	sem_t gate; /* of what the consumer's stream does */
};

struct sharing {
	struct daemon daemon;       /* supervised */
	struct fsdp_client *client; /* of this process */
	struct actor one, two;      /* connected */
	struct sharing_page *page;
};

extern struct sharing sharing;

void sharing_open(void);
void sharing_close(void);

/* --- in any process ------------------------------------------------------ */

/* Of cuMemAlloc(), on the first device, filled; NULL: no room. */
void *legacy_make(uint8_t value);
void legacy_free(void *memory);

/* One chunk of the driver's virtual memory, filled with `value`, which can be
 * exported as `types` say (CUmemAllocationHandleType). */
struct vmm_memory {
	CUdeviceptr address;
	uint64_t size;
	CUmemGenericAllocationHandle handle;
};
void vmm_make(struct vmm_memory *memory, unsigned int types, uint8_t value);
/* Give it back, and have other memory at its address. */
void vmm_renew(struct vmm_memory *memory, uint8_t value);
void vmm_end(struct vmm_memory *memory);

/* `size` bytes of u8. */
int try_share(const void *memory, uint64_t size, struct fsdp_tensor **ret);
struct fsdp_tensor *share(const void *memory, uint64_t size);
/* Replaces the name; NULL: none. */
int publish_as(struct fsdp_tensor *tensor, const char *name);
/* All of one allocation, published. */
struct fsdp_tensor *share_as(const char *name, const void *memory);
int try_get(const char *name, struct fsdp_tensor **ret);
/* Do all its bytes have this value? */
bool holds_value(struct fsdp_tensor *tensor, uint8_t value);
bool says(const char *part);

/* Is there nothing of the broker's soon but the sessions of the three? Their
 * number may be given otherwise. */
bool nothing_is_left(uint64_t n_sessions);
/* Wait until a request of that process is parked. */
void await_parked(pid_t pid);

/* --- for actors ---------------------------------------------------------- */

/* The first of all; one and two have done so. */
int actor_connects(void);
/* Get what the page names, and keep it; the address and first byte are seen. */
int actor_gets(void);
int actor_redeems(void);
/* The last one that is kept. */
int actor_lets_go(void);
/* The same behind what the page's gate holds up. */
int actor_lets_go_late(void);
int actor_checks(void);
/* Share an allocation of its own, filled with the value, under the name. */
int actor_shares(void);
/* The same with memory of VMM. */
int actor_donates(void);
/* What it shared last. */
int actor_unshares(void);
