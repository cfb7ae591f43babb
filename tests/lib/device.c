/*
 * Streams of tests. Each call enters the context of its stream.
 */
#include "tests/lib/device.h"
#include "cuda/context.h"
#include "proto/error.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(condition)                                                        \
	do {                                                                   \
		if (condition)                                                 \
			break;                                                 \
		fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__,             \
			#condition);                                           \
		abort();                                                       \
	} while (0)

/* Streams that this file made, by device. */
static struct {
	CUstream stream;
	const struct device *device;
} streams[256];
static size_t n_streams;

static void enter(CUstream stream)
{
	size_t i = 0;

	while (i < n_streams && streams[i].stream != stream)
		i++;
	MUST(i < n_streams);
	MUST(context_enter(streams[i].device, NULL) == 0);
}

uint32_t n_gpus(void)
{
	const struct device *devices;
	struct error err = ERROR_NULL;
	uint32_t n;

	if (device_list(&devices, &n, &err) < 0) {
		fprintf(stderr, "%s\n", err.msg);
		abort();
	}
	return n;
}

const struct device *gpu_nth(uint32_t i)
{
	const struct device *devices;
	uint32_t n;

	MUST(i < n_gpus() && device_list(&devices, &n, NULL) == 0);
	return &devices[i];
}

struct fsdp_device gpu_name(uint32_t i)
{
	struct fsdp_device name;

	memcpy(name.uuid, gpu_nth(i)->uuid.bytes, sizeof(name.uuid));
	return name;
}

CUstream stream_make(const struct device *device)
{
	CUstream stream;

	MUST(context_enter(device, NULL) == 0);
	MUST(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	context_leave();
	MUST(n_streams < sizeof(streams) / sizeof(*streams));
	streams[n_streams].stream = stream;
	streams[n_streams++].device = device;
	return stream;
}

static CUdeviceptr address_of(const struct fsdp_tensor *tensor)
{
	return (CUdeviceptr)(uintptr_t)fsdp_data(tensor);
}

void stream_fill(CUstream stream, const struct fsdp_tensor *tensor,
		 uint8_t value)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};

	fsdp_tensor_info(tensor, &info);
	enter(stream);
	MUST(cu.MemsetD8Async(address_of(tensor), value, info.size, stream) ==
	     CUDA_SUCCESS);
	context_leave();
}

void stream_read(CUstream stream, void *to, const struct fsdp_tensor *tensor,
		 size_t size)
{
	enter(stream);
	MUST(cu.MemcpyDtoHAsync(to, address_of(tensor), size, stream) ==
	     CUDA_SUCCESS);
	context_leave();
}

static void pass(void *gate)
{
	while (sem_wait(gate) < 0 && errno == EINTR)
		;
}

void stream_hold(CUstream stream, sem_t *gate)
{
	enter(stream);
	MUST(cu.LaunchHostFunc(stream, pass, gate) == CUDA_SUCCESS);
	context_leave();
}

bool stream_is_done(CUstream stream)
{
	CUresult result;

	enter(stream);
	result = cu.StreamQuery(stream);
	context_leave();
	MUST(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
	return result == CUDA_SUCCESS;
}

bool stream_finish(CUstream stream)
{
	CUresult result;

	enter(stream);
	result = cu.StreamSynchronize(stream);
	context_leave();
	return result == CUDA_SUCCESS;
}

void *pinned_memory(size_t size)
{
	void *pages;

	MUST(context_enter(gpu_nth(0), NULL) == 0);
	MUST(cu.MemHostAlloc(&pages, size, CU_MEMHOSTALLOC_PORTABLE) ==
	     CUDA_SUCCESS);
	context_leave();
	memset(pages, 0, size);
	return pages;
}

bool is_filled(const void *from, size_t n, uint8_t value)
{
	const uint8_t *bytes = from;

	for (size_t i = 0; i < n; i++)
		if (bytes[i] != value)
			return false;
	return true;
}

bool holds_value(struct fsdp_tensor *tensor, uint8_t value)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	uint8_t *bytes;
	bool is_right;

	fsdp_tensor_info(tensor, &info);
	bytes = malloc(info.size);
	MUST(fsdp_copy_out(bytes, tensor, 0, info.size) == 0);
	is_right = is_filled(bytes, info.size, value);
	free(bytes);
	return is_right;
}

bool gpu_is_loaded(void)
{
	FILE *file = fopen("/proc/self/maps", "re");
	bool is_loaded = false;
	char line[512];

	MUST(file);
	while (fgets(line, sizeof(line), file))
		is_loaded = is_loaded || strstr(line, "libcuda");
	fclose(file);
	return is_loaded;
}

void gpu_get(const struct device *device, void *to, const void *from,
	     size_t size)
{
	MUST(context_enter(device, NULL) == 0);
	MUST(cu.MemcpyDtoH(to, (CUdeviceptr)(uintptr_t)from, size) ==
	     CUDA_SUCCESS);
	context_leave();
}

void gpu_put(const struct device *device, void *to, const void *from,
	     size_t size)
{
	MUST(context_enter(device, NULL) == 0);
	MUST(cu.MemcpyHtoD((CUdeviceptr)(uintptr_t)to, from, size) ==
	     CUDA_SUCCESS);
	/* The call returns while the bytes are still being copied. Wait for
	 * this stream only: the device may run a collective whose peer is
	 * dead. */
	MUST(cu.StreamSynchronize(NULL) == CUDA_SUCCESS);
	context_leave();
}
