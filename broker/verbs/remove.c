/*
 * remove: ends names of tensors and of whole bundles. Tensors that are held
 * stay in limbo.
 */
#include "broker/broker.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/bundle_end.h"
#include "broker/tensor/index.h"
#include "broker/tensor/name.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/name.h"
#include <errno.h>

/* The tensor or bundle that a name shows. */
struct target {
	uint32_t slot, bundle; /* one of the two is 0 */
};

static int check_owner(const struct verb_call *call, uint32_t uid,
		       struct error *err)
{
	if (access_is_owner(&call->session->holdings.credentials, uid))
		return 0;
	return error_set(err, -EPERM, "it belongs to uid %u", uid);
}

static int find_bundle(const struct verb_call *call, const char *name,
		       struct target *ret, struct error *err)
{
	struct broker *broker = call->broker;

	ret->bundle = index_find_bundle(&broker->store, name);
	if (!ret->bundle)
		return error_set(err, -ENOENT, "there is no such bundle");
	return check_owner(
		call,
		catalog_bundle(&broker->store.catalog, ret->bundle)->owner_uid,
		err);
}

static int find_tensor(const struct verb_call *call, const char *name,
		       struct target *ret, struct error *err)
{
	struct broker *broker = call->broker;

	ret->slot = index_find(&broker->store, name);
	if (!ret->slot)
		return error_set(err, -ENOENT, "there is no such name");
	if (catalog_slot(&broker->store.catalog, ret->slot)->bundle)
		return error_set(err, -EINVAL,
				 "it is a member of a bundle; remove or "
				 "replace the bundle");
	return check_owner(call, slot_access(&broker->store, ret->slot).uid,
			   err);
}

static int find(const struct verb_call *call, uint32_t i, struct target *all,
		struct error *err)
{
	const char *name = call->request->remove.names[i];
	uint32_t j;
	int r;

	if (name_is_bundle(name))
		r = find_bundle(call, name, &all[i], err);
	else
		r = find_tensor(call, name, &all[i], err);
	for (j = 0; r == 0 && j < i; j++) {
		if (all[j].slot == all[i].slot &&
		    all[j].bundle == all[i].bundle)
			r = error_set(err, -EINVAL, "it is in the batch twice");
	}
	return r < 0 ? error_wrap(err, r, "cannot remove \"%s\"", name) : 0;
}

/* Check that one transaction can hold this number of tensors. */
static int check_size(const struct verb_call *call, const struct target *all,
		      struct error *err)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	uint64_t n = 0;
	uint32_t i;

	for (i = 0; i < call->request->remove.n_names; i++)
		n += all[i].bundle
			     ? catalog_bundle(catalog, all[i].bundle)->members.n
			     : 1;
	if (n <= BUNDLE_MAX_MEMBERS)
		return 0;
	return error_set(err, -E2BIG,
			 "the bundles have %llu tensors, and one request can "
			 "remove %u; remove them one by one",
			 (unsigned long long)n, BUNDLE_MAX_MEMBERS);
}

int verb_remove(struct verb_call *call, struct error *err)
{
	uint32_t n = call->request->remove.n_names;
	struct target *all = verb_scratch(call, n * sizeof(*all));
	uint32_t i;
	int r;

	if (!all)
		return error_nomem(err, "the request");
	for (i = 0; i < n; i++) {
		r = find(call, i, all, err);
		if (r < 0)
			return r;
	}
	r = check_size(call, all, err);
	if (r < 0)
		return r;
	for (i = 0; i < n; i++) {
		if (all[i].bundle) {
			events_note_bundle(&call->broker->store, all[i].bundle,
					   EVENT_REMOVED);
			bundle_retire(&call->broker->store, all[i].bundle);
			continue;
		}
		slot_drop_name(&call->broker->store, all[i].slot,
			       EVENT_REMOVED);
		slot_update_state(&call->broker->store, all[i].slot);
	}
	return VERB_DONE;
}
