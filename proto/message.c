/*
 * Encodes and decodes whole messages.
 *
 * To encode, a struct is converted to protobuf-c's structs on an arena, and
 * these to bytes. To decode, bytes are converted to protobuf-c's structs, and
 * these to one allocation, which the caller keeps. The fields of the messages
 * are described in message_request.c and message_reply.c.
 */
#include "proto/message.h"

#include "proto/error.h"
#include "proto/frame.h"
#include "proto/message_field.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MIN 96
/* The maximum size of a place: eight dimensions and strides, without a name. */
#define PLACE_MAX   208
#define VERSION_MAX 10
/* The maximum size of an entry: three bytes, and five numbers of at most nine
 * bytes. */
#define ENTRY_MAX 48

/* The maximum size of a reply besides BODY_MIN: a fixed size, and a size for
 * each unit of a count in the request. */
struct bound {
	uint32_t fixed;
	uint16_t count; /* offset of the count in struct request */
	uint16_t each;
};

struct kind {
	const char *name;
	const char *action; /* follows "cannot" in errors */
	const struct body *request, *reply;
	bool is_recorded, grants, takes_fd;
	/* offset of the time-out in struct request; 0: it has no time-out */
	uint16_t timeout;
	struct bound bound;
};

#define RECORDED        .is_recorded = true
#define GRANTS          .grants = true
#define TAKES_FD        .takes_fd = true
#define TIMEOUT(noun)   .timeout = offsetof(struct request, noun.timeout_ms)
#define EACH(count)     offsetof(struct request, count)
#define NCCL_ID         .bound = {.fixed = MESSAGE_NCCL_ID_SIZE}
#define ONE_PLACE       .bound = {.fixed = PLACE_MAX}
#define PLACES(count)   .bound = {0, EACH(count), PLACE_MAX}
#define VERSIONS(count) .bound = {0, EACH(count), VERSION_MAX}
#define ENTRIES(count)                                                         \
	.bound = {GROUP_REPLY_PLACES * PLACE_MAX, EACH(count), ENTRY_MAX}
#define X(KIND, number, noun, words, in, out, ...)                             \
	[number] = {.name = #noun,                                             \
		    .action = words,                                           \
		    .request = &body_##in##_request,                           \
		    .reply = &body_##out##_reply,                              \
		    __VA_ARGS__},

static const struct kind kinds[MESSAGE_MAX + 1] = {
	[0] = {.name = "?", .action = "read a request"}, MESSAGE_KINDS(X)};
#undef X

static bool is_kind(uint16_t kind)
{
	return kind >= 1 && kind <= MESSAGE_MAX;
}

static const struct kind *kind_of(uint16_t kind)
{
	return &kinds[is_kind(kind) ? kind : 0];
}

const char *message_kind_name(uint16_t kind)
{
	return kind_of(kind)->name;
}

bool message_is_recorded(uint16_t kind)
{
	return kind_of(kind)->is_recorded;
}

bool message_grants(uint16_t kind)
{
	return kind_of(kind)->grants;
}

bool message_takes_fd(uint16_t kind)
{
	return kind_of(kind)->takes_fd;
}

int32_t *request_timeout(struct request *request)
{
	uint16_t at = kind_of(request->kind)->timeout;

	return at ? (int32_t *)(void *)((char *)request + at) : NULL;
}

uint32_t reply_bound(const struct request *request)
{
	const struct bound *bound = &kind_of(request->kind)->bound;
	uint32_t n = 0;

	if (bound->count)
		memcpy(&n, (const char *)request + bound->count, sizeof(n));
	return BODY_MIN + bound->fixed + n * bound->each;
}

static int pack(const ProtobufCMessage *pb, size_t max_size, uint8_t **ret_body,
		size_t *ret_size, struct error *err)
{
	size_t size;
	uint8_t *body = pb_pack(pb, &size);

	if (!body)
		return error_nomem(err, "its bytes");
	if (size > max_size) {
		free(body);
		return error_set(err, -EMSGSIZE,
				 "the message has %zu bytes, but can have at "
				 "most %zu; use smaller batches",
				 size, max_size);
	}
	*ret_body = body;
	*ret_size = size;
	return 0;
}

