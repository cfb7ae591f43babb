/*
 * bundle_begin, bundle_commit, bundle_abort and bundle_get.
 */
#include "broker/tensor/bundle.h"
#include "broker/base/version.h"
#include "broker/broker.h"
#include "broker/tensor/bundle_commit.h"
#include "broker/tensor/bundle_end.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/index.h"
#include "broker/tensor/lease.h"
#include "broker/tensor/manifest.h"
#include "broker/verbs/places.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <errno.h>

static int park_for_loader(struct verb_call *call, struct error *err)
{
	const struct bundle_begin_request *request =
		&call->request->bundle_begin;

	if (call->is_timed_out && request->timeout_ms)
		return error_set(err, -ETIMEDOUT,
				 "bundle \"%s\" was not loaded within %d ms",
				 request->name, request->timeout_ms);
	if (!request->timeout_ms)
		return error_set(err, -EBUSY,
				 "another process is loading bundle \"%s\"; "
				 "give a timeout to wait for it",
				 request->name);
	call->wait_name = request->name;
	return VERB_PARK_NAME;
}

int verb_bundle_begin(struct verb_call *call, struct error *err)
{
	const struct device_uuid *uuid = &call->request->bundle_begin.device;
	const struct device *device;
	int r = DEVICES_OK;

	if (!device_uuid_is_host(uuid))
		r = devices_find(&call->broker->store.devices, uuid, &device,
				 err);
	/* The rerun may have to wait for a loader, with the same deadline. */
	call->wait_ms = call->request->bundle_begin.timeout_ms;
	if (r != DEVICES_OK)
		return r < 0 ? r : VERB_PARK_ROOM;
	r = bundle_begin(&call->broker->store, &call->session->holdings,
			 &call->request->bundle_begin,
			 &call->reply->bundle.bundle, err);
	return r == BUNDLE_IS_LOADING ? park_for_loader(call, err) : r;
}

int verb_bundle_commit(struct verb_call *call, struct error *err)
{
	uint64_t id = call->request->bundle_commit.bundle;
	uint32_t bundle = bundle_find_staged(&call->broker->store,
					     &call->session->holdings, id, err);
	int r;

	if (!bundle)
		return -ENOENT;
	call->reply->bundle.bundle = id;
	r = bundle_commit(&call->broker->store, &call->session->holdings,
			  bundle, &call->reply->bundle.version, err);
	if (r != POOL_WAIT)
		return r;
	call->wait_ms = -1;
	return verb_park_uid(call, session_record(call->session)->uid, err);
}

int verb_bundle_abort(struct verb_call *call, struct error *err)
{
	uint64_t id = call->request->bundle_abort.bundle;
	uint32_t bundle = bundle_find_staged(&call->broker->store,
					     &call->session->holdings, id, err);

	if (!bundle)
		return -ENOENT;
	bundle_abort(&call->broker->store, bundle);
	return VERB_DONE;
}

/* --- get ----------------------------------------------------------------- */

static int miss(struct verb_call *call, struct error *err)
{
	const struct bundle_get_request *request = &call->request->bundle_get;
	char what[VERSION_TEXT];

	version_format(request->newer_than, what);
	if (call->is_timed_out && request->timeout_ms)
		return error_set(
			err, -ETIMEDOUT,
			"bundle \"%s\"%s was not committed within %d ms",
			request->name, what, request->timeout_ms);
	if (!request->timeout_ms)
		return error_set(err, -ENOENT,
				 "there is no bundle \"%s\"%s yet; give a "
				 "timeout to wait for it",
				 request->name, what);
	call->wait_name = request->name;
	call->wait_ms = request->timeout_ms;
	return VERB_PARK_NAME;
}

static int check_reader(const struct verb_call *call,
			const struct bundle_record *record, struct error *err)
{
	const struct bundle_get_request *request = &call->request->bundle_get;

	return access_check_reader(
		&call->session->holdings, &record->access, request->name,
		request->is_trust_set ? &request->trusted_uid : NULL, err);
}

static void attach_chunks(struct verb_call *call, uint32_t bundle)
{
	const struct pools *pools = &call->broker->store.pools;
	uint32_t chunk = 0;

	/* the client requests chunks that cannot be sent now */
	while ((chunk = pool_next_of_bundle(pools, bundle, chunk)))
		(void)verb_attach_chunk(call, chunk, NULL);
}

/* Wait for the end of the session's lease, since a session has at most one. */
static int park_for_lease(struct verb_call *call, struct error *err)
{
	char *key = verb_scratch(call, LEASE_KEY_SIZE);

	if (!key)
		return error_nomem(err, "the request");
	lease_key(&call->session->holdings, key);
	call->wait_name = key;
	return VERB_PARK_NAME;
}

/* Find the version that the request wants. `*ret_bundle` is 0 if it may still
 * come. */
static int find_version(const struct verb_call *call, uint32_t newest,
			uint32_t *ret_bundle, struct error *err)
{
	const struct bundle_get_request *request = &call->request->bundle_get;
	const struct store *store = &call->broker->store;
	uint64_t version = catalog_bundle(&store->catalog, newest)->version;
	int r;

	if (!request->version) {
		r = version_check(request->name, version, request->newer_than,
				  err);
		*ret_bundle = r == VERSION_NEWER ? newest : 0;
		return r < 0 ? r : 0;
	}
	*ret_bundle =
		bundle_find_version(store, request->name, request->version);
	if (*ret_bundle || request->version > version)
		return 0;
	return error_set(err, -ESTALE,
			 "version %llu of bundle \"%s\" is not kept any more; "
			 "the newest is %llu",
			 (unsigned long long)request->version, request->name,
			 (unsigned long long)version);
}

int verb_bundle_get(struct verb_call *call, struct error *err)
{
	struct broker *broker = call->broker;
	struct bundle_get_reply *reply = &call->reply->bundle_get;
	uint32_t newest = index_find_bundle(&broker->store,
					    call->request->bundle_get.name);
	const struct bundle_record *record;
	uint32_t bundle = 0;
	int r;

	if (!newest)
		return miss(call, err);
	/* Rights come first, so that other users do not learn which versions
	 * exist. */
	record = catalog_bundle(&broker->store.catalog, newest);
	r = check_reader(call, record, err);
	if (r == 0)
		r = find_version(call, newest, &bundle, err);
	if (r < 0)
		return r;
	if (!bundle)
		return miss(call, err);
	record = catalog_bundle(&broker->store.catalog, bundle);
	r = check_reader(call, record, err);
	if (r < 0)
		return r;
	call->wait_ms = call->request->bundle_get.timeout_ms;
	if (lease_is_open(&call->session->holdings))
		return park_for_lease(call, err);
	r = grant_check_room(&call->session->holdings, record->members.n, err);
	if (r == 0)
		r = manifest_make(&broker->store, bundle, err);
	if (r != MANIFEST_OK)
		return r < 0 ? r : verb_park_uid(call, record->owner_uid, err);
	lease_begin(&call->session->holdings, bundle);
	failpoint("bundle.granted");
	reply->bundle = record->id;
	reply->version = record->version;
	reply->n_members = record->members.n;
	reply->manifest_size = broker->store.bundles[bundle].manifest_size;
	call->fds[call->n_fds++] = record->manifest_fd;
	attach_chunks(call, bundle);
	return VERB_DONE;
}
