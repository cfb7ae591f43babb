/*
 * A copy of what monitoring reads from a broker: status, histograms, chunks,
 * accounts and communicators. This takes a few requests, however many tensors
 * and sessions there are.
 */
#pragma once
#include "client/fsdp.h"
#include <stddef.h>
#include <stdint.h>

struct snapshot_value {
	char name[64];
	uint64_t value;
};

struct snapshot_histogram {
	enum fsdp_histogram_kind kind;
	char name[32]; /* the kind of request; "": iterations */
	uint64_t n, sum_ns;
	uint64_t *counts; /* owned; as many as the snapshot's n_buckets */
};

struct snapshot {
	struct snapshot_value *values;
	size_t n_values;
	char *note;          /* warnings for the operator, one per line */
	uint64_t *limits_ns; /* of the buckets of all histograms */
	uint32_t n_buckets;
	struct snapshot_histogram *histograms;
	size_t n_histograms;
	struct fsdp_chunk *chunks;
	size_t n_chunks;
	struct fsdp_account *accounts;
	size_t n_accounts;
	struct fsdp_comm_entry *comms; /* `name` and `note` of each are owned */
	size_t n_comms;
};

#define SNAPSHOT_NULL ((struct snapshot){0})

/* Request everything. On failure fsdp_error() returns the cause (except of
 * -ENOMEM), and `ret` must also be freed by snapshot_deinit(). */
int snapshot_read(struct fsdp_client *client, struct snapshot *ret);
/* Request only the status and the histograms, by two or three requests. */
int snapshot_read_counters(struct fsdp_client *client, struct snapshot *ret);
void snapshot_deinit(struct snapshot *snapshot);

/* Return a value of the status; 0 if the broker has no value of that name. */
uint64_t snapshot_value(const struct snapshot *snapshot, const char *name);

/* Append one item, all 0, to an array of `*n` items of `size` bytes each.
 * Returns the item, or NULL if there is no memory; then the array has not
 * changed. */
void *snapshot_append(void *array, size_t *n, size_t size);
