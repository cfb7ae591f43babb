/*
 * What is the same for every request: its number, its outcome, its
 * transaction, its answer.
 *
 *   run the verb -> encode the reply -> record it -> commit -> send
 *
 * A broker that is killed before the commit has done nothing; one that is
 * killed after it answers the repeated request from the record. Only requests
 * that change something are recorded, and only when they succeed; the others
 * are simply run again.
 *
 * Recorded bodies have no chunk references, because which fds a client lacks
 * depends on its connection: they are put behind the body when it is sent.
 */
#include "broker/broker.h"
#include "broker/comm/comm_progress.h"
#include "broker/memory/donation.h"
#include "broker/memory/pool.h"
#include "broker/session/outcome.h"
#include "broker/session/peer.h"
#include "broker/session/session.h"
#include "broker/session/waiter.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/manifest.h"
#include "broker/tensor/shared_chunk.h"
#include "broker/tensor/slot.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "proto/point.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(VERB_MAX_FDS <= FRAME_MAX_FDS, "a reply is one frame");

struct verb {
	verb_fn *run; /* NULL: no such request */
	const char *done_point, *committed_point;
};

static const struct verb verbs[MESSAGE_MAX + 1] = {
#define X(KIND, number, noun, ...)                                             \
	[number] = {verb_##noun, "verb." #noun ".done",                        \
		    "verb." #noun ".committed"},
	MESSAGE_VERB_KINDS(X)
#undef X
};

/* --- memory of one call -------------------------------------------------- */

struct piece {
	struct piece *next;
	_Alignas(max_align_t) uint8_t bytes[];
};

/* Room for places is always there, since they are filled in after changes
 * were made; the rest is on the heap. */
struct scratch {
	struct piece *pieces;
	struct chunk_ref chunks[VERB_MAX_FDS];
	struct tensor_place places[MESSAGE_MAX_ITEMS];
};

void *verb_scratch(struct verb_call *call, size_t size)
{
	struct piece *piece;

	if (size > SIZE_MAX - sizeof(*piece))
		return NULL;
	piece = calloc(1, sizeof(*piece) + size);
	if (!piece)
		return NULL;
	piece->next = call->scratch->pieces;
	call->scratch->pieces = piece;
	return piece->bytes;
}

int verb_park_uid(struct verb_call *call, uint32_t uid, struct error *err)
{
	char *key = verb_scratch(call, WAKE_UID_KEY_SIZE);

	if (!key)
		return error_set(err, -ENOMEM, "no memory for the request");
	wake_uid_key(uid, key);
	call->wait_name = key;
	return VERB_PARK_NAME;
}

static void scratch_deinit(struct scratch *scratch)
{
	struct piece *piece;

	while ((piece = scratch->pieces)) {
		scratch->pieces = piece->next;
		free(piece);
	}
}

static void call_init(struct verb_call *call, struct session *session,
		      const struct request *request, struct reply *reply,
		      struct scratch *scratch)
{
	*call = (struct verb_call){
		.broker = session->broker,
		.session = session,
		.request = request,
		.reply = reply,
		.owned_fd = -1,
		.scratch = scratch,
	};
	*reply = (struct reply){.kind = request->kind};
	scratch->pieces = NULL;
}

static void call_deinit(struct verb_call *call)
{
	if (call->owned_fd >= 0)
		close(call->owned_fd);
	scratch_deinit(call->scratch);
}

/* --- chunks -------------------------------------------------------------- */

static bool may_write_chunk(const struct verb_call *call, uint32_t index)
{
	const struct catalog *catalog = &call->broker->catalog;
	const struct chunk_record *chunk = catalog_chunk(catalog, index);

	/* It has no arena: only its sharer writes there. */
	if (chunk->shared)
		return chunk->sharer == call->session->holdings.index;
	if (!access_is_allowed(&call->session->holdings.credentials,
			       &chunk->access, ACCESS_WRITE))
		return false;
	if (!chunk->bundle)
		return true;
	return !chunk->is_sealed &&
	       catalog_bundle(catalog, chunk->bundle)->loader ==
		       call->session->holdings.index;
}

/* The fd of the reference, -1 where it has a handle instead. */
static int fill_memory(struct verb_call *call, uint32_t index,
		       struct chunk_ref *ref, int *ret_fd, struct error *err)
{
	const struct chunk_record *chunk =
		catalog_chunk(&call->broker->catalog, index);

	*ret_fd = -1;
	if (chunk->shared != SHARE_LEGACY)
		return pool_chunk_fd(&call->broker->pools, index,
				     ref->is_writable, ret_fd, err);
	ref->has_handle = true;
	return shared_chunk_handle(&call->broker->pools, index, ref->handle,
				   err);
}

int verb_attach_chunk(struct verb_call *call, uint32_t chunk_index,
		      struct error *err)
{
	const struct chunk_record *chunk =
		catalog_chunk(&call->broker->catalog, chunk_index);
	uint32_t *sent = &call->session->sent_chunks[chunk_index];
	struct chunk_ref ref = {
		.chunk = chunk->id,
		.index = chunk_index,
		.size = chunk->size,
		.is_writable = may_write_chunk(call, chunk_index),
		.device = chunk->device,
	};
	struct chunk_ref **chunks;
	uint32_t *n;
	int fd, r;

	if (*sent == chunk->id || call->n_fds >= VERB_MAX_FDS)
		return 0;
	if (!reply_chunks(call->reply, &chunks, &n) || *n >= VERB_MAX_FDS)
		return 0;
	r = fill_memory(call, chunk_index, &ref, &fd, err);
	if (r < 0)
		return r;
	*chunks = call->scratch->chunks;
	(*chunks)[(*n)++] = ref;
	if (fd >= 0)
		call->fds[call->n_fds++] = fd;
	*sent = chunk->id;
	if (!device_uuid_is_host(&chunk->device))
		call->session->has_device_memory = true;
	return 0;
}

/* The reply does not take its chunks along after all. */
static void detach_chunks(struct verb_call *call)
{
	struct chunk_ref **chunks;
	uint32_t *n;

	if (!reply_chunks(call->reply, &chunks, &n))
		return;
	for (uint32_t i = 0; i < *n; i++) {
		call->session->sent_chunks[(*chunks)[i].index] = 0;
		if ((*chunks)[i].has_handle)
			continue;
		assert(call->n_fds > 0);
		call->n_fds--;
	}
	*n = 0;
}

void verb_fill_places(struct verb_call *call, const uint32_t *slots, uint32_t n)
{
	const struct catalog *catalog = &call->broker->catalog;
	struct tensor_place *places = call->scratch->places;
	uint32_t block;

	assert(n <= MESSAGE_MAX_ITEMS);
	for (uint32_t i = 0; i < n; i++) {
		slot_place(call->broker, slots[i], NULL, &places[i]);
		block = catalog_slot(catalog, slots[i])->block;
		/* What cannot be sent now, the client asks for. */
		(void)verb_attach_chunk(
			call, catalog_block(catalog, block)->chunk, NULL);
	}
	call->reply->places.places = places;
	call->reply->places.n_places = n;
}

void verb_grant_places(struct verb_call *call, const uint32_t *slots,
		       uint32_t n, struct tensor_place *ret_places)
{
	struct broker *broker = call->broker;
	const struct catalog *catalog = &broker->catalog;
	bool is_granted;
	uint32_t block;

	for (uint32_t i = 0; i < n; i++) {
		is_granted = grant_add(broker, call->session->holdings.index,
				       slots[i], 1);
		assert(is_granted); /* the caller has looked */
		slot_place(broker, slots[i], NULL, &ret_places[i]);
		block = catalog_slot(catalog, slots[i])->block;
		/* What cannot be sent now, the client asks for. */
		(void)verb_attach_chunk(
			call, catalog_block(catalog, block)->chunk, NULL);
	}
}

/* --- answers ------------------------------------------------------------- */

/* An encoded reply; size 0 with code -ENOMEM if even that had no memory. */
struct body {
	uint8_t *bytes; /* owned */
	size_t size;
	int32_t code;
};

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

/* The reply without its chunks; a refusal if there is no memory for it. */
static void encode_reply(struct verb_call *call, struct body *ret)
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
	detach_chunks(call);
	call->n_fds = 0;
	encode_refusal(call->request->kind, &err, ret);
}

