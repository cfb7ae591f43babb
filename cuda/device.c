/*
 * This file finds devices and their features. It needs no context.
 */
#include "cuda/device.h"

#include "proto/error.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Set by the first device_list() that finds a driver. */
static struct {
	struct device devices[DEVICE_MAX];
	uint32_t n;
	int r;
	struct error err;
	_Atomic bool is_done; /* if set, all other fields are constant */
} found;

static const struct device *find(const struct device_uuid *uuid)
{
	/* Acquire: a thread that sees this set also sees the list. */
	if (!atomic_load_explicit(&found.is_done, memory_order_acquire))
		return NULL;
	for (uint32_t i = 0; i < found.n; i++)
		if (memcmp(&found.devices[i].uuid, uuid, sizeof(*uuid)) == 0)
			return &found.devices[i];
	return NULL;
}

void device_format(const struct device_uuid *uuid, char ret[DEVICE_TEXT_SIZE])
{
	const struct device *device = find(uuid);
	const uint8_t *b = uuid->bytes;

	(void)snprintf(ret, DEVICE_TEXT_SIZE,
		       "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
		       "%02x%02x%02x%02x%02x%02x",
		       device && device->is_mig ? "MIG" : "GPU", b[0], b[1],
		       b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10],
		       b[11], b[12], b[13], b[14], b[15]);
}

/* isxdigit() depends on the locale. */
static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static bool parse_uuid(const char *text, struct device_uuid *ret)
{
	static const char form[] = "????xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
	size_t n = 0;

	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
		return false;
	for (size_t i = 4; form[i]; i++) {
		int digit = hex_digit(text[i]);

		if (form[i] != 'x' && form[i] != text[i])
			return false;
		if (form[i] != 'x')
			continue;
		if (digit < 0)
			return false;
		ret->bytes[n / 2] = (uint8_t)(n % 2 ? ret->bytes[n / 2] | digit
						    : digit << 4);
		n++;
	}
	return !text[sizeof(form) - 1];
}

int device_parse(const char *text, struct device_uuid *ret, struct error *err)
{
	struct device_uuid uuid;

	if (!parse_uuid(text, &uuid) || device_uuid_is_host(&uuid))
		return error_set(
			err, -EINVAL,
			"\"%.64s\" is not the name of a device: give its UUID "
			"as nvidia-smi -L shows it, "
			"GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx or MIG-...",
			text);
	*ret = uuid;
	return 0;
}

/* A driver that does not know the attribute does not have the feature. */
static int read_attribute(CUdevice ordinal, CUdevice_attribute attribute,
			  int *ret, struct error *err)
{
	CUresult result = cu.DeviceGetAttribute(ret, attribute, ordinal);

	if (result == CUDA_ERROR_INVALID_VALUE) {
		*ret = 0;
		return 0;
	}
	return driver_error(err, result,
			    "cannot query device %d for attribute %d", ordinal,
			    (int)attribute);
}

static int read_flags(struct device *device, struct error *err)
{
	const struct {
		CUdevice_attribute attribute;
		bool *flag;
	} rows[] = {
		{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
		 &device->has_vmm},
		{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
		 &device->has_posix_fd},
		{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
		 &device->has_rdma},
		{CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
		 &device->has_wait_value},
		{CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
		 &device->has_ipc_events},
		{CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
		 &device->has_readonly_register},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int value = 0;
		int r = read_attribute(device->ordinal, rows[i].attribute,
				       &value, err);

		if (r < 0)
			return r;
		*rows[i].flag = value;
	}
	/* A feature also needs the driver's functions for it. */
	device->has_wait_value &= cu.StreamWriteValue64 && cu.StreamWaitValue64;
	device->has_ipc_events &= cu.IpcGetEventHandle && cu.IpcOpenEventHandle;
	return 0;
}

static int read_granularity(struct device *device, struct error *err)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes =
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal},
		.allocFlags.gpuDirectRDMACapable = device->has_rdma,
	};
	size_t granularity;
	CUresult result;

	if (!device->has_vmm || !device->has_posix_fd)
		return 0;
	result = cu.MemGetAllocationGranularity(
		&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	if (result != CUDA_SUCCESS)
		return driver_error(err, result,
				    "cannot query the granularity of device %d",
				    device->ordinal);
	device->granularity = granularity;
	return 0;
}

/* For a MIG instance the older function returns the UUID of its GPU, and the
 * newer one that of the instance. */
