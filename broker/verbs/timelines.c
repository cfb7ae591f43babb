/*
 * timelines: returns the file with a session's own timelines, or with those of
 * a session that it must wait for, or the event to wait for.
 *
 * No reply is recorded: if the request is repeated, the same file is sent
 * again.
 */
#include "broker/broker.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/ready_fence.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/timeline_file.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>

/* Check the tensor that the request gives as its reason, which the session must
 * hold. Its fence may have been reached in the meantime, which does no harm. */
static int check_reason(const struct verb_call *call, struct error *err)
{
	const struct timelines_request *request = &call->request->timelines;
	const struct catalog *catalog = &call->broker->store.catalog;
	uint32_t slot = slot_find(&call->broker->store, &request->ref, err);
	uint32_t grant, fence;

	if (!slot)
		return -ESTALE;
	grant = grant_find(&call->broker->store, call->session->holdings.index,
			   slot);
	if (!grant || grant_holds(&call->broker->store, grant) <= 0)
		return error_set(err, -EINVAL,
				 "this session does not hold the tensor");
	fence = catalog_slot(catalog, slot)->ready_fence;
	if (fence &&
	    catalog_session(catalog,
			    catalog_ready_fence(catalog, fence)->session)
			    ->id == request->session)
		return 0;
	return error_set(err, -ESRCH,
			 "the tensor has no ready fence of session %" PRIu64
			 " any more: it is complete, or the state table says "
			 "that it is tainted",
			 request->session);
}

/* Returns the session of the fence. It exists, because the end of a session
 * ends its fences. */
static struct session *find(const struct verb_call *call)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	const struct slot_record *slot =
		catalog_slot(catalog, call->request->timelines.ref.slot);

	return session_at(
		&call->broker->sessions,
		catalog_ready_fence(catalog, slot->ready_fence)->session);
}

static int find_other(const struct verb_call *call, struct session **ret,
		      struct error *err)
{
	uint32_t uid = session_record(call->session)->uid;
	struct session *other = find(call);

	if (!other->holdings.timelines.pages)
		return error_set(err, -ENOENT,
				 "the timelines of session %" PRIu64
				 " were lost when the broker was started "
				 "again; tensors that wait for them are "
				 "released when that process ends",
				 call->request->timelines.session);
	if (call->request->timelines.wants_writable &&
	    session_record(other)->uid != uid)
		return error_set(err, -EACCES,
				 "the timelines of uid %" PRIu32 " are not "
				 "writable for uid %" PRIu32
				 ": ask for them read-only, and wait on the "
				 "host where a device cannot register such "
				 "pages",
				 session_record(other)->uid, uid);
	*ret = other;
	return 0;
}

/* Returns false if the tensor's fence is not an event. */
static bool give_event(struct verb_call *call)
{
	struct timelines_reply *reply = &call->reply->timelines;
	const uint8_t *event = ready_fence_event(
		&call->broker->store, call->request->timelines.ref.slot);

	if (!event)
		return false;
	reply->session = call->request->timelines.session;
	reply->has_event = true;
	memcpy(reply->event, event, sizeof(reply->event));
	return true;
}

int verb_timelines(struct verb_call *call, struct error *err)
{
	const struct timelines_request *request = &call->request->timelines;
	struct session *session = call->session;
	bool is_writable = true;
	int fd, r = 0;

	if (request->session &&
	    request->session != session_record(session)->id) {
		r = check_reason(call, err);
		if (r == 0 && give_event(call))
			return VERB_DONE;
		if (r == 0)
			r = find_other(call, &session, err);
		is_writable = request->wants_writable;
	} else if (!session->holdings.timelines.pages) {
		r = timeline_file_make(&session->holdings, err);
	}
	if (r == FDSTORE_WAIT) {
		call->wait_ms = -1;
		return VERB_PARK_ROOM;
	}
	if (r == 0)
		r = timeline_file_fd(&session->holdings, is_writable, &fd, err);
	if (r < 0)
		return r;
	call->reply->timelines.session = session_record(session)->id;
	call->fds[call->n_fds++] = fd;
	return VERB_DONE;
}
