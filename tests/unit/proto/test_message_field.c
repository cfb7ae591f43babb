/*
 * Tests messages field by field: recorded messages are still understood, and
 * each field has the same range as before. message_golden.txt has the messages.
 * For each value of each field message_limits.txt has the result: the code if
 * the value is refused, or "lost" if it is left out.
 */
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/unit/proto/message_samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(message_field, .init = read_samples);

/* --- recorded bytes ------------------------------------------------------ */

static struct bytes manifest_again(const struct sample *it)
{
	struct tensor_place places[8];
	struct manifest *manifest;
	struct error err = ERROR_NULL;
	struct places_reply again = {.places = places};
	struct bytes bytes;

	cr_assert(
		zero(int, manifest_open(it->bytes, it->size, &manifest, &err)));
	again.n_places = (uint32_t)manifest_read(manifest, places, 8, &err);
	cr_assert(eq(u32, again.n_places, manifest_n_places(manifest)));
	cr_assert(zero(int,
		       places_encode(&again, &bytes.data, &bytes.size, &err)));
	manifest_close(manifest);
	return bytes;
}

static struct bytes encode_again(const struct sample *it)
{
	struct request request;
	struct reply reply;
	struct bytes bytes;

	if (it->direction == MANIFEST)
		return manifest_again(it);
	if (it->direction == REQUEST) {
		request = request_of(it->kind, it->form);
		bytes = request_bytes(&request);
		request_deinit(&request);
		cr_expect(zero(ptr, request.mem));
	} else {
		reply = reply_of(it->kind, it->form);
		bytes = reply_bytes(&reply);
		reply_deinit(&reply);
		cr_expect(zero(ptr, reply.mem));
	}
	return bytes;
}

Test(message_field, recorded_bytes_encode_to_themselves)
{
	for (size_t i = 0; i < n_samples; i++) {
		const struct sample *it = &samples[i];
		struct bytes again = encode_again(it);

		/* Decoding sets defaults for fields that a `least` request
		 * leaves out, so those are not compared. */
		if (it->direction != REQUEST ||
		    strcmp(it->form, "least") != 0) {
			cr_expect(eq(sz, again.size, it->size), "line %zu", i);
			cr_expect(again.size != it->size ||
					  memcmp(again.data, it->bytes,
						 it->size) == 0,
				  "line %zu", i);
		}
		free(again.data);
	}
}

/* Returns the cursor of the next page in a decoded reply. */
static uint64_t cursor_of(uint16_t kind, size_t *ret_at)
{
	struct reply reply = reply_of(kind, "full");
	uint64_t cursor;

	*ret_at = kind == MESSAGE_LIST
			  ? offsetof(struct reply, list.next_cursor)
		  : kind == MESSAGE_WHO
			  ? offsetof(struct reply, who.next_cursor)
			  : offsetof(struct reply, clients.next_cursor);
	memcpy(&cursor, (const char *)&reply + *ret_at, sizeof(cursor));
	reply_deinit(&reply);
	return cursor;
}

Test(message_field, a_cursor_is_read_before_its_page_is_decoded)
{
	const uint16_t kinds[] = {MESSAGE_LIST, MESSAGE_WHO, MESSAGE_CLIENTS};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		const struct sample *it = sample_of(REPLY, kinds[i], "full");
		size_t at;
		uint64_t cursor = cursor_of(kinds[i], &at);

		cr_expect(ne(u64, cursor, 0));
		cr_expect(eq(u64, reply_peek(it->kind, it->bytes, it->size, at),
			     cursor));
		cr_expect(zero(u64, reply_peek(it->kind, it->bytes, 1, at)));
		cr_expect(zero(u64,
			       reply_peek(it->kind, it->bytes, it->size, 0)));
	}
	cr_expect(zero(u64, reply_peek(MESSAGE_MAX + 1, NULL, 0, 0)));
}

/* The fields that some sample has, one bit for each. */
struct seen {
	const ProtobufCMessageDescriptor *descriptor;
	uint64_t fields;
};

static struct seen seen[512];

static struct seen *seen_of(const ProtobufCMessageDescriptor *descriptor)
{
	struct seen *it = seen;

