/*
 * Recorded replies: the results of a session's mutating requests, kept until
 * the client certainly has the reply. A request that is sent again after a
 * reconnect gets the recorded reply and is not run again.
 *
 * An outcome is the encoded body of the reply, without chunk references, in a
 * blob of the catalog. Its space is reserved, and charged to the uid, before
 * the request runs, so that a request that has changed something can always be
 * recorded.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct recorded_reply;
struct session;

/* Space reserved for one recorded reply; blob 0: none is reserved. */
struct recorded_reply_room {
	uint64_t blob;
	uint32_t place; /* index into session_record.replies */
};

#define RECORDED_REPLY_ROOM_NULL ((struct recorded_reply_room){0})

/* -EAGAIN: the window is full; -EDQUOT; -ENOSPC: the catalog is full. */
int recorded_reply_reserve(struct session *session,
			   const struct request *request,
			   struct recorded_reply_room *ret, struct error *err);
/* Release the reservation, if any: the request was refused or is parked. */
void recorded_reply_unreserve(struct session *session,
			      struct recorded_reply_room *room);

/* Does a body of `size` bytes fit? If not, `err` is set to -EMSGSIZE. */
bool recorded_reply_fits(const struct session *session,
			 const struct recorded_reply_room *room, size_t size,
			 struct error *err);
void recorded_reply_record(struct session *session,
			   const struct recorded_reply_room *room,
			   uint64_t number, int32_t code, const uint8_t *body,
			   size_t size);

/* Find the recorded reply to that request; it is borrowed. Returns NULL if no
 * reply was recorded. */
const struct recorded_reply *recorded_reply_find(const struct session *session,
						 uint64_t number);
const uint8_t *recorded_reply_body(const struct session *session,
				   const struct recorded_reply *recorded_reply);
/* The enum message_kind of the request. */
uint32_t recorded_reply_kind(const struct session *session,
			     const struct recorded_reply *recorded_reply);

/* The recorded reply was sent on this connection. This also marks the earlier
 * ones as sent: one-way requests that succeed get no reply of their own. */
void recorded_reply_note_sent(struct session *session, uint64_t number);

/* The client has the replies to all requests below `answered`. */
void recorded_reply_forget_answered(struct session *session, uint64_t answered);

/* The session has ended. */
void recorded_reply_forget_all(struct session *session);

/* After a restart: charge the uid again. */
void recorded_reply_adopt(struct session *session);
