/*
 * The tables of kernels have one entry for each entry of the plan that takes
 * part, in the plan's order. So a bucket is a range of each table.
 */
#include "collective/device/device_group.h"
#include "collective/bucket.h"
#include "collective/divide.h"
#include "collective/wire.h"
#include "proto/error.h"
#include <assert.h>
#include <stdlib.h>

/* A bucket: its entries in the plan, and its rows in the tables. */
struct range {
	uint32_t first;    /* index of the first entry in the plan */
	uint32_t row, n;   /* rows of the tables */
	uint64_t row_size; /* bytes of one rank's row of the wire */
};

struct device_group {
	const struct plan *plan;
	uint32_t shard;       /* index of this rank's shard in its replica */
	uint64_t wire_offset; /* of the wire of gathers, in the tail */
	/* owned; by enum wire_kind: of each entry's chunk in its row */
	uint64_t *offsets[2];
	/* owned; by enum wire_kind: one for each bucket */
	struct range *ranges[2];
	struct nccl_part *parts; /* owned; scratch, one for each entry */
	struct kernels_table *copy_in, *copy_out, *chunk_cat, *to_partial,
		*from_partial, *grad_out; /* owned */
};

/* ------------------------------------------------------------- tables */

/* Returns the table entry for a plan entry, with the two plain ranges of a
 * chunk. */
static struct kernels_entry chunk_of(const struct plan_entry *entry,
				     uint64_t from, uint32_t from_dtype,
				     uint64_t to, uint32_t to_dtype)
{
	return (struct kernels_entry){
		.from = from,
		.to = to,
		.from_dtype = from_dtype,
		.to_dtype = to_dtype,
		.numel = entry->shard.chunk_numel,
		.padded_numel = entry->shard.chunk_numel,
	};
}

/* Returns the table entry for a whole parameter and its chunks of all ranks. */
static struct kernels_entry whole_of(const struct plan_entry *entry,
				     uint64_t stride)
{
	return (struct kernels_entry){
		.numel = entry->shard.numel,
		.padded_numel = entry->shard.padded_numel,
		.n_ranks = entry->shard.n_ranks,
		.stride = stride,
		.n_rows = entry->shard.n_rows,
		.part_numel =
			(uint64_t)entry->shard.chunk * entry->shard.row_numel,
	};
}

typedef struct kernels_entry fill_fn(const struct device_group *group,
				     uint32_t i);

static uint64_t row_size(const struct device_group *group, enum wire_kind kind,
			 uint32_t i)
{
	uint32_t bucket = wire_bucket(&group->plan->entries[i], kind);

	return group->ranges[kind][bucket].row_size;
}

static struct kernels_entry fill_copy_in(const struct device_group *group,
					 uint32_t i)
{
	const struct plan_entry *entry = &group->plan->entries[i];

	return chunk_of(entry, entry->shard_offset, entry->dtype,
			group->offsets[WIRE_GATHER][i], entry->full_dtype);
}

static struct kernels_entry fill_copy_out(const struct device_group *group,
					  uint32_t i)
{
	const struct plan_entry *entry = &group->plan->entries[i];
	struct kernels_entry it =
		whole_of(entry, row_size(group, WIRE_GATHER, i));

	it.from = group->offsets[WIRE_GATHER][i];
	it.to = entry->full_offset;
	it.from_dtype = it.to_dtype = entry->full_dtype;
	return it;
}

static struct kernels_entry fill_chunk_cat(const struct device_group *group,
					   uint32_t i)
{
	const struct plan_entry *entry = &group->plan->entries[i];
	struct kernels_entry it =
		whole_of(entry, row_size(group, WIRE_REDUCE, i));

	it.from = entry->input_offset;
	it.to = group->offsets[WIRE_REDUCE][i];
	it.from_dtype = entry->input_dtype;
	it.to_dtype = wire_dtype(entry, WIRE_REDUCE);
	return it;
}

static struct kernels_entry fill_to_partial(const struct device_group *group,
					    uint32_t i)
{
	const struct plan_entry *entry = &group->plan->entries[i];

	return chunk_of(entry, group->offsets[WIRE_REDUCE][i],
			wire_dtype(entry, WIRE_REDUCE), entry->partial_offset,
			entry->reduce_dtype);
}