	while (it->descriptor && it->descriptor != descriptor)
		it++;
	/* The last entry stays empty, because it ends loops. */
	cr_assert(lt(ptr, it, &seen[sizeof(seen) / sizeof(*seen) - 1]),
		  "seen[] is too small");
	it->descriptor = descriptor;
	return it;
}

static void see(const ProtobufCMessage *pb);

/* Returns whether the field has any value other than zero. */
static bool see_field(const ProtobufCFieldDescriptor *f, const char *pb)
{
	size_t n = *(const size_t *)(const void *)(pb + f->quantifier_offset);
	ProtobufCMessage *const *at = (const void *)(pb + f->offset);

	if (f->label == PROTOBUF_C_LABEL_REPEATED) {
		if (f->type == PROTOBUF_C_TYPE_MESSAGE)
			for (size_t i = 0; i < n; i++)
				see((*(ProtobufCMessage * *const *)at)[i]);
		return n > 0;
	}
	if (f->type == PROTOBUF_C_TYPE_MESSAGE && *at)
		see(*at);
	return f->type == PROTOBUF_C_TYPE_BOOL ||
			       f->type == PROTOBUF_C_TYPE_UINT32 ||
			       f->type == PROTOBUF_C_TYPE_SINT32
		       ? *(const uint32_t *)(const void *)at != 0
		       : *(const uint64_t *)(const void *)at != 0;
}

static void see(const ProtobufCMessage *pb)
{
	struct seen *it = seen_of(pb->descriptor);

	for (unsigned int i = 0; i < pb->descriptor->n_fields; i++) {
		if (see_field(&pb->descriptor->fields[i], (const char *)pb))
			it->fields |= UINT64_C(1) << i;
	}
}

static ProtobufCMessage *unpack(const struct sample *it)
{
	ProtobufCMessage *pb = protobuf_c_message_unpack(
		descriptor_of(it), NULL, it->size, it->bytes);

	cr_assert(ne(ptr, pb, NULL));
	return pb;
}

/* Every field of a sample must be in a table, or it would be lost. */
Test(message_field, every_field_of_every_message_is_in_a_sample)
{
	for (uint16_t kind = 1; kind <= MESSAGE_MAX; kind++) {
		(void)sample_of(REQUEST, kind, "full");
		(void)sample_of(REQUEST, kind, "least");
		(void)sample_of(REPLY, kind, "full");
		(void)sample_of(REPLY, kind, "least");
	}
	for (size_t i = 0; i < n_samples; i++) {
		ProtobufCMessage *pb = unpack(&samples[i]);

		see(pb);
		protobuf_c_message_free_unpacked(pb, NULL);
	}
	for (struct seen *it = seen; it->descriptor; it++)
		for (unsigned int i = 0; i < it->descriptor->n_fields; i++)
			cr_expect(it->fields >> i & 1, "%s.%s",
				  it->descriptor->name,
				  it->descriptor->fields[i].name);
}

/* --- what is accepted ---------------------------------------------------- */

/* The current message, of which one field is changed. */
struct at_hand {
	const struct sample *sample;
	const ProtobufCMessage *pb;
	FILE *out;
	char path[64];
	char last[32]; /* result of the previous value */
};

/* Returns the code of the result, or "lost" if decoding leaves out a part of
 * the message. */
static const char *outcome(const struct at_hand *it)
{
	size_t size = protobuf_c_message_get_packed_size(it->pb);
	uint8_t *packed = malloc(size + 1);
	bool is_reply = it->sample->direction == REPLY;
	uint16_t kind = it->sample->kind;
	struct bytes again = {0};
	struct request request;
	struct reply reply;
	const char *name = "ok";
	int r;

	(void)protobuf_c_message_pack(it->pb, packed);
	r = is_reply ? reply_decode(kind, 0, packed, size, &reply, NULL)
		     : request_decode(kind, packed, size, &request, NULL);
	if (r < 0) {
		name = strerrorname_np(-r);
	} else if (is_reply) {
		again = reply_bytes(&reply);
		reply_deinit(&reply);
	} else {
		again = request_bytes(&request);
		request_deinit(&request);
	}
	if (r == 0 &&
	    (again.size != size || memcmp(again.data, packed, size) != 0))
		name = "lost";
	free(again.data);
	free(packed);
	return name;
}

