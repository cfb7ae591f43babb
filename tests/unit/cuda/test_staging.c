/*
 * Tests that staging copies any number of bytes, and that a failure leaves no
 * copy running. The fake's copies take random times, so a buffer that is reused
 * too early shows as wrong bytes.
 */
#include "cuda/staging.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include <errno.h>
#include <string.h>

/* size of each of the two buffers; small, so that both are used often */
#define BUFFER 4096
#define MAX    (64 * BUFFER)

TestSuite(staging, .init = gpu_open, .fini = gpu_close);

static unsigned char source[MAX + 1], result[MAX + 1];

static bool says(const struct error *err, const char *part)
{
	return strstr(err->msg, part);
}

static const struct device *device(void)
{
	const struct device *devices = NULL;
	struct error err = ERROR_NULL;
	uint32_t n = 0;

	cr_assert(zero(int, device_list(&devices, &n, &err)), "%s", err.msg);
	return &devices[0];
}

static struct staging *new_staging(void)
{
	struct staging *staging = NULL;
	struct error err = ERROR_NULL;

	cr_assert(zero(int, staging_new(device(), BUFFER, &staging, &err)),
		  "%s", err.msg);
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (unsigned char)(i * 7 + i / 251);
	return staging;
}

/* Device memory, which is freed with the process. */
static CUdeviceptr allocate(void)
{
	CUdeviceptr address = 0;

	cr_assert(zero(int, context_enter(device(), NULL)));
	cr_assert(zero(int, cu.MemAlloc(&address, MAX)));
	context_leave();
	return address;
}

/* Copy to the device and back again. */
static void expect_round_trip(struct staging *staging, CUdeviceptr address,
			      size_t size)
{
	struct error err = ERROR_NULL;

	memset(result, 0xee, sizeof(result));
	cr_assert(zero(int,
		       staging_put_bytes(staging, address, source, size, &err)),
		  "%s", err.msg);
	cr_assert(zero(int, staging_finish(staging, &err)), "%s", err.msg);
	cr_assert(zero(int, staging_get(staging, result, address, size, &err)),
		  "%s", err.msg);
	cr_expect(zero(int, memcmp(result, source, size)), "%zu bytes", size);
	cr_expect(eq(int, result[size], 0xee));
}

Test(staging, copies_of_all_sizes_are_complete)
{
	static const size_t sizes[] = {
		0,          1,   BUFFER - 1, BUFFER, BUFFER + 1, 2 * BUFFER + 5,
		3 * BUFFER, MAX,
	};
	struct staging *staging = new_staging();
	CUdeviceptr address = allocate();

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		expect_round_trip(staging, address, sizes[i]);
	staging_free(staging);
}

/* This does not check with staging_get(), because that would wait for the
 * copies. */
Test(staging, finished_copies_are_visible_to_other_streams)
{
	struct staging *staging;
	CUdeviceptr address = 0;

	setenv("FAKECUDA_DELAY_US", "5000", 1);
	staging = new_staging();
	address = allocate();
	for (size_t n = 0; n < 16; n++) {
		/* The last part of each copy is in the second buffer, except in
		 * the last four copies. */
		size_t size = n < 12 ? 2 * BUFFER : BUFFER;

		source[size - 1] ^= 0xff;
		cr_assert(zero(int, staging_put_bytes(staging, address, source,
						      size, NULL)));
		cr_assert(zero(int, staging_finish(staging, NULL)));
		cr_assert(zero(int, context_enter(device(), NULL)));
		cr_assert(zero(int, cu.MemcpyDtoH(result, address, size)));
		context_leave();
		cr_expect(zero(int, memcmp(result, source, size)));
	}
	staging_free(staging);
}

Test(staging, several_puts_may_precede_one_finish)
{
	struct staging *staging = new_staging();
	CUdeviceptr address = allocate();

	for (size_t i = 0; i < MAX; i += MAX / 4)
		cr_assert(zero(int,
			       staging_put_bytes(staging, address + i,
						 source + i, MAX / 4, NULL)));
	cr_assert(zero(int, staging_finish(staging, NULL)));
	cr_assert(zero(int, staging_get(staging, result, address, MAX, NULL)));
	cr_expect(zero(int, memcmp(result, source, MAX)));
	staging_free(staging);
}

