#include "broker/verbs/replay.h"
#include "broker/broker.h"
#include "broker/memory/pool.h"
#include "broker/session/recorded_reply.h"
#include "broker/session/session.h"
#include "broker/tensor/manifest.h"
#include "broker/verbs/places.h"
#include "broker/verbs/reply.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Returns the bundle of a recorded reply, or 0 if it no longer exists. */
static uint32_t find_bundle(const struct broker *broker, uint64_t id)
{
	const struct catalog *catalog = &broker->store.catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_BUNDLE);

	for (uint32_t i = 1; id != 0 && i <= n; i++) {
		if (catalog_bundle(catalog, i)->id == id)
			return i;
	}
	return 0;
}

static int replay_bundle(struct verb_call *call, struct error *err)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	uint32_t bundle =
		find_bundle(call->broker, call->reply->bundle_get.bundle);
	const struct bundle_record *record;
	int r;

	if (!bundle)
		return error_set(err, -ESTALE,
				 "the bundle was released before its members "
				 "could be sent again; get it again");
	record = catalog_bundle(catalog, bundle);
	r = manifest_make(&call->broker->store, bundle, err);
	call->wait_ms = -1;
	if (r != MANIFEST_OK)
		return r < 0 ? r : verb_park_uid(call, record->owner_uid, err);
	call->fds[call->n_fds++] = record->manifest_fd;
	for (uint32_t i = 1; i <= catalog_n_touched(catalog, SECTION_CHUNK);
	     i++) {
		/* A chunk without blocks may belong to an earlier bundle with
		 * the same record, and may still be sealed or punched. */
		if (catalog_chunk(catalog, i)->bundle == bundle &&
		    catalog_chunk(catalog, i)->n_blocks > 0)
			(void)verb_attach_chunk(call, i, NULL);
	}
	return 0;
}

static void replay_places(struct verb_call *call,
			  const struct tensor_place *places, uint32_t n)
{
	uint32_t index;

	for (uint32_t i = 0; i < n; i++) {
		index = pool_find_chunk(&call->broker->store.pools,
					places[i].chunk);
		if (index)
			(void)verb_attach_chunk(call, index, NULL);
	}
}

/* Find the chunks that a recorded reply refers to, and attach them. */
static int replay_fds(struct verb_call *call,
		      const struct recorded_reply *recorded_reply,
		      struct error *err)
{
	const struct tensor_place *places = NULL;
	struct reply *reply = call->reply;
	uint32_t n;
	int r;

	r = reply_decode(call->request->kind, 0,
			 recorded_reply_body(call->session, recorded_reply),
			 recorded_reply->size, reply, err);
	if (r < 0)
		return r;
	if (reply->kind == MESSAGE_BUNDLE_GET)
		return replay_bundle(call, err);
	n = reply_places(reply, &places);
	replay_places(call, places, n);
	return 0;
}

static int copy_recorded_reply(const struct session *session, uint16_t kind,
			       const struct recorded_reply *recorded_reply,
			       struct body *ret, struct error *err)
{
	if (recorded_reply->code < 0)
		return error_set(
			err, recorded_reply->code,
			"the request was carried out, but its reply could not "
			"be made; end the session to undo it");
	if (recorded_reply_kind(session, recorded_reply) != kind)
		return error_set(err, -EPROTO,
				 "the request was of another kind when it came "
				 "first");
	ret->size = recorded_reply->size;
	ret->bytes = malloc(recorded_reply->size + 1);
	if (!ret->bytes)
		return error_nomem(err, "a repeated reply");
	memcpy(ret->bytes, recorded_reply_body(session, recorded_reply),
	       recorded_reply->size);
	return 0;
}

int verb_replay(struct verb_call *call,
		const struct recorded_reply *recorded_reply)
{
	struct session *session = call->session;
	struct peer *peer = session->peer;
	uint16_t kind = call->request->kind;
	struct error err = ERROR_NULL;
	struct body body = {0};
	int r;

	call->is_one_way = false;
	r = copy_recorded_reply(session, kind, recorded_reply, &body, &err);
	if (r == 0)
		r = replay_fds(call, recorded_reply, &err);
	if (r == VERB_DONE) {
		session->sessions->n_replayed++;
		body_send(call, peer, &body);
	} else {
		free(body.bytes);
	}
	if (r < 0)
		verb_refuse(peer, kind, call->number, &err);
	reply_deinit(call->reply);
	*call->reply = (struct reply){.kind = kind};
	return r > 0 ? r : VERB_DONE;
}
