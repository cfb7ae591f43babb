/*
 * A session ends in steps, each of which leaves the catalog consistent. If the
 * broker dies in between, the next broker finds a record whose process has
 * exited or says goodbye once more, and ends it again.
 */
#include "broker/base/account.h"
#include "broker/session/peer.h"
#include "broker/session/recorded_reply.h"
#include "broker/session/session.h"
#include "broker/session/sessions.h"
#include "broker/session/waiter.h"
#include "broker/tensor/bundle_end.h"
#include "broker/tensor/channel.h"
#include "broker/tensor/events.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/lease.h"
#include "broker/tensor/name.h"
#include "broker/tensor/ready_fence.h"
#include "broker/tensor/shared_chunk.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/timeline_file.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

/* The numbers of records that are ended and of blocks that are visited per
 * round. */
#define ENDED_PER_ROUND  1024
#define LOOKED_PER_ROUND 16384
/* The number of records that a bundle counts as. */
#define BUNDLE_COST 256
/* The time limit for the work that all events of an iteration cause at once. */
#define WORK_NS 250000

/*
 * Each of the following functions commits after every step, since each step is
 * consistent by itself, and a short journal stays in the CPU's cache. Each
 * record takes one from `*left`; if that reaches 0, there may be more records.
 */

static void end_fences(struct session *session, uint32_t *left)
{
	struct store *store = session->sessions->store;
	uint32_t slot;

	for (; *left > 0; --*left) {
		slot = ready_fence_end_next(store, session->holdings.index);
		if (!slot)
			return;
		/* The fence may have been the last keeper of the memory. */
		slot_update_state(store, slot);
		failpoint("ready_fence.ended");
		catalog_commit(&store->catalog);
	}
}

/* End the writer of the slots that the session writes, and drop the names of
 * those that are tied to it. */
static void disown_slots(struct session *session, uint32_t *left)
{
	struct store *store = session->sessions->store;
	struct catalog *catalog = &store->catalog;
	const struct list *own = &session_record(session)->own;
	uint32_t slot;

	for (; own->first && *left > 0; --*left) {
		slot = own->first;
		slot_end_writer(store, slot);
		if (catalog_slot(catalog, slot)->tied)
			slot_drop_name(store, slot, EVENT_ENDED);
		slot_update_state(store, slot);
		failpoint("slot.disowned");
		catalog_commit(catalog);
	}
}

static void drop_grants(struct session *session, uint32_t *left)
{
	struct store *store = session->sessions->store;
	struct catalog *catalog = &store->catalog;
	const struct list *grants = &session_record(session)->grants;
	uint32_t slot;

	for (; grants->first && *left > 0; --*left) {
		slot = catalog_grant(catalog, grants->first)->slot;
		if (grant_drop(store, grants->first))
			slot_update_state(store, slot);
		failpoint("grant.dropped");
		catalog_commit(catalog);
	}
}

/* The members of large bundles are freed later (bundle_end.c). */
static void abort_bundles(struct session *session, uint32_t *left)
{
	struct catalog *catalog = &session->sessions->store->catalog;
	struct session_record *record = session_record(session);

	while (record->first_bundle && *left > 0) {
		bundle_abort(session->sessions->store, record->first_bundle);
		failpoint("session.bundle_aborted");
		catalog_commit(catalog);
		*left -= *left < BUNDLE_COST ? *left : BUNDLE_COST;
	}
}

/*
 * Stop charging blocks to the session's budget. Blocks outlive the session that
 * made them. The walk stops early when all charged bytes are accounted for.
 * Returns false if there are more blocks.
 */
static bool forget_blocks(struct session *session)
{
	struct sessions *sessions = session->sessions;
	struct catalog *catalog = &sessions->store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_BLOCK);
	uint32_t n_looked = 0;
	struct block_record *block;

	while (session->holdings.n_bytes > 0 && session->maker_hand < n) {
		if (n_looked++ == LOOKED_PER_ROUND)
			return false;
		block = catalog_block(catalog, ++session->maker_hand);
		if (!block->chunk || block->maker != session->holdings.index)
			continue;
		catalog_set(catalog, block->maker, 0);
		session->holdings.n_bytes -=
			pool_block_charge(&sessions->store->pools, block);
		catalog_commit(catalog);
	}
	return true;
}

