/*
 * This file loads NCCL, and turns its errors into sentences.
 *
 * The first caller loads it for all, as in driver.c. The library is never
 * closed: NCCL has threads and files of its own, and cannot be unloaded.
 */
#include "cuda/nccl.h"

#include "cuda/driver.h"
#include "cuda/library.h"
#include "proto/error.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nccl nccl;

/* Set by the first load. */
static struct {
	struct library library;
	int r;
	struct error err;
} loaded;

static const struct library_symbol symbols[] = {
#define ROW(name) {"nccl" #name, offsetof(struct nccl, name)},
	NCCL_SYMBOLS(ROW)
#undef ROW
};

/* Checks the version: 2.28.9 is 22809, but 2.8.4 was 2804. `missing` is a
 * symbol that the library lacks, or NULL. */
static int check_version(const char *missing, struct error *err)
{
	int version, unit, r;

	if (!nccl.GetVersion || !nccl.GetErrorString || !nccl.GetLastError)
		return error_set(err, -ENODEV,
				 "%s is not NCCL: it has no %s; unset "
				 "FSDP_LIBNCCL or name another file",
				 loaded.library.path, missing);
	r = nccl_error(err, nccl.GetVersion(&version),
		       "cannot query the version of %s", loaded.library.path);
	if (r < 0)
		return r;
	if (version >= NCCL_VERSION_MIN && version < NCCL_VERSION_END &&
	    !missing)
		return 0;
	unit = version < 10000 ? 1000 : 10000;
	return error_set(err, -ENOSYS,
			 "NCCL %s is of the wrong version: it is %d.%d.%d%s%s, "
			 "and 2.19 or a later 2 is needed; install it, or name "
			 "it in FSDP_LIBNCCL",
			 loaded.library.path, version / unit,
			 version % unit / 100, version % 100,
			 missing ? " and lacks " : "", missing ? missing : "");
}

/* A fake would use addresses of a real device as its own, and a real NCCL would
 * use those of a fake driver. */
static int check_fake(struct error *err)
{
	struct driver_info driver;

	driver_describe(&driver);
	if (driver.is_fake == loaded.library.is_fake)
		return 0;
	return error_set(err, -EINVAL,
			 "NCCL %s is %s, but the driver %s is %s; set both "
			 "FSDP_LIBCUDA and FSDP_LIBNCCL, or neither",
			 loaded.library.path,
			 loaded.library.is_fake ? "a fake" : "real",
			 driver.path, driver.is_fake ? "a fake" : "real");
}

static int load(struct error *err)
{
	const char *missing;
	int r = driver_load(err);

	if (r < 0)
		return r;
	if (!library_open(&loaded.library, "FSDP_LIBNCCL", "libnccl.so.2"))
		return error_set(err, -ENODEV,
				 "there is no NCCL: %s; install it, or name "
				 "the file in FSDP_LIBNCCL",
				 dlerror());
	r = check_fake(err);
	if (r < 0)
		return r;
	missing = library_find(&loaded.library, symbols,
			       sizeof(symbols) / sizeof(symbols[0]), &nccl);
	return check_version(missing, err);
}

static void load_once(void)
{
	loaded.r = load(&loaded.err);
}

int nccl_load(struct error *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_once);
	if (loaded.r < 0 && err)
		*err = loaded.err;
	/* driver_load() reports a fork. */
	return loaded.r == 0 ? driver_load(err) : loaded.r;
}

void nccl_connect_early(void)
{
	(void)setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

static int result_errno(ncclResult_t result)
{
	switch (result) {
	case ncclSuccess:
		return 0;
	case ncclInvalidArgument:
	case ncclInvalidUsage:
		return -EINVAL;
	case ncclRemoteError:
		return -ECONNABORTED;
	case ncclInProgress:
		return -EAGAIN;
	case ncclUnhandledCudaError:
	case ncclSystemError:
	case ncclInternalError:
		break;
	}
	return -EIO;
}

/* The text of the last error may have several lines; our sentence has one. */
static void format_last(char *ret, size_t size)
{
	const char *text = nccl.GetLastError(NULL);
	size_t n = 0;

	if (text && *text)
		n = (size_t)snprintf(ret, size, " (%s", text);
	if (n == 0) {
		*ret = 0;
		return;
	}
	if (n > size - 2)
		n = size - 2;
	while (n > 0 && (ret[n - 1] == '\n' || ret[n - 1] == ' '))
		n--;
	ret[n] = ')';
	ret[n + 1] = 0;
	for (char *c = ret; *c; c++)
		if (*c == '\n')
			*c = ' ';
}

int nccl_error(struct error *err, ncclResult_t result, const char *format, ...)
{
	int code = result_errno(result);
	char what[160], last[256];
	va_list args;

	if (result == ncclSuccess)
		return 0;
	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	format_last(last, sizeof(last));
	return error_set(err, code, "%s: NCCL says '%s'%s%s", what,
			 nccl.GetErrorString(result), last,
			 code == -ECONNABORTED ? "; all ranks must leave and "
						 "join again"
					       : "");
}
