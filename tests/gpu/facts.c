/*
 * gpu-facts: prints facts about the driver, each device and NCCL, for the head
 * of a report (tests/gpu/run). It makes no context.
 */
#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/kernels.h"
#include "cuda/nccl.h"
#include "proto/error.h"
#include <dlfcn.h>
#include <stdio.h>

#define ATTRIBUTE(name)                                                        \
	{                                                                      \
		CU_DEVICE_ATTRIBUTE_##name, #name                              \
	}

static const struct {
	CUdevice_attribute number;
	const char *name;
} attributes[] = {
	ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
	ATTRIBUTE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
	ATTRIBUTE(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
	ATTRIBUTE(READ_ONLY_HOST_REGISTER_SUPPORTED),
	ATTRIBUTE(CAN_USE_64_BIT_STREAM_MEM_OPS),
	ATTRIBUTE(IPC_EVENT_SUPPORTED),
	ATTRIBUTE(HANDLE_TYPE_FABRIC_SUPPORTED),
};
#define N_ATTRIBUTES (sizeof(attributes) / sizeof(*attributes))

static void print_attribute(CUdevice ordinal, size_t i)
{
	int value = 0;
	CUresult result =
		cu.DeviceGetAttribute(&value, attributes[i].number, ordinal);

	printf("  attribute %d, %s: ", (int)attributes[i].number,
	       attributes[i].name);
	if (result == CUDA_SUCCESS)
		printf("%d\n", value);
	else
		printf("CUDA error %d\n", (int)result);
}

static void print_device(const struct device *device)
{
	char uuid[DEVICE_TEXT_SIZE];

	device_format(&device->uuid, uuid);
	printf("device %d: %s, %s, %llu MiB, granularity %llu\n",
	       device->ordinal, device->name, uuid,
	       (unsigned long long)(device->memory >> 20),
	       (unsigned long long)device->granularity);
	for (size_t i = 0; i < N_ATTRIBUTES; i++)
		print_attribute(device->ordinal, i);
}

static int print_devices(void)
{
	struct error err = ERROR_NULL;
	const struct device *devices;
	struct driver_info driver;
	uint32_t n;
	int r = device_list(&devices, &n, &err);

	if (r < 0) {
		printf("no device: %s\n", err.msg);
		return r;
	}
	driver_describe(&driver);
	printf("driver: %s, CUDA %d.%d\n", driver.path, driver.version / 1000,
	       driver.version % 1000 / 10);
	for (uint32_t i = 0; i < n; i++)
		print_device(&devices[i]);
	return 0;
}

static void print_nccl(void)
{
	struct error err = ERROR_NULL;
	Dl_info info = {0};
	int version = 0;

	if (nccl_load(&err) < 0) {
		printf("NCCL: %s\n", err.msg);
		return;
	}
	(void)nccl.GetVersion(&version);
	(void)dladdr((void *)nccl.GetVersion, &info);
	printf("NCCL: %s, %d\n", info.dli_fname, version);
}

int main(void)
{
	struct error err = ERROR_NULL;

	if (print_devices() < 0)
		return 1;
	print_nccl();
	fflush(stdout); /* the next call may hang */
	printf("kernels: %s\n", kernels_load(&err) < 0 ? err.msg : "loaded");
	return 0;
}