/* Returns true when everything that the session had is gone. */
static bool end_some(struct session *session)
{
	uint32_t left = ENDED_PER_ROUND;

	/* This comes first, before poisoned timelines wake waiters that then
	 * check for the taint. */
	shared_chunk_end_session(&session->holdings, &left);
	if (left > 0)
		end_fences(session, &left);
	if (left == 0)
		return false;
	timeline_file_end(&session->holdings);
	abort_bundles(session, &left);
	if (left == 0)
		return false;
	disown_slots(session, &left);
	if (left == 0)
		return false;
	failpoint("session.disowned");
	drop_grants(session, &left);
	return left > 0 && forget_blocks(session);
}

/* --- the struct ---------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle)
{
	struct session *session = handle->data;

	assert(session->is_stopping && session->n_handles > 0);
	if (--session->n_handles == 0)
		free(session);
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* There is no effect if the handle was never set up. */
static void stop_handle(uv_poll_t *poll)
{
	if (uv_handle_get_type((uv_handle_t *)poll) != UV_POLL)
		return;
	uv_poll_stop(poll);
	uv_close((uv_handle_t *)poll, on_handle_closed);
}

void session_stop(struct session *session)
{
	if (session->is_stopping)
		return;
	session->is_stopping = true;
	chore_end(session->sessions->store, &session->holdings.lease);
	if (session->peer)
		peer_attach(session, NULL);
	deadlines_remove(&session->sessions->base->deadlines,
			 &session->quarantine_position);
	retry_stop(&session->look);
	stop_handle(&session->pidfd_poll);
	stop_handle(&session->doorbell_poll);
	close_fd(&session->pidfd);
	close_fd(&session->doorbell_fd);
	close_fd(&session->holdings.timelines_readonly_fd);
	timelines_close(&session->holdings.timelines);
	refs_close(&session->holdings.refs);
	if (session->holdings.index)
		session->sessions->store->holdings[session->holdings.index] =
			NULL;
	if (session->n_handles == 0)
		free(session);
}

static void finish(struct session *session)
{
	struct sessions *sessions = session->sessions;
	struct catalog *catalog = &sessions->store->catalog;
	const struct session_record *record = session_record(session);
	uint64_t goodbye = session->goodbye;
	struct peer *peer = session->peer;

	failpoint("session.dropped");
	/* Nothing refers to the record any more, so another session may use
	 * it. */
	assert(!record->own.first && !record->grants.first);
	assert(!record->first_bundle && !session->first_waiter);
	peer_attach(session, NULL);
	recorded_reply_forget_all(session);
	catalog_release(catalog, SECTION_SESSION, session->holdings.index);
	catalog_commit(catalog);
	failpoint("session.ended");
	account_refund(session->holdings.account, ACCOUNT_SESSIONS, 1);
	account_refund(session->holdings.account, ACCOUNT_REFS,
		       (uint64_t)session->holdings.n_ref_pages *
			       refs_page_size());
	assert(sessions->n > 0);
	sessions->n--;
	if (session->is_watching)
		events_unwatch(sessions->store);
	if (catalog->header->is_draining)
		wake_name(&sessions->base->wake, SESSION_DRAIN_KEY);
	sessions->store->holdings[session->holdings.index] = NULL;
	session->holdings.index = 0;
	/* Requests that wait for the session's memory run before its files are
	 * closed, because closing takes longer. */
	(void)waiters_on_idle(sessions);
	session_stop(session);
	if (peer)
		peer_end_goodbye(peer, goodbye);
}

bool session_end_round(struct session *session)
{
	if (!end_some(session)) {
		failpoint("session.round");
		return false;
	}
	finish(session);
	return true;
}

bool session_may_work(struct sessions *sessions)
{
	uint64_t now_ns = uv_hrtime();
	/* The same for all events of an iteration, unlike uv_now(), which
	 * deadlines update. */
	uint64_t turn_ns = sessions->base->loop.meter.at_ns;

	if (sessions->work_turn_ns != turn_ns) {
		sessions->work_turn_ns = turn_ns;
		sessions->work_end_ns = now_ns + WORK_NS;
	}
	return now_ns < sessions->work_end_ns || !sessions->listener.is_open;
}

void session_end(struct session *session, uint64_t goodbye)
{
	struct sessions *sessions = session->sessions;

	failpoint("session.end");
	session->is_ending = true;
	session->goodbye = goodbye;
	if (!goodbye)
		peer_attach(session, NULL);
	waiters_drop_session(session);
	lease_end_session(&session->holdings);
	sessions->hooks.on_end(session);
	channels_end_session(&session->holdings, !goodbye);
	catalog_commit(&sessions->store->catalog);
	if (session_may_work(sessions) && session_end_round(session))
		return;
	loop_defer(&sessions->base->loop, &sessions->draining);
}
