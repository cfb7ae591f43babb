/*
 * Outcomes: what mutating requests of a session came to, remembered until the
 * client has surely got the answer, so that a request that is sent again after
 * a reconnect is answered and not done again.
 *
 * An outcome is the encoded body of the reply, without chunk references, in a
 * blob of the catalog. Its room is taken, and charged to the uid, before the
 * request runs: a request that has changed something can always be recorded.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct outcome;
struct session;

/* Room that was taken for one outcome; blob 0: none. */
struct outcome_room {
	uint64_t blob;
	uint32_t place; /* in session_record.outcomes */
};

#define OUTCOME_ROOM_NULL ((struct outcome_room){0})

/* -EAGAIN: the window is full; -EDQUOT; -ENOSPC: the catalog is. */
int outcome_reserve(struct session *session, const struct request *request,
		    struct outcome_room *ret, struct error *err);
/* Give the room back, if there is any: the request was refused or parks. */
void outcome_unreserve(struct session *session, struct outcome_room *room);

/* Is the body as large as its kind can be? -EMSGSIZE in `err` if not. */
bool outcome_fits(const struct session *session,
		  const struct outcome_room *room, size_t size,
		  struct error *err);
void outcome_record(struct session *session, const struct outcome_room *room,
		    uint64_t number, int32_t code, const uint8_t *body,
		    size_t size);

/* The outcome of that number, borrowed; NULL. */
const struct outcome *outcome_find(const struct session *session,
				   uint64_t number);
const uint8_t *outcome_body(const struct session *session,
			    const struct outcome *outcome);
/* enum message_kind of the request. */
uint32_t outcome_kind(const struct session *session,
		      const struct outcome *outcome);

/* The reply of an outcome went out on this connection, which stands for those
 * before it that need none. */
void outcome_note_sent(struct session *session, uint64_t number);

/* The client says that it has the answers to all requests below. */
void outcome_forget_answered(struct session *session, uint64_t answered);

/* The session is over. */
void outcome_forget_all(struct session *session);

/* After a restart: charge the uid again. */
void outcome_adopt(struct session *session);
