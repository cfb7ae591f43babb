/*
 * From the places in a reply to handles.
 *
 * The grants are ours from the moment the broker sent the reply; whatever goes
 * wrong afterwards, they are given back.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct answer;
struct bundle_get_reply;
struct error;
struct fsdp_client;
struct fsdp_get_options;
struct fsdp_tensor;
struct manifest;

/* What the places were asked for. */
struct places_use {
	size_t n;                 /* as many as asked for, in order */
	const char *const *names; /* NULL: those in the places */
	bool is_named;            /* remember the names in the cache */
	const struct fsdp_get_options *options; /* asked with; may be NULL */
	bool is_writable; /* allocated: this process writes there */
	uint64_t bundle;  /* allocated in this staged bundle */
};

/* Make handles, each with one hold. All or none; on failure `ret` may hold
 * anything. */
int places_adopt(struct fsdp_client *client, const struct places_reply *places,
		 const struct places_use *use, struct fsdp_tensor **ret,
		 struct error *err);

/* The same for at most FSDP_MAX_BATCH; writes `ret` only on success. */
int places_adopt_batch(struct fsdp_client *client,
		       const struct places_reply *places,
		       const struct places_use *use, struct fsdp_tensor **ret,
		       struct error *err);

/* Map the chunks that came with an answer: its fds from `first_fd` on. One that
 * cannot be mapped is asked for again when it is needed. */
void places_take_chunks(struct fsdp_client *client, struct answer *answer,
			const struct chunk_ref *chunks, uint32_t n_chunks,
			uint16_t first_fd);

/* What these chunks (at most FRAME_MAX_FDS) are: the answer to a chunk request,
 * which is the caller's. */
int places_ask_chunks(struct fsdp_client *client, uint32_t *chunks,
		      uint32_t n_chunks, struct answer *ret, struct error *err);

/* Fetch and map these chunks (at most FRAME_MAX_FDS). */
int places_fetch_chunks(struct fsdp_client *client, uint32_t *chunks,
			uint32_t n_chunks, struct error *err);

/*
 * The members of a bundle, from its manifest's fd (borrowed): as many as the
 * reply says. They are adopted in pieces, but all or none; on failure `ret` may
 * hold anything.
 */
int places_open_manifest(struct fsdp_client *client,
			 const struct bundle_get_reply *reply, int fd,
			 struct manifest **ret, struct error *err);
int places_adopt_manifest(struct fsdp_client *client, struct manifest *manifest,
			  const struct places_use *use,
			  struct fsdp_tensor **ret, struct error *err);

/* All grants of the places go back; those that were not read yet. */
void places_give_back_manifest(struct fsdp_client *client,
			       struct manifest *manifest);

/* All grants of the places go back. */
void places_give_back(struct fsdp_client *client,
		      const struct places_reply *places);
