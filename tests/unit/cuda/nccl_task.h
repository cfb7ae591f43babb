/*
 * Collectives of ranks on GPUs. The test describes the work in `task`, and the
 * ranks do it and leave their results.
 */
#pragma once
#include "cuda/nccl_collective.h"
#include "proto/tensor.h"
#include "tests/lib/scalar.h"
#include "tests/unit/cuda/nccl_fixture.h"

#define CHUNK     40 /* elements of one part, if there are kernels */
#define MAX_PARTS 3
#define MAX_NUMEL 6000 /* more than one block of the fake */
#define MAX_BYTES (RANKS_MAX * MAX_PARTS * MAX_NUMEL * sizeof(double))

/* The test sets the task, and the ranks see it. */
struct task {
	uint32_t dtype;
	uint32_t n_parts;
	uint64_t numel[MAX_PARTS]; /* elements of one chunk */
	bool is_in_place;
	enum nccl_op scatter_op, reduce_op;
	double premul;
	uint8_t found[RANKS_MAX][MAX_BYTES]; /* result that each rank copied */
};

static struct task *task; /* shared */

/* Places of the parts, in a rank. */
static CUdeviceptr chunks, wholes, outputs;
static struct nccl_part parts[MAX_PARTS];

static inline void task_open(void)
{
	mesh_open();
	task = shared_memory(sizeof(*task));
	task->dtype = DTYPE_F32;
	task->n_parts = 1;
	task->numel[0] = 16;
	task->scatter_op = task->reduce_op = NCCL_OP_SUM;
}

/* --- elements ------------------------------------------------------------ */

/* Returns element `i` of part `p` of rank `r`'s input. Every rank computes the
 * same value for it. Values are small, have both signs, so that they cancel,
 * and have bits in every place. */
static inline uint64_t element(uint32_t rank, uint32_t part, uint64_t i)
{
	uint64_t x = (rank * 1000003 + part * 7919 + i + 1) *
		     UINT64_C(0x9e3779b97f4a7c15);
	double value;

	x ^= x >> 29;
	if (!scalar_is_float((enum fsdp_dtype)task->dtype))
		return x;
	value = (double)(x % 20011) / 1024 - 9;
	return scalar_encode((enum fsdp_dtype)task->dtype, value);
}

static inline uint64_t load(const void *data, uint64_t i)
{
	return scalar_load((enum fsdp_dtype)task->dtype, data, i);
}

static inline uint32_t element_size(void)
{
	return dtype_size(task->dtype);
}

/* --- in a rank ----------------------------------------------------------- */

static inline uint32_t shard_self(void)
{
	return rank_self() % mesh->n_shards;
}

/* Parts lie one after another, with a gap. */
static inline int lay_out(void)
{
	uint64_t at = 0, size;

	chunks = rank_allocate(MAX_BYTES);
	wholes = rank_allocate(MAX_BYTES);
	for (uint32_t p = 0; p < task->n_parts; p++) {
		size = task->numel[p] * element_size();
		parts[p] = (struct nccl_part){
			.chunk = chunks + at,
			.all = wholes + at,
			.numel = task->numel[p],
		};
		if (task->is_in_place)
			parts[p].chunk = parts[p].all + shard_self() * size;
		at += size * mesh->n_shards + 64;
	}
	return 0;
}

/* Write `n` elements of this rank's input to part `p`, starting with
 * `first`. */
static inline void fill(CUdeviceptr to, uint32_t p, uint64_t first, uint64_t n)
{
	uint8_t *bytes = calloc(n + 1, 16);

	for (uint64_t i = 0; i < n; i++)
		scalar_store((enum fsdp_dtype)task->dtype, bytes, i,
			     element(rank_self(), p, first + i));
	rank_put(to, bytes, n * element_size());
	free(bytes);
}

static inline int fill_chunks(void)
{
	for (uint32_t p = 0; p < task->n_parts; p++)
		fill(parts[p].chunk, p, 0, task->numel[p]);
	return 0;
}

