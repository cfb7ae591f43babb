/*
 * Tests IPC handles that come from other processes.
 */
#include "cuda/handle.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct handle memory = {
	.version = HANDLE_VERSION,
	.kind = HANDLE_MEMORY,
	.origin = 7,
	.generation = 3,
	.size = 0x4000,
	.memory = {{1, 2, 3}},
};
static const struct handle event = {
	.version = HANDLE_VERSION,
	.kind = HANDLE_EVENT,
	.origin = UINT64_MAX,
	.generation = 1,
	.event = {{4}},
};

static int decode(const void *bytes, size_t size, enum handle_kind kind)
{
	struct error err = ERROR_NULL;
	struct handle ret = {.origin = 99};
	/* so that a read past its end is detected */
	uint8_t *copy = malloc(size);
	int r;

	memcpy(copy, bytes, size);
	r = handle_decode(copy, size, kind, &ret, &err);
	free(copy);
	if (r == 0)
		cr_expect(zero(int, memcmp(&ret, bytes, sizeof(ret))));
	else
		cr_expect(err.code == r && *err.msg && ret.origin == 99);
	return r;
}

Test(handle, an_encoded_handle_can_be_decoded)
{
	cr_expect(zero(int, decode(&memory, HANDLE_SIZE, HANDLE_MEMORY)));
	cr_expect(zero(int, decode(&event, HANDLE_SIZE, HANDLE_EVENT)));
}

/*
 * Case 33. The reference accepts 66 bytes, 64 bytes, and lists of descriptors;
 * it refuses version 3, because its own is version 2.
 */
Test(handle, every_other_length_is_refused)
{
	uint8_t bytes[HANDLE_SIZE + 1] = {0};

	memcpy(bytes, &memory, sizeof(memory));
	for (size_t size = 0; size <= sizeof(bytes); size++)
		cr_expect(eq(int, decode(bytes, size, HANDLE_MEMORY),
			     size == HANDLE_SIZE ? 0 : -EINVAL),
			  "%zu", size);
	cr_expect(eq(int, decode(&memory.memory, 64, HANDLE_MEMORY), -EINVAL),
		  "the driver's bytes alone");
}

Test(handle, a_handle_of_a_newer_version_of_any_length_is_refused)
{
	struct handle newer = memory;

	newer.version = HANDLE_VERSION + 1;
	for (size_t size = 1; size <= sizeof(newer); size++)
		cr_expect(
			eq(int, decode(&newer, size, HANDLE_MEMORY), -EPROTO));
}

Test(handle, invalid_handles_are_refused)
{
	struct handle bad;

	cr_expect(eq(int, decode(&memory, HANDLE_SIZE, HANDLE_EVENT), -EINVAL));
	cr_expect(eq(int, decode(&event, HANDLE_SIZE, HANDLE_MEMORY), -EINVAL));
	bad = memory, bad.kind = 'c';
	cr_expect(eq(int, decode(&bad, HANDLE_SIZE, HANDLE_MEMORY), -EINVAL));
	bad = memory, bad.version = 0;
	cr_expect(eq(int, decode(&bad, HANDLE_SIZE, HANDLE_MEMORY), -EINVAL));
	bad = memory, bad.reserved[5] = 1;
	cr_expect(eq(int, decode(&bad, HANDLE_SIZE, HANDLE_MEMORY), -EINVAL));
	bad = memory, bad.origin = 0;
	cr_expect(eq(int, decode(&bad, HANDLE_SIZE, HANDLE_MEMORY), -EINVAL));
	bad = memory, bad.size = 0;
	cr_expect(eq(int, decode(&bad, HANDLE_SIZE, HANDLE_MEMORY), -EINVAL));
	bad = memory, bad.size = UINT64_MAX;
	cr_expect(eq(int, decode(&bad, HANDLE_SIZE, HANDLE_MEMORY), -EINVAL));
	bad = event, bad.size = 1;
	cr_expect(eq(int, decode(&bad, HANDLE_SIZE, HANDLE_EVENT), -EINVAL));
}

static void *draw(void *ret)
{
	cr_expect(zero(int, handle_origin(ret, NULL)));
	return NULL;
}

Test(handle, a_process_has_one_origin)
{
	uint64_t origins[4] = {0};
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, draw, &origins[i]);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 4; i++) {
		cr_expect(ne(u64, origins[i], 0));
		cr_expect(eq(u64, origins[i], origins[0]));
	}
}