static struct kernels_entry fill_from_partial(const struct device_group *group,
					      uint32_t i)
{
	const struct plan_entry *entry = &group->plan->entries[i];

	return chunk_of(entry, entry->partial_offset, entry->reduce_dtype,
			group->offsets[WIRE_REDUCE][i],
			wire_dtype(entry, WIRE_REDUCE));
}

static struct kernels_entry fill_grad_out(const struct device_group *group,
					  uint32_t i)
{
	const struct plan_entry *entry = &group->plan->entries[i];

	return chunk_of(entry, group->offsets[WIRE_REDUCE][i],
			wire_dtype(entry, WIRE_REDUCE), entry->grad_offset,
			entry->dtype);
}

struct table_spec {
	enum kernels_kind kernel;
	enum wire_kind wire; /* selects the entries of the table */
	fill_fn *fill;
	struct kernels_table **ret;
};

static int make_table(const struct device_group *group,
		      const struct device *device,
		      const struct table_spec *spec,
		      struct kernels_entry *scratch, struct error *err)
{
	const struct plan *plan = group->plan;
	uint32_t n = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		if (wire_bucket(&plan->entries[i], spec->wire) != BUCKET_NONE)
			scratch[n++] = spec->fill(group, i);
	}
	return kernels_table_new(device, spec->kernel, scratch, n, spec->ret,
				 err);
}

static int make_tables(struct device_group *group, const struct device *device,
		       struct error *err)
{
	const struct table_spec specs[] = {
		{KERNELS_COPY_IN, WIRE_GATHER, fill_copy_in, &group->copy_in},
		{KERNELS_COPY_OUT, WIRE_GATHER, fill_copy_out,
		 &group->copy_out},
		{KERNELS_CHUNK_CAT, WIRE_REDUCE, fill_chunk_cat,
		 &group->chunk_cat},
		{KERNELS_GRAD_OUT, WIRE_REDUCE, fill_grad_out,
		 &group->grad_out},
		/* These are used only if sums may wait for an all-reduce. */
		{KERNELS_GRAD_OUT, WIRE_REDUCE, fill_to_partial,
		 &group->to_partial},
		{KERNELS_GRAD_OUT, WIRE_REDUCE, fill_from_partial,
		 &group->from_partial},
	};
	size_t n = sizeof(specs) / sizeof(*specs);
	struct kernels_entry *scratch =
		calloc(group->plan->n_entries, sizeof(*scratch));
	int r = 0;

	if (!scratch)
		return error_nomem(err, "a table");
	if (group->plan->n_replicas == 1)
		n -= 2;
	for (size_t i = 0; i < n && r == 0; i++)
		r = make_table(group, device, &specs[i], scratch, err);
	free(scratch);
	return r;
}

/* ------------------------------------------------------------- ranges */

static int make_ranges(struct device_group *group, enum wire_kind kind,
		       struct error *err)
{
	const struct plan *plan = group->plan;
	uint32_t n = wire_count_buckets(plan, kind), row = 0;
	uint64_t *rows = calloc((size_t)n + 1, sizeof(*rows));

	group->offsets[kind] = calloc(plan->n_entries, sizeof(uint64_t));
	group->ranges[kind] = calloc((size_t)n + 1, sizeof(struct range));
	if (!rows || !group->offsets[kind] || !group->ranges[kind]) {
		free(rows);
		return error_nomem(err, "%u buckets", n);
	}
	wire_place(plan, kind, group->offsets[kind], rows);
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		uint32_t bucket = wire_bucket(&plan->entries[i], kind);
		struct range *range = &group->ranges[kind][bucket];

		if (bucket == BUCKET_NONE)
			continue;
		if (range->n++ == 0)
			*range = (struct range){i, row, 1, rows[bucket]};
		row++;
	}
	free(rows);
	return 0;
}

static int make(struct device_group *group, const struct device *device,
		struct error *err)
{
	int r = make_ranges(group, WIRE_GATHER, err);

