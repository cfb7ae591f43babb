/*
 * What monitoring asks for, page by page: histograms, chunks, accounts.
 */
#include "client/client.h"
#include <errno.h>
#include <string.h>

/* --- pages --------------------------------------------------------------- */

/* Show the items of a page, and give the cursor of the next one; 0: there is
 * none. Nonzero ends the walk. */
typedef int show_fn(const struct reply *reply, void *data,
		    uint64_t *ret_cursor);

/* `cursor` is that of the request. */
static int walk(struct fsdp_client *client, struct request *request,
		uint64_t *cursor, show_fn *show, void *data)
{
	struct error *err = error_of_thread();
	struct answer answer;
	int r = client_check(client, err);

	while (r == 0) {
		r = client_call(client, request, &answer, err);
		if (r < 0)
			break;
		r = show(&answer.reply, data, cursor);
		answer_deinit(&answer);
		if (*cursor == 0)
			break;
	}
	return r;
}

/* --- histograms ---------------------------------------------------------- */

struct histogram_walk {
	fsdp_histogram_fn *fn;
	void *data;
	uint64_t limits_ns[HISTOGRAM_BUCKETS];
};

static int show_histogram(const struct histogram_item *item,
			  const uint64_t *counts,
			  const struct histogram_walk *walk)
{
	struct fsdp_histogram shown = {
		.struct_size = sizeof(shown),
		.kind = (enum fsdp_histogram_kind)item->what,
		.name = item->name,
		.sum_ns = item->sum_ns,
		.n_buckets = HISTOGRAM_BUCKETS,
		.counts = counts,
		.limits_ns = walk->limits_ns,
	};

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		shown.n += counts[i];
	return walk->fn(&shown, walk->data);
}

static int show_histograms(const struct reply *reply, void *data,
			   uint64_t *ret_cursor)
{
	const struct histograms_reply *page = &reply->histograms;
	int r = 0;

	for (uint32_t i = 0; i < page->n_items && r == 0; i++)
		r = show_histogram(&page->items[i],
				   page->counts + (size_t)i * HISTOGRAM_BUCKETS,
				   data);
	*ret_cursor = page->next_cursor;
	return r;
}

int fsdp_histograms(struct fsdp_client *client, fsdp_histogram_fn *fn,
		    void *data)
{
	struct request request = {.kind = MESSAGE_HISTOGRAMS};
	struct histogram_walk each = {.fn = fn, .data = data};

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		each.limits_ns[i] = histogram_limit(i);
	return walk(client, &request, &request.histograms.cursor,
		    show_histograms, &each);
}

/* --- chunks -------------------------------------------------------------- */

struct chunk_walk {
	fsdp_chunk_fn *fn;
	void *data;
};

static int show_chunks(const struct reply *reply, void *data,
		       uint64_t *ret_cursor)
{
	const struct memory_reply *page = &reply->memory;
	const struct chunk_walk *walk = data;
	int r = 0;

	for (uint32_t i = 0; i < page->n_items && r == 0; i++) {
		const struct memory_item *item = &page->items[i];
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
		r = walk->fn(&chunk, walk->data);
	}
	*ret_cursor = page->next_cursor;
	return r;
}

int fsdp_chunks(struct fsdp_client *client, fsdp_chunk_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_MEMORY};
	struct chunk_walk each = {fn, data};

	return walk(client, &request, &request.memory.cursor, show_chunks,
		    &each);
}

/* --- accounts ------------------------------------------------------------ */

struct account_walk {
	fsdp_account_fn *fn;
	void *data;
};

static int show_accounts(const struct reply *reply, void *data,
			 uint64_t *ret_cursor)
{
	const struct accounts_reply *page = &reply->accounts;
	const struct account_walk *walk = data;
	int r = 0;

	for (uint32_t i = 0; i < page->n_items && r == 0; i++) {
		const struct account_item *item = &page->items[i];
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

		r = walk->fn(&account, walk->data);
	}
	*ret_cursor = page->next_cursor;
	return r;
}

int fsdp_accounts(struct fsdp_client *client, fsdp_account_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_ACCOUNTS};
	struct account_walk each = {fn, data};

	return walk(client, &request, &request.accounts.cursor, show_accounts,
		    &each);
}