static bool is_instance(const struct device *device)
{
	CUuuid uuid;

	return cu.DeviceGetGpuUuid &&
	       cu.DeviceGetGpuUuid(&uuid, device->ordinal) == CUDA_SUCCESS &&
	       memcmp(device->uuid.bytes, uuid.bytes, DEVICE_UUID_SIZE) != 0;
}

static int read_device(int i, struct device *device, struct error *err)
{
	CUresult result;
	CUuuid uuid;
	size_t memory = 0;
	int r;

	result = cu.DeviceGet(&device->ordinal, i);
	if (result == CUDA_SUCCESS)
		result = cu.DeviceGetUuid(&uuid, device->ordinal);
	if (result == CUDA_SUCCESS)
		result = cu.DeviceGetName(device->name, sizeof(device->name),
					  device->ordinal);
	if (result == CUDA_SUCCESS)
		result = cu.DeviceTotalMem(&memory, device->ordinal);
	if (result != CUDA_SUCCESS)
		return driver_error(err, result, "cannot identify device %d",
				    i);
	memcpy(device->uuid.bytes, uuid.bytes, DEVICE_UUID_SIZE);
	device->memory = memory;
	device->is_mig = is_instance(device);
	r = read_flags(device, err);
	return r < 0 ? r : read_granularity(device, err);
}

static int find_devices(struct error *err)
{
	int n;
	int r = driver_error(err, cu.DeviceGetCount(&n),
			     "cannot count devices");

	for (int i = 0; r == 0 && i < n && i < DEVICE_MAX; i++) {
		r = read_device(i, &found.devices[i], err);
		found.n++;
	}
	return r;
}

static void find_once(void)
{
	found.r = find_devices(&found.err);
	atomic_store_explicit(&found.is_done, true, memory_order_release);
}

int device_list(const struct device **ret, uint32_t *ret_n, struct error *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int r = driver_load(err);

	if (r < 0)
		return r;
	pthread_once(&once, find_once);
	if (found.r < 0) {
		if (err)
			*err = found.err;
		return found.r;
	}
	*ret = found.devices;
	*ret_n = found.n;
	return 0;
}

static int say_unknown(const struct device_uuid *uuid,
		       const struct device *devices, uint32_t n,
		       struct error *err)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	char wanted[DEVICE_TEXT_SIZE], text[DEVICE_TEXT_SIZE];
	char known[256] = "";

	for (uint32_t i = 0; i < n; i++) {
		size_t size = strlen(known);

		device_format(&devices[i].uuid, text);
		(void)snprintf(known + size, sizeof(known) - size, "%s%s",
			       i ? ", " : "", text);
	}
	device_format(uuid, wanted);
	return error_set(err, -ENODEV,
			 "this process sees no device %s; it sees %s%s%s%s",
			 wanted, known,
			 visible ? " (CUDA_VISIBLE_DEVICES=\"" : "",
			 visible ? visible : "", visible ? "\")" : "");
}

int device_find(const struct device_uuid *uuid, const struct device **ret,
		struct error *err)
{
	const struct device *devices, *device;
	uint32_t n;
	int r = device_list(&devices, &n, err);

	if (r < 0)
		return r;
	device = find(uuid);
	if (!device)
		return say_unknown(uuid, devices, n, err);
	*ret = device;
	return 0;
}

int device_check_shareable(const struct device *device, struct error *err)
{
	char text[DEVICE_TEXT_SIZE];
	int mode;
	int r = read_attribute(device->ordinal,
			       CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, &mode, err);

	if (r < 0)
		return r;
	device_format(&device->uuid, text);
	if (mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS)
		return error_set(
			err, -EBUSY,
			"device %s is in exclusive-process mode, in which only "
			"one process can use it; allow more with nvidia-smi -i "
			"%s -c DEFAULT, or start MPS",
			text, text);
	if (mode == CU_COMPUTEMODE_PROHIBITED)
		return error_set(err, -EPERM,
				 "device %s is in prohibited mode, in which no "
				 "process may use it; allow it with nvidia-smi "
				 "-i %s -c DEFAULT",
				 text, text);
	return 0;
}

bool device_leave_mps(void)
{
	static const char name[] = "CUDA_MPS_PIPE_DIRECTORY";
	bool was_set = getenv(name);

	/* If the variable were unset, CUDA would use /tmp/nvidia-mps, where a
	 * server may be. A path below a device file can never exist. */
	(void)setenv(name, "/dev/null/no-mps", 1);
	return was_set;
}