/* Put the chunk references behind the body. */
static int append_chunks(struct verb_call *call, struct body *body)
{
	struct chunk_ref **chunks;
	uint8_t *refs, *grown;
	uint32_t *n;
	size_t size;
	int r = 0;

	if (call->request->kind == MESSAGE_CHUNK || body->code < 0 ||
	    !reply_chunks(call->reply, &chunks, &n) || *n == 0)
		return 0;
	r = chunk_refs_encode(call->request->kind, *chunks, *n, &refs, &size,
			      NULL);
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

static void send_body(struct verb_call *call, struct peer *peer,
		      uint64_t number, struct body *body)
{
	if (call->is_quiet && body->code == 0) {
		free(body->bytes);
		return;
	}
	if (append_chunks(call, body) < 0)
		detach_chunks(call);
	peer_reply(peer, call->request->kind, number, body->code, body->bytes,
		   body->size, call->fds, call->n_fds);
	if (peer->session)
		outcome_note_sent(peer->session, number);
	free(body->bytes);
}

static void refuse(struct peer *peer, uint16_t kind, uint64_t number,
		   const struct error *cause)
{
	struct body body;

	peer->broker->n_refused++;
	encode_refusal(kind, cause, &body);
	peer_reply(peer, kind, number, body.code, body.bytes, body.size, NULL,
		   0);
	free(body.bytes);
}

static void record(struct verb_call *call, uint64_t number,
		   const struct outcome_room *room, struct body *body)
{
	struct error err = ERROR_NULL;
	bool is_refused = body->code < 0;

	if (!is_refused &&
	    !outcome_fits(call->session, room, body->size, &err)) {
		detach_chunks(call);
		free(body->bytes);
		encode_refusal(call->request->kind, &err, body);
		is_refused = true;
	}
	outcome_record(call->session, room, number, body->code,
		       is_refused ? NULL : body->bytes,
		       is_refused ? 0 : body->size);
}

/* The verb is done: record, commit, and only then answer. */
static void answer(struct verb_call *call, uint64_t number,
		   const struct outcome_room *room)
{
	const struct verb *verb = &verbs[call->request->kind];
	struct peer *peer = call->session->peer;
	struct body body;

	encode_reply(call, &body);
	if (message_is_recorded(call->request->kind))
		record(call, number, room, &body);
	point(verb->done_point);
	catalog_commit(&call->broker->catalog);
	point(verb->committed_point);
	/* Whoever sleeps until now goes first, the worker among them: this peer
	 * is awake. But not while fds are borrowed, whose chunks a rerun may
	 * retire. */
	if (call->n_fds == 0) {
		if (call->broker->comms.progress.is_wanted)
			(void)comms_on_idle(call->broker);
		waiters_run_ready(call->broker);
	}
	send_body(call, peer, number, &body);
}

/* --- replay -------------------------------------------------------------- */

/* The bundle of a recorded answer, if it is still there. */
static uint32_t find_bundle(const struct broker *broker, uint64_t id)
{
	const struct catalog *catalog = &broker->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_BUNDLE);

	for (uint32_t i = 1; id != 0 && i <= n; i++) {
		if (catalog_bundle(catalog, i)->id == id)
			return i;
	}
	return 0;
}