/* Consecutive values with the same result become one. */
static void note(struct at_hand *it, const char *value)
{
	const char *name = outcome(it);

	if (strcmp(it->last, name) != 0)
		(void)fprintf(it->out, " %s:%s", value, name);
	(void)snprintf(it->last, sizeof(it->last), "%s", name);
}

/* The limits are at powers of two, except those of a mode. */
static void try_number(struct at_hand *it, void *at, size_t size)
{
	static const int64_t more[] = {0200, 0600, 0644, 0666,
				       0667, 0700, -1,   -2};
	uint64_t right = 0, value;
	char text[32];

	memcpy(&right, at, size);
	for (int i = 0; i < 18 + 3 * 59 + 8; i++) {
		if (i < 18)
			value = (uint64_t)i;
		else if (i < 18 + 3 * 59)
			value = (UINT64_C(1) << (5 + (i - 18) / 3)) +
				(uint64_t)((i - 18) % 3) - 1;
		else
			value = (uint64_t)more[i - 18 - 3 * 59];
		if ((size == 4 && value > UINT32_MAX && i < 18 + 3 * 59) ||
		    (size == 1 && value > 1))
			continue;
		memcpy(at, &value, size);
		(void)snprintf(text, sizeof(text), "%lld", (long long)value);
		note(it, text);
	}
	memcpy(at, &right, size);
}

static void try_bytes(struct at_hand *it, ProtobufCBinaryData *at)
{
	static char text[4097];
	static const struct {
		const char *name, *data;
		size_t size;
	} all[] = {
		{"none", "", 0},     {"a", "a", 1},        {"a/", "a/", 2},
		{"a//b", "a//b", 4}, {"0", "a\0b", 3},     {"15", text, 15},
		{"16", text, 16},    {"17", text, 17},     {"95", text, 95},
		{"96", text, 96},    {"97", text, 97},     {"128", text, 128},
		{"255", text, 255},  {"256", text, 256},   {"511", text, 511},
		{"512", text, 512},  {"4095", text, 4095}, {"4096", text, 4096},
	};
	ProtobufCBinaryData right = *at;

	memset(text, 'a', sizeof(text));
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		*at = (ProtobufCBinaryData){all[i].size,
					    (uint8_t *)(uintptr_t)all[i].data};
		note(it, all[i].name);
	}
	*at = right;
}

/* Try the message with this many copies of the first item. */
static void try_counts(struct at_hand *it, size_t *n, void **at, size_t size)
{
	static const size_t counts[] = {0,   1,   2,   3,    4,   5,   16,
					17,  32,  33,  64,   128, 129, 253,
					254, 256, 257, 1024, 1025};
	size_t right_n = *n;
	void *right = *at;

	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		char text[32];

		*n = counts[i];
		*at = calloc(*n + 1, size);
		for (size_t k = 0; right_n > 0 && k < *n; k++)
			memcpy((char *)*at + k * size, right, size);
		(void)snprintf(text, sizeof(text), "%zu", *n);
		note(it, text);
		free(*at);
		if (right_n == 0)
			break;
	}
	*n = right_n;
	*at = right;
}

static bool is_long(const ProtobufCFieldDescriptor *f)
{
	return f->type == PROTOBUF_C_TYPE_UINT64 ||
	       f->type == PROTOBUF_C_TYPE_FIXED64 ||
	       f->type == PROTOBUF_C_TYPE_SINT64 ||
	       f->type == PROTOBUF_C_TYPE_INT64 ||
	       f->type == PROTOBUF_C_TYPE_DOUBLE;
}

static size_t size_of(const ProtobufCFieldDescriptor *f)
{
	return f->type == PROTOBUF_C_TYPE_MESSAGE ? sizeof(void *)
	       : f->type == PROTOBUF_C_TYPE_BYTES ? sizeof(ProtobufCBinaryData)
	       : is_long(f)                       ? 8
						  : 4;
}

static void try_fields(struct at_hand *it, ProtobufCMessage *pb);

