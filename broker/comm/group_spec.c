/*
 * Conversion of registrations from requests, to and from the catalog, and for
 * plan.h.
 *
 * A request is copied by encoding and decoding it, since both functions exist
 * and the catalog stores the encoded form anyway.
 */
#include "broker/comm/group_spec.h"
#include "broker/comm/comm.h"
#include "broker/tensor/store.h"
#include "collective/plan_request.h"
#include "proto/error.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BLOB 65536
/* The id of any valid communicator, since a spec does not depend on a run. */
#define SOME_COMM 1

int group_spec_borrow(const struct group_request *request,
		      struct group_spec *ret, struct error *err)
{
	struct group_spec spec = {
		.request = {.kind = MESSAGE_GROUP, .group = *request},
	};
	int r;

	r = plan_read_request(request, &spec.params, &spec.policy, err);
	if (r < 0)
		return r;
	*ret = spec;
	return 0;
}

/* Decode an encoded request. */
static int take(const uint8_t *body, size_t size, struct group_spec *ret,
		struct error *err)
{
	struct request request;
	struct group_spec spec;
	int r;

	r = request_decode(MESSAGE_GROUP, body, size, &request, err);
	if (r < 0)
		return r;
	r = group_spec_borrow(&request.group, &spec, err);
	if (r < 0) {
		request_deinit(&request);
		return r;
	}
	spec.request = request;
	*ret = spec;
	return 0;
}

static int encode(const struct group_request *request, uint8_t **ret_body,
		  size_t *ret_size, struct error *err)
{
	struct request copy = {.kind = MESSAGE_GROUP, .group = *request};

	copy.group.comm = SOME_COMM;
	return request_encode(&copy, ret_body, ret_size, err);
}

int group_spec_copy(const struct group_request *request, struct group_spec *ret,
		    struct error *err)
{
	uint8_t *body;
	size_t size;
	int r;

	r = encode(request, &body, &size, err);
	if (r < 0)
		return r;
	r = take(body, size, ret, err);
	free(body);
	return r;
}

void group_spec_deinit(struct group_spec *spec)
{
	free(spec->params);
	request_deinit(&spec->request);
	*spec = GROUP_SPEC_NULL;
}

int group_spec_plan(const struct group_spec *spec, struct group_mesh mesh,
		    struct plan *ret, struct error *err)
{
	struct plan_policy policy = spec->policy;

	policy.is_per_rank = mesh.is_per_rank;
	return plan_make(spec->params, spec->request.group.n_params, &policy,
			 mesh.n_shards, mesh.n_replicas, ret, err);
}

int group_spec_compare(const struct group_spec *mine,
		       const struct group_spec *theirs, const char *whose,
		       struct error *err)
{
	return plan_compare(mine->params, mine->request.group.n_params,
			    &mine->policy, theirs->params,
			    theirs->request.group.n_params, &theirs->policy,
			    whose, err);
}

/* --- in the catalog ------------------------------------------------------ */

int group_spec_encode(const struct group_spec *spec, uint8_t **ret_bytes,
		      size_t *ret_size, struct error *err)
{
	const char *name = spec->request.group.name;
	size_t name_size = strlen(name) + 1;
	uint8_t *body, *bytes;
	size_t size;
	int r;

	r = encode(&spec->request.group, &body, &size, err);
	if (r < 0)
		return r;
	if (name_size + size > MAX_BLOB) {
		free(body);
		return error_set(
			err, -E2BIG,
			"the description of group '%s' has %zu bytes, but may "
			"have at most %d; split it into several groups",
			name, name_size + size, MAX_BLOB);
	}
	bytes = malloc(name_size + size);
	if (!bytes) {
		free(body);
		return error_nomem(err, "kept group '%s'", name);
	}
	memcpy(bytes, name, name_size);
	memcpy(bytes + name_size, body, size);
	free(body);
	*ret_bytes = bytes;
	*ret_size = name_size + size;
	return 0;
}

const char *group_spec_name(const struct comms *comms, uint32_t record)
{
	const struct catalog *catalog = &comms->store->catalog;

	return catalog_blob(catalog, catalog_group(catalog, record)->spec_blob);
}

int group_spec_read(const struct comms *comms, uint32_t record,
		    struct group_spec *ret, struct error *err)
{
	const struct group_record *group =
		catalog_group(&comms->store->catalog, record);
	const char *name = group_spec_name(comms, record);
	size_t name_size = strlen(name) + 1;

	return take((const uint8_t *)name + name_size,
		    group->spec_size - name_size, ret, err);
}
