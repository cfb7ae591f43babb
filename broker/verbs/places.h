/*
 * The chunks that a reply takes along, and the places of tensors in them.
 */
#pragma once
#include <stdint.h>

struct error;
struct tensor_place;
struct verb_call;

/*
 * Put a chunk's fd, or its handle, into the reply unless this connection has
 * it or there is no room (the client asks then). Appends to call->reply's chunk
 * list. -EOWNERDEAD: whose memory it is died.
 */
int verb_attach_chunk(struct verb_call *call, uint32_t chunk_index,
		      struct error *err);

/* Grant the session one hold of each of these slots, fill places, and attach
 * their chunks. The caller has checked grant_check_room(). */
void verb_grant_places(struct verb_call *call, const uint32_t *slots,
		       uint32_t n, struct tensor_place *ret_places);
/* The same, and reply these places. */
void verb_reply_places(struct verb_call *call, const uint32_t *slots,
		       uint32_t n);

/* The reply does not take its chunks along after all. */
void verb_detach_chunks(struct verb_call *call);
