/*
 * Legacy handles: 64 bytes that name a process and an address in it. The maker
 * must be alive when a process opens a handle, unless that process has the
 * memory open already. The maker must not free the memory before it is closed;
 * if it does, readers see poison. If the maker dies, open memory stays as it
 * is. A handle does not identify the allocation at that address: a handle of a
 * later allocation at the same address is equal.
 */
#include "tests/fakes/cuda/ipc.h"
#include "tests/fakes/cuda/address.h"
#include "tests/fakes/cuda/alloc.h"
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/ledger.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/memory.h"
#include "tests/fakes/cuda/stream.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x46435049 /* "IPCF" */

struct handle {
	uint32_t magic;
	int32_t maker;
	uint64_t address, size;
};

_Static_assert(sizeof(struct handle) <= CU_IPC_HANDLE_SIZE, "it fits");

static void name_of(const struct handle *handle, char ret[LEDGER_NAME_SIZE])
{
	snprintf(ret, LEDGER_NAME_SIZE, "ipc.%d.%llx", handle->maker,
		 (unsigned long long)handle->address);
}

static struct handle handle_of(const struct mapping *mapping)
{
	return (struct handle){
		.magic = MAGIC,
		.maker = getpid(),
		.address = mapping->address,
		.size = mapping->size,
	};
}

void ipc_forget(const struct mapping *mapping)
{
	struct handle handle = handle_of(mapping);
	char name[LEDGER_NAME_SIZE];

	name_of(&handle, name);
	ledger_unlink(name);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *ret, CUdeviceptr address)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_IpcGetMemHandle, &context);
	char name[LEDGER_NAME_SIZE];
	struct mapping *mapping;
	struct handle handle;

	if (r)
		return r;
	mapping = mapping_find(address);
	if (!ret || !mapping || mapping->kind != MAPPING_ALLOC ||
	    mapping->address != address)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	handle = handle_of(mapping);
	if (!mapping->is_exported) {
		name_of(&handle, name);
		if (ledger_link(mapping->memory->head->serial, name) < 0)
			return call_end(CUDA_ERROR_OPERATING_SYSTEM);
		mapping->is_exported = true;
	}
	memset(ret, 0, sizeof(*ret));
	memcpy(ret, &handle, sizeof(handle));
	return call_end(CUDA_SUCCESS);
}

/* --- opening ------------------------------------------------------------- */

/* If it succeeds, the mapping owns the reference to `memory`. */
static CUresult map(struct context *context, struct memory *memory,
		    struct mapping **ret)
{
	uint64_t span = address_round(memory->size);
	uint64_t address;
	CUresult r;

	if (device_ordinal(memory->head->device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	address = address_reserve(span, DEVICE_GRANULARITY);
	if (!address)
		return CUDA_ERROR_MAP_FAILED;
	r = alloc_map(context, memory, address, ret);
	if (r)
		address_release(address, span);
	return r;
}

/* Consumes the descriptor, also on failure. */
static CUresult open_fd(struct context *context, int fd, struct mapping **ret)
{
	struct memory *memory;
	CUresult r = memory_import(fd, &memory);

	if (r)
		return r;
	r = map(context, memory, ret);
	if (r)
		memory_unref(memory);
	return r;
}

/* Returns the context's mapping of that memory, or NULL. */
static struct mapping *find_open(const struct context *context, ino_t inode)
{
	struct mapping *mapping;

	for (mapping = mapping_next(NULL); mapping;
	     mapping = mapping_next(mapping)) {
		if (mapping->kind == MAPPING_IPC &&
		    mapping->context == context &&
		    mapping->memory->inode == inode)
			break;
	}
	return mapping;
}

static CUresult open_handle(struct context *context,
			    const struct handle *handle, struct mapping **ret)
{
	char name[LEDGER_NAME_SIZE];
	struct stat st;
	int fd;

	if (handle->maker == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (handle->magic != MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	name_of(handle, name);
	fd = ledger_find(name);
	if (fd < 0)
		return fd == -ENOENT ? CUDA_ERROR_INVALID_VALUE
				     : CUDA_ERROR_MAP_FAILED;
	*ret = fstat(fd, &st) == 0 ? find_open(context, st.st_ino) : NULL;
	if (!*ret && ledger_has_process(handle->maker))
		return open_fd(context, fd, ret);
	close(fd);
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle bytes,
			    unsigned int flags)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_IpcOpenMemHandle, &context);
	struct mapping *mapping;
	struct handle handle;

	if (r)
		return r;
	if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	memcpy(&handle, &bytes, sizeof(handle));
	r = open_handle(context, &handle, &mapping);
	if (r)
		return call_end(r);
	mapping->n_opens++;
	*address = mapping->address;
	return call_end(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	struct mapping *mapping;
	CUresult r = alloc_begin_free(CALL_IpcCloseMemHandle, address,
				      MAPPING_IPC, &mapping);

	if (r)
		return r;
	if (--mapping->n_opens == 0)
		alloc_unmap(mapping);
	return call_end(CUDA_SUCCESS);
}
