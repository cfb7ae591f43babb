/*
 * This file loads the CUDA driver, and turns its errors into sentences.
 *
 * The first caller loads it for all; its result and sentence are kept for later
 * callers. The library is never closed: the driver starts threads and cannot be
 * unloaded, and a library that was refused is not loaded again.
 */
#include "cuda/driver.h"

#include "cuda/library.h"
#include "proto/error.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct driver cu;

/* Set by the first load. */
static struct {
	pid_t pid; /* of the process that loaded it */
	struct library library;
	int version;
	int r;
	struct error err;
} loaded;

#define ROW(name) {DRIVER_SYMBOL_NAME(name), offsetof(struct driver, name)},
static const struct library_symbol required[] = {DRIVER_SYMBOLS(ROW)};
static const struct library_symbol optional[] = {
	/* clang-format off */
	DRIVER_OPTIONAL_SYMBOLS(ROW)
	/* clang-format on */
	{"cuDeviceGetUuid", offsetof(struct driver, DeviceGetGpuUuid)},
};
#undef ROW

#define N_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))

static int say_old(const char *missing, struct error *err)
{
	const int min = DRIVER_VERSION_MIN;

	return error_set(
		err, -ENOSYS,
		"the CUDA driver %s is too old: it has version %d.%d%s%s, and "
		"%d.%d is needed; update the NVIDIA driver",
		loaded.library.path, loaded.version / 1000,
		loaded.version % 1000 / 10, missing ? " and lacks " : "",
		missing ? missing : "", min / 1000, min % 1000 / 10);
}

static int say_missing(const char *missing, struct error *err)
{
	const int min = DRIVER_VERSION_MIN;

	return error_set(err, -ENOSYS,
			 "the CUDA driver %s lacks %s, although it has version "
			 "%d.%d and versions from %d.%d on have it; install "
			 "the NVIDIA driver again",
			 loaded.library.path, missing, loaded.version / 1000,
			 loaded.version % 1000 / 10, min / 1000,
			 min % 1000 / 10);
}

/* Checks that the library is a driver and new enough. `missing` is a symbol
 * that it lacks, or NULL. */
static int check_version(const char *missing, struct error *err)
{
	CUresult result;
	int r;

	if (!cu.DriverGetVersion || !cu.Init)
		return error_set(err, -ENODEV,
				 "%s is not a CUDA driver: it has no %s; unset "
				 "FSDP_LIBCUDA or name another file",
				 loaded.library.path, missing);
	result = cu.DriverGetVersion(&loaded.version);
	/* The toolkit's stub library, which is only for linking, has no text
	 * for this error code. */
	if (result == CUDA_ERROR_STUB_LIBRARY)
		return error_set(
			err, -ENODEV,
			"%s is not a driver, but a stub of the CUDA toolkit "
			"for linking; remove its folder from LD_LIBRARY_PATH",
			loaded.library.path);
	r = driver_error(err, result, "cannot query the version of %s",
			 loaded.library.path);
	if (r < 0)
		return r;
	if (loaded.version < DRIVER_VERSION_MIN)
		return say_old(missing, err);
	return missing ? say_missing(missing, err) : 0;
}

static int say_no_device(struct error *err)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	return error_set(err, -ENODEV,
			 "the CUDA driver %s finds no device%s%s%s; "
			 "nvidia-smi shows what there is, and this process "
			 "must see /dev/nvidiactl, /dev/nvidia-uvm and "
			 "/dev/nvidia0",
			 loaded.library.path,
			 visible ? " among CUDA_VISIBLE_DEVICES=\"" : "",
			 visible ? visible : "", visible ? "\"" : "");
}

static int start(struct error *err)
{
	CUresult result = cu.Init(0);

	if (result == CUDA_ERROR_NO_DEVICE)
		return say_no_device(err);
	if (result == CUDA_ERROR_OPERATING_SYSTEM ||
	    result == CUDA_ERROR_NOT_PERMITTED)
		return error_set(err, -EPERM,
				 "the CUDA driver %s may not open the devices; "
				 "give this user, and the service's "
				 "DeviceAllow=, access to /dev/nvidia*",
				 loaded.library.path);
	return driver_error(err, result, "cannot start the CUDA driver %s",
			    loaded.library.path);
}

static bool open_library(struct library *ret)
{
	return library_open(ret, "FSDP_LIBCUDA", "libcuda.so.1");
}

static int load(struct error *err)
{
	const char *missing;
	int r;

	loaded.pid = getpid();
	if (!open_library(&loaded.library))
		return error_set(err, -ENODEV,
				 "there is no CUDA driver: %s; install the "
				 "NVIDIA driver, start the container with its "
				 "GPUs, or name the file in FSDP_LIBCUDA",
				 dlerror());
	missing = library_find(&loaded.library, required, N_ELEMENTS(required),
			       &cu);
	(void)library_find(&loaded.library, optional, N_ELEMENTS(optional),
			   &cu);
	r = check_version(missing, err);
	return r < 0 ? r : start(err);
}

static void load_once(void)
{
	loaded.r = load(&loaded.err);
}

