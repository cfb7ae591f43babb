/*
 * This file makes tables and launches kernels.
 *
 * A launch passes a pointer to rows that are on the device already, so it needs
 * no copy. The driver loads a kernel into a context lazily, at its first
 * launch, and waits for that. So each kernel is launched once when a table is
 * made: later, after a wait for another process was enqueued, the load might
 * never end.
 */
#include "cuda/kernels.h"
#include "cuda/context.h"
#include "cuda/kernels/image.h"
#include "cuda/kernels_row.h"
#include "proto/error.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* If there are more tiles than this, each block processes several. It is enough
 * blocks that all multiprocessors finish at about the same time. */
#define MAX_BLOCKS_PER_SM 64

#define MAX_INTEGER_FACTOR 9007199254740992.0 /* 2^53 */

/* Device functions. A grad-out that adds has a function of its own. */
enum function { GRAD_ADD = N_KERNELS, N_FUNCTIONS };

static const char *const names[N_FUNCTIONS] = {
	[KERNELS_COPY_IN] = "fsdp_copy_in",
	[KERNELS_COPY_OUT] = "fsdp_copy_out",
	[KERNELS_CHUNK_CAT] = "fsdp_chunk_cat",
	[KERNELS_GRAD_OUT] = "fsdp_grad_out",
	[GRAD_ADD] = "fsdp_grad_add",
};

/* Set by the first load. A library belongs to no context. */
static struct {
	CUlibrary library;
	CUkernel kernels[N_FUNCTIONS];
	int r;
	struct error err;
} loaded;

struct kernels_table {
	const struct device *device;
	enum kernels_kind kind;
	uint32_t n_entries;
	uint32_t max_blocks;
	CUdeviceptr memory; /* device memory: n_entries rows, then the tiles */
	/* owned; n_entries + 1 items: the first tile of each row, and the
	 * end */
	uint64_t *tiles;
	struct kernels_entry *entries; /* owned */
};

/* --- loading ------------------------------------------------------------- */

#define MAJOR(version) ((version) / 1000)
#define MINOR(version) ((version) % 1000 / 10)

/* A driver can load images of toolkits of its own major version and of older
 * ones. Its errors for newer images are arbitrary, or missing. */
static int check_image(const struct driver_info *driver, struct error *err)
{
	int toolkit = kernels_image_toolkit;

	if (!toolkit && !driver->is_fake)
		return error_set(
			err, -ENOSYS,
			"this build has no kernels: nvcc was not found "
			"when it was built; build it where the CUDA "
			"toolkit is (FSDP_CUDA_KERNELS=ON)");
	if (MAJOR(driver->version) >= MAJOR(toolkit))
		return 0;
	return error_set(err, -ENOSYS,
			 "the kernels of this build were made by the CUDA "
			 "toolkit %d.%d, and the driver is of CUDA %d.%d, too "
			 "old for them: update the NVIDIA driver, or build "
			 "with a toolkit %d (FSDP_NVCC)",
			 MAJOR(toolkit), MINOR(toolkit), MAJOR(driver->version),
			 MINOR(driver->version), MAJOR(driver->version));
}

static int refuse_image(const struct driver_info *driver, struct error *err)
{
	return error_set(
		err, -ENOSYS,
		"the kernels of this build (toolkit %d.%d) do not run on this "
		"device and driver (CUDA %d.%d): they need compute capability "
		"8.0 or more, and a device that is newer than the toolkit "
		"needs a driver that is at least as new as the toolkit",
		MAJOR(kernels_image_toolkit), MINOR(kernels_image_toolkit),
		MAJOR(driver->version), MINOR(driver->version));
}

