/*
 * What monitoring reads of a broker, copied: status, histograms, chunks,
 * accounts and communicators. It takes a handful of requests, however many
 * tensors and sessions there are.
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
	char name[32]; /* the kind of request */
	uint64_t n, sum_ns;
	uint64_t *counts; /* owned; n_buckets of the snapshot */
};

struct snapshot {
	struct snapshot_value *values;
	size_t n_values;
	char *note;          /* warnings for the operator, one on each line */
	uint64_t *limits_ns; /* of the buckets of all histograms */
	uint32_t n_buckets;
	struct snapshot_histogram *histograms;
	size_t n_histograms;
	struct fsdp_chunk *chunks;
	size_t n_chunks;
	struct fsdp_account *accounts;
	size_t n_accounts;
	struct fsdp_comm_entry *comms; /* their texts are owned */
	size_t n_comms;
};

#define SNAPSHOT_NULL ((struct snapshot){0})

/* Ask the broker for all of it. Negative: fsdp_error() has the sentence, but
 * for -ENOMEM. `ret` needs snapshot_deinit() also then. */
int snapshot_read(struct fsdp_client *client, struct snapshot *ret);
/* Only status and histograms: two or three requests. */
int snapshot_read_counters(struct fsdp_client *client, struct snapshot *ret);
void snapshot_deinit(struct snapshot *snapshot);

/* A value of the status; 0 if the broker has none of that name. */
uint64_t snapshot_value(const struct snapshot *snapshot, const char *name);

/* Append one item, all 0, to an array of `*n` of `size` bytes each. NULL: no
 * memory, and the array is as it was. */
void *snapshot_append(void *array, size_t *n, size_t size);
