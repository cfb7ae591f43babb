/*
 * This file checks plans, and finds positions in them.
 *
 * The broker makes plans with checked arithmetic. This file checks them again,
 * because memory is written at the resulting offsets without further checks.
 */
#include "collective/host/layout.h"
#include "collective/bucket.h"
#include "collective/host/kernel.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT (UINT64_C(1) << 62)

static uint64_t align(uint64_t offset)
{
	return (offset + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

/* --- checks -------------------------------------------------------------- */

static bool is_region(uint64_t size, uint32_t n_replicas)
{
	return size % PLAN_ALIGN == 0 && size <= LIMIT / n_replicas;
}

static int check_head(const struct plan *plan, struct error *err)
{
	uint32_t n = plan->n_replicas;
	uint32_t max =
		plan->policy.is_per_rank ? PLAN_MAX_WORLD : PLAN_MAX_RANKS;

	if (plan->n_entries == 0 || plan->n_entries > PLAN_MAX_PARAMS)
		return error_set(err, -EINVAL, "it has %u entries, not 1 to %d",
				 plan->n_entries, PLAN_MAX_PARAMS);
	if (plan->n_shards == 0 || n == 0 || (uint64_t)plan->n_shards * n > max)
		return error_set(err, -EINVAL,
				 "it is for %u shards of %u replicas, not for "
				 "1 to %u ranks",
				 plan->n_shards, n, max);
	if (plan->policy.layout > PLAN_FLAT)
		return error_set(err, -EINVAL, "its layout is %d",
				 plan->policy.layout);
	if (!is_region(plan->shards_size, n) ||
	    !is_region(plan->full_size, n) || !is_region(plan->input_size, n) ||
	    !is_region(plan->grads_size, n) ||
	    !is_region(plan->partial_size, n))
		return error_set(err, -EINVAL,
				 "its sizes are not multiples of %d bytes "
				 "below 2^62",
				 PLAN_ALIGN);
	return 0;
}

static bool is_product(uint64_t a, uint64_t b, uint64_t c, uint64_t product)
{
	uint64_t ab, abc;

	return !__builtin_mul_overflow(a, b, &ab) &&
	       !__builtin_mul_overflow(ab, c, &abc) && abc == product;
}

static int check_shard(const struct shard *shard, uint32_t n_shards,
		       struct error *err)
{
	uint64_t size = (uint64_t)shard->size, chunk = (uint64_t)shard->chunk;

	if (shard->n_ranks != n_shards || size > LIMIT ||
	    chunk != (size + n_shards - 1) / n_shards ||
	    !is_product(shard->n_rows, size, shard->row_numel, shard->numel) ||
	    !is_product(shard->n_rows, chunk, shard->row_numel,
			shard->chunk_numel) ||
	    !is_product(shard->chunk_numel, n_shards, 1, shard->padded_numel) ||
	    (shard->n_rows > 1 && shard->padded_numel != shard->numel))
		return error_set(err, -EINVAL,
				 "its sizes contradict each other");
	return 0;
}

static bool is_cast(uint32_t to, uint32_t from)
{
	return to == from || (dtype_is_float(from) && dtype_is_float(to));
}

static int check_dtypes(const struct plan_entry *entry, struct error *err)
{
	uint32_t input = entry->input_dtype, reduce = entry->reduce_dtype;

	if (!dtype_size(entry->dtype) || !dtype_size(entry->full_dtype) ||
	    !is_cast(entry->full_dtype, entry->dtype))
		return error_set(err, -EINVAL, "%s is not cast to %s",
				 dtype_name(entry->dtype),
				 dtype_name(entry->full_dtype));
	if (reduce && (!dtype_size(input) || !dtype_accumulator(reduce) ||
		       !is_cast(reduce, input)))
		return error_set(err, -EINVAL, "%s is not reduced in %s",
				 dtype_name(input), dtype_name(reduce));
	return 0;
}

/* Whole parameters lie one after another; `*at` moves to the end of this
 * one. */
static int check_whole(const struct plan_entry *entry, uint32_t dtype,
		       uint64_t offset, uint64_t size, uint64_t *at,
		       struct error *err)
{
	uint64_t bytes, end;

	if (offset != *at ||
	    __builtin_mul_overflow(entry->shard.padded_numel, dtype_size(dtype),
				   &bytes) ||
	    __builtin_add_overflow(offset, bytes, &end) || end > size)
		return error_set(err, -EINVAL,
				 "its whole parameter is misaligned, overlaps "
				 "another, or exceeds the buffer");
	*at = align(end);
	return 0;
}

static int check_chunks(const struct shard *shard, uint32_t dtype,
			uint64_t offset, uint64_t stride, uint64_t size,
			const char *what, struct error *err)
{
	uint64_t bytes, end;

	if (offset % PLAN_ALIGN != 0 || stride % dtype_size(dtype) != 0 ||
	    __builtin_mul_overflow(shard->chunk_numel, dtype_size(dtype),
				   &bytes) ||
	    (shard->n_ranks > 1 && stride < bytes) ||
	    __builtin_mul_overflow(stride, shard->n_ranks - 1, &end) ||
	    __builtin_add_overflow(end, bytes, &end) ||
	    __builtin_add_overflow(end, offset, &end) || end > size)
		return error_set(err, -EINVAL,
				 "the pieces of its shards in the %s are "
				 "misaligned, overlap, or exceed it",
				 what);
	return 0;
}

static int check_places(const struct plan *plan, const struct plan_entry *entry,
			uint64_t *full, uint64_t *input, struct error *err)
{
	const struct shard *shard = &entry->shard;
	int r = check_chunks(shard, entry->dtype, entry->shard_offset,
			     entry->shard_stride, plan->shards_size, "shards",
			     err);

	if (r >= 0)
		r = check_whole(entry, entry->full_dtype, entry->full_offset,
				plan->full_size, full, err);
	if (r < 0 || !entry->reduce_dtype)
		return r;
	r = check_whole(entry, entry->input_dtype, entry->input_offset,
			plan->input_size, input, err);
	if (r >= 0)
		r = check_chunks(shard, entry->dtype, entry->grad_offset,
				 entry->grad_stride, plan->grads_size,
				 "gradients", err);
	if (r >= 0 && plan->n_replicas > 1)
		r = check_chunks(shard, entry->reduce_dtype,
				 entry->partial_offset, entry->partial_stride,
				 plan->partial_size, "partial sums", err);
	return r;
}

/* On devices the chunks of one rank are one range. */
static int check_strides(const struct plan *plan,
			 const struct plan_entry *entry, struct error *err)
{
	uint32_t n = plan->n_shards;

	if (!plan->policy.is_per_rank)
		return 0;
	if (entry->shard_stride != plan->shards_size / n ||
	    (entry->reduce_dtype &&
	     (entry->grad_stride != plan->grads_size / n ||
	      (plan->n_replicas > 1 &&
	       entry->partial_stride != plan->partial_size / n))))
		return error_set(err, -EINVAL,
				 "its chunks are not those of single ranks");
	return 0;
}

/* Buckets are numbered in their order; `*n` counts the buckets so far. */
static int check_bucket(uint32_t bucket, uint32_t *n, struct error *err)
{
	if (bucket == *n)
		++*n;
	if (*n > 0 && bucket == *n - 1)
		return 0;
	return error_set(err, -EINVAL, "it is in bucket %u, after %u others",
			 bucket, *n);
}

static int check_buckets(const struct layout *layout, struct error *err)
{
	const struct plan *plan = &layout->plan;
	uint32_t n_gather = 0, n_reduce = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &layout->entries[i];
		int r = check_bucket(entry->gather_bucket, &n_gather, err);

		if (r >= 0 && entry->reduce_dtype)
			r = check_bucket(entry->reduce_bucket, &n_reduce, err);
		else if (r >= 0 && entry->reduce_bucket != BUCKET_NONE)
			r = error_set(
				err, -EINVAL,
				"it is frozen, but in a bucket of reductions");
		if (r < 0)
			return error_wrap(err, r, "entry %u", i);
	}
	if (n_gather != plan->n_gather_buckets ||
	    n_reduce != plan->n_reduce_buckets)
		return error_set(err, -EINVAL,
				 "its entries are in %u and %u buckets, not in "
				 "%u and %u",
				 n_gather, n_reduce, plan->n_gather_buckets,
				 plan->n_reduce_buckets);
	return 0;
}

static int check(const struct layout *layout, struct error *err)
{
	const struct plan *plan = &layout->plan;
	uint64_t full = 0, input = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &layout->entries[i];
		int r = check_shard(&entry->shard, plan->n_shards, err);

		if (r >= 0)
			r = check_dtypes(entry, err);
		if (r >= 0)
			r = check_places(plan, entry, &full, &input, err);
		if (r >= 0)
			r = check_strides(plan, entry, err);
		if (r < 0)
			return error_wrap(err, r, "entry %u", i);
	}
	return plan->policy.is_per_rank ? check_buckets(layout, err) : 0;
}

