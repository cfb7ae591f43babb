#include "tests/unit/proto/message_samples.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sample samples[1024];
size_t n_samples;

/* Tests end without freeing the messages that they decoded last, which is not a
 * leak. */
static void keep(void *mem)
{
	static void *kept[1024];
	static size_t n;

	kept[n++ % (sizeof(kept) / sizeof(*kept))] = mem;
}

static void read_bytes(const char *hex, struct sample *ret)
{
	for (ret->size = 0; hex[0] > ' '; hex += 2) {
		cr_assert(lt(sz, ret->size, sizeof(ret->bytes)));
		cr_assert(sscanf(hex, "%2hhx", &ret->bytes[ret->size++]) == 1);
	}
}

/* Messages without fields share one. */
#define fsdp__empty_request__descriptor fsdp__empty__descriptor
#define fsdp__empty_reply__descriptor   fsdp__empty__descriptor

const ProtobufCMessageDescriptor *descriptor_of(const struct sample *sample)
{
	static const ProtobufCMessageDescriptor *const all[][2] = {
#define X(KIND, number, noun, action, request, reply, ...)                     \
	[number] = {&fsdp__##request##_request__descriptor,                    \
		    &fsdp__##reply##_reply__descriptor},
		MESSAGE_KINDS(X)
#undef X
	};

	if (sample->direction == MANIFEST)
		return &fsdp__places_reply__descriptor;
	if (strcmp(sample->form, "refusal") == 0)
		return &fsdp__error_reply__descriptor;
	return all[sample->kind][sample->direction];
}

/* Messages without fields have no lines. */
static void add_empty_samples(void)
{
	static const char *const forms[] = {"full", "least"};

	for (uint16_t kind = 1; kind <= MESSAGE_MAX; kind++)
		for (int i = 0; i < 4; i++) {
			struct sample it = {.direction =
						    i % 2 ? REPLY : REQUEST,
					    .kind = kind};

			strcpy(it.form, forms[i / 2]);
			if (descriptor_of(&it) == &fsdp__empty__descriptor)
				samples[n_samples++] = it;
		}
}

void read_samples(void)
{
	char line[4096], direction[16], kind[32];
	FILE *file = fopen(
		FSDP_SOURCE_DIR "/tests/unit/proto/message_golden.txt", "r");

	cr_assert(ne(ptr, file, NULL));
	while (fgets(line, sizeof(line), file)) {
		struct sample *it = &samples[n_samples++];

		cr_assert(le(sz, n_samples, sizeof(samples) / sizeof(*samples)),
			  "samples[] is too small");
		cr_assert(sscanf(line, "%15s %31s %15[a-z]", direction, kind,
				 it->form) == 3);
		it->direction = direction[0] == 'm'   ? MANIFEST
				: direction[2] == 'q' ? REQUEST
						      : REPLY;
		while (strcmp(message_kind_name(it->kind), kind) != 0)
			cr_assert(lt(u16, it->kind++, MESSAGE_MAX));
		read_bytes(strchr(line, ':') + 2, it);
	}
	(void)fclose(file);
	add_empty_samples();
}

const struct sample *sample_of(enum direction direction, uint16_t kind,
			       const char *form)
{
	for (size_t i = 0; i < n_samples; i++) {
		if (samples[i].direction == direction &&
		    samples[i].kind == kind &&
		    strcmp(samples[i].form, form) == 0)
			return &samples[i];
	}
	cr_assert(false, "there is no sample of %s %s", message_kind_name(kind),
		  form);
}

struct request request_of(uint16_t kind, const char *form)
{
	const struct sample *it = sample_of(REQUEST, kind, form);
	struct error err = ERROR_NULL;
	struct request request;

	cr_assert(zero(int, request_decode(kind, it->bytes, it->size, &request,
					   &err)),
		  "%s", err.msg);
	keep(request.mem);
	return request;
}

struct reply reply_of(uint16_t kind, const char *form)
{
	const struct sample *it = sample_of(REPLY, kind, form);
	int code = strcmp(form, "refusal") == 0 ? -EIO : 0;
	struct error err = ERROR_NULL;
	struct reply reply;

	cr_assert(zero(int, reply_decode(kind, code, it->bytes, it->size,
					 &reply, &err)),
		  "%s", err.msg);
	keep(reply.mem);
	return reply;
}

struct bytes request_bytes(const struct request *request)
{
	struct error err = ERROR_NULL;
	struct bytes bytes;

	cr_assert(zero(int,
		       request_encode(request, &bytes.data, &bytes.size, &err)),
		  "%s", err.msg);
	return bytes;
}

struct bytes reply_bytes(const struct reply *reply)
{
	struct error err = ERROR_NULL;
	struct bytes bytes;

	cr_assert(
		zero(int, reply_encode(reply, &bytes.data, &bytes.size, &err)),
		"%s", err.msg);
	return bytes;
}

int pass_request(const struct request *request, struct request *ret)
{
	struct bytes bytes = request_bytes(request);
	struct error err = ERROR_NULL;
	int r = request_decode(request->kind, bytes.data, bytes.size, ret,
			       &err);

	free(bytes.data);
	cr_expect(r == 0 || err.msg[0]);
	keep(r == 0 ? ret->mem : NULL);
	return r;
}

int pass_reply(const struct reply *reply, struct reply *ret)
{
	struct bytes bytes = reply_bytes(reply);
	struct error err = ERROR_NULL;
	int r = reply_decode(reply->kind, reply->code, bytes.data, bytes.size,
			     ret, &err);

	free(bytes.data);
	cr_expect(r == 0 || err.msg[0]);
	keep(r == 0 ? ret->mem : NULL);
	return r;
}

int refusal(const struct request *request)
{
	struct request got;
	int r = pass_request(request, &got);

	if (r == 0)
		request_deinit(&got);
	return r;
}

int reply_refusal(const struct reply *reply)
{
	struct reply got;
	int r = pass_reply(reply, &got);

	if (r == 0)
		reply_deinit(&got);
	return r;
}

int refusal_of_bytes(uint16_t kind, const void *bytes, size_t size,
		     const char *says)
{
	struct error err = ERROR_NULL;
	struct request request;
	int r = request_decode(kind, bytes, size, &request, &err);

	cr_assert(lt(int, r, 0));
	cr_expect(strstr(err.msg, says) != NULL, "%s", err.msg);
	return r;
}
