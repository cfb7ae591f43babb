/*
 * Records of communicators in the catalog, from the first join to their
 * deadline.
 */
#include "broker/comm/comm_record.h"
#include "broker/comm/group.h"
#include "broker/session/session.h"
#include "broker/tensor/prefix.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/name.h"
#include <assert.h>
#include <errno.h>
#include <string.h>

/* --- lookup -------------------------------------------------------------- */

uint32_t comm_record_find(const struct comms *comms, const char *name)
{
	const struct catalog *catalog = &comms->store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_COMM);
	const struct comm_record *record;
	size_t size = strlen(name);

	for (uint32_t i = 1; i <= n; i++) {
		record = catalog_comm(catalog, i);
		if (record->id && record->name_size == size &&
		    !memcmp(catalog_blob(catalog, record->name_blob), name,
			    size))
			return i;
	}
	return 0;
}

void comm_record_name(const struct comms *comms, uint32_t record, char *ret)
{
	const struct comm_record *comm =
		catalog_comm(&comms->store->catalog, record);

	memcpy(ret, catalog_blob(&comms->store->catalog, comm->name_blob),
	       comm->name_size);
	ret[comm->name_size] = '\0';
}

/* --- deadlines ----------------------------------------------------------- */

static void on_deadline(void *data, uint32_t record)
{
	struct comms *comms = data;

	comm_record_free(comms, record);
	catalog_commit(&comms->store->catalog);
}

static int add_deadline(struct comms *comms, uint32_t record, struct error *err)
{
	struct comm_record *comm = catalog_comm(&comms->store->catalog, record);
	struct deadline deadline = {
		.at_ms = comm->deadline_ms ? comm->deadline_ms : UINT64_MAX,
		.fn = on_deadline,
		.data = comms,
		.index = record,
		.position = &comm->heap_position,
	};

	return deadlines_add(&comms->store->base->deadlines, &deadline, err);
}

/* Set the deadline of a record; 0 means that the record is in use. */
static void set_deadline(struct comms *comms, uint32_t record, uint64_t at_ms)
{
	struct comm_record *comm = catalog_comm(&comms->store->catalog, record);
	int r;

	catalog_set(&comms->store->catalog, comm->deadline_ms, at_ms);
	deadlines_remove(&comms->store->base->deadlines, &comm->heap_position);
	r = add_deadline(comms, record, NULL);
	assert(r == 0); /* the old entry left space */
	(void)r;
}

/* --- making -------------------------------------------------------------- */

/* Check that the user may make memory under the name: the owner of its first
 * component decides. */
static int check_owner(const struct comms *comms, const char *name,
		       uint32_t uid, struct error *err)
{
	uint32_t owner;

	if (!prefix_owner(comms->store, name, &owner) || owner == uid ||
	    uid == 0)
		return 0;
	return error_set(err, -EPERM,
			 "names that begin with \"%.*s\" belong to uid %u, not "
			 "to uid %u; use another first component",
			 (int)name_prefix_size(name), name, owner, uid);
}

/* Make a record with its name. Returns 0 if the catalog is full. */
static uint32_t alloc_record(struct catalog *catalog, const char *name)
{
	size_t size = strlen(name);
	uint64_t blob = catalog_blob_alloc(catalog, size);
	struct comm_record *comm;
	uint32_t record;

	if (!blob)
		return 0;
	record = catalog_alloc(catalog, SECTION_COMM);
	if (!record) {
		catalog_blob_release(catalog, blob, size);
		return 0;
	}
	memcpy(catalog_blob(catalog, blob), name, size);
	comm = catalog_comm(catalog, record);
	comm->name_blob = blob;
	comm->name_size = (uint32_t)size;
	return record;
}

static int make(struct comms *comms, uint32_t uid, const char *name,
		uint32_t *ret, struct error *err)
{
	struct catalog *catalog = &comms->store->catalog;
	struct account *account =
		accounts_get(&comms->store->base->accounts, uid);
	uint32_t record;
	int r;

	if (!account)
		return error_nomem(err, "uid %u", uid);
	r = account_charge(&comms->store->base->accounts, account,
			   ACCOUNT_GROUPS, COMM_RECORD_CHARGE, err);
	if (r < 0)
		return error_wrap(err, r, "cannot make communicator '%s'",
				  name);
	record = alloc_record(catalog, name);
	if (!record) {
		r = error_set(err, -ENOSPC,
			      "the catalog has no room for one more "
			      "communicator (%u fit); remove some",
			      catalog_capacity(SECTION_COMM));
		goto refund;
	}
	r = add_deadline(comms, record, err);
	if (r < 0)
		goto release;
	*ret = record;
	return 0;

release:
	catalog_blob_release(catalog, catalog_comm(catalog, record)->name_blob,
			     strlen(name));
	catalog_release(catalog, SECTION_COMM, record);
refund:
	account_refund(account, ACCOUNT_GROUPS, COMM_RECORD_CHARGE);
	return r;
}

int comm_record_make(struct comms *comms, const struct session *session,
		     const struct comm_join_request *request, uint32_t *ret,
		     struct error *err)
{
	struct catalog *catalog = &comms->store->catalog;
	uint32_t uid = session_record(session)->uid;
	struct access_class access;
	struct comm_record *comm;
	uint32_t record = 0;
	int r;