int driver_load(struct error *err)
{
	/* Unlike a mutex, this still works in a child that is forked while
	 * another thread loads. */
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_once);
	if (loaded.r < 0 && err)
		*err = loaded.err;
	if (loaded.r == 0 && loaded.pid != getpid())
		return error_set(err, -ECHILD,
				 "the CUDA driver does not survive fork(): "
				 "start this process by exec or \"spawn\", or "
				 "fork before CUDA is used");
	return loaded.r;
}

bool driver_is_installed(void)
{
	struct library library;

	return open_library(&library);
}

void driver_ask_for_queues(void)
{
	(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

void driver_describe(struct driver_info *ret)
{
	*ret = (struct driver_info){.path = loaded.library.path,
				    .version = loaded.version,
				    .is_fake = loaded.library.is_fake};
}

/* The errno of each result. Other results, and sticky ones, give -EIO. */
struct meaning {
	CUresult result;
	int code;
	const char *way_out; /* remedy; "" if the caller's sentence is enough */
};

static const struct meaning meanings[] = {
	{CUDA_ERROR_INVALID_VALUE, -EINVAL, ""},
	{CUDA_ERROR_INVALID_HANDLE, -EINVAL, ""},
	{CUDA_ERROR_INVALID_CONTEXT, -EINVAL, ""},
	{CUDA_ERROR_CONTEXT_IS_DESTROYED, -EINVAL,
	 "; the device was reset in this process: start the process again"},
	{CUDA_ERROR_OUT_OF_MEMORY, -ENOMEM,
	 "; nvidia-smi shows which processes use the device's memory"},
	{CUDA_ERROR_NOT_INITIALIZED, -ECHILD,
	 "; CUDA does not survive fork(): start the process by exec"},
	{CUDA_ERROR_NO_DEVICE, -ENODEV, ""},
	{CUDA_ERROR_INVALID_DEVICE, -ENODEV, ""},
	{CUDA_ERROR_DEVICE_UNAVAILABLE, -EBUSY,
	 "; another process uses it exclusively (nvidia-smi -c DEFAULT)"},
	{CUDA_ERROR_ALREADY_MAPPED, -EEXIST, ""},
	{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, -EEXIST, ""},
	{CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, -EINVAL, ""},
	{CUDA_ERROR_NOT_FOUND, -ENOENT, ""},
	{CUDA_ERROR_NOT_READY, -EAGAIN, ""},
	{CUDA_ERROR_INVALID_IMAGE, -ENOEXEC, ""},
	{CUDA_ERROR_NO_BINARY_FOR_GPU, -ENOEXEC, ""},
	{CUDA_ERROR_UNSUPPORTED_PTX_VERSION, -ENOEXEC,
	 "; update the NVIDIA driver"},
	{CUDA_ERROR_NOT_PERMITTED, -EOPNOTSUPP, ""},
	{CUDA_ERROR_NOT_SUPPORTED, -EOPNOTSUPP, ""},
	{CUDA_ERROR_SYSTEM_NOT_READY, -ENODEV,
	 "; start nvidia-fabricmanager, and see dmesg"},
	{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, -ENODEV,
	 "; the driver was updated: reboot, or reload its kernel modules"},
	{CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, -ENODEV,
	 "; remove the cuda-compat folder from LD_LIBRARY_PATH"},
	{CUDA_ERROR_MPS_CONNECTION_FAILED, -ECONNREFUSED,
	 "; see the MPS server's log, or unset CUDA_MPS_PIPE_DIRECTORY"},
	{CUDA_ERROR_MPS_SERVER_NOT_READY, -ECONNREFUSED,
	 "; another client of MPS failed: try again when it has ended"},
	{CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, -EBUSY,
	 "; MPS serves no more processes on this device"},
	{CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, -EBUSY,
	 "; MPS serves no more processes on this device"},
};

bool driver_is_sticky(CUresult result)
{
	switch ((int)result) {
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_MPS_RPC_FAILURE:
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
	case CUDA_ERROR_EXTERNAL_DEVICE:
		return true;
	default:
		return false;
	}
}

static struct meaning find_meaning(CUresult result)
{
	if (driver_is_sticky(result))
		return (struct meaning){result, -EIO,
					"; this process cannot use the device "
					"any more: start it again"};
	for (size_t i = 0; i < N_ELEMENTS(meanings); i++)
		if (meanings[i].result == result)
			return meanings[i];
	return (struct meaning){result, -EIO, ""};
}

int driver_error(struct error *err, CUresult result, const char *format, ...)
{
	struct meaning meaning = find_meaning(result);
	const char *name = NULL, *text = NULL;
	char tried[ERROR_MSG_SIZE];
	va_list args;

	if (result == CUDA_SUCCESS)
		return 0;
	va_start(args, format);
	(void)vsnprintf(tried, sizeof(tried), format, args);
	va_end(args);
	/* For unknown codes both functions set NULL or leave the value
	 * unchanged. */
	if (cu.GetErrorName && cu.GetErrorName(result, &name) != CUDA_SUCCESS)
		name = NULL;
	if (cu.GetErrorString &&
	    cu.GetErrorString(result, &text) != CUDA_SUCCESS)
		text = NULL;
	return error_set(err, meaning.code, "%s: %s (CUDA error %d%s%s)%s",
			 tried, text ? text : "the driver does not describe it",
			 (int)result, name ? ", " : "", name ? name : "",
			 meaning.way_out);
}
