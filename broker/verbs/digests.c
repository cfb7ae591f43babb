/* digests: records the digests of tensors before they are published. */
#include "broker/broker.h"
#include "broker/session/session.h"
#include "broker/tensor/slot.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <errno.h>

/* Returns whether the session writes the tensor. The writer of a bundle's
 * member is the loader of the bundle. */
static bool is_writing(const struct verb_call *call, uint32_t slot)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	const struct bundle_record *bundle;

	if (!record->bundle)
		return record->writer == call->session->holdings.index;
	bundle = catalog_bundle(catalog, record->bundle);
	return bundle->state == BUNDLE_STAGED &&
	       bundle->loader == call->session->holdings.index;
}

static int find(const struct verb_call *call, uint32_t i, uint32_t *ret,
		struct error *err)
{
	const struct slot_ref *ref = &call->request->digests.items[i].ref;

	*ret = slot_find(&call->broker->store, ref, err);
	if (!*ret)
		return -ESTALE;
	if (is_writing(call, *ret))
		return 0;
	return error_set(err, -EPERM,
			 "cannot record the digest of tensor %u: this session "
			 "is not writing it; record it before it is published",
			 i);
}

int verb_digests(struct verb_call *call, struct error *err)
{
	const struct digests_request *request = &call->request->digests;
	struct catalog *catalog = &call->broker->store.catalog;
	uint32_t slots[MESSAGE_MAX_ITEMS];
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < request->n_items; i++)
		r = find(call, i, &slots[i], err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < request->n_items; i++)
		catalog_set(catalog, catalog_slot(catalog, slots[i])->digest,
			    request->items[i].digest);
	return VERB_DONE;
}
