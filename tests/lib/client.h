/*
 * Each test has a broker of its own, with a client, and tensors of 256 floats.
 * The first float of a tensor identifies it.
 *
 *	CHECKED_SUITE(client, client_setup, client_teardown, .timeout = 300);
 */
#pragma once
#include "client/fsdp.h"
#include "tests/lib/daemon.h"
#include "tests/lib/leaks.h"
#include "tests/lib/memory.h"

extern const struct fsdp_spec VECTOR;
extern struct daemon daemon_;
extern struct fsdp_client *client;

void client_setup(void);
void client_setup_supervised(void);
void client_teardown(void);

struct fsdp_client *connect_to(const struct daemon *daemon, uint64_t budget);
/* Makes a tensor whose first float is `first`. */
struct fsdp_tensor *make(struct fsdp_client *of, const struct fsdp_spec *spec,
			 float first);
int publish(struct fsdp_client *of, struct fsdp_tensor *tensor,
	    const char *name, uint32_t flags);
/* Makes a tensor, publishes it under `name`, and releases it. */
void put(struct fsdp_client *of, const char *name, float first);
int get(struct fsdp_client *of, const char *name, int32_t timeout_ms,
	struct fsdp_tensor **ret);
float first_of(const struct fsdp_tensor *tensor);
int count_limbo(struct fsdp_client *of);

/* Waits until that many requests are parked at the broker. */
void wait_until_parked(uint32_t n);

/* A thread that waits for a name. */
struct waiting {
	struct fsdp_client *client;
	const char *name;
	float value;
	int r;
};

void *wait_for_name(void *waiting);

/* Fields of a thread that waits for a version newer than `seen`. */
struct reading {
	const char *name;
	uint64_t seen;
	int r;
	uint64_t version;
};

void *read_newer(void *reading);
/* Gets a version newer than `version`, and returns its number. */
int get_newer(const char *name, uint64_t version, int32_t timeout_ms,
	      uint64_t *ret_version);
