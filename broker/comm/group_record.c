/*
 * Records of groups in the catalog.
 */
#include "broker/comm/group_record.h"
#include "broker/comm/group.h"
#include "broker/comm/group_spec.h"
#include "broker/comm/run_board.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The size of an encoded group that costs as much as one group. A parameter
 * costs about 500 bytes of heap while ranks use it, and its description takes
 * 13 bytes and its name. */
#define CHARGE_UNIT 256

uint64_t group_record_charge(size_t spec_size)
{
	return 1 + spec_size / CHARGE_UNIT;
}

uint32_t group_record_find(const struct comms *comms, uint32_t comm,
			   const char *name)
{
	const struct catalog *catalog = &comms->store->catalog;
	uint32_t record = catalog_comm(catalog, comm)->first_group;

	while (record && strcmp(group_spec_name(comms, record), name))
		record = catalog_group(catalog, record)->next;
	return record;
}

/* --- making -------------------------------------------------------------- */

/* Make a record with its spec. Returns 0 if the catalog is full. */
static uint32_t alloc_record(struct catalog *catalog, const uint8_t *spec,
			     size_t size)
{
	uint64_t blob = catalog_blob_alloc(catalog, size);
	struct group_record *group;
	uint32_t record;

	if (!blob)
		return 0;
	record = catalog_alloc(catalog, SECTION_GROUP);
	if (!record) {
		catalog_blob_release(catalog, blob, size);
		return 0;
	}
	memcpy(catalog_blob(catalog, blob), spec, size);
	group = catalog_group(catalog, record);
	group->spec_blob = blob;
	group->spec_size = (uint32_t)size;
	return record;
}

static void append(struct catalog *catalog, uint32_t comm, uint32_t record)
{
	struct comm_record *owner = catalog_comm(catalog, comm);
	uint32_t *at = &owner->first_group;

	while (*at)
		at = &catalog_group(catalog, *at)->next;
	catalog_set(catalog, *at, record);
	catalog_set(catalog, owner->n_groups, owner->n_groups + 1);
}

int group_record_make(struct comms *comms, const struct group_spec *spec,
		      const struct group_record_options *options, uint32_t *ret,
		      struct error *err)
{
	struct catalog *catalog = &comms->store->catalog;
	struct group_record *group;
	uint32_t record;
	uint8_t *bytes;
	size_t size;
	int r;

	r = group_spec_encode(spec, &bytes, &size, err);
	if (r < 0)
		return r;
	record = alloc_record(catalog, bytes, size);
	free(bytes);
	if (!record)
		return error_set(err, -ENOSPC,
				 "the catalog has no room for one more group "
				 "(%u fit); remove communicators",
				 catalog_capacity(SECTION_GROUP));
	group = catalog_group(catalog, record);
	group->id = catalog->header->next_comm_id;
	catalog_set(catalog, catalog->header->next_comm_id, group->id + 1);
	group->comm = options->comm;
	group->side = options->side;
	group->plan_hash = options->plan_hash;
	append(catalog, options->comm, record);
	*ret = record;
	return 0;
}

static void set_slot(struct comms *comms, uint32_t record, uint32_t *at,
		     uint32_t slot)
{
	uint32_t old = *at;

	catalog_set(&comms->store->catalog, *at, slot);
	slot_set_group(comms->store, slot, record);
	(void)slot_update_state(comms->store, slot);
	if (!old)
		return;
	slot_set_group(comms->store, old, 0);
	(void)slot_update_state(comms->store, old);
}

void group_record_set_slots(struct comms *comms, uint32_t record, uint32_t side,
			    const uint32_t *slots, uint32_t n)
{
	struct group_record *group =
		catalog_group(&comms->store->catalog, record);

	for (uint32_t i = 0; i < n; i++)
		set_slot(comms, record, &group->slots[side][i], slots[i]);
}

/* --- ends ---------------------------------------------------------------- */

static void unchain(struct catalog *catalog, uint32_t record)
{
	struct group_record *group = catalog_group(catalog, record);
	struct comm_record *owner = catalog_comm(catalog, group->comm);
	uint32_t *at = &owner->first_group;

	while (*at != record) {
		assert(*at);
		at = &catalog_group(catalog, *at)->next;
	}
	catalog_set(catalog, *at, group->next);
	catalog_set(catalog, owner->n_groups, owner->n_groups - 1);
}

void group_record_free(struct comms *comms, uint32_t record)
{
	struct catalog *catalog = &comms->store->catalog;
	struct group_record *group = catalog_group(catalog, record);
	uint32_t uid = catalog_comm(catalog, group->comm)->uid;

	for (uint32_t i = 0; i < 2 * MESSAGE_MAX_RANKS; i++) {
		uint32_t slot = group->slots[i / MESSAGE_MAX_RANKS]
					    [i % MESSAGE_MAX_RANKS];

		if (!slot)
			continue;
		slot_set_group(comms->store, slot, 0);
		(void)slot_update_state(comms->store, slot);
	}
	unchain(catalog, record);
	accounts_refund(&comms->store->base->accounts, uid, ACCOUNT_GROUPS,
			group_record_charge(group->spec_size));
	catalog_blob_release(catalog, group->spec_blob, group->spec_size);
	catalog_release(catalog, SECTION_GROUP, record);
}

void groups_keep_counts(struct comm *comm)
{
	struct catalog *catalog = &comm->comms->store->catalog;
	const struct group *group = comm->first_group;
	struct group_record *record;

	run_board_count(comm);
	for (; group; group = group->next) {
		if (!group->record)
			continue;
		record = catalog_group(catalog, group->record);
		catalog_set(catalog, record->n_gathers,
			    record->n_gathers + group->n_gathers +
				    group->n_gathered);
		catalog_set(catalog, record->n_reductions,
			    record->n_reductions + group->n_reductions);
	}
}

int group_record_adopt(struct comms *comms, uint32_t record, struct error *err)
{
	const struct group_record *group =
		catalog_group(&comms->store->catalog, record);

	return accounts_charge_adopted(
		&comms->store->base->accounts,
		catalog_comm(&comms->store->catalog, group->comm)->uid,
		ACCOUNT_GROUPS, group_record_charge(group->spec_size), err);
}
