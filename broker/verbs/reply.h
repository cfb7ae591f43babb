/*
 * Encoding, recording and sending replies.
 *
 * Recorded bodies have no chunk references, because it depends on the
 * connection which fds the client lacks: the references are appended when the
 * body is sent.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct error;
struct recorded_reply_room;
struct peer;
struct verb_call;

/* An encoded reply. If there was no memory to encode it, its size is 0 and its
 * code -ENOMEM. */
struct body {
	uint8_t *bytes; /* owned */
	size_t size;
	int32_t code;
};

/* Encode the call's reply without its chunks, or a refusal if there is no
 * memory for that. */
void body_encode(struct verb_call *call, struct body *ret);

/* Record the body, or replace it by a refusal if it does not fit into the
 * reserved space. */
void body_record(struct verb_call *call, const struct recorded_reply_room *room,
		 struct body *body);

/* Append the call's chunks, send the body, and free it. */
void body_send(struct verb_call *call, struct peer *peer, struct body *body);

/* Send a refusal. */
void verb_refuse(struct peer *peer, uint16_t kind, uint64_t number,
		 const struct error *cause);