	r = check_owner(comms, request->name, uid, err);
	if (r == 0)
		r = access_resolve(&session->holdings.credentials,
				   &request->access, &access, err);
	if (r == 0)
		r = make(comms, uid, request->name, &record, err);
	if (r < 0)
		return r;
	comm = catalog_comm(catalog, record);
	comm->id = catalog->header->next_comm_id;
	catalog_set(catalog, catalog->header->next_comm_id, comm->id + 1);
	comm->uid = uid;
	comm->access = access;
	comm->n_ranks = request->n_ranks;
	comm->n_shards = request->n_shards;
	comm->n_local = request->n_local;
	comm->ttl_ms = request->ttl_ms;
	*ret = record;
	return 0;
}

/* --- using --------------------------------------------------------------- */

int comm_record_check_access(const struct comms *comms,
			     const struct session *session, uint32_t record,
			     const struct comm_join_request *request,
			     struct error *err)
{
	const struct access_class *class =
		&catalog_comm(&comms->store->catalog, record)->access;
	const struct access_class *asked = &request->access;
	uint32_t mode = asked->mode ? asked->mode : 0600;

	if (!access_is_allowed(&session->holdings.credentials, class,
			       ACCESS_WRITE))
		return error_set(
			err, -EACCES,
			"communicator '%s' belongs to uid %u (gid %u, mode "
			"%04o), and uid %u may not write its memory",
			request->name, class->uid, class->gid, class->mode,
			session_record(session)->uid);
	if (mode == class->mode &&
	    (asked->gid == GID_DEFAULT || asked->gid == class->gid))
		return 0;
	return error_set(err, -EINVAL,
			 "communicator '%s' has the group %u and mode %04o; "
			 "join with these, or remove it first (fsdpctl end)",
			 request->name, class->gid, class->mode);
}

static int check_places(const struct comm_record *comm,
			const struct comm_join_request *request,
			struct error *err)
{
	bool is_host = device_uuid_is_host(&comm->places[0].device);

	if (is_host != device_uuid_is_host(&request->device))
		return error_set(
			err, -EINVAL,
			"communicator '%s' has groups on %s; join with this "
			"memory, or remove it first (fsdpctl end)",
			request->name, is_host ? "host memory" : "devices");
	if (comm->n_local == request->n_local)
		return 0;
	return error_set(
		err, -EINVAL,
		"communicator '%s' has groups of %u ranks on this node, not of "
		"%u; join with this number, or remove it first (fsdpctl end)",
		request->name, comm->n_local, request->n_local);
}

int comm_record_check_mesh(const struct comms *comms, uint32_t record,
			   const struct comm_join_request *request,
			   struct error *err)
{
	const struct comm_record *comm =
		catalog_comm(&comms->store->catalog, record);

	if (comm->n_ranks != request->n_ranks ||
	    comm->n_shards != request->n_shards)
		return error_set(
			err, -EINVAL,
			"communicator '%s' has groups of %u ranks in shards of "
			"%u, not of %u in shards of %u; join with these "
			"numbers, or remove it first (fsdpctl end)",
			request->name, comm->n_ranks, comm->n_shards,
			request->n_ranks, request->n_shards);
	return comm->first_group ? check_places(comm, request, err) : 0;
}

void comm_record_use(struct comms *comms, uint32_t record,
		     const struct comm_join_request *request)
{
	struct catalog *catalog = &comms->store->catalog;
	struct comm_record *comm = catalog_comm(catalog, record);

	catalog_set(catalog, comm->ttl_ms, request->ttl_ms);
	set_deadline(comms, record, 0);
}

void comm_record_keep(struct comms *comms, uint32_t record)
{
	const struct comm_record *comm =
		catalog_comm(&comms->store->catalog, record);

	if (comm->first_group)
		set_deadline(comms, record, now_ms() + comm->ttl_ms);
	else
		comm_record_free(comms, record);
}

void comm_record_free(struct comms *comms, uint32_t record)
{
	struct catalog *catalog = &comms->store->catalog;
	struct comm_record *comm = catalog_comm(catalog, record);

	while (comm->first_group)
		group_record_free(comms, comm->first_group);
	deadlines_remove(&comms->store->base->deadlines, &comm->heap_position);
	accounts_refund(&comms->store->base->accounts, comm->uid,
			ACCOUNT_GROUPS, COMM_RECORD_CHARGE);
	catalog_blob_release(catalog, comm->name_blob, comm->name_size);
	catalog_release(catalog, SECTION_COMM, record);
}

/* --- after a restart ----------------------------------------------------- */

static int adopt_groups(struct comms *comms, struct error *err)
{
	const struct catalog *catalog = &comms->store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_GROUP);
	int r;

	for (uint32_t i = 1; i <= n; i++) {
		if (!catalog_group(catalog, i)->id)
			continue;
		r = group_record_adopt(comms, i, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int adopt(struct comms *comms, uint32_t record, struct error *err)
{
	struct comm_record *comm = catalog_comm(&comms->store->catalog, record);
	int r;

	comm->heap_position = 0;
	r = accounts_charge_adopted(&comms->store->base->accounts, comm->uid,
				    ACCOUNT_GROUPS, COMM_RECORD_CHARGE, err);
	if (r < 0)
		return r;
	return add_deadline(comms, record, err);
}

int comm_records_adopt(struct comms *comms, struct error *err)
{
	struct catalog *catalog = &comms->store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_COMM);
	int r;

	r = adopt_groups(comms, err);
	for (uint32_t i = 1; r == 0 && i <= n; i++) {
		if (catalog_comm(catalog, i)->id)
			r = adopt(comms, i, err);
	}
	return r;
}
