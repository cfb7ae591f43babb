/*
 * This file computes rows and wires of buckets. The entries of a bucket follow
 * one another, so one pass over the entries adds up the row of each bucket.
 */
#include "collective/wire.h"
#include "collective/bucket.h"
#include <string.h>

static uint64_t align(uint64_t size)
{
	return (size + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Integers are summed in 64 bits, and truncated when they are stored. */
static uint32_t widen(uint32_t dtype)
{
	switch ((enum dtype)dtype) {
	case DTYPE_I8:
	case DTYPE_I16:
	case DTYPE_I32:
		return DTYPE_I64;
	case DTYPE_U8:
	case DTYPE_U16:
	case DTYPE_U32:
		return DTYPE_U64;
	default:
		return dtype;
	}
}

uint32_t wire_dtype(const struct plan_entry *entry, enum wire_kind kind)
{
	return kind == WIRE_GATHER ? entry->full_dtype
				   : widen(entry->reduce_dtype);
}

uint64_t wire_chunk_size(const struct plan_entry *entry, enum wire_kind kind)
{
	uint32_t dtype = wire_dtype(entry, kind);

	return dtype ? entry->shard.chunk_numel * dtype_size(dtype) : 0;
}

uint32_t wire_bucket(const struct plan_entry *entry, enum wire_kind kind)
{
	return kind == WIRE_GATHER ? entry->gather_bucket
				   : entry->reduce_bucket;
}

uint32_t wire_count_buckets(const struct plan *plan, enum wire_kind kind)
{
	return kind == WIRE_GATHER ? plan->n_gather_buckets
				   : plan->n_reduce_buckets;
}

void wire_place(const struct plan *plan, enum wire_kind kind,
		uint64_t *ret_offsets, uint64_t *ret_rows)
{
	memset(ret_rows, 0, wire_count_buckets(plan, kind) * sizeof(*ret_rows));
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &plan->entries[i];
		uint32_t bucket = wire_bucket(entry, kind);

		ret_offsets[i] = 0;
		if (bucket == BUCKET_NONE)
			continue;
		ret_offsets[i] = ret_rows[bucket];
		ret_rows[bucket] += align(wire_chunk_size(entry, kind));
	}
}

static uint64_t row_of(const struct plan *plan, enum wire_kind kind,
		       uint32_t bucket)
{
	uint64_t row = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		if (wire_bucket(&plan->entries[i], kind) == bucket)
			row += align(wire_chunk_size(&plan->entries[i], kind));
	}
	return row;
}

bool wire_has_cast(const struct plan *plan, uint32_t bucket)
{
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &plan->entries[i];

		if (entry->gather_bucket == bucket &&
		    entry->full_dtype != entry->dtype)
			return true;
	}
	return false;
}

/* If the shard dimension is not the first, a rank has a piece of each row. */
bool wire_is_flat(const struct plan *plan, uint32_t bucket)
{
	if (plan->policy.layout == PLAN_FLAT)
		return true;
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &plan->entries[i];

		if (entry->gather_bucket == bucket && plan->n_shards > 1 &&
		    entry->shard.n_rows > 1)
			return true;
	}
	return false;
}

struct wire_gather_tail wire_gather_tail(const struct plan *plan)
{
	uint64_t send = 0, wire = 0, row;

	for (uint32_t i = 0; i < plan->n_gather_buckets; i++) {
		row = row_of(plan, WIRE_GATHER, i);
		if (wire_has_cast(plan, i))
			send = max_u64(send, row);
		if (wire_is_flat(plan, i))
			wire = max_u64(wire, plan->n_shards * row);
	}
	return (struct wire_gather_tail){.wire_offset = send,
					 .size = send + wire};
}

uint64_t wire_reduce_tail(const struct plan *plan)
{
	uint64_t row = 0;

	for (uint32_t i = 0; i < plan->n_reduce_buckets; i++)
		row = max_u64(row, row_of(plan, WIRE_REDUCE, i));
	return plan->n_shards * row;
}
