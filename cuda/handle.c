/*
 * This file checks handles, and draws the number of this process.
 */
#include "cuda/handle.h"
#include "proto/error.h"
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>

_Static_assert(offsetof(struct handle, version) == 0, "layout");
_Static_assert(offsetof(struct handle, kind) == 1, "layout");
_Static_assert(offsetof(struct handle, reserved) == 2, "layout");
_Static_assert(offsetof(struct handle, origin) == 8, "layout");
_Static_assert(offsetof(struct handle, generation) == 16, "layout");
_Static_assert(offsetof(struct handle, size) == 24, "layout");
_Static_assert(offsetof(struct handle, memory) == 32, "layout");
_Static_assert(offsetof(struct handle, event) == 32, "layout");
_Static_assert(sizeof(struct handle) == HANDLE_SIZE, "layout");

int handle_origin(uint64_t *ret, struct error *err)
{
	static _Atomic uint64_t origin;
	uint64_t drawn, known;

	/* Relaxed: no other memory depends on the number. */
	known = atomic_load_explicit(&origin, memory_order_relaxed);
	if (known == 0) {
		if (getrandom(&drawn, sizeof(drawn), 0) != sizeof(drawn))
			return error_errno(err, -errno,
					   "cannot get random bytes for this "
					   "process's number");
		drawn |= 1; /* 0 means "not drawn yet" */
		/* Relaxed, as above. If another thread was first, its number is
		 * now in `known`. */
		if (atomic_compare_exchange_strong_explicit(
			    &origin, &known, drawn, memory_order_relaxed,
			    memory_order_relaxed))
			known = drawn;
	}
	*ret = known;
	return 0;
}

static int check_frame(const uint8_t *bytes, size_t size, struct error *err)
{
	if (size > 0 && bytes[0] > HANDLE_VERSION)
		return error_set(err, -EPROTO,
				 "the IPC handle is of version %u, and this "
				 "program reads versions up to %d: update "
				 "libfsdp in this process",
				 bytes[0], HANDLE_VERSION);
	if (size != HANDLE_SIZE)
		return error_set(err, -EINVAL,
				 "the IPC handle has %zu bytes instead of %d",
				 size, HANDLE_SIZE);
	return 0;
}

int handle_decode(const void *bytes, size_t size, enum handle_kind kind,
		  struct handle *ret, struct error *err)
{
	static const uint8_t zeros[sizeof(ret->reserved)];
	struct handle handle;
	int r = check_frame(bytes, size, err);

	if (r < 0)
		return r;
	memcpy(&handle, bytes, sizeof(handle));
	if (handle.version != HANDLE_VERSION || handle.kind != kind ||
	    memcmp(handle.reserved, zeros, sizeof(zeros)) != 0)
		return error_set(err, -EINVAL,
				 "these %d bytes are not an IPC handle of %s",
				 HANDLE_SIZE,
				 kind == HANDLE_MEMORY ? "memory" : "an event");
	if (handle.origin == 0 ||
	    (kind == HANDLE_MEMORY) != (handle.size > 0) ||
	    handle.size > INT64_MAX)
		return error_set(err, -EINVAL,
				 "the IPC handle is invalid: it says that it "
				 "is of process %llx and has %llu bytes",
				 (unsigned long long)handle.origin,
				 (unsigned long long)handle.size);
	*ret = handle;
	return 0;
}