static int encode(const struct body *body, const void *ours, size_t max_size,
		  uint8_t **ret_body, size_t *ret_size, struct error *err)
{
	struct pb_arena arena;
	const ProtobufCMessage *pb;
	int r;

	pb_arena_init(&arena, SIZE_MAX);
	pb = body_build(body, ours, &arena);
	if (pb)
		r = pack(pb, max_size, ret_body, ret_size, err);
	else
		r = error_nomem(err, "its bytes");
	pb_arena_deinit(&arena);
	return r;
}

/* Sets `*ret_mem` on success only. */
static int decode(const struct body *body, const uint8_t *bytes, size_t size,
		  void *ours, void **ret_mem, struct error *err)
{
	struct room room = {.body_size = size};
	struct pb_arena arena;
	const ProtobufCMessage *pb;
	int r;

	pb_arena_init(&arena, UNPACK_MIN + UNPACK_FACTOR * size);
	pb = pb_unpack(body->descriptor, bytes, size, &arena);
	if (pb)
		r = body_take(body, pb, &room, ours, err);
	else if (arena.is_heap_out)
		r = error_nomem(err, "its fields");
	else
		r = error_set(err, -EPROTO,
			      "the %zu bytes of the message are malformed",
			      size);
	pb_arena_deinit(&arena);
	if (r < 0) {
		free(room.mem);
		return r;
	}
	*ret_mem = room.mem;
	return 0;
}

/* All bodies are in one union, so the address of any of them is that of the
 * body. */
static void *request_body(const struct request *request)
{
	return (void *)(uintptr_t)&request->hello;
}

static void *reply_body(const struct reply *reply)
{
	return (void *)(uintptr_t)&reply->hello;
}

/* Checks the conditions for all bodies in frames. */
static int check_frame(uint16_t kind, size_t size, struct error *err)
{
	if (!is_kind(kind))
		return error_set(err, -EPROTO, "there is no message of kind %u",
				 kind);
	if (size > FRAME_MAX_BODY)
		return error_set(err, -EMSGSIZE,
				 "the %zu bytes of the message do not fit a "
				 "frame",
				 size);
	return 0;
}

bool reply_chunks(struct reply *reply, struct chunk_ref ***ret_chunks,
		  uint32_t **ret_n)
{
	const struct body *body = kind_of(reply->kind)->reply;
	char *at = reply_body(reply);

	for (size_t i = 0; i < body->n_fields; i++) {
		const struct field *f = &body->fields[i];

		if (f->type != FIELD_ITEMS ||
		    f->items->descriptor != &fsdp__chunk_ref__descriptor)
			continue;
		*ret_chunks = (void *)(at + f->at);
		*ret_n = (void *)(at + f->n);
		return true;
	}
	return false;
}

uint32_t reply_places(const struct reply *reply,
		      const struct tensor_place **ret_first)
{
	const struct body *body = kind_of(reply->kind)->reply;
	const char *at = reply_body(reply);
	const struct field *f = body->fields;
	uint32_t n;

	for (size_t i = 0; i < body->n_fields; i++, f++) {
		if (f->n == NO_COUNT ||
		    (f->type != FIELD_PLACES && f->type != FIELD_PLACES_HERE))
			continue;
		memcpy(&n, at + f->n, sizeof(n));
		*ret_first = (const void *)(at + f->at);
		if (f->type == FIELD_PLACES)
			memcpy(ret_first, at + f->at, sizeof(*ret_first));
		return n;
	}
	return 0;
}

