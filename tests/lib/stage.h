/*
 * A stage for tests of streams: a broker, and a producer in a process of its
 * own, whose stream waits at a gate until the test opens it. The tensor that it
 * publishes holds zeros before that, and STAGE_VALUE after it. The test must
 * not use a device before stage_open() has returned.
 */
#pragma once
#include "client/fsdp.h"
#include "tests/lib/actor.h"
#include "tests/lib/chaos.h"
#include "tests/lib/daemon.h"
#include "tests/lib/device.h"

#define STAGE_SIZE  4096 /* bytes of each tensor */
#define STAGE_VALUE 42

struct stage_shared {
	char socket[80];
	sem_t gate;
	struct fsdp_ticket ticket;
};

struct stage {
	struct daemon daemon;       /* supervised */
	struct fsdp_client *client; /* client of this process */
	struct actor producer;
	struct stage_shared *shared;
};

extern struct stage stage;

void stage_open(void);
/* Starts the broker with these lines of fsdpd.conf. */
void stage_open_with(const char *config);
/* The gate must be open if work of this process waits at it. */
void stage_close(void);

void open_gate(void);

/* --- in any process ------------------------------------------------------ */

void open_client(void);
/* Allocates a tensor on the first device. */
struct fsdp_tensor *alloc(void);
/* Publishes the tensor, and replaces an old one. `name` may be NULL. */
int publish_on(struct fsdp_tensor *tensor, const char *name, void *stream);
int get_on(const char *name, void *stream, int32_t timeout_ms,
	   struct fsdp_tensor **ret);
void remove_name(const char *name);

/* Returns whether this process has a writable mapping of any session's
 * timelines. */
bool maps_timelines_writable(void);

/* Returns the number of the broker's tensors. By this number tests see that no
 * tensor is freed too early or kept too long. */
uint64_t n_slots(void);
bool await_slots(uint64_t n);

/* --- in the producer: actor_fn ------------------------------------------- */

/* Publishes "t/a" immediately, and writes it after the gate. */
int produce(void);
/* Does the same, and makes a ticket for two uses. */
int produce_ticket(void);
int produce_lets_go(void);
/* Waits for the stream, and sends the broker a request. */
int produce_finishes(void);
