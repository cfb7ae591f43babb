/*
 * Libraries and kernels. Any image is accepted, because kernels are found by
 * name in the registry. But an older driver refuses an image that names a newer
 * toolkit ("toolkit 13000"), as it refuses fat binaries. As with a driver,
 * parameters are copied when a kernel is launched, and a launch that no GPU
 * would accept is refused.
 */
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/guard.h"
#include "tests/fakes/cuda/handle.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/registry.h"
#include "tests/fakes/cuda/settings.h"
#include "tests/fakes/cuda/stream.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BLOCK   1024
#define MAX_BLOCK_Z 64
#define MAX_GRID_X  0x7fffffff
#define MAX_GRID_YZ 65535
/* programs must request more shared memory explicitly */
#define MAX_SHARED_SIZE (48 << 10)

struct library {
	struct kernel *kernels;
};

/* A CUkernel, which is also used as a CUfunction in any context. */
struct kernel {
	struct kernel *next; /* next kernel of its library */
	const struct fake_kernel *fake;
	uint64_t handle, function;
};

struct launch {
	struct work work;
	const struct fake_kernel *kernel;
	struct fake_launch shape;
	void *params[FAKE_MAX_PARAMS]; /* these point into `copies` */
	char copies[];
};

/* --- libraries ----------------------------------------------------------- */

static bool is_too_new(const char *image)
{
	static const char prefix[] = "toolkit ";

	return strncmp(image, prefix, strlen(prefix)) == 0 &&
	       strtoul(image + strlen(prefix), NULL, 10) / 1000 >
		       settings()->driver_version / 1000;
}

CUresult cuLibraryLoadData(CUlibrary *ret, const void *image,
			   CUjit_option *jit_options, void **jit_values,
			   unsigned int n_jit_options, CUlibraryOption *options,
			   void **values, unsigned int n_options)
{
	CUresult r = call_begin(CALL_LibraryLoadData);
	struct library *library;

	if (r)
		return r;
	if (!ret || !image ||
	    (n_jit_options && (!jit_options || !jit_values)) ||
	    (n_options && (!options || !values)))
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if (is_too_new(image))
		return call_end(CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
	library = calloc(1, sizeof(*library));
	if (!library)
		return call_end(CUDA_ERROR_OUT_OF_MEMORY);
	*ret = (CUlibrary)(uintptr_t)handle_new(HANDLE_LIBRARY, library);
	return call_end(CUDA_SUCCESS);
}

static struct kernel *find_kernel(struct library *library,
				  const struct fake_kernel *fake)
{
	struct kernel *kernel = library->kernels;

	while (kernel && kernel->fake != fake)
		kernel = kernel->next;
	if (kernel)
		return kernel;
	kernel = calloc(1, sizeof(*kernel));
	if (!kernel)
		return NULL;
	kernel->fake = fake;
	kernel->handle = handle_new(HANDLE_KERNEL, kernel);
	kernel->function = handle_new(HANDLE_FUNCTION, kernel);
	kernel->next = library->kernels;
	library->kernels = kernel;
	return kernel;
}

CUresult cuLibraryGetKernel(CUkernel *ret, CUlibrary handle, const char *name)
{
	CUresult r = call_begin(CALL_LibraryGetKernel);
	const struct fake_kernel *fake;
	struct library *library;
	struct kernel *kernel;

	if (r)
		return r;
	if (!ret || !name)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	library = handle_find(HANDLE_LIBRARY, (uintptr_t)handle);
	if (!library)
		return call_end(CUDA_ERROR_INVALID_HANDLE);
	fake = registry_find(name);
	if (!fake)
		return call_end(CUDA_ERROR_NOT_FOUND);
	kernel = find_kernel(library, fake);
	if (!kernel)
		return call_end(CUDA_ERROR_OUT_OF_MEMORY);
	*ret = (CUkernel)(uintptr_t)kernel->handle;
	return call_end(CUDA_SUCCESS);
}

CUresult cuKernelGetFunction(CUfunction *ret, CUkernel handle)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_KernelGetFunction, &context);
	const struct kernel *kernel;

	if (r)
		return r;
	if (!ret)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	kernel = handle_find(HANDLE_KERNEL, (uintptr_t)handle);
	if (!kernel)
		return call_end(CUDA_ERROR_INVALID_HANDLE);
	*ret = (CUfunction)(uintptr_t)kernel->function;
	return call_end(CUDA_SUCCESS);
}