int request_encode(const struct request *request, uint8_t **ret_body,
		   size_t *ret_size, struct error *err)
{
	int r;

	assert(is_kind(request->kind));
	r = encode(kind_of(request->kind)->request, request_body(request),
		   FRAME_MAX_BODY, ret_body, ret_size, err);
	if (r < 0)
		return error_wrap(err, r, "cannot %s",
				  kind_of(request->kind)->action);
	return 0;
}

int request_decode(uint16_t kind, const uint8_t *body, size_t size,
		   struct request *ret, struct error *err)
{
	struct request request = {.kind = kind};
	int r = check_frame(kind, size, err);

	if (r == 0)
		r = decode(kind_of(kind)->request, body, size,
			   request_body(&request), &request.mem, err);
	if (r < 0)
		return error_wrap(err, r, "cannot %s", kind_of(kind)->action);
	*ret = request;
	return 0;
}

void request_deinit(struct request *request)
{
	free(request->mem);
	*request = (struct request){0};
}

int reply_encode(const struct reply *reply, uint8_t **ret_body,
		 size_t *ret_size, struct error *err)
{
	struct error_reply refusal = {reply->sentence};
	int r;

	assert(reply->code <= 0);
	assert(reply->code < 0 || is_kind(reply->kind));
	if (reply->code < 0)
		r = encode(&body_error_reply, &refusal, FRAME_MAX_BODY,
			   ret_body, ret_size, err);
	else
		r = encode(kind_of(reply->kind)->reply, reply_body(reply),
			   FRAME_MAX_BODY, ret_body, ret_size, err);
	if (r < 0)
		return error_wrap(err, r,
				  "cannot send the reply to a %s request",
				  message_kind_name(reply->kind));
	return 0;
}

int reply_decode(uint16_t kind, int32_t code, const uint8_t *body, size_t size,
		 struct reply *ret, struct error *err)
{
	struct reply reply = {.kind = kind, .code = code, .sentence = ""};
	struct error_reply refusal;
	int r = check_frame(kind, size, err);

	if (r == 0 && code > 0)
		r = error_set(err, -EPROTO, "%d is not a negative errno", code);
	if (r == 0 && code < 0)
		r = decode(&body_error_reply, body, size, &refusal, &reply.mem,
			   err);
	else if (r == 0)
		r = decode(kind_of(kind)->reply, body, size, reply_body(&reply),
			   &reply.mem, err);
	if (r < 0)
		return error_wrap(err, r,
				  "cannot read the reply to a %s request",
				  message_kind_name(kind));
	if (code < 0)
		reply.sentence = refusal.sentence;
	*ret = reply;
	return 0;
}

uint64_t reply_peek(uint16_t kind, const uint8_t *body, size_t size, size_t at)
{
	const struct body *fields = kind_of(kind)->reply;
	size_t begin = offsetof(struct reply, hello);

	for (size_t i = 0; fields && i < fields->n_fields; i++) {
		const struct field *f = &fields->fields[i];

		if (f->type == FIELD_64 && begin + f->at == at)
			return pb_peek(fields->descriptor, body, size, f->pb);
	}
	return 0;
}

void reply_deinit(struct reply *reply)
{
	free(reply->mem);
	*reply = (struct reply){0};
}

int places_encode(const struct places_reply *places, uint8_t **ret_bytes,
		  size_t *ret_size, struct error *err)
{
	int r = encode(&body_places_reply, places, SIZE_MAX, ret_bytes,
		       ret_size, err);

	if (r < 0)
		return error_wrap(err, r,
				  "cannot write the manifest of a bundle");
	return 0;
}

int chunk_refs_encode(uint16_t kind, const struct chunk_ref *chunks,
		      uint32_t n_chunks, uint8_t **ret_bytes, size_t *ret_size)
{
	const struct chunks_reply reply = {n_chunks, (void *)(uintptr_t)chunks};

	/* Chunks have the same field number in all replies. */
	assert(message_grants(kind));
	return encode(&body_chunks_reply, &reply, FRAME_MAX_BODY, ret_bytes,
		      ret_size, NULL);
}
