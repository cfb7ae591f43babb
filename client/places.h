/*
 * From the places in a reply to handles.
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

/* The request for the places. */
struct places_use {
	size_t n;                 /* as many as requested, in order */
	const char *const *names; /* NULL: those in the places */
	bool is_named;            /* remember the names in the cache */
	const struct fsdp_get_options
		*options; /* of the request; may be NULL */
	bool is_writable; /* this process writes there */
	uint64_t bundle;  /* allocated in this staged bundle */
};

/* Make at most FSDP_MAX_BATCH handles, with one hold each: all or none. */
int places_adopt_batch(struct fsdp_client *client,
		       const struct places_reply *places,
		       const struct places_use *use, struct fsdp_tensor **ret,
		       struct error *err);

/* Map the chunks that came with a reply, with its descriptors from `first_fd`
 * on. A chunk that cannot be mapped is requested again when it is needed. */
void places_take_chunks(struct fsdp_client *client, struct received *received,
			const struct chunk_ref *chunks, uint32_t n_chunks,
			uint16_t first_fd);

/* Map the chunks of a reply and adopt its places, as places_adopt_batch() does,
 * and free the reply. */
int places_receive(struct fsdp_client *client, struct received *received,
		   const struct places_use *use, struct fsdp_tensor **ret,
		   struct error *err);

/* Request these chunks (at most FRAME_MAX_FDS). The caller owns the reply. */
int places_ask_chunks(struct fsdp_client *client, uint32_t *chunks,
		      uint32_t n_chunks, struct received *ret,
		      struct error *err);

/* Fetch and map these chunks (at most FRAME_MAX_FDS). */
int places_fetch_chunks(struct fsdp_client *client, uint32_t *chunks,
			uint32_t n_chunks, struct error *err);

/*
 * The members of a bundle, from the descriptor of its manifest (borrowed); the
 * reply has their number. They are adopted in parts, but all or none; on
 * failure the contents of `ret` are undefined.
 */
int places_open_manifest(struct fsdp_client *client,
			 const struct bundle_get_reply *reply, int fd,
			 struct manifest **ret, struct error *err);
int places_adopt_manifest(struct fsdp_client *client, struct manifest *manifest,
			  const struct places_use *use,
			  struct fsdp_tensor **ret, struct error *err);

/* Return all grants of the places that were not read yet. */
void places_give_back_manifest(struct fsdp_client *client,
			       struct manifest *manifest);

/* Return all grants of the places. */
void places_give_back(struct fsdp_client *client,
		      const struct places_reply *places);
