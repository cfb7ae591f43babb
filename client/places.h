/*
 * Makes handles of the places in a reply.
 *
 * The process owns the grants from the moment when the broker sent the reply;
 * if anything fails afterwards, they are returned.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct received;
struct bundle_get_reply;
struct error;
struct fsdp_client;
struct fsdp_get_options;
struct fsdp_tensor;
struct manifest;

/* How the places were requested and will be used. */
struct places_use {
	size_t n; /* the number of places that were requested */
	/* names, in the same order; NULL: those in the places */
	const char *const *names;
	bool is_named; /* store the names in the cache */
	const struct fsdp_get_options
		*options; /* of the request; may be NULL */
	bool is_writable; /* make host memory writable, and the handles */
	uint64_t bundle;  /* id of the staged bundle; 0: none */
};

/* Make at most FSDP_MAX_BATCH handles, with one hold each. On failure no handle
 * is made, and the grants are returned. */
int places_adopt_batch(struct fsdp_client *client,
		       const struct places_reply *places,
		       const struct places_use *use, struct fsdp_tensor **ret,
		       struct error *err);

/* Map the chunks that came with a reply, using its descriptors from index
 * `first_fd`. A chunk that cannot be mapped is requested again when it is
 * needed. */
void places_take_chunks(struct fsdp_client *client, struct received *received,
			const struct chunk_ref *chunks, uint32_t n_chunks,
			uint16_t first_fd);

/* Map the chunks of a reply, call places_adopt_batch() for its places, and free
 * the reply. */
int places_receive(struct fsdp_client *client, struct received *received,
		   const struct places_use *use, struct fsdp_tensor **ret,
		   struct error *err);

/* Request these chunks (at most FRAME_MAX_FDS). On success the caller owns the
 * reply. */
int places_ask_chunks(struct fsdp_client *client, uint32_t *chunks,
		      uint32_t n_chunks, struct received *ret,
		      struct error *err);

/* Request and map these chunks (at most FRAME_MAX_FDS). */
int places_fetch_chunks(struct fsdp_client *client, uint32_t *chunks,
			uint32_t n_chunks, struct error *err);

/*
 * Open the manifest of a bundle from its descriptor (borrowed), and make
 * handles of its members, with one hold each. On failure no handle is left, the
 * grants are returned, and the contents of `ret` are undefined.
 */
int places_open_manifest(struct fsdp_client *client,
			 const struct bundle_get_reply *reply, int fd,
			 struct manifest **ret, struct error *err);
int places_adopt_manifest(struct fsdp_client *client, struct manifest *manifest,
			  const struct places_use *use,
			  struct fsdp_tensor **ret, struct error *err);

/* Return the grants of the places that were not read yet. */
void places_give_back_manifest(struct fsdp_client *client,
			       struct manifest *manifest);

/* Return the grants of all places. */
void places_give_back(struct fsdp_client *client,
		      const struct places_reply *places);
