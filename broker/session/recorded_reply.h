/*
 * Recorded replies: the results of requests of a session that change state,
 * kept until the client certainly has the reply. A request that is sent again
 * after a reconnect gets the recorded reply and is not run again.
 *
 * A recorded reply is the encoded body of the reply, without chunk references,
 * in a blob of the catalog. Its space is reserved, and charged to the uid,
 * before the request runs, so that the reply to a request that has changed
 * something can always be recorded.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct frame;
struct recorded_reply;
struct session;

/* Space reserved for one recorded reply. `blob` is 0 if no space is
 * reserved. */
struct recorded_reply_room {
	uint64_t blob;
	uint32_t place; /* index into session_record.replies */
};

#define RECORDED_REPLY_ROOM_NULL ((struct recorded_reply_room){0})

/* Reserve space for the reply to the request. Returns -EAGAIN if the window is
 * full, -EDQUOT if the quota is exceeded, and -ENOSPC if the catalog is
 * full. */
int recorded_reply_reserve(struct session *session,
			   const struct request *request,
			   struct recorded_reply_room *ret, struct error *err);
/* Release the reservation, if there is one, because the request was refused or
 * parked. */
void recorded_reply_unreserve(struct session *session,
			      struct recorded_reply_room *room);

/* Returns whether a body of `size` bytes fits. If not, `err` is set to
 * -EMSGSIZE. */
bool recorded_reply_fits(const struct session *session,
			 const struct recorded_reply_room *room, size_t size,
			 struct error *err);
void recorded_reply_record(struct session *session,
			   const struct recorded_reply_room *room,
			   uint64_t number, int32_t code, const uint8_t *body,
			   size_t size);

/* Find the recorded reply to that request, which is borrowed. Returns NULL if
 * none was recorded. */
const struct recorded_reply *recorded_reply_find(const struct session *session,
						 uint64_t number);
const uint8_t *recorded_reply_body(const struct session *session,
				   const struct recorded_reply *recorded_reply);
/* Returns the enum message_kind of the request. */
uint32_t recorded_reply_kind(const struct session *session,
			     const struct recorded_reply *recorded_reply);

/* Note that the recorded reply was sent on this connection, and the earlier
 * ones too, because one-way requests that succeed get no reply of their own. */
void recorded_reply_note_sent(struct session *session, uint64_t number);

/* Note that this request was received on the session's connection, for each
 * that is. Forgets the replies that the client says it has. */
void recorded_reply_on_request(struct session *session,
			       const struct frame *frame);

/* Forget all replies, since the session has ended. */
void recorded_reply_forget_all(struct session *session);

/* Charge the uid again after a restart, and release space that was reserved for
 * requests that did not end. */
void recorded_reply_adopt(struct session *session);
