/*
 * A broker, and processes that share memory of their own: this process and two
 * actors. All of them can call the functions of the middle part. Those of the
 * last part are commands for actors, which find their arguments in the page and
 * leave their results there. The test must not use a device before
 * sharing_open() has returned.
 */
#pragma once
#include "client/fsdp.h"
#include "tests/lib/actor.h"
#include "tests/lib/chaos.h"
#include "tests/lib/daemon.h"
#include "tests/lib/device.h"
#include "tests/lib/patience.h"

#define SHARED_SIZE 0x4000 /* bytes of an allocation of cuMemAlloc() */

struct sharing_page {
	char socket[80];
	/* arguments of the command */
	char name[64];
	struct fsdp_ticket ticket;
	int32_t timeout_ms;
	uint8_t value;
	/* facts about the tensor */
	uint64_t address;
	uint8_t seen;
	uint64_t n;
	char sentence[512];
	sem_t gate; /* gate of the consumer's stream */
};

struct sharing {
	struct daemon daemon;       /* supervised */
	struct fsdp_client *client; /* client of this process */
	struct actor one, two;      /* these are connected */
	struct sharing_page *page;
};

extern struct sharing sharing;

void sharing_open(void);
void sharing_close(void);

/* --- in any process ------------------------------------------------------ */

/* Allocates memory by cuMemAlloc() on the first device, and fills it. Returns
 * NULL if there is not enough memory. */
void *legacy_make(uint8_t value);
void legacy_free(void *memory);

/* Allocates one chunk of the driver's virtual memory, filled with `value`.
 * `types` says how it can be exported (CUmemAllocationHandleType). */
struct vmm_memory {
	CUdeviceptr address;
	uint64_t size;
	CUmemGenericAllocationHandle handle;
};
void vmm_make(struct vmm_memory *memory, unsigned int types, uint8_t value);
/* Frees it, and allocates other memory at its address. */
void vmm_renew(struct vmm_memory *memory, uint8_t value);
void vmm_end(struct vmm_memory *memory);

/* Shares `size` bytes of u8. */
int try_share(const void *memory, uint64_t size, struct fsdp_tensor **ret);
struct fsdp_tensor *share(const void *memory, uint64_t size);
/* Publishes the tensor under the name, and replaces the name's tensor. If
 * `name` is NULL, it gets no name. */
int publish_as(struct fsdp_tensor *tensor, const char *name);
/* Shares a whole allocation, and publishes it. */
struct fsdp_tensor *share_as(const char *name, const void *memory);
int try_get(const char *name, struct fsdp_tensor **ret);
bool says(const char *part);

/* Waits until the broker has only the sessions of the three processes, or
 * another number of them if the test says so. */
bool nothing_is_left(uint64_t n_sessions);
/* Waits until a request of that process is parked. */
void await_parked(pid_t pid);

/* --- for actors ---------------------------------------------------------- */

/* Each actor needs this command first. Actors one and two have done it. */
int actor_connects(void);
/* Gets the tensor that the page names, and keeps it. The actor reports its
 * address and first byte. */
int actor_gets(void);
int actor_redeems(void);
/* Releases the tensor that was kept last. */
int actor_lets_go(void);
/* Releases the tensor after the work that waits at the page's gate. */
int actor_lets_go_late(void);
int actor_checks(void);
/* Shares an allocation of its own, filled with the value, under the name. */
int actor_shares(void);
/* Does the same with memory of VMM. */
int actor_donates(void);
/* Frees the memory that the actor shared last. */
int actor_unshares(void);