static int replay_bundle(struct verb_call *call, struct error *err)
{
	const struct catalog *catalog = &call->broker->catalog;
	uint32_t bundle =
		find_bundle(call->broker, call->reply->bundle_get.bundle);
	const struct bundle_record *record;
	int r;

	if (!bundle)
		return error_set(err, -ESTALE,
				 "the bundle was released before its members "
				 "could be sent again; get it again");
	record = catalog_bundle(catalog, bundle);
	r = manifest_make(call->broker, bundle, err);
	call->wait_ms = -1;
	if (r != MANIFEST_OK)
		return r < 0 ? r : verb_park_uid(call, record->owner_uid, err);
	call->fds[call->n_fds++] = record->manifest_fd;
	for (uint32_t i = 1; i <= catalog_n_touched(catalog, SECTION_CHUNK);
	     i++) {
		/* An empty one may be of a bundle that had the record before,
		 * and is sealed or punched yet. */
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
		index = pool_find_chunk(&call->broker->pools, places[i].chunk);
		if (index)
			(void)verb_attach_chunk(call, index, NULL);
	}
}

/* Find out which chunks a recorded answer speaks of, and attach them. */
static int replay_fds(struct verb_call *call, const struct outcome *outcome,
		      struct error *err)
{
	const struct tensor_place *places = NULL;
	struct reply *reply = call->reply;
	uint32_t n;
	int r;