/* --- spans --------------------------------------------------------------- */

/* Each span ends where the next one begins, so all bytes between are
 * padding. */
static void append(struct layout_span *spans, uint32_t *n, uint64_t begin,
		   uint64_t end, const struct plan_entry *entry)
{
	if (*n > 0)
		spans[*n - 1].end = begin;
	spans[(*n)++] = (struct layout_span){begin, end, entry};
}

static void fill_spans(struct layout *layout)
{
	const struct plan *plan = &layout->plan;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &layout->entries[i];

		append(layout->full_spans, &layout->n_full_spans,
		       entry->full_offset, plan->full_size, entry);
		if (entry->reduce_dtype)
			append(layout->input_spans, &layout->n_input_spans,
			       entry->input_offset, plan->input_size, entry);
	}
}

int layout_new(const struct plan *plan, struct layout **ret, struct error *err)
{
	struct layout *layout;
	size_t size = sizeof(*layout->entries);
	int r = check_head(plan, err);

	if (r < 0)
		return r;
	layout = calloc(1, sizeof(*layout));
	if (!layout)
		goto no_memory;
	layout->entries = calloc(plan->n_entries, size);
	layout->full_spans =
		calloc(plan->n_entries, sizeof(struct layout_span));
	layout->input_spans =
		calloc(plan->n_entries, sizeof(struct layout_span));
	if (!layout->entries || !layout->full_spans || !layout->input_spans)
		goto no_memory;
	memcpy(layout->entries, plan->entries, plan->n_entries * size);
	layout->plan = *plan;
	layout->plan.entries = layout->entries;
	r = check(layout, err);
	if (r < 0) {
		layout_free(layout);
		return r;
	}
	fill_spans(layout);
	*ret = layout;
	return 0;
no_memory:
	layout_free(layout);
	return error_nomem(err, "its %u entries", plan->n_entries);
}

