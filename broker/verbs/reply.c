#include "broker/verbs/reply.h"
#include "broker/broker.h"
#include "broker/session/peer.h"
#include "broker/session/recorded_reply.h"
#include "broker/session/session.h"
#include "broker/verbs/places.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/frame.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void encode_refusal(uint16_t kind, const struct error *cause,
			   struct body *ret)
{
	struct reply reply = {
		.kind = kind,
		.code = cause->code,
		.sentence = cause->msg,
	};

	*ret = (struct body){.code = cause->code};
	if (reply_encode(&reply, &ret->bytes, &ret->size, NULL) < 0)
		*ret = (struct body){.code = -ENOMEM};
}

void body_encode(struct verb_call *call, struct body *ret)
{
	struct error err = ERROR_NULL;
	struct chunk_ref **chunks;
	uint32_t *n = NULL, n_chunks = 0;
	int r;

	if (call->request->kind != MESSAGE_CHUNK &&
	    reply_chunks(call->reply, &chunks, &n)) {
		n_chunks = *n;
		*n = 0;
	}
	*ret = (struct body){0};
	r = reply_encode(call->reply, &ret->bytes, &ret->size, &err);
	if (n)
		*n = n_chunks;
	if (r == 0)
		return;
	verb_detach_chunks(call);
	call->n_fds = 0;
	encode_refusal(call->request->kind, &err, ret);
}

/* Append the chunk references to the body. */
static int append_chunks(struct verb_call *call, struct body *body)
{
	struct chunk_ref **chunks;
	uint8_t *refs, *grown;
	uint32_t *n;
	size_t size;
	int r;

	if (call->request->kind == MESSAGE_CHUNK || body->code < 0 ||
	    !reply_chunks(call->reply, &chunks, &n) || *n == 0)
		return 0;
	r = chunk_refs_encode(call->request->kind, *chunks, *n, &refs, &size);
	if (r < 0)
		return r;
	if (size > FRAME_MAX_BODY - body->size) {
		r = -EMSGSIZE;
		goto out;
	}
	grown = realloc(body->bytes, body->size + size);
	if (!grown) {
		r = -ENOMEM;
		goto out;
	}
	memcpy(grown + body->size, refs, size);
	body->bytes = grown;
	body->size += size;
out:
	free(refs);
	return r;
}

void body_send(struct verb_call *call, struct peer *peer, struct body *body)
{
	if (call->is_one_way && body->code == 0) {
		free(body->bytes);
		return;
	}
	if (append_chunks(call, body) < 0)
		verb_detach_chunks(call);
	peer_reply(peer, call->request->kind, call->number, body->code,
		   body->bytes, body->size, call->fds, call->n_fds);
	if (peer->session)
		recorded_reply_note_sent(peer->session, call->number);
	free(body->bytes);
}

void verb_refuse(struct peer *peer, uint16_t kind, uint64_t number,
		 const struct error *cause)
{
	struct body body;

	peer->sessions->n_refused++;
	encode_refusal(kind, cause, &body);
	peer_reply(peer, kind, number, body.code, body.bytes, body.size, NULL,
		   0);
	free(body.bytes);
}

void body_record(struct verb_call *call, const struct recorded_reply_room *room,
		 struct body *body)
{
	struct error err = ERROR_NULL;
	bool is_refused = body->code < 0;

	if (!is_refused &&
	    !recorded_reply_fits(call->session, room, body->size, &err)) {
		verb_detach_chunks(call);
		free(body->bytes);
		encode_refusal(call->request->kind, &err, body);
		is_refused = true;
	}
	recorded_reply_record(call->session, room, call->number, body->code,
			      is_refused ? NULL : body->bytes,
			      is_refused ? 0 : body->size);
}
