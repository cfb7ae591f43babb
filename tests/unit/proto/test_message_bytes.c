/*
 * Compares our reader and writer of protobuf's bytes with those of protobuf-c.
 * From bytes that we accept, both must make the same.
 */
#include "proto/message_pb.h"
#include "tests/lib/check.h"
#include "tests/unit/proto/message_samples.h"

#include <stdlib.h>
#include <string.h>

#define N_CHANGES 2000 /* changes of each sample */

TestSuite(message_bytes, .init = read_samples);

static struct bytes pack(const ProtobufCMessage *pb)
{
	struct bytes bytes;

	bytes.data = pb_pack(pb, &bytes.size);
	cr_assert(ne(ptr, bytes.data, NULL));
	return bytes;
}

/* Counts the bytes that only we refuse. These are numbers of another form than
 * their type's, which protobuf-c takes for a bool, and tags beyond 32 bits, of
 * which protobuf-c takes the lower bits. */
static size_t n_stricter;

/* Compare the result of both readers, which drop unknown fields. Returns false
 * if the bytes are refused. */
static bool compare(const struct sample *it, const uint8_t *data, size_t size)
{
	ProtobufCMessage *theirs =
		protobuf_c_message_unpack(descriptor_of(it), NULL, size, data);
	struct bytes expected, found;
	struct pb_arena arena;
	void *ours;

	pb_arena_init(&arena, SIZE_MAX);
	ours = pb_unpack(descriptor_of(it), data, size, &arena);
	if (!ours && theirs) {
		n_stricter++;
		protobuf_c_message_free_unpacked(theirs, NULL);
	}
	cr_assert(ours == NULL || theirs != NULL, "line %zu",
		  (size_t)(it - samples));
	if (ours) {
		expected = pack(theirs);
		found = pack(ours);
		cr_assert(eq(sz, found.size, expected.size));
		cr_assert(zero(int,
			       memcmp(found.data, expected.data, found.size)));
		free(expected.data);
		free(found.data);
		protobuf_c_message_free_unpacked(theirs, NULL);
	}
	pb_arena_deinit(&arena);
	return ours;
}

Test(message_bytes, samples_are_packed_as_protobuf_c_packs_them)
{
	for (size_t i = 0; i < n_samples; i++) {
		const struct sample *it = &samples[i];
		ProtobufCMessage *pb = protobuf_c_message_unpack(
			descriptor_of(it), NULL, it->size, it->bytes);
		struct bytes bytes = pack(pb);
		uint8_t *theirs = malloc(bytes.size + 1);

		cr_assert(eq(sz, bytes.size,
			     protobuf_c_message_get_packed_size(pb)));
		(void)protobuf_c_message_pack(pb, theirs);
		cr_expect(zero(int, memcmp(theirs, bytes.data, bytes.size)));
		cr_expect(compare(it, it->bytes, it->size));
		protobuf_c_message_free_unpacked(pb, NULL);
		free(bytes.data);
		free(theirs);
	}
}

Test(message_bytes, each_prefix_of_a_sample_is_decoded_as_by_protobuf_c)
{
	for (size_t i = 0; i < n_samples; i++)
		for (size_t size = 0; size < samples[i].size; size++)
			(void)compare(&samples[i], samples[i].bytes, size);
}

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

/* Bytes are changed, left out, or doubled. */
static size_t change(const struct sample *it, uint8_t *ret, uint64_t *state)
{
	size_t size = it->size, at = next_random(state) % (size + 1);
	size_t n = next_random(state) % 16;

	memcpy(ret, it->bytes, size);
	switch (next_random(state) % 3) {
	case 0:
		for (; at < size && n > 0; at++, n /= 2)
			ret[at] = (uint8_t)next_random(state);
		return size;
	case 1:
		n = n < size - at ? n : size - at;
		memmove(ret + at, ret + at + n, size - at - n);
		return size - n;
	default:
		memcpy(ret + size, it->bytes + at, size - at);
		return size + size - at;
	}
}

Test(message_bytes, changed_samples_are_decoded_as_by_protobuf_c,
     .timeout = 300)
{
	size_t n_accepted = 0, n_refused = 0;
	uint64_t state = 1;

	for (size_t i = 0; i < n_samples; i++)
		for (size_t n = 0; n < N_CHANGES; n++) {
			uint8_t bytes[2 * sizeof(samples[i].bytes)];
			size_t size = change(&samples[i], bytes, &state);

			if (compare(&samples[i], bytes, size))
				n_accepted++;
			else
				n_refused++;
		}
	cr_expect(gt(sz, n_accepted, 1000));
	cr_expect(gt(sz, n_refused, 1000));
	cr_expect(lt(sz, n_stricter, n_refused / 1000));
}

/* Arrays of numbers may come in pieces, or each number by itself. */
Test(message_bytes, arrays_in_several_pieces_are_decoded_as_a_whole)
{
	const uint8_t bytes[] = {
		0x0d, 1,    0, 0, 0,       /* slot, by itself */
		0x0a, 4,    2, 0, 0,    0, /* likewise, in an array of one */
		0x4a, 2,    3, 4, 0x48, 5, /* shape */
		0x0a, 8,    6, 0, 0,    0,
		7,    0,    0, 0, 0x4a, 0, /* an empty array */
		0xfa, 0x3f, 1, 9,          /* an unknown field */
	};
	struct pb_arena arena;
	const Fsdp__Places *pb;

	pb_arena_init(&arena, SIZE_MAX);
	pb = pb_unpack(&fsdp__places__descriptor, bytes, sizeof(bytes), &arena);
	cr_assert(ne(ptr, (void *)pb, NULL));
	cr_assert(eq(sz, pb->n_slot, 4));
	cr_expect(eq(u32, pb->slot[0], 1));
	cr_expect(eq(u32, pb->slot[1], 2));
	cr_expect(eq(u32, pb->slot[2], 6));
	cr_expect(eq(u32, pb->slot[3], 7));
	cr_assert(eq(sz, pb->n_shape, 3));
	cr_expect(eq(i64, pb->shape[2], 5));
	pb_arena_deinit(&arena);
}