static inline int fill_wholes(void)
{
	for (uint32_t p = 0; p < task->n_parts; p++)
		fill(parts[p].all, p, 0, task->numel[p] * mesh->n_shards);
	return 0;
}

static inline int begin_gather(void)
{
	struct error err = ERROR_NULL;
	const struct nccl_gather gather = {
		.parts = parts,
		.n_parts = task->n_parts,
		.dtype = task->dtype,
	};

	return rank_say(nccl_gather(self.comm, &gather, self.stream, &err),
			err.msg);
}

/* Queue a copy of the collective's result on the stream, immediately after the
 * collective. So the order is that of the stream, and not of the test. */
static inline int find(CUdeviceptr from)
{
	int r;

	must(context_enter(self.device, NULL) == 0);
	must(cu.MemcpyDtoHAsync(task->found[rank_self()], from, MAX_BYTES,
				self.stream) == CUDA_SUCCESS);
	context_leave();
	r = rank_wait_stream();
	return r;
}

static inline int gather(void)
{
	int r = begin_gather();

	return r < 0 ? r : find(wholes);
}

static inline int begin_reduce(void)
{
	struct error err = ERROR_NULL;
	struct nccl_sum sums[MAX_PARTS];
	struct nccl_reduce reduce = {
		.dtype = task->dtype,
		.parts = parts,
		.n_parts = task->n_parts,
		.scatter_op = task->scatter_op,
		.premul = task->premul,
		.sums = sums,
		.n_sums = mesh->n_replicas > 1 ? task->n_parts : 0,
		.reduce_op = task->reduce_op,
	};

	for (uint32_t p = 0; p < task->n_parts; p++)
		sums[p] = (struct nccl_sum){parts[p].chunk, parts[p].numel};
	return rank_say(nccl_reduce(self.comm, &reduce, self.stream, &err),
			err.msg);
}

static inline int reduce(void)
{
	int r = begin_reduce();

	return r < 0 ? r : find(task->is_in_place ? wholes : chunks);
}

/* --- kernels ------------------------------------------------------------- */

/* Copy from one memory to another. In one of them the chunks of CHUNK elements
 * of a mesh's two ranks lie one after another. */
static inline struct kernels_table *make_table(enum kernels_kind kind,
					       uint32_t from, uint32_t to)
{
	uint32_t wire = kind == KERNELS_COPY_OUT ? from : to;
	const struct kernels_entry entry = {
		.from_dtype = from,
		.to_dtype = to,
		.numel = kind == KERNELS_COPY_IN || kind == KERNELS_GRAD_OUT
				 ? CHUNK
				 : 2 * CHUNK,
		.padded_numel =
			kind == KERNELS_COPY_IN || kind == KERNELS_GRAD_OUT
				? CHUNK
				: 2 * CHUNK,
		.n_ranks = 2,
		.stride = CHUNK * dtype_size(wire),
		.n_rows = 1,
		.part_numel = CHUNK,
	};
	struct error err = ERROR_NULL;
	struct kernels_table *table = NULL;

	if (kernels_table_new(self.device, kind, &entry, 1, &table, &err) < 0)
		fprintf(stderr, "%s\n", err.msg);
	must(table);
	return table;
}

static inline struct kernels_launch launch_of(const struct kernels_table *table,
					      CUdeviceptr from, CUdeviceptr to)
{
	return (struct kernels_launch){.table = table,
				       .n_entries = 1,
				       .from = from,
				       .to = to,
				       .factor = 1};
}

/* --- in the test --------------------------------------------------------- */

static inline void begin(uint32_t n_shards, uint32_t n_replicas)
{
	mesh_join(n_shards, n_replicas);
	cr_assert(zero(int, ranks_run(&ranks, lay_out)));
}

static inline void end(void)
{
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
	ranks_stop(&ranks);
}
