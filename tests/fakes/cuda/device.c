/* Devices. These functions need no context, and make none. */
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/fake.h"
#include "tests/fakes/cuda/ledger.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ATTRIBUTE 145 /* version of CUDA 13.0 */

static unsigned int visible[FAKE_MAX_DEVICES]; /* numbers, by ordinal */
static int n_visible;

static void make_gpu_uuid(unsigned int number, CUuuid *ret)
{
	static const unsigned char seed[16] = {
		0x7f, 0xfa, 0x6e, 0xcd, 0xda, 0x51, 0x4d, 0x0b,
		0x9c, 0x33, 0xe8, 0x24, 0x5b, 0x10, 0x66, 0x00};

	memcpy(ret->bytes, seed, sizeof(seed));
	ret->bytes[0] = (char)(seed[0] ^ (number * 37));
	ret->bytes[15] = (char)number;
}

/* All instances belong to one GPU. */
static void make_uuid(unsigned int number, CUuuid *ret)
{
	make_gpu_uuid(number, ret);
	if (settings()->is_mig)
		ret->bytes[1] ^= 0x55;
}

static void format_uuid(unsigned int number, char ret[48])
{
	CUuuid uuid;
	char *at = ret;

	make_uuid(number, &uuid);
	at += sprintf(at, settings()->is_mig ? "MIG" : "GPU");
	for (int i = 0; i < 16; i++) {
		if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += sprintf(at, "%02x", (unsigned char)uuid.bytes[i]);
	}
}

/* Reads one entry of CUDA_VISIBLE_DEVICES: an ordinal, or the beginning of a
 * UUID. Returns the number, or -1. */
static int parse_visible(const char *entry)
{
	char uuid[48];
	char *end;
	long ordinal = strtol(entry, &end, 10);

	if (end != entry && !*end)
		return ordinal >= 0 && (uint64_t)ordinal < settings()->n_devices
			       ? (int)ordinal
			       : -1;
	for (unsigned int i = 0; i < settings()->n_devices; i++) {
		format_uuid(i, uuid);
		if (strlen(entry) > strlen("GPU-") &&
		    strncasecmp(entry, uuid, strlen(entry)) == 0)
			return (int)i;
	}
	return -1;
}

/* The list ends at the first invalid entry. A repeated entry makes the whole
 * list empty. */
static void open_visible(const char *list)
{
	char copy[1024];
	char *entry, *state;
	int number;

	snprintf(copy, sizeof(copy), "%s", list);
	for (entry = strtok_r(copy, ",", &state); entry;
	     entry = strtok_r(NULL, ",", &state)) {
		number = parse_visible(entry);
		if (number < 0)
			return;
		if (device_ordinal((unsigned int)number) >= 0) {
			n_visible = 0;
			return;
		}
		visible[n_visible++] = (unsigned int)number;
	}
}

/* A driver looks for MPS when it starts. A process that finds a daemon becomes
 * its client. */
static void look_for_mps(void)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	char path[4096];

	snprintf(path, sizeof(path), "%s/control",
		 dir ? dir : "/tmp/nvidia-mps");
	if (access(path, F_OK) == 0)
		call_note(NOTE_MPS);
}

CUresult device_open(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");

	n_visible = 0;
	if (list) {
		open_visible(list);
	} else {
		for (unsigned int i = 0; i < settings()->n_devices; i++)
			visible[n_visible++] = i;
	}
	/* A process sees at most one instance. */
	if (settings()->is_mig && n_visible > 1)
		n_visible = 1;
	look_for_mps();
	return n_visible > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

int device_count(void)
{
	return n_visible;
}

bool device_is_valid(CUdevice ordinal)
{
	return ordinal >= 0 && ordinal < n_visible;
}

unsigned int device_number(CUdevice ordinal)
{
	return visible[ordinal];
}

CUdevice device_ordinal(unsigned int number)
{
	for (int i = 0; i < n_visible; i++) {
		if (visible[i] == number)
			return i;
	}
	return -1;
}

bool device_has(enum feature feature)
{
	return settings()->has[feature];
}

static void lost_name(CUdevice ordinal, char ret[32])
{
	snprintf(ret, 32, "lost.%u", visible[ordinal]);
}

CUresult device_check(CUdevice ordinal)
{
	char name[32], text[16] = "";
	int fd, code;

	lost_name(ordinal, name);
	fd = openat(ledger_dir(), name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return CUDA_SUCCESS;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(fd);
	code = atoi(text);
	return code > 0 ? (CUresult)code : CUDA_ERROR_UNKNOWN;
}

void device_lose(CUdevice ordinal)
{
	char name[32];
	int fd;

	lost_name(ordinal, name);
	fd = openat(ledger_dir(), name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (fd >= 0)
		close(fd);
}

/* --- the driver's interface ---------------------------------------------- */

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult r = call_begin(CALL_DeviceGet);

	if (r)
		return r;
	if (!device)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if (!device_is_valid(ordinal))
		return call_end(CUDA_ERROR_INVALID_DEVICE);
	*device = ordinal;
	return call_end(CUDA_SUCCESS);
}

CUresult cuDeviceGetCount(int *count)
{
	CUresult r = call_begin(CALL_DeviceGetCount);

	if (r)
		return r;
	if (!count)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	*count = n_visible;
	return call_end(CUDA_SUCCESS);
}

/* Begins a function about a device. */
static CUresult begin(enum call call, const void *ret, CUdevice device)
{
	CUresult r = call_begin(call);

	if (r)
		return r;
	if (!ret)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if (!device_is_valid(device))
		return call_end(CUDA_ERROR_INVALID_DEVICE);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
	CUresult r = begin(CALL_DeviceGetName, name, device);

	if (r)
		return r;
	if (size <= 0)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	snprintf(name, (size_t)size, "Fake %u", visible[device]);
	return call_end(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	CUresult r = begin(CALL_DeviceGetUuid, uuid, device);

	if (r)
		return r;
	make_uuid(visible[device], uuid);
	return call_end(CUDA_SUCCESS);
}

/* The function that had this name in older versions. It is not counted. */
#undef cuDeviceGetUuid
FAKE_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	if (!uuid || !device_is_valid(device))
		return CUDA_ERROR_INVALID_VALUE;
	make_gpu_uuid(settings()->is_mig ? 0 : visible[device], uuid);
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
	CUresult r = begin(CALL_DeviceTotalMem, bytes, device);

	if (r)
		return r;
	*bytes = settings()->memory_mb << 20;
	return call_end(CUDA_SUCCESS);
}

static int attribute(CUdevice_attribute which)
{
	switch (which) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return 16;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
		return (int)settings()->compute_mode;
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
		return 3;
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
		return 1;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return 9;
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
		return device_has(FEATURE_VMM);
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
		return device_has(FEATURE_POSIX_FD);
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
		return device_has(FEATURE_RDMA);
	case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
		return device_has(FEATURE_READONLY_REGISTER);
	case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
		return device_has(FEATURE_MEMOPS);
	case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
		return device_has(FEATURE_IPC_EVENTS);
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		break;
	}
	return 0; /* attributes that fsdpd does not read are 0, too */
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which,
			      CUdevice device)
{
	CUresult r = begin(CALL_DeviceGetAttribute, value, device);

	if (r)
		return r;
	if ((int)which < 1 || (int)which > MAX_ATTRIBUTE)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	*value = attribute(which);
	return call_end(CUDA_SUCCESS);
}
