/*
 * Shares device memory that the caller allocated itself.
 *
 * The driver's attributes of a pointer give the allocation and its kind; the
 * broker gets a handle of it (legacy IPC) or a descriptor (VMM). In this
 * process the memory stays where it is: the chunk that the broker makes of it
 * is recorded as our own, so that its tensors have the caller's addresses.
 */
#include "client/client.h"
#include "client/places.h"
#include "client/spec.h"
#include "cuda/pointer.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An allocation that is being shared, by one of the two exports. */
struct allocation {
	struct pointer pointer;
	struct ipc_export *export;   /* legacy IPC; NULL: VMM */
	struct vmm_export *donation; /* VMM; NULL: legacy IPC */
};

static void allocation_close(struct allocation *allocation)
{
	ipc_unexport(allocation->export);
	vmm_unexport(allocation->donation);
}

/* --- items --------------------------------------------------------------- */

static bool is_empty(const struct share_item *item)
{
	return tensor_type_numel(&item->type) == 0;
}

static uint64_t size_of(const struct share_item *item)
{
	return tensor_type_numel(&item->type) * dtype_size(item->type.dtype);
}

/* Find the first item with elements; `n`: no item has any. */
static size_t find_full(const struct share_item *items, size_t n)
{
	size_t i = 0;

	while (i < n && is_empty(&items[i]))
		i++;
	return i;
}

static int take_types(const struct fsdp_spec *specs, size_t n,
		      struct share_item *ret, struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		r = spec_to_type(&specs[i], NULL, &ret[i].type, err);
		if (r < 0)
			spec_wrap(err, r, "specs", i);
	}
	return r;
}

/* Find the offset of a pointer in the allocation. */
static int take_offset(const struct pointer *pointer, size_t i, const void *at,
		       struct share_item *item, struct error *err)
{
	uint64_t offset = (uintptr_t)at - pointer->base;
	uint64_t size = size_of(item);

	if (offset >= pointer->size)
		return error_set(
			err, -EINVAL,
			"pointers[%zu] (%p) is not in the allocation of "
			"pointers[0], which has %llu bytes at 0x%llx; share "
			"the pointers of each allocation by a separate call",
			i, at, (unsigned long long)pointer->size,
			pointer->base);
	if (size > pointer->size - offset)
		return error_set(
			err, -EINVAL,
			"pointers[%zu] (%llu bytes at %p) extends beyond its "
			"allocation, which has %llu bytes at 0x%llx; a shared "
			"tensor must lie in one allocation",
			i, (unsigned long long)size, at,
			(unsigned long long)pointer->size, pointer->base);
	if (offset % dtype_size(item->type.dtype))
		return error_set(
			err, -EINVAL,
			"pointers[%zu] (%p) is not aligned to the size of "
			"its elements",
			i, at);
	item->offset = offset;
	return 0;
}

static int take_offsets(const struct pointer *pointer, void *const *pointers,
			size_t n, struct share_item *items, struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		if (!is_empty(&items[i]))
			r = take_offset(pointer, i, pointers[i], &items[i],
					err);
	return r;
}

/* --- the allocation ------------------------------------------------------ */

/* Refuse memory that the broker or another process allocated, since it already
 * belongs to tensors. */
static int check_received(struct fsdp_client *client, const void *at,
			  struct error *err)
{
	struct range range = {0};
	uint64_t chunk, offset;

	if (mappings_find_address(&client->mappings, at, &range)) {
		if (range.is_own)
			return 0;
		chunk = range.chunk;
	} else if (!ipc_find((uintptr_t)at, 1, &chunk, &offset)) {
		return 0;
	}
	return error_set(err, -EINVAL,
			 "%p is memory that this process got from fsdpd (chunk "
			 "%llu) and cannot share; pass on the tensor by its "
			 "name, fsdp_ticket_make() or fsdp_view()",
			 at, (unsigned long long)chunk);
}

static int open_allocation(struct allocation *allocation, struct error *err)
{
	const struct pointer *pointer = &allocation->pointer;

	return pointer->is_legacy
		       ? ipc_export(pointer, &allocation->export, err)
		       : vmm_export(pointer->base, &allocation->donation, err);
}

