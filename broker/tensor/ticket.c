/*
 * Tickets: records in a hash of their secret bits, each with a deadline.
 */
#include "broker/tensor/ticket.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <sys/random.h>

static uint32_t *bucket(const struct store *store,
			const uint8_t id[TICKET_SIZE])
{
	uint64_t value;

	/* the bits are random already, so no hash is needed */
	memcpy(&value, id, sizeof(value));
	return catalog_bucket(&store->catalog, HASH_TICKET, value);
}

static bool is_equal(const uint8_t a[TICKET_SIZE], const uint8_t b[TICKET_SIZE])
{
	uint8_t difference = 0;
	int i;

	for (i = 0; i < TICKET_SIZE; i++)
		difference |= (uint8_t)(a[i] ^ b[i]);
	return difference == 0;
}

uint32_t ticket_find(const struct store *store, const uint8_t id[TICKET_SIZE])
{
	const struct ticket_record *record;
	uint32_t ticket = *bucket(store, id);

	for (; ticket; ticket = record->hash_next) {
		record = catalog_ticket(&store->catalog, ticket);
		if (is_equal(record->id, id))
			return ticket;
	}
	return 0;
}

uint64_t ticket_shown(const uint8_t id[TICKET_SIZE])
{
	uint64_t shown;

	memcpy(&shown, id, sizeof(shown));
	return be64toh(shown);
}

uint32_t ticket_find_shown(const struct store *store, uint64_t shown)
{
	const struct ticket_record *record;
	uint64_t half = htobe64(shown);
	uint8_t id[TICKET_SIZE] = {0};
	uint32_t ticket;

	memcpy(id, &half, sizeof(half));
	/* the bucket depends only on the public half */
	for (ticket = *bucket(store, id); ticket; ticket = record->hash_next) {
		record = catalog_ticket(&store->catalog, ticket);
		if (ticket_shown(record->id) == shown)
			return ticket;
	}
	return 0;
}

static void on_deadline(void *data, uint32_t ticket)
{
	struct store *store = data;

	ticket_expire(store, ticket);
	catalog_commit(&store->catalog);
}

static int set_deadline(struct store *store, uint32_t ticket, struct error *err)
{
	struct ticket_record *record = catalog_ticket(&store->catalog, ticket);
	struct deadline deadline = {
		.at_ms = record->deadline_ms,
		.fn = on_deadline,
		.data = store,
		.index = ticket,
		.position = &record->heap_position,
	};

	return deadlines_add(&store->base->deadlines, &deadline, err);
}

static int check(uint32_t n_uses, uint64_t ttl_ms, struct error *err)
{
	if (n_uses < 1 || n_uses > TICKET_MAX_USES)
		return error_set(
			err, -EINVAL,
			"a ticket can be good for 1 to %u uses, not %u",
			TICKET_MAX_USES, n_uses);
	if (ttl_ms < 1 || ttl_ms > TICKET_MAX_TTL_MS)
		return error_set(err, -EINVAL,
				 "a ticket can last 1 ms to %llu ms, not %llu",
				 (unsigned long long)TICKET_MAX_TTL_MS,
				 (unsigned long long)ttl_ms);
	return 0;
}

/* Makes the record and its deadline; the record is not in the hash or the slot
 * yet. */
static int make_record(struct store *store, uint64_t ttl_ms,
		       uint32_t *ret_ticket, struct error *err)
{
	struct catalog *catalog = &store->catalog;
	struct ticket_record *record;
	uint32_t ticket = catalog_alloc(catalog, SECTION_TICKET);
	int r;

	if (!ticket)
		return error_set(err, -ENOSPC,
				 "all %u tickets of this node are in use; wait "
				 "for some to be redeemed or to expire",
				 catalog_capacity(SECTION_TICKET));
	record = catalog_ticket(catalog, ticket);
	record->deadline_ms = now_ms() + ttl_ms;
	r = set_deadline(store, ticket, err);
	if (r < 0) {
		catalog_release(catalog, SECTION_TICKET, ticket);
		return r;
	}
	*ret_ticket = ticket;
	return 0;
}

