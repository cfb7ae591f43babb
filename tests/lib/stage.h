/*
 * A stage for tests of streams: a broker, and a producer in a process of its
 * own, whose stream stands still until the test lets it go on. Before its gate
 * is open the tensor that it publishes holds zeros; behind it, STAGE_VALUE.
 *
 * The test must not touch a device before stage_open() is through.
 */
#pragma once
#include "client/fsdp.h"
#include "tests/lib/actor.h"
#include "tests/lib/chaos.h"
#include "tests/lib/daemon.h"
#include "tests/lib/device.h"

#define STAGE_SIZE  4096 /* bytes of every tensor */
#define STAGE_VALUE 42

struct stage_shared {
	char socket[80];
	sem_t gate;
	struct fsdp_ticket ticket;
};

struct stage {
	struct daemon daemon;       /* supervised */
	struct fsdp_client *client; /* of this process */
	struct actor producer;
	struct stage_shared *shared;
};

extern struct stage stage;

void stage_open(void);
/* The broker has these lines of fsdpd.conf. */
void stage_open_with(const char *config);
/* The gate must be open for what this process holds up with it. */
void stage_close(void);

void open_gate(void);

/* --- in any process ------------------------------------------------------ */

void open_client(void);
/* On the first device. */
struct fsdp_tensor *alloc(void);
/* `name` may be NULL; an old one is replaced. */
int publish_on(struct fsdp_tensor *tensor, const char *name, void *stream);
int get_on(const char *name, void *stream, int32_t timeout_ms,
	   struct fsdp_tensor **ret);
void remove_name(const char *name);

/* Does this process map timelines of any session writable? */
bool maps_timelines_writable(void);

/* Tensors of the broker that are there: nothing is freed too early, nor kept
 * too long. */
uint64_t n_slots(void);
bool await_slots(uint64_t n);

/* --- in the producer: actor_fn ------------------------------------------- */

/* Publish "t/a" at once, and write it behind the gate. */
int produce(void);
/* And make a ticket for it, for two. */
int produce_ticket(void);
int produce_lets_go(void);
/* Wait for the stream, and speak to the broker. */
int produce_finishes(void);