/* Find and export the allocation of all items. Its device is that of the first
 * item with elements. */
static int find_allocation(struct fsdp_client *client, void *const *pointers,
			   struct share_item *items, size_t n,
			   struct allocation *ret, struct error *err)
{
	const void *first = pointers[find_full(items, n)];
	int r = check_received(client, first, err);

	if (r == 0)
		r = pointer_find((uintptr_t)first, &ret->pointer, err);
	if (r == 0)
		r = take_offsets(&ret->pointer, pointers, n, items, err);
	return r == 0 ? open_allocation(ret, err) : r;
}

/* --- the request --------------------------------------------------------- */

static int ask(struct fsdp_client *client, const struct allocation *allocation,
	       struct share_item *items, size_t n,
	       const struct fsdp_access *access, struct received *ret,
	       struct error *err)
{
	struct request request = {
		.kind = MESSAGE_SHARE,
		.share = {.device = allocation->pointer.device->uuid,
			  .access = spec_access(access),
			  .size = allocation->pointer.size,
			  .n_items = (uint32_t)n,
			  .items = items},
	};

	_Static_assert(HANDLE_SIZE == MESSAGE_HANDLE_SIZE, "one size");
	request.share.has_handle = allocation->export != NULL;
	if (allocation->export)
		memcpy(request.share.handle, &allocation->export->handle,
		       HANDLE_SIZE);
	client_retire(client);
	return connection_call(
		&client->connection, &request,
		allocation->donation ? allocation->donation->fd : -1, ret, err);
}

/* Record the chunk as our own. It takes over the export: the broker recognises
 * the allocation by its descriptor, so the same one must be sent when other
 * tensors of this allocation are shared. */
static int note_chunk(struct fsdp_client *client, const struct chunk_ref *chunk,
		      struct allocation *allocation, struct error *err)
{
	const struct pointer *pointer = &allocation->pointer;
	const struct own_memory own = {
		.device = pointer->device,
		.address = (uint8_t *)(uintptr_t)pointer->base,
		.export = allocation->export,
		.donation = allocation->donation,
	};

	if (chunk->size != pointer->size)
		return error_set(err, -EPROTO,
				 "fsdpd made a chunk of %llu bytes from %llu "
				 "shared bytes",
				 (unsigned long long)chunk->size,
				 (unsigned long long)pointer->size);
	allocation->export = NULL;
	allocation->donation = NULL;
	return mappings_add_own(&client->mappings, chunk, &own, err);
}

/* Request the chunk. A reply that was recorded before a restart of the broker
 * comes without it. */
static int ask_chunk(struct fsdp_client *client, uint32_t chunk,
		     struct allocation *allocation, struct error *err)
{
	struct received received;
	int r = places_ask_chunks(client, &chunk, 1, &received, err);

	if (r < 0)
		return r;
	r = note_chunk(client, received.reply.chunks.chunks, allocation, err);
	received_deinit(&received);
	return r;
}

static int take_chunk(struct fsdp_client *client,
		      const struct places_reply *places, uint32_t chunk,
		      struct allocation *allocation, struct error *err)
{
	struct range range;

	/* The allocation was shared before. */
	if (mappings_find(&client->mappings, chunk, false, &range, NULL) ==
	    MAPPING_OK)
		return 0;
	for (uint32_t i = 0; i < places->n_chunks; i++)
		if (places->chunks[i].chunk == chunk)
			return note_chunk(client, &places->chunks[i],
					  allocation, err);
	return ask_chunk(client, chunk, allocation, err);
}

static int take_places(struct fsdp_client *client,
		       const struct places_reply *places, size_t first_full,
		       size_t n, struct allocation *allocation,
		       struct fsdp_tensor **ret, struct error *err)
{
	const struct places_use use = {.n = n, .is_writable = true};
	int r = 0;

	if (first_full < places->n_places)
		r = take_chunk(client, places, places->places[first_full].chunk,
			       allocation, err);
	if (r < 0) {
		places_give_back(client, places);
		return r;
	}
	return places_adopt_batch(client, places, &use, ret, err);
}

/* --- public -------------------------------------------------------------- */