Test(staging, buffers_have_a_default_size)
{
	struct staging *staging = NULL;
	CUdeviceptr address = allocate();

	cr_assert(zero(int, staging_new(device(), 0, &staging, NULL)));
	expect_round_trip(staging, address, MAX);
	staging_free(staging);
	staging_free(NULL);
}

/* A source that counts its calls, and fails in the end. */
struct reader {
	size_t offset, n_calls, fails_at;
};

static int read_some(void *data, void *into, size_t size, struct error *err)
{
	struct reader *reader = data;

	if (++reader->n_calls == reader->fails_at)
		return error_set(err, -ENODATA, "the file ends too early");
	memcpy(into, source + reader->offset, size);
	reader->offset += size;
	return 0;
}

Test(staging, a_source_is_read_once_and_in_order)
{
	struct staging *staging = new_staging();
	CUdeviceptr address = allocate();
	struct reader reader = {0};

	cr_assert(zero(int, staging_put(staging, address, 5 * BUFFER + 3,
					read_some, &reader, NULL)));
	cr_expect(eq(sz, reader.n_calls, 6));
	cr_expect(eq(sz, reader.offset, 5 * BUFFER + 3));
	cr_assert(zero(int, staging_finish(staging, NULL)));
	staging_free(staging);
}

Test(staging, a_failure_of_the_source_is_reported_and_staging_stays_usable)
{
	struct staging *staging = new_staging();
	CUdeviceptr address = allocate();

	for (size_t n = 1; n <= 4; n++) {
		struct reader reader = {.fails_at = n};
		struct error err = ERROR_NULL;

		cr_expect(eq(int,
			     staging_put(staging, address, MAX, read_some,
					 &reader, &err),
			     -ENODATA));
		cr_expect(eq(str, err.msg, "the file ends too early"));
		cr_expect(eq(sz, reader.n_calls, n));
	}
	expect_round_trip(staging, address, MAX);
	staging_free(staging);
}

Test(staging, a_failure_to_create_staging_is_reported)
{
	static const char faults[] = "StreamCreate:1:2,MemHostAlloc:1:2,"
				     "MemHostAlloc:3:2,EventCreate:1:2";
	struct staging *staging = NULL;

	need_fake("calls must fail");
	setenv("FAKECUDA_FAIL", faults, 1);
	for (int i = 0; i < 4; i++) {
		struct error err = ERROR_NULL;

		cr_expect(eq(int, staging_new(device(), 0, &staging, &err),
			     -ENOMEM));
		cr_expect(says(&err, "device GPU-"), "%s", err.msg);
		cr_expect(staging == NULL);
	}
	cr_assert(zero(int, staging_new(device(), 0, &staging, NULL)));
	staging_free(staging);
}

Test(staging, a_copy_that_fails_is_an_error)
{
	struct staging *staging;
	struct error err = ERROR_NULL;
	CUdeviceptr address;

	need_fake("calls must fail");
	setenv("FAKECUDA_FAIL", "MemcpyHtoDAsync:3:1,MemcpyDtoHAsync:3:1", 1);
	staging = new_staging();
	address = allocate();
	cr_expect(eq(int,
		     staging_put_bytes(staging, address, source, MAX, &err),
		     -EINVAL));
	cr_expect(says(&err, "copy to device"), "%s", err.msg);
	cr_expect(eq(int, staging_get(staging, result, address, MAX, &err),
		     -EINVAL));
	cr_expect(says(&err, "copy from device"), "%s", err.msg);
	expect_round_trip(staging, address, MAX);
	staging_free(staging);
}

Test(staging, a_device_lost_during_a_copy_is_an_error)
{
	struct staging *staging;
	struct error err = ERROR_NULL;
	CUdeviceptr address;
	int r;

	need_fake("calls must fail");
	setenv("FAKECUDA_FAIL", "MemcpyHtoDAsync:2:fault=719", 1);
	staging = new_staging();
	address = allocate();
	r = staging_put_bytes(staging, address, source, MAX, &err);
	if (r == 0)
		r = staging_finish(staging, &err);
	cr_expect(eq(int, r, -EIO));
	cr_expect(says(&err, "start it again"), "%s", err.msg);
	staging_free(staging);
}
