/*
 * The bytes of every message, as they were when it was added: what an older or
 * newer version of either side sends is understood.
 *
 * message_golden.txt has a line for each: direction, kind, form, hex digits. A
 * line that is missing there is in what the test says.
 */
#include "message_samples.h"

#include "proto/error.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
	uint8_t *data;
	size_t size;
};

/* --- the file ------------------------------------------------------------ */

static FILE *golden;

static void golden_open(void)
{
	golden = fopen(FSDP_SOURCE_DIR "/tests/unit/message_golden.txt", "r");
	cr_assert(ne(ptr, golden, NULL));
}

static void golden_close(void)
{
	(void)fclose(golden);
}

TestSuite(message_golden, .init = golden_open, .fini = golden_close);

static void expect_golden(const char *direction, uint16_t kind,
			  const char *form, struct bytes bytes)
{
	char *line = NULL, *expected = NULL;
	size_t size, expected_size = 0;
	FILE *out = open_memstream(&line, &size);

	(void)fprintf(out, "%s %s %s:", direction, message_kind_name(kind),
		      form);
	for (size_t i = 0; i < bytes.size; i++)
		(void)fprintf(out, "%s%02x", i ? "" : " ", bytes.data[i]);
	(void)fprintf(out, "\n");
	(void)fclose(out);
	rewind(golden);
	do {
		if (getline(&expected, &expected_size, golden) < 0) {
			cr_expect(false, "not in the file: %s", line);
			break;
		}
	} while (strcmp(expected, line) != 0);
	free(expected);
	free(line);
	free(bytes.data);
}

/* --- both directions ----------------------------------------------------- */

static struct bytes encode_request(const struct request *request)
{
	struct error err = ERROR_NULL;
	struct bytes bytes;
	int r = request_encode(request, &bytes.data, &bytes.size, &err);

	cr_assert(zero(int, r), "%s", err.msg);
	return bytes;
}

static struct bytes encode_reply(const struct reply *reply)
{
	struct error err = ERROR_NULL;
	struct bytes bytes;
	int r = reply_encode(reply, &bytes.data, &bytes.size, &err);

	cr_assert(zero(int, r), "%s", err.msg);
	return bytes;
}

static void expect_equal(struct bytes a, struct bytes b, uint16_t kind)
{
	cr_expect(eq(sz, a.size, b.size), "%s", message_kind_name(kind));
	cr_expect(a.size != b.size || memcmp(a.data, b.data, a.size) == 0,
		  "%s", message_kind_name(kind));
	free(b.data);
}

/* Decoding loses nothing: it encodes to the same bytes. */
static void check_request(const struct request *from, const char *form)
{
	struct bytes bytes = encode_request(from);
	struct error err = ERROR_NULL;
	struct request got;
	int r;

	r = request_decode(from->kind, bytes.data, bytes.size, &got, &err);
	cr_assert(zero(int, r), "%s: %s", form, err.msg);
	/* The least ones leave out what decoding fills in. */
	if (strcmp(form, "least") != 0)
		expect_equal(bytes, encode_request(&got), from->kind);
	expect_golden("request", from->kind, form, bytes);
	request_deinit(&got);
}

static void check_reply(const struct reply *from, const char *form)
{
	struct bytes bytes = encode_reply(from);
	struct error err = ERROR_NULL;
	struct reply got;
	int r;

	r = reply_decode(from->kind, from->code, bytes.data, bytes.size, &got,
			 &err);
	cr_assert(zero(int, r), "%s: %s", form, err.msg);
	expect_equal(bytes, encode_reply(&got), from->kind);
	expect_golden("reply", from->kind, form, bytes);
	reply_deinit(&got);
}

Test(message_golden, requests_have_the_bytes_that_they_always_had)
{
	for (uint16_t kind = 1; kind <= MESSAGE_MAX; kind++) {
		cr_assert(eq(u16, full_requests[kind].kind, kind));
		cr_assert(eq(u16, least_requests[kind].kind, kind));
		check_request(&full_requests[kind], "full");
		check_request(&least_requests[kind], "least");
	}
	for (size_t i = 0; i < N_OTHER_REQUESTS; i++)
		check_request(&other_requests[i], "other");
}

Test(message_golden, replies_have_the_bytes_that_they_always_had)
{
	for (uint16_t kind = 1; kind <= MESSAGE_MAX; kind++) {
		struct reply least = least_replies[kind];

		least.kind = kind;
		cr_assert(eq(u16, full_replies[kind].kind, kind));
		check_reply(&full_replies[kind], "full");
		check_reply(&least, "least");
	}
}

Test(message_golden, a_refusal_has_the_bytes_that_it_always_had)
{
	struct reply refusal = {.kind = MESSAGE_PING,
				.code = -EIO,
				.sentence = "cannot do it: \xc3\xa4"};

	check_reply(&refusal, "refusal");
}

Test(message_golden, a_manifest_has_the_bytes_that_it_always_had)
{
	const struct places_reply places = {.n_places = 4,
					    .places = sample_places};
	struct error err = ERROR_NULL;
	struct bytes bytes;

	cr_assert(zero(int,
		       places_encode(&places, &bytes.data, &bytes.size, &err)),
		  "%s", err.msg);
	expect_golden("manifest", MESSAGE_BUNDLE_GET, "full", bytes);
}
