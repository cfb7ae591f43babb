/*
 * Requests of monitoring: histograms of durations, chunks, and accounts. They
 * return pages of a limited size at a limited cost.
 */
#include "broker/broker.h"
#include "broker/session/session.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <string.h>

/* --- histograms ---------------------------------------------------------- */

/* The number of histograms: of iterations, and by kind of request with and
 * without parking, in the order of the cursor. */
#define N_KINDS      (MESSAGE_MAX + 1)
#define N_HISTOGRAMS (1 + 2 * N_KINDS)

static const struct histogram *find_histogram(const struct meter *meter,
					      uint64_t i,
					      struct histogram_item *ret)
{
	uint16_t kind = (uint16_t)((i - 1) % N_KINDS);
	bool is_parked = i > N_KINDS;

	if (i == 0) {
		*ret = (struct histogram_item){.what = HISTOGRAM_ITERATION,
					       .name = ""};
		return &meter->iterations;
	}
	ret->what = is_parked ? HISTOGRAM_PARKED : HISTOGRAM_REQUEST;
	ret->name = kind ? message_kind_name(kind) : "other";
	return is_parked ? &meter->parked[kind] : &meter->requests[kind];
}

int verb_histograms(struct verb_call *call, struct error *err)
{
	const struct meter *meter = &call->broker->base.loop.meter;
	struct histograms_reply *reply = &call->reply->histograms;
	uint64_t i = call->request->histograms.cursor;
	const struct histogram *histogram;
	struct histogram_item item;

	reply->items = verb_scratch(call, MESSAGE_MAX_HISTOGRAMS *
						  sizeof(*reply->items));
	reply->counts = verb_scratch(call, MESSAGE_MAX_HISTOGRAMS *
						   sizeof(histogram->counts));
	if (!reply->items || !reply->counts)
		return error_nomem(err, "histograms");
	for (; i < N_HISTOGRAMS; i++) {
		histogram = find_histogram(meter, i, &item);
		if (histogram_n(histogram) == 0)
			continue;
		if (reply->n_items == MESSAGE_MAX_HISTOGRAMS) {
			reply->next_cursor = i;
			break;
		}
		item.sum_ns = histogram->sum_ns;
		reply->items[reply->n_items++] = item;
		memcpy(&reply->counts[reply->n_counts], histogram->counts,
		       sizeof(histogram->counts));
		reply->n_counts += HISTOGRAM_BUCKETS;
	}
	return VERB_DONE;
}

/* --- memory -------------------------------------------------------------- */

static bool may_see_chunk(const struct verb_call *call,
			  const struct chunk_record *chunk)
{
	return session_is_admin(call->session) ||
	       access_is_allowed(&call->session->holdings.credentials,
				 &chunk->access, ACCESS_READ);
}

static void fill_memory(const struct broker *broker, uint32_t index,
			struct memory_item *ret)
{
	const struct catalog *catalog = &broker->store.catalog;
	const struct chunk_record *chunk = catalog_chunk(catalog, index);

	*ret = (struct memory_item){
		.chunk = chunk->id,
		.size = chunk->size,
		.used = pool_chunk_used(&broker->store.pools, index),
		.reserved = broker->store.pools.chunks[index].tail_size,
		.access = chunk->access,
		.device = chunk->device,
		.shared = chunk->shared,
		.n_blocks = chunk->n_blocks,
		.is_sealed = chunk->is_sealed,
	};
	if (chunk->bundle)
		ret->bundle = catalog_bundle(catalog, chunk->bundle)->id;
}

int verb_memory(struct verb_call *call, struct error *err)
{
	const struct broker *broker = call->broker;
	uint32_t n = catalog_n_touched(&broker->store.catalog, SECTION_CHUNK);
	struct memory_reply *reply = &call->reply->memory;
	uint64_t i = call->request->memory.cursor;

	reply->items =
		verb_scratch(call, MESSAGE_MAX_ITEMS * sizeof(*reply->items));
	if (!reply->items)
		return error_nomem(err, "chunks");
	for (i = i ? i : 1; i <= n; i++) {
		if (!broker->store.pools.chunks[i].pool ||
		    !may_see_chunk(call, catalog_chunk(&broker->store.catalog,
						       (uint32_t)i)))
			continue;
		if (reply->n_items == MESSAGE_MAX_ITEMS) {
			reply->next_cursor = i;
			break;
		}
		fill_memory(broker, (uint32_t)i,
			    &reply->items[reply->n_items++]);
	}
	return VERB_DONE;
}

/* --- accounts ------------------------------------------------------------ */

static void fill_account(const struct accounts *accounts,
			 const struct account *account,
			 struct account_item *ret)
{
	*ret = (struct account_item){
		.uid = account->uid,
		.n_bytes = account->used[ACCOUNT_BYTES],
		.max_bytes = account_limit(accounts, account, ACCOUNT_BYTES),
		.n_device_bytes = account->used[ACCOUNT_DEVICE_BYTES],
		.max_device_bytes =
			account_limit(accounts, account, ACCOUNT_DEVICE_BYTES),
		.n_slots = account->used[ACCOUNT_SLOTS],
		.max_slots = account_limit(accounts, account, ACCOUNT_SLOTS),
		.n_sessions = account->used[ACCOUNT_SESSIONS],
		.max_sessions =
			account_limit(accounts, account, ACCOUNT_SESSIONS),
		.n_waiting = account->used[ACCOUNT_WAITING],
	};
}

/* Returns whether something is charged to the account, which is never freed. */
static bool is_in_use(const struct account *account)
{
	for (int kind = 0; kind < ACCOUNT_N; kind++) {
		if (account->used[kind] > 0)
			return true;
	}
	return false;
}

/* List the accounts. New accounts come to the front of the list, so one that is
 * made between two pages may cause another account to be listed twice. */
int verb_accounts(struct verb_call *call, struct error *err)
{
	const struct accounts *accounts = &call->broker->base.accounts;
	struct accounts_reply *reply = &call->reply->accounts;
	uint32_t uid = session_record(call->session)->uid;
	bool is_admin = session_is_admin(call->session);
	uint64_t position = 0;

	reply->items =
		verb_scratch(call, MESSAGE_MAX_ITEMS * sizeof(*reply->items));
	if (!reply->items)
		return error_nomem(err, "accounts");
	for (size_t i = 0; i < ACCOUNT_BUCKETS; i++) {
		const struct account *account = accounts->buckets[i];

		for (; account; account = account->next) {
			if (position++ < call->request->accounts.cursor ||
			    !is_in_use(account) ||
			    (!is_admin && account->uid != uid))
				continue;
			if (reply->n_items == MESSAGE_MAX_ITEMS) {
				reply->next_cursor = position - 1;
				return VERB_DONE;
			}
			fill_account(accounts, account,
				     &reply->items[reply->n_items++]);
		}
	}
	return VERB_DONE;
}