	r = reply_decode(call->request->kind, 0,
			 outcome_body(call->session, outcome), outcome->size,
			 reply, err);
	if (r < 0)
		return r;
	if (reply->kind == MESSAGE_BUNDLE_GET)
		return replay_bundle(call, err);
	n = reply_places(reply, &places);
	replay_places(call, places, n);
	return 0;
}

static int copy_outcome(const struct session *session, uint16_t kind,
			const struct outcome *outcome, struct body *ret,
			struct error *err)
{
	if (outcome->code < 0)
		return error_set(err, outcome->code,
				 "the request was done, but its answer could "
				 "not be made; end the session to undo it");
	if (outcome_kind(session, outcome) != kind)
		return error_set(err, -EPROTO,
				 "the request was of another kind when it came "
				 "first");
	ret->size = outcome->size;
	ret->bytes = malloc(outcome->size + 1);
	if (!ret->bytes)
		return error_set(err, -ENOMEM, "no memory to answer again");
	memcpy(ret->bytes, outcome_body(session, outcome), outcome->size);
	return 0;
}

/* Send a recorded answer again, or park until that can be done. */
static int replay(struct verb_call *call, uint64_t number,
		  const struct outcome *outcome)
{
	struct session *session = call->session;
	struct peer *peer = session->peer;
	uint16_t kind = call->request->kind;
	struct error err = ERROR_NULL;
	struct body body = {0};
	int r;

	call->is_quiet = false;
	r = copy_outcome(session, kind, outcome, &body, &err);
	if (r == 0)
		r = replay_fds(call, outcome, &err);
	if (r == VERB_DONE) {
		session->broker->n_replayed++;
		send_body(call, peer, number, &body);
	} else {
		free(body.bytes);
	}
	if (r < 0)
		refuse(peer, kind, number, &err);
	reply_deinit(call->reply);
	*call->reply = (struct reply){.kind = kind};
	return r > 0 ? r : VERB_DONE;
}

/* --- running ------------------------------------------------------------- */

/*
 * Run a request and answer it, or answer again what was done, unless it parks:
 * the positive outcome says for what, and nothing but the room it tried to make
 * has changed.
 */
static int attempt(struct verb_call *call, uint64_t number)
{
	const struct verb *verb = &verbs[call->request->kind];
	struct outcome_room room = OUTCOME_ROOM_NULL;
	struct session *session = call->session;
	const struct outcome *outcome = outcome_find(session, number);
	struct error err = ERROR_NULL;
	int r = 0;

	if (outcome)
		return replay(call, number, outcome);
	if (message_is_recorded(call->request->kind))
		r = outcome_reserve(session, call->request, &room, &err);
	if (r == 0)
		r = verb->run(call, &err);
	if (r == VERB_DONE) {
		answer(call, number, &room);
		return VERB_DONE;
	}
	outcome_unreserve(session, &room);
	detach_chunks(call);
	catalog_commit(&call->broker->catalog);
	if (r > 0)
		return r;
	refuse(session->peer, call->request->kind, number, &err);
	return VERB_DONE;
}

/* The memory that a request came with; one that was done has it already. */
static int take_donation(struct verb_call *call, struct frame *frame,
			 struct error *err)
{
	int fd;

	if (frame->n_fds == 0 || outcome_find(call->session, frame->number))
		return 0;
	fd = frame->fds[0];
	frame->fds[0] = -1;
	return donation_new(call->broker, session_record(call->session)->uid,
			    fd, &call->donation, err);
}

