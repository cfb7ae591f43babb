/*
 * Reads manifests, which are places outside of a frame, a few at a time.
 *
 * A bundle has up to MESSAGE_MAX_PLACES members, and places need many times
 * more memory as structs than as columns. For a process that has just started,
 * page faults of that memory would take longer than the decoding.
 */
#include "proto/message_pb.h"

#include "proto/error.h"
#include <errno.h>
#include <stdlib.h>

struct manifest {
	struct pb_arena arena;
	const Fsdp__PlacesReply *pb;
	struct places_cursor at;
	size_t n;
};

static int unpack(struct manifest *manifest, const uint8_t *bytes, size_t size,
		  struct error *err)
{
	struct pb_arena *arena = &manifest->arena;

	manifest->pb =
		pb_unpack(&fsdp__places_reply__descriptor, bytes, size, arena);
	if (!manifest->pb && arena->is_heap_out)
		return error_nomem(err, "its places");
	if (!manifest->pb)
		return error_set(err, -EPROTO, "its %zu bytes are malformed",
				 size);
	if (manifest->pb->n_chunks > 0)
		return error_set(
			err, -EPROTO,
			"it has chunks, but these belong into the reply");
	return places_count(manifest->pb->places, MESSAGE_MAX_PLACES,
			    &manifest->n, err);
}

int manifest_open(const uint8_t *bytes, size_t size, struct manifest **ret,
		  struct error *err)
{
	struct manifest *manifest;
	int r;

	if (size > MANIFEST_MAX_SIZE)
		return error_set(err, -EMSGSIZE,
				 "cannot read the manifest of a bundle: its "
				 "%zu bytes are too many",
				 size);
	manifest = malloc(sizeof(*manifest));
	if (!manifest)
		return error_nomem(err, "the manifest of a bundle");
	pb_arena_init(&manifest->arena, UNPACK_MIN + UNPACK_FACTOR * size);
	r = unpack(manifest, bytes, size, err);
	if (r < 0) {
		manifest_close(manifest);
		return error_wrap(err, r,
				  "cannot read the manifest of a bundle");
	}
	manifest->at = places_begin(manifest->pb->places);
	*ret = manifest;
	return 0;
}

uint32_t manifest_n_places(const struct manifest *manifest)
{
	return (uint32_t)manifest->n;
}

int manifest_read(struct manifest *manifest, struct tensor_place *ret,
		  uint32_t max, struct error *err)
{
	const Fsdp__Places *pb = manifest->pb->places;
	uint32_t n;
	int r;

	for (n = 0; n < max && manifest->at.i < manifest->n; n++) {
		r = places_next(pb, &manifest->at, &ret[n], err);
		if (r < 0)
			return error_wrap(
				err, r, "cannot read the manifest of a bundle");
	}
	if (manifest->at.i == manifest->n) {
		r = places_end(pb, &manifest->at, err);
		if (r < 0)
			return error_wrap(
				err, r, "cannot read the manifest of a bundle");
	}
	return (int)n;
}

void manifest_close(struct manifest *manifest)
{
	if (manifest)
		pb_arena_deinit(&manifest->arena);
	free(manifest);
}
