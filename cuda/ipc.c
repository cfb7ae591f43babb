/*
 * This file has both sides of legacy IPC memory.
 */
#include "cuda/ipc.h"
#include "cuda/context.h"
#include "proto/error.h"
#include <errno.h>
#include <string.h>

/* --- producer ------------------------------------------------------------ */

static int open_export(struct shared *shared, struct error *err)
{
	struct ipc_export *export = (struct ipc_export *)shared;
	CUresult result;
	int r;

	r = context_enter(export->device, err);
	if (r < 0)
		return r;
	result = cu.IpcGetMemHandle(&export->handle.memory, export->base);
	context_leave();
	return driver_error(err, result,
			    "cannot share %llu bytes at 0x%llx on %s",
			    (unsigned long long)export->handle.size,
			    export->base, export->device->name);
}

static void close_export(struct shared *shared)
{
	(void)shared; /* the driver keeps no state for a handle */
}

static bool is_same_export(const struct shared *a, const struct shared *b)
{
	const struct ipc_export *one = (const struct ipc_export *)a;
	const struct ipc_export *two = (const struct ipc_export *)b;

	return one->device == two->device &&
	       one->handle.generation == two->handle.generation;
}

static const struct shared_kind export_kind = {
	.size = sizeof(struct ipc_export),
	.is_same = is_same_export,
	.open = open_export,
	.close = close_export,
};
static struct shared_list export_list = SHARED_LIST_INIT(&export_kind);

int ipc_export(const struct pointer *pointer, struct ipc_export **ret,
	       struct error *err)
{
	struct ipc_export like = {
		.device = pointer->device,
		.base = pointer->base,
		.handle = {.version = HANDLE_VERSION,
			   .kind = HANDLE_MEMORY,
			   .generation = pointer->buffer,
			   .size = pointer->size},
	};
	struct shared *shared;
	int r = handle_origin(&like.handle.origin, err);

	if (r == 0)
		r = shared_open(&export_list, &like.shared, &shared, err);
	if (r == 0)
		*ret = (struct ipc_export *)shared;
	return r;
}

void ipc_unexport(struct ipc_export *export)
{
	if (export)
		shared_close(&export_list, &export->shared);
}

/* --- consumer ------------------------------------------------------------ */

static bool is_exported(const struct shared *shared, const void *handle)
{
	const struct ipc_export *export = (const struct ipc_export *)shared;

	return memcmp(&export->handle, handle, sizeof(export->handle)) == 0;
}

static int open_own(struct ipc_import *import, struct error *err)
{
	struct shared *shared =
		shared_find(&export_list, is_exported, &import->handle);

	if (!shared)
		return error_set(err, -ESTALE,
				 "this process does not share the memory of "
				 "chunk %llu any more",
				 (unsigned long long)import->chunk);
	import->own = (struct ipc_export *)shared;
	import->base = import->own->base;
	return 0;
}

static int refuse(const struct ipc_import *import, CUresult result,
		  struct error *err)
{
	unsigned long long chunk = import->chunk;

	switch ((int)result) {
	case CUDA_ERROR_INVALID_CONTEXT:
		return error_set(
			err, -EINVAL,
			"the driver considers chunk %llu memory of this "
			"process: producer and consumer have the same pid in "
			"different containers; give them one pid namespace, or "
			"allocate from the broker",
			chunk);
	case CUDA_ERROR_ALREADY_MAPPED:
		return error_set(err, -EEXIST,
				 "the memory of chunk %llu is already open in "
				 "this process: by another library, or as "
				 "earlier memory at that address that is still "
				 "held; release that first, or update the "
				 "NVIDIA driver",
				 chunk);
	default:
		return driver_error(
			err, result,
			"cannot open the memory of chunk %llu on %s (its "
			"producer must be alive)",
			chunk, import->device->name);
	}
}

/* A size that is too large would lead readers beyond the allocation, so the
 * producer's size is checked if the driver knows the true one. */
static int check_size(const struct ipc_import *import, struct error *err)
{
	CUdeviceptr base;
	size_t size;

	if (cu.MemGetAddressRange(&base, &size, import->base) != CUDA_SUCCESS ||
	    size >= import->handle.size)
		return 0;
	return error_set(err, -EINVAL,
			 "the memory of chunk %llu has %zu bytes, but its "
			 "producer says %llu",
			 (unsigned long long)import->chunk, size,
			 (unsigned long long)import->handle.size);
}

/* A context must be current. */
static int open_other(struct ipc_import *import, struct error *err)
{
	CUresult result;
	int r;

	result = cu.IpcOpenMemHandle(&import->base, import->handle.memory,
				     CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (result != CUDA_SUCCESS)
		return refuse(import, result, err);
	r = check_size(import, err);
	if (r < 0)
		(void)cu.IpcCloseMemHandle(import->base);
	return r;
}

static int open_import(struct shared *shared, struct error *err)
{
	struct ipc_import *import = (struct ipc_import *)shared;
	uint64_t origin = 0;
	int r;

	r = handle_origin(&origin, err);
	if (r < 0)
		return r;
	if (import->handle.origin == origin)
		return open_own(import, err);
	r = context_enter(import->device, err);
	if (r < 0)
		return r;
	r = open_other(import, err);
	context_leave();
	return r;
}

static void close_import(struct shared *shared)
{
	struct ipc_import *import = (struct ipc_import *)shared;

	if (import->own) {
		ipc_unexport(import->own);
		return;
	}
	if (context_enter(import->device, NULL) < 0)
		return;
	(void)cu.IpcCloseMemHandle(import->base);
	context_leave();
}

static bool is_same_import(const struct shared *a, const struct shared *b)
{
	const struct ipc_import *one = (const struct ipc_import *)a;
	const struct ipc_import *two = (const struct ipc_import *)b;

	/* The handles are compared, too, because another broker may use the
	 * same number. */
	return one->device == two->device && one->chunk == two->chunk &&
	       memcmp(&one->handle, &two->handle, sizeof(one->handle)) == 0;
}

static const struct shared_kind import_kind = {
	.size = sizeof(struct ipc_import),
	.is_same = is_same_import,
	.open = open_import,
	.close = close_import,
};
static struct shared_list import_list = SHARED_LIST_INIT(&import_kind);

int ipc_open(const struct device *device, uint64_t chunk,
	     const struct handle *handle, struct ipc_import **ret,
	     struct error *err)
{
	struct ipc_import import = {
		.device = device, .chunk = chunk, .handle = *handle};
	struct shared *shared;
	int r;

	r = shared_open(&import_list, &import.shared, &shared, err);
	if (r < 0)
		return r;
	*ret = (struct ipc_import *)shared;
	return 0;
}

void ipc_close(struct ipc_import *import)
{
	if (import)
		shared_close(&import_list, &import->shared);
}

struct range {
	CUdeviceptr pointer;
	uint64_t size;
};

static bool is_received(const struct shared *shared, const void *what)
{
	const struct ipc_import *import = (const struct ipc_import *)shared;
	const struct range *range = what;

	return !import->own && range->pointer >= import->base &&
	       range->pointer - import->base <= import->handle.size &&
	       range->size <=
		       import->handle.size - (range->pointer - import->base);
}

bool ipc_find(CUdeviceptr pointer, uint64_t size, uint64_t *ret_chunk,
	      uint64_t *ret_offset)
{
	const struct range range = {pointer, size};
	struct shared *shared = shared_find(&import_list, is_received, &range);
	struct ipc_import *import = (struct ipc_import *)shared;

	if (!import)
		return false;
	*ret_chunk = import->chunk;
	*ret_offset = pointer - import->base;
	ipc_close(import);
	return true;
}