/* 0: it was answered; REQUEST_PARKED. */
static int run(struct session *session, struct request *request,
	       struct frame *frame)
{
	uint64_t number = frame->number;
	struct peer *peer = session->peer;
	uint16_t kind = request->kind;
	struct error err = ERROR_NULL;
	struct scratch scratch;
	struct verb_call call;
	struct reply reply;
	int r;

	call_init(&call, session, request, &reply, &scratch);
	call.is_quiet = frame->is_quiet;
	r = take_donation(&call, frame, &err);
	if (r < 0) {
		refuse(peer, kind, number, &err);
		r = VERB_DONE;
	} else {
		r = attempt(&call, number);
	}
	if (r == VERB_DONE) {
		request_deinit(request);
		donation_drop(call.donation);
		goto out;
	}
	r = waiter_park(session, request, call.donation, number,
			r == VERB_PARK_NAME ? call.wait_name : NULL,
			call.wait_ms, &err);
	if (r < 0)
		refuse(peer, kind, number, &err);
	else
		r = REQUEST_PARKED;
out:
	call_deinit(&call);
	return r == REQUEST_PARKED ? REQUEST_PARKED : 0;
}

bool verb_rerun(struct waiter *waiter)
{
	struct session *session = waiter->session;
	struct error err = ERROR_NULL;
	struct scratch scratch;
	struct verb_call call;
	struct reply reply;
	int r;

	call_init(&call, session, &waiter->request, &reply, &scratch);
	call.is_timed_out = waiter->is_timed_out;
	call.donation = waiter->donation;
	r = attempt(&call, waiter->number);
	if (r == VERB_DONE)
		goto out;
	r = waiter_repark(waiter, r == VERB_PARK_NAME ? call.wait_name : NULL,
			  &err);
	if (r < 0)
		refuse(session->peer, waiter->request.kind, waiter->number,
		       &err);
	else
		r = 1;
out:
	call_deinit(&call);
	return r <= 0;
}

/* --- entry --------------------------------------------------------------- */

static int check_number(const struct session *session,
			const struct frame *frame, struct error *err)
{
	uint64_t answered = session_record(session)->answered;

	if (frame->number == 0 || frame->answered > frame->number)
		return error_set(err, -EPROTO,
				 "request %llu says that all below %llu are "
				 "answered",
				 (unsigned long long)frame->number,
				 (unsigned long long)frame->answered);
	if (frame->number < answered)
		return error_set(err, -EPROTO,
				 "request %llu was answered, as the client "
				 "said itself",
				 (unsigned long long)frame->number);
	if (waiter_has_number(session, frame->number))
		return error_set(err, -EPROTO,
				 "request %llu came twice on one connection",
				 (unsigned long long)frame->number);
	return 0;
}

int verb_dispatch(struct peer *peer, struct frame *frame, struct error *err)
{
	struct session *session = peer->session;
	struct error cause = ERROR_NULL;
	struct request request;
	int r;

	r = check_number(session, frame, err);
	if (r < 0)
		return r;
	peer->broker->n_requests++;
	session->n_requests++;
	outcome_forget_answered(session, frame->answered);
	catalog_commit(&peer->broker->catalog);
	if (frame->kind > MESSAGE_MAX || !verbs[frame->kind].run) {
		error_set(&cause, -ENOSYS,
			  "this broker (version %s, protocol %d.%d) knows no "
			  "request of kind %u",
			  FSDP_VERSION, PROTOCOL_MAJOR, PROTOCOL_MINOR,
			  frame->kind);
		refuse(peer, frame->kind, frame->number, &cause);
		return 0;
	}
	r = request_decode(frame->kind, frame->body, frame->body_size, &request,
			   &cause);
	/* -EPROTO would say that the connection ends. */
	if (r == -EPROTO)
		cause.code = -EBADMSG;
	if (r < 0) {
		refuse(peer, frame->kind, frame->number, &cause);
		return 0;
	}
	return run(session, &request, frame);
}