int ticket_make(struct store *store, uint32_t slot, struct ticket_maker maker,
		uint32_t n_uses, uint64_t ttl_ms, uint8_t ret_id[TICKET_SIZE],
		struct error *err)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *kept = catalog_slot(catalog, slot);
	struct account *account =
		accounts_get(&store->base->accounts, maker.uid);
	struct ticket_record *record;
	uint8_t id[TICKET_SIZE];
	uint32_t ticket = 0, *head;
	int r;

	r = check(n_uses, ttl_ms, err);
	if (r < 0)
		return r;
	if (!account)
		return error_nomem(err, "uid %u", maker.uid);
	if (getrandom(id, sizeof(id), 0) != (ssize_t)sizeof(id))
		return error_errno(err, -errno,
				   "cannot get random bytes for a ticket");
	r = account_charge(&store->base->accounts, account, ACCOUNT_TICKETS, 1,
			   err);
	if (r < 0)
		return r;
	r = make_record(store, ttl_ms, &ticket, err);
	if (r < 0) {
		account_refund(account, ACCOUNT_TICKETS, 1);
		return r;
	}
	record = catalog_ticket(catalog, ticket);
	head = bucket(store, id);
	memcpy(record->id, id, sizeof(id));
	record->slot = slot;
	record->uses_left = n_uses;
	record->born_ms = now_ms();
	record->uid = maker.uid;
	record->pid = maker.pid;
	record->hash_next = *head;
	catalog_set(catalog, *head, ticket);
	catalog_set(catalog, kept->n_tickets, kept->n_tickets + 1);
	failpoint("ticket.made");
	memcpy(ret_id, id, sizeof(id));
	return 0;
}

static void forget(struct store *store, uint32_t ticket)
{
	struct catalog *catalog = &store->catalog;
	struct ticket_record *record = catalog_ticket(catalog, ticket);
	struct slot_record *kept = catalog_slot(catalog, record->slot);

	deadlines_remove(&store->base->deadlines, &record->heap_position);
	catalog_chain_remove(catalog, SECTION_TICKET, bucket(store, record->id),
			     ticket);
	catalog_set(catalog, kept->n_tickets, kept->n_tickets - 1);
	accounts_refund(&store->base->accounts, record->uid, ACCOUNT_TICKETS,
			1);
	catalog_release(catalog, SECTION_TICKET, ticket);
	wake_room(&store->base->wake);
}

void ticket_use(struct store *store, uint32_t ticket)
{
	struct catalog *catalog = &store->catalog;
	struct ticket_record *record = catalog_ticket(catalog, ticket);

	if (record->uses_left > 1)
		catalog_set(catalog, record->uses_left, record->uses_left - 1);
	else
		forget(store, ticket);
	failpoint("ticket.used");
}

void ticket_expire(struct store *store, uint32_t ticket)
{
	uint32_t slot = catalog_ticket(&store->catalog, ticket)->slot;

	forget(store, ticket);
	failpoint("ticket.expired");
	(void)slot_update_state(store, slot);
}

void ticket_end_slot(struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_TICKET);

	for (uint32_t i = 1;
	     i <= n && catalog_slot(catalog, slot)->n_tickets > 0; i++) {
		if (catalog_ticket(catalog, i)->slot == slot)
			forget(store, i);
	}
}

int ticket_adopt_all(struct store *store, struct error *err)
{
	struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_TICKET);
	struct ticket_record *record;
	uint32_t i;
	int r;

	for (i = 1; i <= n; i++) {
		record = catalog_ticket(catalog, i);
		if (!record->slot)
			continue;
		r = accounts_charge_adopted(&store->base->accounts, record->uid,
					    ACCOUNT_TICKETS, 1, err);
		if (r < 0)
			return r;
		record->heap_position = 0;
		r = set_deadline(store, i, err);
		if (r < 0)
			return r;
	}
	return 0;
}
