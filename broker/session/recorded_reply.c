/*
 * The window of recorded replies in a session's record.
 *
 * The client's watermark (`answered`) does not advance past a request that is
 * parked, so a long wait may fill the window with replies that the client
 * received long ago. Then the replies are forgotten that it certainly received
 * on this connection.
 *
 * It is not enough that everything that was sent has been read. A client that
 * may open no more descriptors loses those of a reply that it reads, and what
 * it has not read is gone when it closes its socket. In both cases it sends
 * nothing more on this connection, and requests the reply again on the next
 * one. So the client has received what it had read at some moment if it has
 * sent a request since then, which comes after those that were in the socket.
 *
 * LAYOUT of the blob
 *
 *   offset size  meaning
 *        0    4  bytes of the blob, as it was allocated
 *        4    4  kind of the request
 *        8    -  body
 */
#include "broker/session/recorded_reply.h"
#include "broker/base/account.h"
#include "broker/catalog/catalog.h"
#include "broker/session/peer.h"
#include "broker/session/session.h"
#include "broker/session/sessions.h"
#include "proto/error.h"
#include "proto/frame.h"
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

struct blob_header {
	uint32_t size;
	uint32_t kind;
};

#define BLOB_HEADER  sizeof(struct blob_header)
#define MANY_UNKNOWN (RECORDED_REPLIES_MAX / 4)

_Static_assert(RECORDED_REPLIES_MAX == 64,
	       "session.sent_replies has a bit each");

static const struct blob_header *blob_header(const struct catalog *catalog,
					     uint64_t blob)
{
	return catalog_blob(catalog, blob);
}

static void forget(struct session *session, uint32_t place)
{
	struct catalog *catalog = &session->sessions->store->catalog;
	struct recorded_reply *recorded_reply =
		&session_record(session)->recorded_replies[place];
	uint32_t size = blob_header(catalog, recorded_reply->blob)->size;

	assert(recorded_reply->blob);
	catalog_blob_release(catalog, recorded_reply->blob, size);
	account_refund(session->holdings.account, ACCOUNT_QUEUE, size);
	catalog_save(catalog, recorded_reply, sizeof(*recorded_reply));
	*recorded_reply = (struct recorded_reply){0};
	session->sent_replies &= ~(UINT64_C(1) << place);
	session->read_replies &= ~(UINT64_C(1) << place);
	session->received_replies &= ~(UINT64_C(1) << place);
}

static bool find_place(const struct session *session, uint32_t *ret)
{
	const struct session_record *record = session_record(session);

	for (uint32_t i = 0; i < RECORDED_REPLIES_MAX; i++) {
		if (!record->recorded_replies[i].blob) {
			*ret = i;
			return true;
		}
	}
	return false;
}

static void forget_received(struct session *session)
{
	for (uint32_t i = 0; i < RECORDED_REPLIES_MAX; i++) {
		if (session->received_replies & UINT64_C(1) << i)
			forget(session, i);
	}
}

int recorded_reply_reserve(struct session *session,
			   const struct request *request,
			   struct recorded_reply_room *ret, struct error *err)
{
	struct sessions *sessions = session->sessions;
	uint32_t size = (uint32_t)BLOB_HEADER + reply_bound(request);
	struct blob_header header = {size, request->kind};
	struct recorded_reply_room room;
	struct recorded_reply *recorded_reply;
	int r;

	assert(size <= FRAME_MAX_SIZE);
	if (!find_place(session, &room.place)) {
		forget_received(session);
		if (!find_place(session, &room.place))
			return error_set(
				err, -EAGAIN,
				"%d replies of this session are not confirmed "
				"yet; read them before sending more requests",
				RECORDED_REPLIES_MAX);
	}
	r = account_charge(&sessions->base->accounts, session->holdings.account,
			   ACCOUNT_QUEUE, size, err);
	if (r < 0)
		return r;
	room.blob = catalog_blob_alloc(&sessions->store->catalog, size);
	if (!room.blob) {
		account_refund(session->holdings.account, ACCOUNT_QUEUE, size);
		return error_set(err, -ENOSPC,
				 "the broker's catalog is full; remove tensors "
				 "or end sessions");
	}
	memcpy(catalog_blob(&sessions->store->catalog, room.blob), &header,
	       sizeof(header));
	/* Store the blob where recorded_reply_adopt() finds it after a crash,
	 * since some requests commit before they end. */
	recorded_reply = &session_record(session)->recorded_replies[room.place];
	catalog_set(&sessions->store->catalog, recorded_reply->blob, room.blob);
	*ret = room;
	return 0;
}

void recorded_reply_unreserve(struct session *session,
			      struct recorded_reply_room *room)
{
	if (room->blob)
		forget(session, room->place);
	*room = RECORDED_REPLY_ROOM_NULL;
}

