/*
 * The chunks that are sent with a reply, and the locations of tensors in them.
 */
#pragma once
#include <stdint.h>

struct error;
struct tensor_place;
struct verb_call;

/*
 * Add a chunk's fd or handle to the reply, and the chunk to the list of
 * call->reply, unless the client has the chunk already or no more fds fit, in
 * which case the client requests it. Returns -EOWNERDEAD if the process that
 * shared the memory has exited.
 */
int verb_attach_chunk(struct verb_call *call, uint32_t chunk_index,
		      struct error *err);

/* Grant the session one hold of each of these slots, fill in their locations,
 * and attach their chunks. The caller has called grant_check_room(). */
void verb_grant_places(struct verb_call *call, const uint32_t *slots,
		       uint32_t n, struct tensor_place *ret_places);
/* Do the same, and make these locations the reply. */
void verb_reply_places(struct verb_call *call, const uint32_t *slots,
		       uint32_t n);

/* Remove the chunks from the reply again. */
void verb_detach_chunks(struct verb_call *call);
