/* control: the commands of administrators. */
#include "broker/broker.h"
#include "broker/session/session.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/evict.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>

static uint64_t used_bytes(const struct broker *broker)
{
	return accounts_total(&broker->base.accounts, ACCOUNT_BYTES) +
	       accounts_total(&broker->base.accounts, ACCOUNT_DEVICE_BYTES);
}

static int collect(struct verb_call *call, struct error *err)
{
	uint64_t before = used_bytes(call->broker);

	(void)err;
	call->reply->control.n = collect_released(&call->broker->store);
	call->reply->control.bytes = before - used_bytes(call->broker);
	return VERB_DONE;
}

static int trim(struct verb_call *call, struct error *err)
{
	(void)err;
	pools_trim(&call->broker->store.pools, &call->reply->control.n,
		   &call->reply->control.bytes);
	return VERB_DONE;
}

/* Evict tensors. One call of evict() takes a limited time, so the client
 * repeats the request. */
static int evict_some(struct verb_call *call, struct error *err)
{
	const struct control_request *request = &call->request->control;
	struct control_reply *reply = &call->reply->control;
	struct broker *broker = call->broker;
	uint64_t before = used_bytes(broker), n = broker->store.n_evicted;

	if (request->value == 0)
		return error_set(err, -EINVAL,
				 "cannot evict 0 bytes; the size must be "
				 "greater than 0");
	reply->has_more = evict(&broker->store, request->value,
				&request->device, NULL) == EVICT_MORE;
	reply->n = broker->store.n_evicted - n;
	reply->bytes = before - used_bytes(broker);
	return VERB_DONE;
}

/* Returns any session except the caller's, or NULL if there is none. */
static const struct session *find_other(const struct verb_call *call)
{
	for (uint32_t i = 1; i <= CATALOG_MAX_SESSIONS; i++) {
		const struct session *session =
			session_at(&call->broker->sessions, i);

		if (session && session != call->session)
			return session;
	}
	return NULL;
}

/* Open or close the broker for new sessions. The state is committed even if the
 * request fails or waits, and a restart keeps it, so that a node that is being
 * drained stays closed. */
static void set_draining(struct broker *broker, uint32_t value)
{
	struct catalog *catalog = &broker->store.catalog;

	catalog_set(catalog, catalog->header->is_draining, value);
	catalog_commit(catalog);
	if (!value)
		wake_name(&broker->base.wake, SESSION_DRAIN_KEY);
}

static int drain(struct verb_call *call, struct error *err)
{
	const struct control_request *request = &call->request->control;
	struct broker *broker = call->broker;
	const struct session *other;

	if (request->value > 1)
		return error_set(err, -EINVAL,
				 "cannot drain: value %" PRIu64
				 " is neither 0 nor 1",
				 request->value);
	if (!call->is_rerun)
		set_draining(broker, (uint32_t)request->value);
	else if (!broker->store.catalog.header->is_draining)
		return error_set(err, -ECANCELED,
				 "the drain was cancelled by another request, "
				 "and new sessions are accepted again");
	call->reply->control.n = broker->sessions.n - 1;
	if (!request->value)
		return VERB_DONE;
	other = find_other(call);
	if (!other)
		return VERB_DONE;
	if (request->timeout_ms == 0 || call->is_timed_out)
		return error_set(
			err, -ETIMEDOUT,
			"%u other sessions have not ended, such as that of "
			"process %u (%s); new sessions are still refused",
			broker->sessions.n - 1, session_record(other)->pid,
			session_record(other)->command);
	call->wait_name = SESSION_DRAIN_KEY;
	call->wait_ms = request->timeout_ms;
	return VERB_PARK_NAME;
}

static int set_log_level(struct verb_call *call, struct error *err)
{
	uint64_t level = call->request->control.value;

	if (level != LOG_LEVEL_ERROR && level != LOG_LEVEL_WARNING &&
	    level != LOG_LEVEL_INFO)
		return error_set(err, -EINVAL, "there is no log level %" PRIu64,
				 level);
	log_set_level((enum log_level)level);
	return VERB_DONE;
}

int verb_control(struct verb_call *call, struct error *err)
{
	static const struct {
		verb_fn *run;
		const char *what; /* follows "cannot" */
	} actions[CONTROL_MAX + 1] = {
		[CONTROL_COLLECT] = {collect, "free released tensors"},
		[CONTROL_TRIM] = {trim, "return free memory to the kernel"},
		[CONTROL_EVICT] = {evict_some, "evict tensors"},
		[CONTROL_DRAIN] = {drain, "drain the broker or end that"},
		[CONTROL_LOG_LEVEL] = {set_log_level, "set the log level"},
	};
	uint32_t action = call->request->control.action;

	if (!session_is_admin(call->session))
		return error_set(
			err, -EPERM,
			"cannot %s: only root, the broker's user and members "
			"of admin_group may",
			actions[action].what);
	return actions[action].run(call, err);
}