static int load(struct error *err)
{
	struct driver_info driver;
	CUresult result;
	int r;

	driver_describe(&driver);
	r = check_image(&driver, err);
	if (r < 0)
		return r;
	result = cu.LibraryLoadData(&loaded.library, kernels_image, NULL, NULL,
				    0, NULL, NULL, 0);
	if (result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
	    result == CUDA_ERROR_INVALID_IMAGE ||
	    result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
		return refuse_image(&driver, err);
	if (result != CUDA_SUCCESS)
		return driver_error(err, result, "cannot load the kernels");
	for (int i = 0; i < N_FUNCTIONS; i++) {
		result = cu.LibraryGetKernel(&loaded.kernels[i], loaded.library,
					     names[i]);
		if (result != CUDA_SUCCESS)
			return driver_error(err, result,
					    "cannot find kernel %s", names[i]);
	}
	return 0;
}

static void load_once(void)
{
	loaded.r = load(&loaded.err);
}

int kernels_load(struct error *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int r = driver_load(err);

	if (r < 0)
		return r;
	pthread_once(&once, load_once);
	if (loaded.r < 0 && err)
		*err = loaded.err;
	return loaded.r;
}

/* --- tables -------------------------------------------------------------- */

static int make_rows(struct kernels_table *table, struct kernels_row *rows,
		     struct error *err)
{
	for (uint32_t i = 0; i < table->n_entries; i++) {
		int r = kernels_row_make(table->kind, &table->entries[i],
					 &rows[i], err);

		if (r < 0)
			return error_wrap(err, r, "entry %u", i);
		table->tiles[i + 1] =
			table->tiles[i] + kernels_row_count_tiles(&rows[i]);
	}
	return 0;
}

static CUdeviceptr tiles_of(const struct kernels_table *table, uint32_t i)
{
	return table->memory + table->n_entries * sizeof(struct kernels_row) +
	       i * sizeof(*table->tiles);
}

/* The context must be entered. */
static CUresult enqueue(const struct kernels_params *params, int function,
			uint64_t n_blocks, CUstream stream)
{
	void *parameters[] = {(void *)params};
	CUfunction f;
	CUresult result = cu.KernelGetFunction(&f, loaded.kernels[function]);

	if (result != CUDA_SUCCESS)
		return result;
	return cu.LaunchKernel(f, (unsigned int)n_blocks, 1, 1, KERNELS_THREADS,
			       1, 1, 0, stream, parameters, NULL);
}

/* Launches the table's kernels once, without rows. */
static CUresult warm_up(const struct kernels_table *table, CUstream stream)
{
	const struct kernels_params params = {
		.tiles = (const uint64_t *)(uintptr_t)tiles_of(table, 0),
	};
	CUresult result = enqueue(&params, (int)table->kind, 1, stream);

	if (result == CUDA_SUCCESS && table->kind == KERNELS_GRAD_OUT)
		result = enqueue(&params, GRAD_ADD, 1, stream);
	return result;
}

static CUresult fill(const struct kernels_table *table,
		     const struct kernels_row *rows, CUstream stream)
{
	CUresult result = cu.MemcpyHtoDAsync(
		table->memory, rows, table->n_entries * sizeof(*rows), stream);

	if (result == CUDA_SUCCESS)
		result = cu.MemcpyHtoDAsync(
			tiles_of(table, 0), table->tiles,
			(table->n_entries + 1) * sizeof(*table->tiles), stream);
	if (result == CUDA_SUCCESS)
		result = warm_up(table, stream);
	if (result == CUDA_SUCCESS)
		result = cu.StreamSynchronize(stream);
	return result;
}

/* The context must be entered. This uses a stream of its own, since the default
 * stream would wait for the caller's streams. */
static CUresult upload(struct kernels_table *table,
		       const struct kernels_row *rows)
{
	size_t size = table->n_entries * sizeof(*rows) +
		      (table->n_entries + 1) * sizeof(*table->tiles);
	CUstream stream;
	int n_sms;
	CUresult result = cu.DeviceGetAttribute(
		&n_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
		table->device->ordinal);

	if (result == CUDA_SUCCESS)
		result = cu.MemAlloc(&table->memory, size);
	if (result == CUDA_SUCCESS)
		result = cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	if (result != CUDA_SUCCESS)
		return result;
	table->max_blocks = (uint32_t)n_sms * MAX_BLOCKS_PER_SM;
	result = fill(table, rows, stream);
	/* The enqueued work uses memory that the caller frees after an
	 * error. */
	if (result != CUDA_SUCCESS)
		(void)cu.StreamSynchronize(stream);
	(void)cu.StreamDestroy(stream);
	return result;
}

static int make_on_device(struct kernels_table *table,
			  const struct kernels_row *rows, struct error *err)
{
	int r = context_enter(table->device, err);

	if (r < 0)
		return r;
	r = driver_error(err, upload(table, rows),
			 "cannot make a table of %u entries for kernel %s",
			 table->n_entries, names[table->kind]);
	context_leave();
	return r;
}

static int say_no_memory(uint32_t n, struct error *err)
{
	return error_nomem(err, "a table of %u entries", n);
}

static struct kernels_table *table_alloc(const struct device *device,
					 enum kernels_kind kind,
					 const struct kernels_entry *entries,
					 uint32_t n)
{
	struct kernels_table *table = calloc(1, sizeof(*table));

	if (!table)
		return NULL;
	table->device = device;
	table->kind = kind;
	table->n_entries = n;
	table->tiles = calloc((size_t)n + 1, sizeof(*table->tiles));
	table->entries = calloc((size_t)n + 1, sizeof(*entries));
	if (!table->tiles || !table->entries) {
		kernels_table_free(table);
		return NULL;
	}
	if (n > 0)
		memcpy(table->entries, entries, n * sizeof(*entries));
	return table;
}

int kernels_table_new(const struct device *device, enum kernels_kind kind,
		      const struct kernels_entry *entries, uint32_t n,
		      struct kernels_table **ret, struct error *err)
{
	struct kernels_table *table;
	struct kernels_row *rows;
	int r = kernels_load(err);

	if (r < 0)
		return r;
	if (n > KERNELS_MAX_ENTRIES)
		return error_set(
			err, -EINVAL,
			"a table cannot have %u entries; the limit is %d", n,
			KERNELS_MAX_ENTRIES);
	table = table_alloc(device, kind, entries, n);
	rows = calloc((size_t)n + 1, sizeof(*rows));
	r = table && rows ? make_rows(table, rows, err) : say_no_memory(n, err);
	if (r >= 0)
		r = make_on_device(table, rows, err);
	free(rows);
	if (r < 0)
		kernels_table_free(table);
	else
		*ret = table;
	return r;
}

void kernels_table_free(struct kernels_table *table)
{
	if (!table)
		return;
	if (table->memory && context_enter(table->device, NULL) >= 0) {
		(void)cu.MemFree(table->memory);
		context_leave();
	}
	free(table->tiles);
	free(table->entries);
	free(table);
}

/* --- launches ------------------------------------------------------------ */

static bool is_integer(uint32_t dtype)
{
	return dtype >= DTYPE_U8 && dtype <= DTYPE_I64;
}

static int check_factor(const struct kernels_launch *launch, struct error *err)
{
	const struct kernels_table *table = launch->table;
	double factor = launch->factor;
	bool is_whole = table->kind == KERNELS_GRAD_OUT &&
			factor == floor(factor) && factor <= MAX_INTEGER_FACTOR;

	if (factor == 1)
		return 0;
	/* This form of the comparison refuses NaN. */
	if (!(factor > 0) || isinf(factor) || table->kind < KERNELS_CHUNK_CAT)
		return error_set(err, -EINVAL,
				 "cannot use the factor %g for kernel %s",
				 factor, names[table->kind]);
	for (uint32_t i = 0; !is_whole && i < launch->n_entries; i++) {
		uint32_t dtype = table->entries[launch->first + i].from_dtype;

		if (is_integer(dtype))
			return error_set(
				err, -EINVAL,
				"cannot use the factor %g for %s in kernel %s",
				factor, dtype_name(dtype), names[table->kind]);
	}
	return 0;
}

static int check(const struct kernels_launch *launch, CUstream stream,
		 struct error *err)
{
	const struct kernels_table *table = launch->table;

	if (launch->first > table->n_entries ||
	    launch->n_entries > table->n_entries - launch->first)
		return error_set(err, -EINVAL,
				 "cannot use %u entries from entry %u on of a "
				 "table of %u entries",
				 launch->n_entries, launch->first,
				 table->n_entries);
	if (launch->from % KERNELS_ALIGN != 0 ||
	    launch->to % KERNELS_ALIGN != 0)
		return error_set(err, -EINVAL,
				 "memory at 0x%llx or 0x%llx is not aligned to "
				 "%d bytes",
				 launch->from, launch->to, KERNELS_ALIGN);
	if (!stream)
		return error_set(err, -EINVAL,
				 "the stream for kernel %s is missing",
				 names[table->kind]);
	if (launch->is_added && table->kind != KERNELS_GRAD_OUT)
		return error_set(err, -EINVAL, "kernel %s cannot accumulate",
				 names[table->kind]);
	return check_factor(launch, err);
}

/* For a power of two with a normal reciprocal, multiplication and division give
 * the same bits: both round the same number. */
static bool has_exact_reciprocal(double divisor)
{
	int exponent;

	return frexp(divisor, &exponent) == 0.5 && exponent > -120 &&
	       exponent < 120;
}

static struct kernels_params make_params(const struct kernels_launch *launch)
{
	CUdeviceptr rows = launch->table->memory +
			   launch->first * sizeof(struct kernels_row);
	CUdeviceptr tiles = tiles_of(launch->table, launch->first);

	return (struct kernels_params){
		.rows = (const struct kernels_row *)(uintptr_t)rows,
		.tiles = (const uint64_t *)(uintptr_t)tiles,
		.from = (const uint8_t *)(uintptr_t)launch->from,
		.to = (uint8_t *)(uintptr_t)launch->to,
		.factor = launch->factor,
		.reciprocal = 1 / launch->factor,
		.n_rows = launch->n_entries,
		.is_scaled = launch->factor != 1,
		.has_reciprocal = has_exact_reciprocal(launch->factor),
	};
}

int kernels_launch(const struct kernels_launch *launch, CUstream stream,
		   struct error *err)
{
	const struct kernels_table *table = launch->table;
	const uint64_t *tiles = table->tiles + launch->first;
	int function = launch->is_added ? GRAD_ADD : (int)table->kind;
	struct kernels_params params;
	uint64_t n_blocks;
	int r = check(launch, stream, err);

	if (r < 0)
		return r;
	n_blocks = tiles[launch->n_entries] - tiles[0];
	if (n_blocks == 0)
		return 0;
	if (n_blocks > table->max_blocks)
		n_blocks = table->max_blocks;
	r = context_enter(table->device, err);
	if (r < 0)
		return r;
	params = make_params(launch);
	r = driver_error(err, enqueue(&params, function, n_blocks, stream),
			 "cannot launch kernel %s", names[function]);
	context_leave();
	return r;
}