void layout_free(struct layout *layout)
{
	if (!layout)
		return;
	free(layout->entries);
	free(layout->full_spans);
	free(layout->input_spans);
	free(layout);
}

/* --- ways ---------------------------------------------------------------- */

bool layout_is_in_place(const struct layout *layout)
{
	const struct plan *plan = &layout->plan;

	if (plan->shards_size != plan->full_size)
		return false;
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &layout->entries[i];
		const struct shard *shard = &entry->shard;
		uint64_t bytes = shard->chunk_numel * dtype_size(entry->dtype);

		if (entry->dtype != entry->full_dtype ||
		    entry->shard_offset != entry->full_offset ||
		    (plan->n_shards > 1 &&
		     (shard->n_rows > 1 || entry->shard_stride != bytes)))
			return false;
	}
	return true;
}

const struct layout_span *layout_find(const struct layout_span *spans,
				      uint32_t n, uint64_t at)
{
	uint32_t low = 0, high = n;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (spans[middle].end > at)
			high = middle;
		else
			low = middle + 1;
	}
	assert(low < n);
	return &spans[low];
}

struct shard_range layout_range(const struct shard *shard, uint64_t position,
				uint64_t max)
{
	/* `part` is the number of elements of one row that one chunk has. If
	 * there is more than one row, no row is padded. */
	uint64_t part = (uint64_t)shard->chunk * shard->row_numel;
	uint64_t row = position / (part * shard->n_ranks);
	uint64_t rest = position % (part * shard->n_ranks);
	uint64_t left = part - rest % part;

	return (struct shard_range){
		.shard = (uint32_t)(rest / part),
		.at = row * part + rest % part,
		.n = left < max ? left : max,
	};
}

uint64_t layout_gap(const struct shard *shard, uint32_t s, uint64_t offset,
		    uint64_t stride, uint32_t element_size)
{
	uint64_t end = offset + s * stride + shard->chunk_numel * element_size;

	/* If chunks are packed, the next chunk begins there. */
	if (s + 1 < shard->n_ranks && stride % PLAN_ALIGN != 0)
		return 0;
	return align(end) - end;
}