bool recorded_reply_fits(const struct session *session,
			 const struct recorded_reply_room *room, size_t size,
			 struct error *err)
{
	const struct catalog *catalog = &session->sessions->store->catalog;

	if (size <= blob_header(catalog, room->blob)->size - BLOB_HEADER)
		return true;
	error_set(err, -EMSGSIZE,
		  "a reply of %zu bytes is larger than its kind allows", size);
	return false;
}

void recorded_reply_record(struct session *session,
			   const struct recorded_reply_room *room,
			   uint64_t number, int32_t code, const uint8_t *body,
			   size_t size)
{
	struct catalog *catalog = &session->sessions->store->catalog;
	struct recorded_reply *recorded_reply =
		&session_record(session)->recorded_replies[room->place];
	uint8_t *blob = catalog_blob(catalog, room->blob);

	assert(recorded_reply_fits(session, room, size, NULL));
	if (size > 0)
		memcpy(blob + BLOB_HEADER, body, size);
	catalog_save(catalog, recorded_reply, sizeof(*recorded_reply));
	*recorded_reply = (struct recorded_reply){
		.number = number,
		.blob = room->blob,
		.size = (uint32_t)size,
		.code = code,
	};
}

const struct recorded_reply *recorded_reply_find(const struct session *session,
						 uint64_t number)
{
	const struct session_record *record = session_record(session);

	for (uint32_t i = 0; i < RECORDED_REPLIES_MAX; i++) {
		if (record->recorded_replies[i].number == number)
			return &record->recorded_replies[i];
	}
	return NULL;
}

const uint8_t *recorded_reply_body(const struct session *session,
				   const struct recorded_reply *recorded_reply)
{
	const uint8_t *blob = catalog_blob(&session->sessions->store->catalog,
					   recorded_reply->blob);

	return blob + BLOB_HEADER;
}

uint32_t recorded_reply_kind(const struct session *session,
			     const struct recorded_reply *recorded_reply)
{
	return blob_header(&session->sessions->store->catalog,
			   recorded_reply->blob)
		->kind;
}

void recorded_reply_note_sent(struct session *session, uint64_t number)
{
	const struct session_record *record = session_record(session);

	for (uint32_t i = 0; i < RECORDED_REPLIES_MAX; i++) {
		if (record->recorded_replies[i].number != 0 &&
		    record->recorded_replies[i].number <= number)
			session->sent_replies |= UINT64_C(1) << i;
	}
}

/* Note what the client has read. This takes two system calls, so it is left out
 * while there is much room in the window. */
static void note_read(struct session *session)
{
	uint64_t unknown = session->sent_replies & ~session->received_replies;
	int n_bytes = 0;

	if (session->read_replies ||
	    __builtin_popcountll(unknown) < MANY_UNKNOWN ||
	    !reply_queue_is_read(&session->peer->replies) ||
	    ioctl(session->peer->sock_fd, FIONREAD, &n_bytes) < 0)
		return;
	session->read_replies = session->sent_replies;
	session->n_earlier_bytes = session->n_request_bytes + (uint64_t)n_bytes;
}

static void forget_answered(struct session *session, uint64_t answered)
{
	struct session_record *record = session_record(session);

	if (answered <= record->answered)
		return;
	for (uint32_t i = 0; i < RECORDED_REPLIES_MAX; i++) {
		if (record->recorded_replies[i].number != 0 &&
		    record->recorded_replies[i].number < answered)
			forget(session, i);
	}
	catalog_set(&session->sessions->store->catalog, record->answered,
		    answered);
}

void recorded_reply_on_request(struct session *session,
			       const struct frame *frame)
{
	session->n_request_bytes += FRAME_HEADER_SIZE + frame->body_size;
	if (session->n_request_bytes > session->n_earlier_bytes) {
		session->received_replies |= session->read_replies;
		session->read_replies = 0;
	}
	forget_answered(session, frame->answered);
	note_read(session);
}

void recorded_reply_forget_all(struct session *session)
{
	for (uint32_t i = 0; i < RECORDED_REPLIES_MAX; i++) {
		if (session_record(session)->recorded_replies[i].blob)
			forget(session, i);
	}
}

void recorded_reply_adopt(struct session *session)
{
	const struct session_record *record = session_record(session);
	const struct catalog *catalog = &session->sessions->store->catalog;
	const struct recorded_reply *recorded_reply;

	for (uint32_t i = 0; i < RECORDED_REPLIES_MAX; i++) {
		recorded_reply = &record->recorded_replies[i];
		if (!recorded_reply->blob)
			continue;
		account_charge_adopted(
			session->holdings.account, ACCOUNT_QUEUE,
			blob_header(catalog, recorded_reply->blob)->size);
		if (recorded_reply->number == 0)
			forget(session, i);
	}
}
