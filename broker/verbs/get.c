/*
 * get: returns the tensors that names show at one moment. They are granted
 * before the reply is sent.
 */
#include "broker/base/version.h"
#include "broker/broker.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/index.h"
#include "broker/tensor/slot.h"
#include "broker/verbs/places.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <errno.h>

/* Fail or wait, because the name does not exist or has no version that is new
 * enough. */
static int miss(struct verb_call *call, const char *name, struct error *err)
{
	int32_t timeout_ms = call->request->get.timeout_ms;
	char what[VERSION_TEXT];

	version_format(call->request->get.newer_than, what);
	if (call->is_timed_out)
		return error_set(err, -ETIMEDOUT,
				 "\"%s\"%s was not published within %d ms",
				 name, what, timeout_ms);
	if (!timeout_ms)
		return error_set(err, -ENOENT,
				 "there is no tensor \"%s\"%s yet; give a "
				 "timeout to wait for it",
				 name, what);
	call->wait_name = name;
	call->wait_ms = timeout_ms;
	return VERB_PARK_NAME;
}

static int find(struct verb_call *call, uint32_t *slots, struct error *err)
{
	const struct get_request *request = &call->request->get;
	const uint32_t *trusted =
		request->is_trust_set ? &request->trusted_uid : NULL;
	struct access_class access;
	uint32_t i;
	int r;

	index_find_many(&call->broker->store, request->names, request->n_names,
			slots);
	for (i = 0; i < request->n_names; i++) {
		if (!slots[i])
			return miss(call, request->names[i], err);
		access = slot_access(&call->broker->store, slots[i]);
		r = access_check_reader(&call->session->holdings, &access,
					request->names[i], trusted, err);
		if (r == 0)
			r = version_check(
				request->names[i],
				slot_version(&call->broker->store, slots[i]),
				request->newer_than, err);
		if (r < 0)
			return r;
		if (r == VERSION_HAD)
			return miss(call, request->names[i], err);
	}
	return VERB_DONE;
}

int verb_get(struct verb_call *call, struct error *err)
{
	uint32_t n = call->request->get.n_names;
	uint32_t *slots = verb_scratch(call, n * sizeof(*slots));
	int r;

	if (!slots)
		return error_nomem(err, "the request");
	r = find(call, slots, err);
	if (r != VERB_DONE)
		return r;
	r = grant_check_room(&call->session->holdings, n, err);
	if (r < 0)
		return r;
	verb_reply_places(call, slots, n);
	return VERB_DONE;
}
