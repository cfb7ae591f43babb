/*
 * This file makes device memory with file descriptors, and maps it.
 *
 * The broker uses vmm_create() and vmm_check(), too, so they only make calls
 * that neither need nor make a context. According to its documentation the
 * driver also maps without a context. But mapped memory will be used, so
 * mapping enters the context first, and fails there if the device refuses a
 * context.
 */
#include "cuda/vmm.h"

#include "cuda/context.h"
#include "proto/error.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

static CUmemLocation location_of(const struct device *device)
{
	return (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
}

static int check_supported(const struct device *device, struct error *err)
{
	char text[DEVICE_TEXT_SIZE];

	if (device->has_vmm && device->has_posix_fd)
		return 0;
	device_format(&device->uuid, text);
	return error_set(err, -EOPNOTSUPP,
			 "device %s (%s) cannot share memory by file "
			 "descriptors; use another device or host memory",
			 text, device->name);
}

uint64_t vmm_round(const struct device *device, uint64_t size)
{
	uint64_t rest = device->granularity ? size % device->granularity : 0;

	return rest ? size + (device->granularity - rest) : size;
}

int vmm_create(const struct device *device, uint64_t size, int *ret_fd,
	       struct error *err)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes =
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = location_of(device),
		.allocFlags.gpuDirectRDMACapable = device->has_rdma,
	};
	CUmemGenericAllocationHandle handle;
	char text[DEVICE_TEXT_SIZE];
	CUresult result;
	int fd = -1;
	int r = check_supported(device, err);

	if (r < 0)
		return r;
	device_format(&device->uuid, text);
	/* This also prevents an overflow in vmm_round(). */
	if (size == 0 || size > device->memory)
		return error_set(err, size ? -ENOMEM : -EINVAL,
				 "device %s has no chunk of %" PRIu64
				 " bytes: it has %" PRIu64 " in all",
				 text, size, device->memory);
	size = vmm_round(device, size);
	r = driver_error(err, cu.MemCreate(&handle, size, &prop, 0),
			 "cannot make %" PRIu64 " bytes on device %s", size,
			 text);
	if (r < 0)
		return r;
	result = cu.MemExportToShareableHandle(
		&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	(void)cu.MemRelease(handle);
	if (result != CUDA_SUCCESS)
		return driver_error(err, result,
				    "cannot export %" PRIu64
				    " bytes of device %s",
				    size, text);
	/* The driver does not document whether its fds have this flag. */
	(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	*ret_fd = fd;
	return 0;
}

/*
 * Checks that the driver may be given this kind of file. The sender could serve
 * the file itself (FUSE) and block us for any time. A memfd is not device
 * memory, except for a fake driver.
 */
static int check_file(int fd, struct error *err)
{
	struct statx info;

	if (fcntl(fd, F_GET_SEALS) >= 0)
		return 0;
	/* Unlike fstat(), this call does not ask the file's server. */
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE,
		  &info) < 0)
		return error_errno(err, -errno, "cannot inspect a passed file");
	if (!S_ISCHR(info.stx_mode))
		return error_set(err, -EINVAL,
				 "the passed file is not device memory");
	return 0;
}

/* Checks that the memory is of the right device. */
static int check_handle(const struct device *device,
			CUmemGenericAllocationHandle handle, struct error *err)
{
	CUmemAllocationProp prop = {0};
	char text[DEVICE_TEXT_SIZE];
	CUresult result =
		cu.MemGetAllocationPropertiesFromHandle(&prop, handle);

	if (result != CUDA_SUCCESS)
		return driver_error(err, result,
				    "cannot query memory that was passed");
	device_format(&device->uuid, text);
	if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    prop.location.id != device->ordinal)
		return error_set(err, -EINVAL,
				 "the passed memory is not of device %s", text);
	return 0;
}

/* Returns a handle of the memory of `fd`, on any device. The caller releases
 * it. */
static int import(const struct device *device, int fd,
		  CUmemGenericAllocationHandle *ret, struct error *err)
{
	CUmemGenericAllocationHandle handle;
	char text[DEVICE_TEXT_SIZE];
	struct error cause;
	CUresult result;
	int r = check_supported(device, err);

	if (r == 0)
		r = check_file(fd, err);
	if (r < 0)
		return r;
	device_format(&device->uuid, text);
	result = cu.MemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	r = driver_error(&cause, result,
			 "the passed file is not memory of device %s", text);
	/* The driver does not document its error for other kinds of files.
	 * These errors can only be of the driver itself. */
	if (r < 0 && (driver_is_sticky(result) || r == -ENOMEM || r == -ECHILD))
		return error_set(err, r, "%s", cause.msg);
	if (r < 0)
		return error_set(err, -EINVAL, "%s", cause.msg);
	*ret = handle;
	return 0;
}

int vmm_check(const struct device *device, int fd, uint64_t size,
	      struct error *err)
{
	CUmemGenericAllocationHandle handle;
	int r;

	if (size == 0 || vmm_round(device, size) != size ||
	    size > device->memory)
		return error_set(err, -EINVAL,
				 "a chunk cannot have %" PRIu64
				 " bytes: sizes are multiples of %" PRIu64,
				 size, device->granularity);
	r = import(device, fd, &handle, err);
	if (r < 0)
		return r;
	r = check_handle(device, handle, err);
	(void)cu.MemRelease(handle);
	return r;
}

/* Returns the handle of the mapping. The caller releases it. */
static int retain(CUdeviceptr address, CUmemGenericAllocationHandle *ret,
		  struct error *err)
{
	if (cu.MemRetainAllocationHandle(ret, (void *)(uintptr_t)address) ==
	    CUDA_SUCCESS)
		return 0;
	return error_set(err, -EOPNOTSUPP,
			 "cannot share the memory at 0x%llx: neither "
			 "cudaMalloc() nor virtual memory management allocated "
			 "it, but perhaps a pool (cudaMallocAsync()); allocate "
			 "from the broker, or copy it there",
			 address);
}