/* --- launches ------------------------------------------------------------ */

/* Checks whether the mapping of any address among the parameters has changed
 * since the launch. */
static CUresult check_params(const struct launch *launch)
{
	const struct fake_kernel *kernel = launch->kernel;
	bool has_changed = false;
	uint64_t word;

	process_lock();
	for (unsigned int i = 0; i < kernel->n_params; i++)
		for (size_t at = 0; at + sizeof(word) <= kernel->sizes[i];
		     at += sizeof(word)) {
			memcpy(&word, (char *)launch->params[i] + at,
			       sizeof(word));
			has_changed = has_changed ||
				      mapping_has_changed(&launch->work, word);
		}
	process_unlock();
	return has_changed ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

static CUresult run_launch(struct work *work)
{
	struct launch *launch = (struct launch *)work;
	CUresult r = check_params(launch);

	if (r)
		return r;
	launch->kernel->fn(launch->params, &launch->shape);
	return check_params(launch);
}

void fake_trap(CUresult error)
{
	guard_trap(error);
}

static bool is_possible(const struct fake_launch *shape)
{
	const unsigned int *grid = shape->grid, *block = shape->block;

	return grid[0] > 0 && grid[1] > 0 && grid[2] > 0 &&
	       grid[0] <= MAX_GRID_X && grid[1] <= MAX_GRID_YZ &&
	       grid[2] <= MAX_GRID_YZ && block[0] > 0 && block[1] > 0 &&
	       block[2] > 0 && block[0] <= MAX_BLOCK && block[1] <= MAX_BLOCK &&
	       block[2] <= MAX_BLOCK_Z &&
	       (uint64_t)block[0] * block[1] * block[2] <= MAX_BLOCK &&
	       shape->shared_size <= MAX_SHARED_SIZE;
}

/* Each parameter is at an offset that suits any type. */
static size_t round_up(size_t size)
{
	return (size + 15) & ~(size_t)15;
}

static struct launch *make_launch(const struct fake_kernel *kernel,
				  const struct fake_launch *shape,
				  void **parameters)
{
	struct launch *launch;
	size_t size = 0;
	char *at;

	for (unsigned int i = 0; i < kernel->n_params; i++)
		size += round_up(kernel->sizes[i]);
	launch = calloc(1, sizeof(*launch) + size + 15);
	if (!launch)
		return NULL;
	launch->work.run = run_launch;
	launch->kernel = kernel;
	launch->shape = *shape;
	at = (char *)round_up((uintptr_t)launch->copies);
	for (unsigned int i = 0; i < kernel->n_params; i++) {
		memcpy(at, parameters[i], kernel->sizes[i]);
		launch->params[i] = at;
		at += round_up(kernel->sizes[i]);
	}
	return launch;
}

/* A kernel's handle is also valid as a function. */
static const struct kernel *find_function(CUfunction handle)
{
	const struct kernel *kernel =
		handle_find(HANDLE_FUNCTION, (uintptr_t)handle);

	return kernel ? kernel : handle_find(HANDLE_KERNEL, (uintptr_t)handle);
}

static CUresult launch_kernel(struct context *context, CUfunction function,
			      const struct fake_launch *shape,
			      CUstream stream_handle, void **parameters)
{
	const struct kernel *kernel = find_function(function);
	struct launch *launch;
	struct stream *stream;
	CUresult r = stream_find(context, stream_handle, &stream);

	if (r)
		return r;
	if (!kernel || stream->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!is_possible(shape) || (kernel->fake->n_params > 0 && !parameters))
		return CUDA_ERROR_INVALID_VALUE;
	launch = make_launch(kernel->fake, shape, parameters);
	if (!launch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream_enqueue(stream, &launch->work);
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x,
			unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared_size,
			CUstream stream, void **parameters, void **extra)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_LaunchKernel, &context);
	struct fake_launch shape = {
		.grid = {grid_x, grid_y, grid_z},
		.block = {block_x, block_y, block_z},
		.shared_size = shared_size,
	};

	if (r)
		return r;
	if (extra) /* the other way to pass parameters is not supported */
		return call_end(CUDA_ERROR_NOT_SUPPORTED);
	return call_end(
		launch_kernel(context, function, &shape, stream, parameters));
}
