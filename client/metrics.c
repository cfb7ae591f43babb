/*
 * Requests for monitoring: histograms, chunks, accounts.
 */
#include "client/client.h"
#include "client/pages.h"
#include <string.h>

/* --- histograms ---------------------------------------------------------- */

static int show_histogram(const struct histogram_item *item,
			  const uint64_t *counts, const uint64_t *limits_ns,
			  fsdp_histogram_fn *fn, void *data)
{
	struct fsdp_histogram shown = {
		.struct_size = sizeof(shown),
		.kind = (enum fsdp_histogram_kind)item->what,
		.name = item->name,
		.sum_ns = item->sum_ns,
		.n_buckets = HISTOGRAM_BUCKETS,
		.counts = counts,
		.limits_ns = limits_ns,
	};

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		shown.n += counts[i];
	return fn(&shown, data);
}

int fsdp_histograms(struct fsdp_client *client, fsdp_histogram_fn *fn,
		    void *data)
{
	struct request request = {.kind = MESSAGE_HISTOGRAMS};
	struct pages pages = PAGES(client, &request, histograms);
	const struct histograms_reply *page = &pages.received.reply.histograms;
	uint64_t limits_ns[HISTOGRAM_BUCKETS];

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		limits_ns[i] = histogram_limit(i);
	pages_for_each (&pages, page, item)
		pages.r = show_histogram(
			item,
			page->counts + (item - page->items) * HISTOGRAM_BUCKETS,
			limits_ns, fn, data);
	return pages.r;
}

/* --- chunks -------------------------------------------------------------- */

static int show_chunk(const struct memory_item *item, fsdp_chunk_fn *fn,
		      void *data)
{
	struct fsdp_chunk chunk = {
		.struct_size = sizeof(chunk),
		.chunk = item->chunk,
		.size = item->size,
		.used = item->used,
		.reserved = item->reserved,
		.n_blocks = item->n_blocks,
		.uid = item->access.uid,
		.gid = item->access.gid,
		.mode = item->access.mode,
		.shared = (enum fsdp_shared)item->shared,
		.bundle = item->bundle,
		.is_sealed = item->is_sealed,
	};

	memcpy(chunk.device.uuid, item->device.bytes,
	       sizeof(chunk.device.uuid));

	return fn(&chunk, data);
}

int fsdp_chunks(struct fsdp_client *client, fsdp_chunk_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_MEMORY};
	struct pages pages = PAGES(client, &request, memory);
	const struct memory_reply *page = &pages.received.reply.memory;

	pages_for_each (&pages, page, item)
		pages.r = show_chunk(item, fn, data);
	return pages.r;
}

/* --- accounts ------------------------------------------------------------ */

static int show_account(const struct account_item *item, fsdp_account_fn *fn,
			void *data)
{
	struct fsdp_account account = {
		.struct_size = sizeof(account),
		.uid = item->uid,
		.n_bytes = item->n_bytes,
		.max_bytes = item->max_bytes,
		.n_device_bytes = item->n_device_bytes,
		.max_device_bytes = item->max_device_bytes,
		.n_slots = item->n_slots,
		.max_slots = item->max_slots,
		.n_sessions = item->n_sessions,
		.max_sessions = item->max_sessions,
		.n_waiting = item->n_waiting,
	};

	return fn(&account, data);
}

int fsdp_accounts(struct fsdp_client *client, fsdp_account_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_ACCOUNTS};
	struct pages pages = PAGES(client, &request, accounts);
	const struct accounts_reply *page = &pages.received.reply.accounts;

	pages_for_each (&pages, page, item)
		pages.r = show_account(item, fn, data);
	return pages.r;
}