	if (r == 0)
		r = make_ranges(group, WIRE_REDUCE, err);
	if (r < 0)
		return r;
	group->parts = calloc(group->plan->n_entries, sizeof(*group->parts));
	if (!group->parts)
		return error_nomem(err, "a group");
	return make_tables(group, device, err);
}

int device_group_new(const struct plan *plan, const struct device *device,
		     uint32_t rank, struct device_group **ret,
		     struct error *err)
{
	struct device_group *group = calloc(1, sizeof(*group));
	int r;

	assert(plan->policy.is_per_rank);
	if (!group)
		return error_nomem(err, "a group");
	group->plan = plan;
	group->shard = rank % plan->n_shards;
	group->wire_offset =
		plan->full_size + wire_gather_tail(plan).wire_offset;
	r = make(group, device, err);
	if (r < 0) {
		device_group_free(group);
		return r;
	}
	*ret = group;
	return 0;
}

void device_group_free(struct device_group *group)
{
	if (!group)
		return;
	kernels_table_free(group->copy_in);
	kernels_table_free(group->copy_out);
	kernels_table_free(group->chunk_cat);
	kernels_table_free(group->to_partial);
	kernels_table_free(group->from_partial);
	kernels_table_free(group->grad_out);
	for (uint32_t i = 0; i < 2; i++) {
		free(group->offsets[i]);
		free(group->ranges[i]);
	}
	free(group->parts);
	free(group);
}

static struct kernels_launch launch_of(const struct kernels_table *table,
				       const struct range *range,
				       CUdeviceptr from, CUdeviceptr to)
{
	return (struct kernels_launch){
		.table = table,
		.first = range->row,
		.n_entries = range->n,
		.from = from,
		.to = to,
		.factor = 1,
	};
}

/* ------------------------------------------------------------- gathers */

/* Sets the source of each chunk of the bucket: `row`, or the shards if the
 * bucket is not cast. */
static uint32_t straight_parts(struct device_group *group,
			       const struct range *range, CUdeviceptr shards,
			       CUdeviceptr row, CUdeviceptr full)
{
	for (uint32_t i = 0; i < range->n; i++) {
		uint32_t at = range->first + i;
		const struct plan_entry *entry = &group->plan->entries[at];

		group->parts[i] = (struct nccl_part){
			.chunk = row ? row + group->offsets[WIRE_GATHER][at]
				     : shards + entry->shard_offset,
			.all = full + entry->full_offset,
			.numel = entry->shard.chunk_numel,
		};
	}
	return range->n;
}

static uint32_t flat_part(struct device_group *group, const struct range *range,
			  CUdeviceptr shards, CUdeviceptr row, CUdeviceptr wire)
{
	const struct plan_entry *first = &group->plan->entries[range->first];

	group->parts[0] = (struct nccl_part){
		.chunk = row ? row : shards + first->shard_offset,
		.all = wire,
		.numel = range->row_size / dtype_size(first->full_dtype),
	};
	return 1;
}

int device_group_gather(struct device_group *group, struct nccl_comm *comm,
			CUdeviceptr shards, CUdeviceptr full, CUstream stream,
			struct error *err)
{
	const struct plan *plan = group->plan;
	CUdeviceptr wire = full + group->wire_offset;
	int r = 0;

	for (uint32_t i = 0; i < plan->n_gather_buckets && r == 0; i++) {
		const struct range *range = &group->ranges[WIRE_GATHER][i];
		CUdeviceptr row =
			wire_has_cast(plan, i) ? full + plan->full_size : 0;
		bool is_flat = wire_is_flat(plan, i);
		struct kernels_launch in =
			launch_of(group->copy_in, range, shards, row);
		struct kernels_launch out =
			launch_of(group->copy_out, range, wire, full);
		struct nccl_gather gather = {
			.copy_in = row ? &in : NULL,
			.parts = group->parts,
			.dtype = plan->entries[range->first].full_dtype,
			.copy_out = is_flat ? &out : NULL,
		};

		gather.n_parts =
			is_flat ? flat_part(group, range, shards, row, wire)
				: straight_parts(group, range, shards, row,
						 full);
		r = nccl_gather(comm, &gather, stream, err);
	}
	return r;
}

