/*
 * Unsharing: the search for remaining uses, and waking the request when there
 * are none.
 */
#include "broker/tensor/unshare.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/limbo.h"
#include "broker/tensor/name.h"
#include "broker/tensor/ready_fence.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/name.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

enum obstacle_kind {
	NOTHING,
	READY_FENCE, /* a device still writes the memory */
	FENCE,       /* a device of a session still reads it */
	TICKET,
	HOLD, /* a session holds it */
};

/* The most important remaining use, which is that of the highest kind. */
struct obstacle {
	enum obstacle_kind kind;
	uint32_t session; /* record */
	uint32_t n;       /* uses of that kind */
	bool is_view;     /* it is a use of a view */
};

void unshare_key(uint32_t slot, char ret[UNSHARE_KEY_SIZE])
{
	/* This cannot be a name, since no name begins with a slash. */
	snprintf(ret, UNSHARE_KEY_SIZE, "//unshare/%" PRIu32, slot);
}

static uint32_t sharer_of(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t block = catalog_slot(catalog, slot)->block;

	return catalog_chunk(catalog, catalog_block(catalog, block)->chunk)
		->sharer;
}

static void note(struct obstacle *obstacle, enum obstacle_kind kind,
		 uint32_t session, uint32_t n)
{
	if (kind < obstacle->kind)
		return;
	if (kind > obstacle->kind) {
		obstacle->kind = kind;
		obstacle->session = session;
		obstacle->n = 0;
	}
	obstacle->n += n;
}

/* Notes the uses of one slot, without one hold of the session `keeper`; with
 * `keeper` 0 it notes all. */
static void look_at(const struct store *store, uint32_t slot, uint32_t keeper,
		    struct obstacle *obstacle)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	const struct grant_record *grant;

	if (record->ready_fence && ready_fence_is_pending(store, slot))
		note(obstacle, READY_FENCE, 0, 1);
	for (uint32_t i = record->grants.first; i; i = grant->slot_link.next) {
		grant = catalog_grant(catalog, i);
		if (grant_holds(store, i) > (grant->session == keeper))
			note(obstacle, HOLD, grant->session, 1);
		else if (grant_is_fenced(store, i))
			note(obstacle, FENCE, grant->session, 1);
	}
	if (record->n_tickets)
		note(obstacle, TICKET, 0, record->n_tickets);
}

static struct obstacle find_obstacle(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t block = catalog_slot(catalog, slot)->block;
	const struct list *slots = &catalog_block(catalog, block)->slots;
	struct obstacle obstacle = {0}, views = {.is_view = true};
	uint32_t i;

	look_at(store, slot, sharer_of(store, slot), &obstacle);
	/* A view keeps the memory as long as it exists, whatever keeps
	 * the view. */
	for (i = slots->first; i && obstacle.kind != HOLD && slots->n > 1;
	     i = catalog_slot(catalog, i)->block_link.next) {
		if (i != slot)
			look_at(store, i, 0, &views);
	}
	return views.kind > obstacle.kind ? views : obstacle;
}

void unshare_begin(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	slot_drop_name(store, slot, EVENT_REMOVED);
	slot_end_writer(store, slot);
	catalog_set(catalog, record->flags,
		    (uint16_t)(record->flags | SLOT_FLAG_WANTED));
	failpoint("unshare.begun");
}

bool unshare_is_ready(struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t block = catalog_slot(catalog, slot)->block;
	struct obstacle obstacle;

	/* The end of the last view looks again. The end of each of many views
	 * must not visit all others. */
	if (catalog_block(catalog, block)->slots.n > 1)
		return false;
	obstacle = find_obstacle(store, slot);
	/* A device cannot ring when it is done. */
	if (obstacle.kind == READY_FENCE || obstacle.kind == FENCE)
		limbo_watch(store, slot);
	return obstacle.kind == NOTHING;
}

static int explain_session(const struct store *store,
			   const struct obstacle *obstacle, struct error *err)
{
	const struct session_record *session =
		catalog_session(&store->catalog, obstacle->session);
	const char *what = obstacle->is_view ? "a view of it" : "it";
	char others[48] = "";

	if (obstacle->n > 1)
		snprintf(others, sizeof(others), ", and %" PRIu32 " more do",
			 obstacle->n - 1);
	if (obstacle->kind == FENCE)
		return error_set(err, -ETIMEDOUT,
				 "process %" PRIu32
				 " (%s) has released %s, but its device is "
				 "still using it%s",
				 session->pid, session->command, what, others);
	return error_set(err, -ETIMEDOUT,
			 "process %" PRIu32 " (%s) still holds %s%s",
			 session->pid, session->command, what, others);
}

/* The view has no holders, so its name keeps it. */
static int explain_view(const struct store *store, uint32_t slot,
			struct error *err)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t block = catalog_slot(catalog, slot)->block;
	uint32_t i = catalog_block(catalog, block)->slots.first;
	char name[NAME_MAX_SIZE + 1] = "";

	for (; i && !*name; i = catalog_slot(catalog, i)->block_link.next) {
		if (i != slot)
			slot_describe(store, i, NULL, name);
	}
	return error_set(err, -ETIMEDOUT,
			 "a view of it is still published as \"%s\"", name);
}

int unshare_explain(const struct store *store, uint32_t slot, struct error *err)
{
	struct obstacle obstacle = find_obstacle(store, slot);
	const char *what = obstacle.is_view ? "a view of it" : "it";

	switch (obstacle.kind) {
	case READY_FENCE:
		return error_set(err, -ETIMEDOUT,
				 "the device has not finished writing %s",
				 what);
	case TICKET:
		return error_set(err, -ETIMEDOUT,
				 "%s is kept by %" PRIu32 " valid ticket%s: "
				 "redeem or revoke all its tickets, or wait "
				 "until they expire",
				 what, obstacle.n, obstacle.n > 1 ? "s" : "");
	case FENCE:
	case HOLD:
		return explain_session(store, &obstacle, err);
	default:
		return explain_view(store, slot, err);
	}
}

static void wake(struct store *store, uint32_t slot)
{
	char key[UNSHARE_KEY_SIZE];

	unshare_key(slot, key);
	wake_name(&store->base->wake, key);
}

void unshare_look(struct store *store, uint32_t slot)
{
	const struct slot_record *record = catalog_slot(&store->catalog, slot);

	if (record->flags & SLOT_FLAG_WANTED && unshare_is_ready(store, slot))
		wake(store, slot);
}

void unshare_end(struct store *store, uint32_t slot)
{
	if (catalog_slot(&store->catalog, slot)->flags & SLOT_FLAG_WANTED)
		wake(store, slot);
}
