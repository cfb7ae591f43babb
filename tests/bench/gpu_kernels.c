/*
 * Rows gpu_kernels: a launch of each kind, against a copy within the device
 * that reads and writes as many bytes.
 */
#include "cuda/kernels.h"
#include "gpu.h"
#include "proto/error.h"
#include "proto/tensor.h"
#include <errno.h>

#define MIB (UINT64_C(1) << 20)

static const struct kernels_row {
	enum kernels_kind kind;
	uint32_t from, to; /* dtypes */
	const char *variant;
} kernels_rows[] = {
	{KERNELS_COPY_IN, DTYPE_F32, DTYPE_BF16, "copy-in f32 to bf16"},
	{KERNELS_COPY_OUT, DTYPE_BF16, DTYPE_BF16, "copy-out bf16"},
	{KERNELS_COPY_OUT, DTYPE_F32, DTYPE_BF16, "copy-out f32 to bf16"},
	{KERNELS_CHUNK_CAT, DTYPE_BF16, DTYPE_F32, "chunk-cat bf16 to f32"},
	{KERNELS_GRAD_OUT, DTYPE_F32, DTYPE_F32, "grad-out f32"},
};
#define N_KERNELS_ROWS (sizeof(kernels_rows) / sizeof(*kernels_rows))

struct bed {
	const struct gpu *gpu;
	const struct device *device;
	CUstream stream;
	CUdeviceptr from, to;
	uint64_t numel;
	unsigned n_launches; /* launches in one sample */
};

static double time_kernel(const struct bed *bed,
			  const struct kernels_launch *launch)
{
	struct error err = ERROR_NULL;
	uint64_t start = now_ns();

	for (unsigned i = 0; i < bed->n_launches; i++)
		gpu_check(kernels_launch(launch, bed->stream, &err), &err);
	gpu_must(cu.StreamSynchronize(bed->stream), "wait for a kernel");
	return (double)(now_ns() - start) / bed->n_launches;
}

/* A copy reads `size` bytes and writes as many. */
static double time_copy(const struct bed *bed, uint64_t size)
{
	uint64_t start = now_ns();

	for (unsigned i = 0; i < bed->n_launches; i++)
		gpu_must(cu.MemcpyDtoDAsync(bed->to, bed->from, size,
					    bed->stream),
			 "copy within the device");
	gpu_must(cu.StreamSynchronize(bed->stream), "wait for a copy");
	return (double)(now_ns() - start) / bed->n_launches;
}

static void run_row(const struct bed *bed, const struct kernels_row *row)
{
	bool has_ranks_from = row->kind == KERNELS_COPY_OUT;
	uint64_t part = bed->numel / 2;
	const struct kernels_entry entry = {
		.from_dtype = row->from,
		.to_dtype = row->to,
		.numel = bed->numel,
		.padded_numel = bed->numel,
		.n_ranks = 2,
		.stride =
			part * dtype_size(has_ranks_from ? row->from : row->to),
		.n_rows = 1,
		.part_numel = part,
	};
	struct kernels_launch launch = {
		.n_entries = 1, .from = bed->from, .to = bed->to, .factor = 1};
	struct gpu_line line = {.name = "gpu_kernels",
				.variant = row->variant,
				.unit = "us",
				.bus_factor = 1};
	struct pairs pairs = PAIRS_NULL;
	struct error err = ERROR_NULL;
	struct kernels_table *table;

	gpu_check(kernels_table_new(bed->device, row->kind, &entry, 1, &table,
				    &err),
		  &err);
	launch.table = table;
	line.size = bed->numel * (dtype_size(row->from) + dtype_size(row->to));
	time_kernel(bed, &launch);
	time_copy(bed, line.size / 2);
	for (unsigned i = 0; i < bed->gpu->bench->n_pairs; i++) {
		samples_add(&pairs.floor, time_copy(bed, line.size / 2));
		samples_add(&pairs.ours, time_kernel(bed, &launch));
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1000, &line.result);
	pairs_deinit(&pairs);
	kernels_table_free(table);
	gpu_print(bed->gpu, &line);
}

void gpu_kernels(const struct gpu *gpu)
{
	struct bed bed = {.gpu = gpu, .device = gpu_enter(0)};
	struct error err = ERROR_NULL;
	uint64_t size = gpu->is_fake ? MIB / 16 : 256 * MIB;
	int r = kernels_load(&err);

	if (r == -ENOSYS) {
		gpu_leave_out("gpu_kernels", err.msg);
		return;
	}
	gpu_check(r, &err);
	bed.stream = gpu_stream();
	bed.numel = size / sizeof(float);
	bed.n_launches = gpu->is_fake ? 1 : 10;
	gpu_must(cu.MemAlloc(&bed.from, size), "allocate on the device");
	gpu_must(cu.MemAlloc(&bed.to, size), "allocate on the device");
	gpu_must(cu.MemsetD8(bed.from, 0, size), "fill memory of the device");
	for (size_t i = 0; i < N_KERNELS_ROWS; i++)
		run_row(&bed, &kernels_rows[i]);
	gpu_must(cu.MemFree(bed.from), "free memory of the device");
	gpu_must(cu.MemFree(bed.to), "free memory of the device");
}
