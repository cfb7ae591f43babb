/*
 * Decodes any body that a peer could send. request_decode(), reply_decode() and
 * manifest_read() must refuse it, or give a result that is valid without
 * further checks.
 *
 * The first byte chooses the direction, the second the kind; the rest is the
 * body. The result is encoded again, which reads every field of it, and decoded
 * once more. The two encodings must be the same.
 */
#include "proto/error.h"
#include "proto/message.h"

#include <stdlib.h>
#include <string.h>

enum direction { REQUEST, REPLY, REFUSAL, MANIFEST, N_DIRECTIONS };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bytes {
	uint8_t *data;
	size_t size;
};

/* Read all places, in two calls. Their names are in the manifest. */
static int read_manifest(struct bytes in, struct places_reply *ret,
			 struct manifest **ret_manifest, struct error *err)
{
	struct manifest *manifest;
	uint32_t n;
	int r = manifest_open(in.data, in.size, &manifest, err);

	if (r < 0)
		return r;
	n = manifest_n_places(manifest);
	ret->places = calloc(n + 1, sizeof(*ret->places));
	if (!ret->places)
		abort();
	r = manifest_read(manifest, ret->places, n / 2, err);
	if (r >= 0)
		r = manifest_read(manifest, ret->places + n / 2, n, err);
	if (r < 0) {
		free(ret->places);
		manifest_close(manifest);
		return r;
	}
	ret->n_places = n;
	*ret_manifest = manifest;
	return 0;
}

/*
 * Decode the body and encode the result. Returns false if the body was refused
 * with a sentence. Everything that was accepted can be encoded, but its
 * canonical form may be larger than a frame (because a column was sparse). Then
 * `ret->data` is NULL.
 */
static bool pass(enum direction direction, uint16_t kind, struct bytes in,
		 struct bytes *ret)
{
	int32_t code = direction == REFUSAL ? -5 : 0;
	struct error err = ERROR_NULL;
	struct places_reply places = {0};
	struct manifest *manifest;
	struct request request;
	struct reply reply;
	int r;

	*ret = (struct bytes){0};
	if (direction == REQUEST)
		r = request_decode(kind, in.data, in.size, &request, &err);
	else if (direction == MANIFEST)
		r = read_manifest(in, &places, &manifest, &err);
	else
		r = reply_decode(kind, code, in.data, in.size, &reply, &err);
	if (r < 0) {
		if (r != err.code || !err.msg[0])
			abort();
		return false;
	}
	if (direction == REQUEST) {
		(void)request_encode(&request, &ret->data, &ret->size, NULL);
		request_deinit(&request);
	} else if (direction == MANIFEST) {
		(void)places_encode(&places, &ret->data, &ret->size, NULL);
		free(places.places);
		manifest_close(manifest);
	} else {
		(void)reply_encode(&reply, &ret->data, &ret->size, NULL);
		reply_deinit(&reply);
	}
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes in, once, twice;
	enum direction direction;
	uint16_t kind;

	if (size < 2)
		return 0;
	direction = data[0] % N_DIRECTIONS;
	kind = data[1];
	in = (struct bytes){(uint8_t *)data + 2, size - 2};
	if (!pass(direction, kind, in, &once) || !once.data)
		return 0;
	if (!pass(direction, kind, once, &twice))
		abort();
	if (twice.size != once.size ||
	    memcmp(once.data, twice.data, once.size) != 0)
		abort();
	free(once.data);
	free(twice.data);
	return 0;
}