static int share(struct fsdp_client *client, void *const *pointers,
		 struct share_item *items, size_t n,
		 const struct fsdp_access *access, struct fsdp_tensor **ret,
		 struct error *err)
{
	struct allocation allocation = {0};
	struct received received;
	int r = find_allocation(client, pointers, items, n, &allocation, err);

	if (r == 0)
		r = ask(client, &allocation, items, n, access, &received, err);
	if (r == 0) {
		r = take_places(client, &received.reply.places,
				find_full(items, n), n, &allocation, ret, err);
		received_deinit(&received);
	}
	allocation_close(&allocation);
	return r;
}

int fsdp_share(struct fsdp_client *client, const struct fsdp_spec *specs,
	       void *const *pointers, size_t n,
	       const struct fsdp_access *access, struct fsdp_tensor **ret)
{
	struct error *err = error_of_thread();
	struct share_item *items;
	int r;

	r = client_check_batch(client, n, err);
	if (r < 0 || n == 0)
		return r;
	items = calloc(n, sizeof(*items));
	if (!items)
		return error_nomem(err, "a request");
	r = take_types(specs, n, items, err);
	if (r < 0)
		goto free;
	/* A tensor without elements has no memory to share. */
	if (find_full(items, n) == n)
		r = fsdp_alloc(client, specs, n, access, 0, ret);
	else
		r = share(client, pointers, items, n, access, ret, err);
free:
	free(items);
	return r;
}

static int check_own(const struct fsdp_tensor *tensor, struct error *err)
{
	const struct desc *desc = tensor_desc(tensor);
	struct range range;

	/* If the chunk is not mapped any more, the broker replies that the
	 * sharing has ended. */
	if (mappings_find(&tensor->client->mappings, desc_rest(desc)->chunk,
			  false, &range, NULL) != MAPPING_OK ||
	    range.is_own)
		return 0;
	return error_set(err, -EPERM,
			 "%s (slot %u) is in memory that this connection did "
			 "not share; call fsdp_release()",
			 desc_name(desc), tensor->slot);
}

/* Take a hold of the handle, which the broker will drop; if it has none,
 * acquire one. Returns false if that is not possible. */
static bool take_hold(struct fsdp_tensor *tensor)
{
	return atomic_exchange(&tensor->is_in_doubt, false) ||
	       tensor_take_hold(tensor) ||
	       (fsdp_acquire(tensor) == 0 && tensor_take_hold(tensor));
}

static bool is_gone(const struct fsdp_tensor *tensor)
{
	uint64_t word = table_load(&tensor->client->table, tensor->slot);

	return table_word_generation(word) != tensor->generation ||
	       table_word_state(word) == SLOT_FREE;
}

/* The request has failed. If the slot is free, the broker died during the
 * request, and the next one knows whether it was carried out: the hold stays
 * taken, and the request may be sent again, since it does nothing if there is
 * no such tensor. Otherwise the handle gets its hold back. */
static int keep_hold(struct fsdp_tensor *tensor, int r, struct error *err)
{
	if (is_gone(tensor) &&
	    !connection_is_lost(&tensor->client->connection)) {
		atomic_store(&tensor->is_in_doubt, true);
		return error_wrap(err, -EINPROGRESS,
				  "fsdpd went away before it replied; unshare "
				  "the tensor again when it is back");
	}
	/* Relaxed: as in fsdp_hold(); delta was not lowered. */
	atomic_fetch_add_explicit(&tensor->holds, 1, memory_order_relaxed);
	return r;
}

int fsdp_unshare(struct fsdp_tensor *tensor, int32_t timeout_ms)
{
	struct error *err = error_of_thread();
	bool has_hold;
	int r = client_check_tensor(tensor, err);

	if (r == 0)
		r = check_own(tensor, err);
	if (r < 0)
		return r;
	has_hold = take_hold(tensor);
	if (!has_hold && !is_gone(tensor))
		return error_set(err, -EINVAL,
				 "the handle is not held: a shared tensor must "
				 "be held until it is unshared");
	r = client_unshare(tensor, timeout_ms, err);
	if (r == -EPERM && !tensor->data && has_hold) {
		/* The tensor has no memory, so it was never shared. */
		tensor_give_back(tensor->client, tensor->slot, 1);
		return 0;
	}
	return r < 0 && has_hold ? keep_hold(tensor, r, err) : r;
}