/* A driver exports memory only in the process that made it. */
static int export_handle(struct vmm_export *export, struct error *err)
{
	CUresult result = cu.MemExportToShareableHandle(
		&export->fd, export->handle,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

	if (result == CUDA_ERROR_INVALID_VALUE ||
	    result == CUDA_ERROR_NOT_SUPPORTED ||
	    result == CUDA_ERROR_NOT_PERMITTED)
		return error_set(err, -EOPNOTSUPP,
				 "cannot share the memory at 0x%llx: it was "
				 "made without "
				 "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or "
				 "imported; make it with that, or allocate "
				 "from the broker",
				 export->address);
	return driver_error(err, result, "cannot export the memory at 0x%llx",
			    export->address);
}

static int open_export(struct shared *shared, struct error *err)
{
	struct vmm_export *export = (struct vmm_export *)shared;
	int r = retain(export->address, &export->handle, err);

	if (r < 0)
		return r;
	r = export_handle(export, err);
	if (r < 0) {
		(void)cu.MemRelease(export->handle);
		return r;
	}
	/* The driver does not document whether its fds have this flag. */
	(void)fcntl(export->fd, F_SETFD, FD_CLOEXEC);
	return 0;
}

static void close_export(struct shared *shared)
{
	struct vmm_export *export = (struct vmm_export *)shared;

	(void)close(export->fd);
	(void)cu.MemRelease(export->handle);
}

/* The handle of an export is not used for other memory until it is released. */
static bool is_same_export(const struct shared *a, const struct shared *b)
{
	const struct vmm_export *one = (const struct vmm_export *)a;
	const struct vmm_export *two = (const struct vmm_export *)b;

	return one->address == two->address && one->handle == two->handle;
}

static const struct shared_kind export_kind = {
	.size = sizeof(struct vmm_export),
	.is_same = is_same_export,
	.open = open_export,
	.close = close_export,
};
static struct shared_list export_list = SHARED_LIST_INIT(&export_kind);

int vmm_export(CUdeviceptr address, struct vmm_export **ret, struct error *err)
{
	struct vmm_export like = {.address = address};
	struct shared *shared;
	int r = retain(address, &like.handle, err);

	if (r < 0)
		return r;
	r = shared_open(&export_list, &like.shared, &shared, err);
	(void)cu.MemRelease(like.handle);
	if (r == 0)
		*ret = (struct vmm_export *)shared;
	return r;
}

void vmm_unexport(struct vmm_export *export)
{
	if (export)
		shared_close(&export_list, &export->shared);
}

static CUresult set_access(const struct vmm_mapping *mapping, bool is_writable)
{
	const CUmemAccessDesc access = {
		.location = location_of(mapping->device),
		.flags = is_writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
				     : CU_MEM_ACCESS_FLAGS_PROT_READ,
	};

	return cu.MemSetAccess(mapping->address, mapping->size, &access, 1);
}

/* Maps the memory of mapping->handle at its address. */
static int attach(const struct vmm_mapping *mapping, struct error *err)
{
	CUresult result = cu.MemMap(mapping->address, mapping->size, 0,
				    mapping->handle, 0);

	/* The driver only maps memory as a whole. */
	if (result == CUDA_ERROR_NOT_SUPPORTED)
		return error_set(
			err, -EINVAL,
			"cannot map %" PRIu64
			" bytes of device memory: the passed memory has a "
			"different size; share memory with its true size",
			mapping->size);
	if (result != CUDA_SUCCESS)
		return driver_error(err, result,
				    "cannot map device memory as %" PRIu64
				    " bytes",
				    mapping->size);
	result = set_access(mapping, mapping->is_writable);
	if (result == CUDA_SUCCESS)
		return 0;
	(void)cu.MemUnmap(mapping->address, mapping->size);
	return driver_error(err, result,
			    "cannot get access to %" PRIu64 " bytes of "
			    "device memory",
			    mapping->size);
}

/* Reserves addresses and maps the memory of mapping->handle there. */
static int place(struct vmm_mapping *mapping, struct error *err)
{
	CUresult result =
		cu.MemAddressReserve(&mapping->address, mapping->size,
				     mapping->device->granularity, 0, 0);
	int r;

	if (result != CUDA_SUCCESS)
		return driver_error(err, result,
				    "cannot reserve %" PRIu64
				    " bytes of addresses",
				    mapping->size);
	r = attach(mapping, err);
	if (r < 0)
		(void)cu.MemAddressFree(mapping->address, mapping->size);
	return r;
}

int vmm_map(const struct device *device, int fd, uint64_t size,
	    bool is_writable, struct vmm_mapping *ret, struct error *err)
{
	struct vmm_mapping mapping = {
		.device = device, .size = size, .is_writable = is_writable};
	int r = context_enter(device, err);

	if (r < 0)
		return r;
	r = import(device, fd, &mapping.handle, err);
	if (r < 0)
		goto leave;
	r = place(&mapping, err);
	if (r < 0)
		(void)cu.MemRelease(mapping.handle);
	else
		*ret = mapping;
leave:
	context_leave();
	return r;
}

void vmm_unmap(struct vmm_mapping *mapping)
{
	if (!mapping->address)
		return;
	/* If this fails, the memory stays until the process ends. */
	if (context_enter(mapping->device, NULL) == 0) {
		(void)cu.MemUnmap(mapping->address, mapping->size);
		(void)cu.MemRelease(mapping->handle);
		(void)cu.MemAddressFree(mapping->address, mapping->size);
		context_leave();
	}
	*mapping = VMM_MAPPING_NULL;
}
