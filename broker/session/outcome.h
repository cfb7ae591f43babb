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
struct outcome;
struct session;

/* Space reserved for one recorded reply; blob 0: none is reserved. */
struct outcome_room {
	uint64_t blob;
	uint32_t place; /* index into session_record.outcomes */
};

#define OUTCOME_ROOM_NULL ((struct outcome_room){0})

/* -EAGAIN: the window is full; -EDQUOT; -ENOSPC: the catalog is full. */
int outcome_reserve(struct session *session, const struct request *request,
		    struct outcome_room *ret, struct error *err);
/* Release the reservation, if any: the request was refused or is parked. */
void outcome_unreserve(struct session *session, struct outcome_room *room);

/* Does a body of `size` bytes fit? If not, `err` is set to -EMSGSIZE. */
bool outcome_fits(const struct session *session,
		  const struct outcome_room *room, size_t size,
		  struct error *err);
void outcome_record(struct session *session, const struct outcome_room *room,
		    uint64_t number, int32_t code, const uint8_t *body,
		    size_t size);

/* Find the recorded reply to that request; it is borrowed. Returns NULL if no
 * reply was recorded. */
const struct outcome *outcome_find(const struct session *session,
				   uint64_t number);
const uint8_t *outcome_body(const struct session *session,
			    const struct outcome *outcome);
/* The enum message_kind of the request. */
uint32_t outcome_kind(const struct session *session,
		      const struct outcome *outcome);

/* The recorded reply was sent on this connection. This also marks the earlier
 * ones as sent: one-way requests that succeed get no reply of their own. */
void outcome_note_sent(struct session *session, uint64_t number);

/* The client has the replies to all requests below `answered`. */
void outcome_forget_answered(struct session *session, uint64_t answered);

/* The session has ended. */
void outcome_forget_all(struct session *session);

/* After a restart: charge the uid again. */
void outcome_adopt(struct session *session);
