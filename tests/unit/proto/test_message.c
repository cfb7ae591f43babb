/*
 * Tests rules of messages across several fields, their sizes, and random bytes.
 */
#include "proto/error.h"
#include "proto/frame.h"
#include "proto/name.h"
#include "tests/lib/check.h"
#include "tests/unit/proto/message_samples.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct request request;
static struct reply reply;

TestSuite(message, .init = read_samples);

/* --- rules across fields ------------------------------------------------- */

/* test_message_field.c has the rules of single fields. */

#define refuse(KIND, change, code)                                             \
	do {                                                                   \
		request = request_of(MESSAGE_##KIND, "full");                  \
		change;                                                        \
		cr_expect(eq(int, refusal(&request), code), #change);          \
	} while (0)
#define refuse_reply(KIND, change, code)                                       \
	do {                                                                   \
		reply = reply_of(MESSAGE_##KIND, "full");                      \
		change;                                                        \
		cr_expect(eq(int, reply_refusal(&reply), code), #change);      \
	} while (0)

Test(message, inconsistent_requests_are_refused)
{
#define first request.alloc.items[0]
	refuse(ALLOC, first.type.strides[0] = 5, -EINVAL);
	refuse(ALLOC, (first.type.strides[0] = 5, first.is_view = true),
	       -EINVAL);
	refuse(ALLOC,
	       (first.type.strides[0] = 5, first.is_view = true,
		first.base = (struct slot_ref){1, 1}),
	       0);
#undef first
#define wait request.wait
	refuse(WAIT, (wait.kind = WORK_REDUCE, wait.sequence = 0), -EINVAL);
	refuse(WAIT, (wait.kind = WORK_COMMIT, wait.group = 0), 0);
#undef wait
}

Test(message, inconsistent_joins_are_refused)
{
#define join request.comm_join
	refuse(COMM_JOIN, (join.n_ranks = 4096, join.n_shards = 0), 0);
	refuse(COMM_JOIN, (join.n_ranks = 4097, join.n_shards = 0), -EINVAL);
	refuse(COMM_JOIN, (join.n_ranks = 128, join.n_local = 64), 0);
	refuse(COMM_JOIN, (join.n_ranks = 128, join.n_local = 65), -EINVAL);
	/* Host memory has neither NCCL nor ranks on other nodes. */
#define on_host                                                                \
	join.device = (struct device_uuid){{0}}, join.memory = 0,              \
	join.has_nccl_id = false, join.n_local = 0
	refuse(COMM_JOIN, (on_host), 0);
	refuse(COMM_JOIN, (on_host, join.n_local = 4), -EINVAL);
	refuse(COMM_JOIN, (on_host, join.has_nccl_id = true), -EINVAL);
	refuse(COMM_JOIN, (on_host, join.memory = 1), -EINVAL);
	refuse(COMM_JOIN, (on_host, join.executor = 1), 0);
	refuse(COMM_JOIN, (on_host, join.n_ranks = 64), 0);
	refuse(COMM_JOIN, (on_host, join.n_ranks = 68), -EINVAL);
#undef on_host
#undef join
}

Test(message, inconsistent_replies_are_refused)
{
#define first reply.places.places[0]
	refuse_reply(GET, first.name = "a//", -EINVAL);
	refuse_reply(GET, first.fence = ((struct fence){5, 0, 7}), 0);
	refuse_reply(GET, first.fence.session = 0, -EPROTO);
	refuse_reply(GET, first.fence = ((struct fence){5, 0, INT64_MAX}),
		     -EINVAL);
#undef first
	refuse_reply(GROUP, reply.group.n_places = 2, 0);
	refuse_reply(GROUP, reply.group.n_places = 1, -EPROTO);
	refuse_reply(GROUP, reply.group.places[1].size = 704, -EPROTO);
	refuse_reply(GROUP, reply.group.places[1].type.dtype = DTYPE_I8,
		     -EPROTO);
}

Test(message, omitted_fields_get_their_defaults)
{
	struct request join = request_of(MESSAGE_COMM_JOIN, "full"), got;

	cr_expect(eq(u32, request_of(MESSAGE_ALLOC, "least").alloc.access.mode,
		     0600));
	join.comm_join.n_shards = join.comm_join.n_local = 0;
	cr_assert(zero(int, pass_request(&join, &got)));
	cr_expect(eq(u32, got.comm_join.n_shards, 8));
	cr_expect(eq(u32, got.comm_join.n_local, 8));
}

/* Fields of the struct whose flag is not set are neither sent nor accepted. */
Test(message, fields_whose_flag_is_not_set_are_not_encoded)
{
	struct request got;

	request = request_of(MESSAGE_REDUCE, "full");
	request.reduce.has_factor = false;
	cr_assert(zero(int, pass_request(&request, &got)));
	cr_expect(zero(dbl, got.reduce.factor));
	request = request_of(MESSAGE_GET, "full");
	request.get.is_trust_set = false;
	cr_assert(zero(int, pass_request(&request, &got)));
	cr_expect(zero(u32, got.get.trusted_uid));
	request = request_of(MESSAGE_WHO, "full");
	request.who.name = "b";
	cr_assert(zero(int, pass_request(&request, &got)));
	cr_expect(zero(u32, got.who.ref.slot));
	request = request_of(MESSAGE_TIMELINES, "full");
	request.timelines.session = 0;
	cr_assert(zero(int, pass_request(&request, &got)));
	cr_expect(not(got.timelines.wants_writable));
	reply = reply_of(MESSAGE_TIMELINES, "least");
	cr_expect(not(reply.timelines.has_event));
}

/* The plan checks caps and factors, so the decoder passes any value on, even
 * NaN. */
Test(message, caps_and_factors_are_passed_unchanged)
{
	double caps[] = {NAN, -0.0, -INFINITY};
	struct request got;

	request = request_of(MESSAGE_GROUP, "full");
	request.group.gather_caps_mb = caps;
	request.group.n_gather_caps = 3;
	cr_assert(zero(int, pass_request(&request, &got)));
	cr_expect(zero(int,
		       memcmp(got.group.gather_caps_mb, caps, sizeof(caps))));
	request = request_of(MESSAGE_REDUCE, "full");
	request.reduce.factor = NAN;
	cr_assert(zero(int, pass_request(&request, &got)));
	cr_expect(got.reduce.has_factor && isnan(got.reduce.factor));
}

Test(message, an_error_reply_of_any_kind_has_its_message)
{
	for (uint16_t kind = 1; kind <= MESSAGE_MAX; kind++) {
		struct reply sent = {.kind = kind,
				     .code = -ENOENT,
				     .sentence = "no such tensor"};
		struct reply got;

		cr_assert(zero(int, pass_reply(&sent, &got)));
		cr_expect(eq(int, got.code, -ENOENT));
		cr_expect(eq(str, (char *)got.sentence, "no such tensor"));
		reply_deinit(&got);
	}
}

/* --- sizes --------------------------------------------------------------- */

Test(message, a_full_batch_of_the_largest_places_fits_a_frame)
{
	struct tensor_place *many = calloc(MESSAGE_MAX_ITEMS, sizeof(*many));
	const struct request sent = {.kind = MESSAGE_REDEEM,
				     .redeem = {.n_tickets = 256}};
	struct chunk_ref refs[FRAME_MAX_FDS];
	struct reply got;
	struct bytes bytes;

	reply = reply_of(MESSAGE_REDEEM, "full");
	for (int i = 0; i < FRAME_MAX_FDS; i++) {
		refs[i] = reply.places.chunks[1];
		refs[i].chunk = UINT32_MAX;
		refs[i].size = INT64_MAX;
		refs[i].is_writable = true;
	}
	for (int i = 0; i < MESSAGE_MAX_ITEMS; i++) {
		many[i] = reply.places.places[3];
		many[i].ref = (struct slot_ref){UINT32_MAX, UINT64_MAX};
		many[i].chunk = UINT32_MAX;
		many[i].offset = many[i].size = UINT64_C(1) << 62;
		many[i].version = UINT64_MAX;
		many[i].name = "";
		many[i].type = (struct tensor_type){
			DTYPE_U8, TENSOR_MAX_DIMS, {0}, {0}};
		/* One size of the tensor is 2^61. The strides of 2^62 belong to
		 * sizes of 1, so they are not used. */
		for (int k = 0; k < TENSOR_MAX_DIMS; k++) {
			many[i].type.shape[k] = 1;
			many[i].type.strides[k] = INT64_C(1) << 62;
		}
		many[i].type.shape[0] = INT64_C(1) << 61;
		many[i].type.strides[0] = 2;
	}
	reply.places = (struct places_reply){MESSAGE_MAX_ITEMS, many, 0, refs};
	bytes = reply_bytes(&reply);
	cr_expect(le(sz, bytes.size, reply_bound(&sent)), "its record");
	reply.places.n_chunks = FRAME_MAX_FDS;
	cr_assert(zero(int, pass_reply(&reply, &got)));
	cr_expect(zero(int, memcmp(&got.places.places[255].type, &many[0].type,
				   sizeof(many[0].type))));
	reply_deinit(&got);
	free(bytes.data);
	free(many);
}

/* The names are as long as those of models: 1,024 names of 42 bytes. */
Test(message, a_group_of_the_most_parameters_fits_a_frame_in_both_directions)
{
	struct group_param *params =
		calloc(MESSAGE_MAX_PARAMS, sizeof(*params));
	struct group_entry *entries =
		calloc(MESSAGE_MAX_PARAMS, sizeof(*entries));
	const uint64_t far = UINT64_C(1) << 62;

	for (int i = 0; i < MESSAGE_MAX_PARAMS; i++) {
		params[i] = (struct group_param){
			"model.layers.0000.self_attn.q_proj.weight",
			{DTYPE_BF16, 2, {16384, 16384}, {16384, 1}},
			0,
			false};
		entries[i] = (struct group_entry){
			DTYPE_F64, DTYPE_F64, 7, INT64_MAX, far, far, far, far};
	}
	refuse(GROUP,
	       (request.group.params = params,
		request.group.n_params = MESSAGE_MAX_PARAMS),
	       0);
	refuse_reply(GROUP,
		     (reply.group.entries = entries,
		      reply.group.n_entries = MESSAGE_MAX_PARAMS),
		     0);
	free(params);
	free(entries);
}

Test(message, bodies_larger_than_a_frame_are_refused_in_both_directions)
{
	static uint8_t body[FRAME_MAX_BODY + 1];
	static char name[NAME_MAX_SIZE + 1];
	const char *many[MESSAGE_MAX_ITEMS];
	struct error err = ERROR_NULL;
	struct bytes bytes;

	cr_expect(eq(int,
		     refusal_of_bytes(MESSAGE_PING, body, sizeof(body), ""),
		     -EMSGSIZE));
	memset(name, 'a', NAME_MAX_SIZE);
	for (int i = 0; i < MESSAGE_MAX_ITEMS; i++)
		many[i] = name;
	request = (struct request){.kind = MESSAGE_REMOVE,
				   .remove = {MESSAGE_MAX_ITEMS, many}};
	cr_expect(eq(int,
		     request_encode(&request, &bytes.data, &bytes.size, &err),
		     -EMSGSIZE));
	cr_expect(ne(str, err.msg, ""));
}

/* Decoding a frame full of empty items would take much memory before the items
 * are counted. */
Test(message, a_flood_of_empty_items_is_refused)
{
	static uint8_t body[FRAME_MAX_BODY];

	for (size_t i = 0; i + 1 < sizeof(body); i += 2)
		body[i] = 1 << 3 | 2; /* field 1, length 0 */
	(void)refusal_of_bytes(MESSAGE_PUBLISH, body, sizeof(body), "");
}

Test(message, a_manifest_of_many_places_arrives)
{
	struct places_reply sent = {.n_places = 3000};
	struct tensor_place got[7];
	struct manifest *manifest;
	struct error err = ERROR_NULL;
	char(*text)[32] = calloc(sent.n_places, sizeof(*text));
	struct bytes bytes;
	uint32_t n = 0;
	int r;

	reply = reply_of(MESSAGE_GET, "full");
	sent.places = calloc(sent.n_places, sizeof(*sent.places));
	for (uint32_t i = 0; i < sent.n_places; i++) {
		snprintf(text[i], sizeof(text[i]), "model/layer.%u", i);
		sent.places[i] = reply.places.places[i % 4];
		sent.places[i].ref.slot = i + 1;
		sent.places[i].name = text[i];
	}
	cr_assert(zero(int,
		       places_encode(&sent, &bytes.data, &bytes.size, &err)));
	cr_assert(gt(sz, bytes.size, FRAME_MAX_SIZE));
	cr_assert(zero(int,
		       manifest_open(bytes.data, bytes.size, &manifest, &err)),
		  "%s", err.msg);
	cr_assert(eq(u32, manifest_n_places(manifest), sent.n_places));
	while ((r = manifest_read(manifest, got, 7, &err)) > 0)
		for (int i = 0; i < r; i++, n++) {
			cr_expect(eq(u32, got[i].ref.slot, n + 1));
			cr_expect(eq(str, (char *)got[i].name, text[n]));
			cr_expect(zero(int, memcmp(&got[i].type,
						   &sent.places[n].type,
						   sizeof(got[i].type))));
		}
	cr_assert(zero(int, r), "%s", err.msg);
	cr_assert(eq(u32, n, sent.n_places));
	manifest_close(manifest);
	cr_assert(eq(int,
		     manifest_open(bytes.data, bytes.size - 1, &manifest, &err),
		     -EPROTO));
	free(bytes.data);
	free(sent.places);
	free(text);
}

/* Most tensors are on the host, and have no bytes for a fence or a taint. */
Test(message, fence_and_taint_take_bytes_only_if_set)
{
	struct tensor_place place;
	struct bytes plain, more;

	reply = reply_of(MESSAGE_GET, "full");
	place = reply.places.places[2];
	reply.places = (struct places_reply){1, &place, 0, NULL};
	plain = reply_bytes(&reply);
	place.is_tainted = true;
	more = reply_bytes(&reply);
	cr_expect(eq(sz, more.size, plain.size + 4));
	free(more.data);
	place.is_tainted = false;
	place.fence = (struct fence){5, 6, 7};
	more = reply_bytes(&reply);
	cr_expect(eq(sz, more.size, plain.size + 2 + 8 + 2 + 4 + 2 + 8));
	free(more.data);
	free(plain.data);
}

/* --- bytes --------------------------------------------------------------- */

Test(message, chunks_appended_to_an_encoded_reply_are_decoded_with_it)
{
	const struct reply with_chunks = reply_of(MESSAGE_CHUNK, "full");
	const struct chunks_reply *chunks = &with_chunks.chunks;

	for (uint16_t kind = 1; kind <= MESSAGE_MAX; kind++) {
		const struct sample *it = sample_of(REPLY, kind, "least");
		uint8_t all[1024];
		struct bytes more, again;
		struct chunk_ref **added;
		uint32_t *n;

		if (!message_grants(kind))
			continue;
		cr_assert(zero(int, chunk_refs_encode(kind, chunks->chunks,
						      chunks->n_chunks,
						      &more.data, &more.size)));
		memcpy(all, it->bytes, it->size);
		memcpy(all + it->size, more.data, more.size);
		cr_assert(zero(int,
			       reply_decode(kind, 0, all, it->size + more.size,
					    &reply, NULL)));
		/* They are the last field of every reply. */
		again = reply_bytes(&reply);
		cr_expect(eq(sz, again.size, it->size + more.size));
		cr_expect(zero(int, memcmp(again.data, all, again.size)));
		cr_assert(reply_chunks(&reply, &added, &n));
		cr_expect(eq(u32, *n, chunks->n_chunks));
		cr_expect(eq(u32, (*added)[1].chunk, chunks->chunks[1].chunk));
		reply_deinit(&reply);
		free(again.data);
		free(more.data);
	}
}

/* The broker uses reply_places() when it sends a reply again. */
Test(message, the_places_of_a_reply_are_found)
{
	const struct tensor_place *first;

	reply = reply_of(MESSAGE_REDEEM, "full");
	cr_expect(eq(u32, reply_places(&reply, &first), 4));
	cr_expect(eq(u32, first[1].ref.slot, 8));
	reply = reply_of(MESSAGE_GROUP, "full");
	cr_expect(eq(u32, reply_places(&reply, &first), 3));
	cr_expect(eq(u32, first[1].ref.slot, 8));
	reply = reply_of(MESSAGE_PING, "full");
	cr_expect(zero(u32, reply_places(&reply, &first)));
}

/* Users of libfsdp and fsdpctl read these sentences, and do not know the names
 * of messages. */
Test(message, errors_start_with_the_operation_of_the_user)
{
	struct error err = ERROR_NULL;
	struct bytes bytes;

	request = request_of(MESSAGE_BUNDLE_GET, "full");
	request.bundle_get.name = "x//";
	bytes = request_bytes(&request);
	cr_expect(eq(int,
		     request_decode(MESSAGE_BUNDLE_GET, bytes.data, bytes.size,
				    &request, &err),
		     -EINVAL));
	free(bytes.data);
	cr_expect(eq(str, err.msg,
		     "cannot get a bundle: name \"x//\" has a component that "
		     "is empty, \".\" or \"..\""));
	for (uint16_t kind = 1; kind <= MESSAGE_MAX; kind++) {
		const uint8_t bad[] = {0xff};

		(void)request_decode(kind, bad, sizeof(bad), &request, &err);
		cr_expect(zero(int, strncmp(err.msg, "cannot ", 7)));
		cr_expect(eq(ptr, strpbrk(err.msg, "_?"), NULL), "%s", err.msg);
		cr_expect(eq(ptr, strstr(err.msg, "request"), NULL), "%s",
			  err.msg);
	}
}

Test(message, unknown_kinds_are_refused)
{
	static const uint16_t kinds[] = {0, MESSAGE_MAX + 1, UINT16_MAX};

	for (int i = 0; i < 3; i++) {
		cr_expect(eq(int, refusal_of_bytes(kinds[i], NULL, 0, "kind"),
			     -EPROTO));
		cr_expect(eq(int,
			     reply_decode(kinds[i], 0, NULL, 0, &reply, NULL),
			     -EPROTO));
		cr_expect(eq(str, (char *)message_kind_name(kinds[i]), "?"));
		cr_expect(not(message_grants(kinds[i])));
	}
	cr_expect(eq(int, reply_decode(MESSAGE_PING, 1, NULL, 0, &reply, NULL),
		     -EPROTO));
}

Test(message, bytes_that_no_encoder_produces_are_refused)
{
	/* A C program would see only "a" as the name. */
	const uint8_t a_0_byte[] = {4 << 3 | 2, 3, 'a', 0, 'b'};
	const uint8_t uuid[] = {1 << 3 | 2, 2, 'a', '/', 7 << 3 | 2, 1, 9};
	/* one item: {slot 1, generation 1, event of 2 bytes} */
	const uint8_t event[] = {0x0a, 8, 0x08, 1, 0x10, 1, 0x42, 2, 1, 'e'};
	/* one item: {a dtype, one size, two strides} */
	const uint8_t strides[] = {0x2a, 9,    8, DTYPE_U8, 0x12, 1,
				   1,    0x1a, 2, 1,        1};

	cr_expect(eq(int,
		     refusal_of_bytes(MESSAGE_GET, a_0_byte, sizeof(a_0_byte),
				      "names[0]"),
		     -EINVAL));
	cr_expect(eq(int,
		     refusal_of_bytes(MESSAGE_BUNDLE_BEGIN, uuid, sizeof(uuid),
				      "UUID"),
		     -EINVAL));
	cr_expect(eq(
		int,
		refusal_of_bytes(MESSAGE_PUBLISH, event, sizeof(event), "96"),
		-EINVAL));
	cr_expect(eq(int,
		     refusal_of_bytes(MESSAGE_ALLOC, strides, sizeof(strides),
				      "2 strides for 1"),
		     -EINVAL));
}

Test(message, fields_of_a_later_minor_version_are_ignored)
{
	const uint8_t body[] = {4 << 3 | 2, 1, 'a', 14 << 3 | 0, 7};

	cr_assert(zero(int, request_decode(MESSAGE_GET, body, sizeof(body),
					   &request, NULL)));
	cr_expect(eq(u32, request.get.n_names, 1));
	request_deinit(&request);
	cr_expect(zero(int, request_decode(MESSAGE_PING, body, sizeof(body),
					   &request, NULL)));
	request_deinit(&request);
}

/* The columns have different lengths. */
Test(message, inconsistent_columns_are_refused)
{
	static const struct {
		uint16_t kind;
		uint8_t size, bytes[12];
		int code;
	} columns[] = {
		/* columns of places */
		{MESSAGE_GET, 6, {0x0a, 4, 0x82, 1, 1, 1}, 0}, /* tainted */
		{MESSAGE_GET, 6, {0x0a, 4, 0x82, 1, 1, 2}, -EPROTO},
		{MESSAGE_GET, 7, {0x0a, 5, 0x82, 1, 2, 0, 0}, -EPROTO},
		/* a timeline alone, a session alone */
		{MESSAGE_GET, 8, {0x0a, 6, 0x72, 4, 1, 0, 0, 0}, -EPROTO},
		{MESSAGE_GET, 12, {0x0a, 10, 0x6a, 8, 1}, -EPROTO},
		/* more dimensions than sizes, more strided than places */
		{MESSAGE_GET, 5, {0x0a, 3, 0x42, 1, 1}, -EPROTO},
		{MESSAGE_GET, 5, {0x0a, 3, 0x52, 1, 0}, -EPROTO},
		{MESSAGE_GET, 5, {0x0a, 3, 0x62, 1, 'a'}, -EPROTO},
		/* of entries: two dtypes */
		{MESSAGE_GROUP, 4, {6 << 3 | 2, 2, 2, 2}, -EPROTO},
	};
	struct tensor_place place = {.ref = {1, 1},
				     .chunk = 1,
				     .size = 1,
				     .type = {.dtype = DTYPE_U8}};

	for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); i++) {
		uint16_t kind = columns[i].kind;
		uint8_t all[1024];
		struct bytes body;
		int r;

		/* A later value of a field that is not repeated replaces the
		 * first one. Messages are merged. */
		reply = reply_of(kind, "least");
		if (kind == MESSAGE_GET)
			reply.places =
				(struct places_reply){1, &place, 0, NULL};
		body = reply_bytes(&reply);
		memcpy(all, body.data, body.size);
		memcpy(all + body.size, columns[i].bytes, columns[i].size);
		r = reply_decode(kind, 0, all, body.size + columns[i].size,
				 &reply, NULL);
		cr_expect(eq(int, r, columns[i].code), "%zu", i);
		if (r == 0) {
			cr_expect(reply.places.places[0].is_tainted);
			reply_deinit(&reply);
		}
		free(body.data);
	}
}

/* The seed is fixed, so that a failure can be repeated. */
static uint32_t next_random(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

static void decode_and_drop(const struct sample *it, const uint8_t *body,
			    size_t size)
{
	if (it->direction == REQUEST) {
		if (request_decode(it->kind, body, size, &request, NULL) == 0)
			request_deinit(&request);
	} else if (reply_decode(it->kind, 0, body, size, &reply, NULL) == 0) {
		reply_deinit(&reply);
	}
}

Test(message, decoding_mutated_bodies_does_not_crash, .timeout = 300)
{
	uint32_t seed = 2463534242;

	for (size_t i = 0; i < n_samples; i++) {
		const struct sample *it = &samples[i];
		/* The buffer ends with the message, so that ASan finds a read
		 * past the end. */
		uint8_t *copy = (uint8_t *)malloc(it->size + 1) + 1;

		for (int round = 0; round < 1000 && it->size > 0; round++) {
			size_t size = next_random(&seed) % it->size + 1;
			uint32_t n = next_random(&seed) % 4;

			memcpy(copy, it->bytes, it->size);
			while (n-- > 0)
				copy[next_random(&seed) % it->size] =
					(uint8_t)next_random(&seed);
			decode_and_drop(it, copy, it->size);
			decode_and_drop(it, copy + it->size - size, size);
		}
		free(copy - 1);
	}
}