/* ---------------------------------------------------------- reductions */

/* PREMUL_SUM is a plain sum here, because chunk-cat applies the factor. It
 * rounds only once. */
static enum nccl_op op_of(enum reduce_op op)
{
	return op == REDUCE_OP_AVG ? NCCL_OP_AVG : NCCL_OP_SUM;
}

static int divide_of(const struct device_group *group,
		     const struct device_reduce *reduce, uint32_t dtype,
		     struct divide *ret, struct error *err)
{
	struct divide_input input = {
		.n_shards = group->plan->n_shards,
		.n_replicas = group->plan->n_replicas,
		.dtype = dtype,
		.has_factor = reduce->has_factor,
		.factor = reduce->factor,
		.is_sum_forced = reduce->is_sum_forced,
	};

	return divide_make(&input, ret, err);
}

/* The steps of one bucket. `reduce` points to the other fields. */
struct bucket_steps {
	struct kernels_launch chunk_cat, add, grad_out;
	struct nccl_part part;
	struct nccl_sum sum;
	struct nccl_reduce reduce;
};

static void set_sums(struct bucket_steps *it, const struct device_group *group,
		     const struct device_reduce *reduce,
		     const struct range *range)
{
	CUdeviceptr row = it->part.chunk;
	bool is_out = reduce->flags & DEVICE_REDUCE_PARTIAL_OUT;
	bool is_in = reduce->flags & DEVICE_REDUCE_PARTIAL_IN;

	if (is_out) {
		it->add = launch_of(group->to_partial, range, row,
				    reduce->partial);
		it->add.is_added = is_in;
		it->reduce.add = &it->add;
		return;
	}
	if (is_in) {
		it->add = launch_of(group->from_partial, range, reduce->partial,
				    row);
		it->add.is_added = true;
		it->reduce.add = &it->add;
	}
	it->sum = (struct nccl_sum){row, it->part.numel};
	it->reduce.sums = &it->sum;
	it->reduce.n_sums = group->plan->n_replicas > 1;
	it->reduce.grad_out = &it->grad_out;
}

static int reduce_bucket(struct device_group *group, struct nccl_comm *comm,
			 const struct device_reduce *reduce,
			 const struct range *range, CUstream stream,
			 struct error *err)
{
	const struct plan_entry *first = &group->plan->entries[range->first];
	uint32_t dtype = wire_dtype(first, WIRE_REDUCE);
	CUdeviceptr wire = reduce->input + group->plan->input_size;
	CUdeviceptr row = wire + group->shard * range->row_size;
	struct bucket_steps it = {
		.chunk_cat =
			launch_of(group->chunk_cat, range, reduce->input, wire),
		.grad_out =
			launch_of(group->grad_out, range, row, reduce->grads),
		.part = {row, wire, range->row_size / dtype_size(dtype)},
		.reduce = {.dtype = dtype,
			   .n_parts = group->plan->n_shards > 1},
	};
	struct divide divide;
	int r;

	r = divide_of(group, reduce, first->reduce_dtype, &divide, err);
	if (r < 0)
		return r;
	it.chunk_cat.factor = divide.premul / divide.pre;
	it.grad_out.factor = divide.post;
	it.grad_out.is_added = reduce->flags & DEVICE_REDUCE_ACCUMULATE;
	it.reduce.chunk_cat = &it.chunk_cat;
	it.reduce.parts = &it.part;
	it.reduce.scatter_op = op_of(divide.scatter_op);
	it.reduce.reduce_op = op_of(divide.reduce_op);
	set_sums(&it, group, reduce, range);
	return nccl_reduce(comm, &it.reduce, stream, err);
}

int device_group_reduce(struct device_group *group, struct nccl_comm *comm,
			const struct device_reduce *reduce, CUstream stream,
			struct error *err)
{
	int r = 0;

	for (uint32_t i = 0; i < group->plan->n_reduce_buckets && r == 0; i++)
		r = reduce_bucket(group, comm, reduce,
				  &group->ranges[WIRE_REDUCE][i], stream, err);
	return r;
}
