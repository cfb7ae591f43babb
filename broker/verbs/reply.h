/*
 * Replies: encoding, recording and sending them.
 *
 * Recorded bodies have no chunk references, because which fds a client lacks
 * depends on its connection: they are put behind the body when it is sent.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct error;
struct recorded_reply_room;
struct peer;
struct verb_call;

/* An encoded reply; size 0 with code -ENOMEM if even that had no memory. */
struct body {
	uint8_t *bytes; /* owned */
	size_t size;
	int32_t code;
};

/* Encode the call's reply, without its chunks; a refusal if there is no memory
 * for it. */
void body_encode(struct verb_call *call, struct body *ret);

/* Record the body, or a refusal in its place if the session has no room. */
void body_record(struct verb_call *call, uint64_t number,
		 const struct recorded_reply_room *room, struct body *body);

/* Append the call's chunks, send the body, and free it. */
void body_send(struct verb_call *call, struct peer *peer, uint64_t number,
	       struct body *body);

/* Send a refusal. */
void verb_refuse(struct peer *peer, uint16_t kind, uint64_t number,
		 const struct error *cause);