static void try_field(struct at_hand *it, const ProtobufCFieldDescriptor *f,
		      ProtobufCMessage *pb)
{
	void *at = (char *)pb + f->offset;
	size_t *n = (void *)((char *)pb + f->quantifier_offset);

	if (f->label == PROTOBUF_C_LABEL_REPEATED) {
		(void)fprintf(it->out, " n");
		try_counts(it, n, at, size_of(f));
		if (*n == 0)
			return;
		at = *(void **)at;
		it->last[0] = 0;
		(void)fprintf(it->out, "; [0]");
	}
	if (f->type == PROTOBUF_C_TYPE_BYTES) {
		try_bytes(it, at);
	} else if (f->type != PROTOBUF_C_TYPE_MESSAGE) {
		try_number(it, at,
			   f->type == PROTOBUF_C_TYPE_BOOL ? 1 : size_of(f));
	} else if (*(ProtobufCMessage **)at) {
		size_t length = strlen(it->path);

		(void)snprintf(it->path + length, sizeof(it->path) - length,
			       ".%s", f->name);
		try_fields(it, *(ProtobufCMessage **)at);
		it->path[length] = 0;
	}
}

static void try_fields(struct at_hand *it, ProtobufCMessage *pb)
{
	for (unsigned int i = 0; i < pb->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &pb->descriptor->fields[i];

		it->last[0] = 0;
		(void)fprintf(it->out, "%s%s.%s", ftell(it->out) ? "\n" : "",
			      it->path, f->name);
		try_field(it, f, pb);
	}
}

/* Returns whether no earlier sample has the same body. Several kinds may have
 * one body. */
static bool is_first(const struct sample *it)
{
	const struct sample *other = samples;

	while (other != it && (descriptor_of(other) != descriptor_of(it) ||
			       other->size != it->size ||
			       memcmp(other->bytes, it->bytes, it->size) != 0))
		other++;
	return other == it;
}

/* Write a line for each field of each sample: "value:outcome", from that value
 * on. */
static char *probe_all(void)
{
	char *text;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	for (size_t i = 0; i < n_samples; i++) {
		struct at_hand it = {.sample = &samples[i], .out = out};
		ProtobufCMessage *pb = unpack(&samples[i]);

		it.pb = pb;
		(void)snprintf(
			it.path, sizeof(it.path), "%s %s %s",
			samples[i].direction == REPLY ? "reply" : "request",
			message_kind_name(samples[i].kind), samples[i].form);
		if (samples[i].direction != MANIFEST && is_first(&samples[i]) &&
		    strcmp(outcome(&it), "ok") == 0)
			try_fields(&it, pb);
		protobuf_c_message_free_unpacked(pb, NULL);
	}
	(void)fprintf(out, "\n");
	(void)fclose(out);
	return text;
}

/* Leave out the fields of `least` samples that have the same limits as those of
 * `full`. */
static char *without_repetitions(const char *text)
{
	char *ret, full[1024];
	size_t size;
	FILE *out = open_memstream(&ret, &size);
	const char *end;

	for (const char *line = text; (end = strchr(line, '\n'));
	     line = end + 1) {
		const char *form = strstr(line, " least.");

		if (form && form < end) {
			(void)snprintf(full, sizeof(full), "%.*s full.%.*s\n",
				       (int)(form - line), line,
				       (int)(end - form - 7), form + 7);
			if (strstr(text, full))
				continue;
		}
		(void)fwrite(line, 1, (size_t)(end + 1 - line), out);
	}
	(void)fclose(out);
	return ret;
}

/* Values that were accepted still are, and others are refused with the same
 * code. */
Test(message_field, accepted_values_are_those_recorded_in_message_limits_txt,
     .timeout = 300)
{
	FILE *file = fopen(
		FSDP_SOURCE_DIR "/tests/unit/proto/message_limits.txt", "r");
	FILE *now = fopen("message_limits.txt", "w");
	char *all = probe_all(), *text = without_repetitions(all);
	char *recorded = NULL;
	size_t size = 0;

	cr_assert(file && now);
	(void)fputs(text, now);
	(void)fclose(now);
	cr_assert(gt(i64, getdelim(&recorded, &size, 0, file), 0));
	(void)fclose(file);
	cr_expect(strcmp(text, recorded) == 0,
		  "compare ./message_limits.txt with the one in "
		  "tests/unit/proto");
	free(recorded);
	free(text);
	free(all);
}
