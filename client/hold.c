/*
 * Acquire, hold and release by handle, without a system call; and functions
 * that look at a handle.
 *
 * delta (see client/tensor.h) is raised before the handle's own count, and
 * lowered after it. In the other order, a second thread's release could lower
 * delta so far that the broker frees the slot while this handle still counts a
 * hold.
 */
#include "client/client.h"
#include "client/device.h"
#include "client/sized.h"
#include "client/stream.h"
#include <errno.h>
#include <string.h>

static int refuse_stale(const struct fsdp_tensor *tensor, struct error *err)
{
	if (stream_peek(tensor) == WRITTEN_NEVER)
		return stream_refuse_tainted(tensor, err);
	return error_set(err, -ESTALE,
			 "this version of %s (slot %u, generation %llu) is "
			 "not published any more; get it by name",
			 desc_name(tensor_desc(tensor)), tensor->slot,
			 (unsigned long long)tensor->generation);
}

/* Return the error for a handle that is not held. */
static int refuse(const struct fsdp_tensor *tensor)
{
	return client_check_held(tensor, error_of_thread());
}

/* A freed handle passes this check, but its generation is that of no slot
 * (tensor_free()), so it cannot be acquired. */
static inline bool is_usable(const struct fsdp_tensor *tensor)
{
	return __builtin_expect(
		tensor && !guard_is_forked(&tensor->client->guard), 1);
}

int fsdp_acquire(struct fsdp_tensor *tensor)
{
	struct fsdp_client *client;
	enum refs_outcome outcome;
	int r;

	if (!is_usable(tensor))
		return client_check_tensor(tensor, error_of_thread());
	client = tensor->client;
	outcome = refs_acquire(&client->refs, &client->table, tensor->slot,
			       tensor->generation);
	if (__builtin_expect(outcome == REFS_HELD, 1)) {
		/* Relaxed: delta has done the ordering. */
		atomic_fetch_add_explicit(&tensor->holds, 1,
					  memory_order_relaxed);
		return 0;
	}
	r = client_check_tensor(tensor, error_of_thread());
	if (r == 0)
		r = refuse_stale(tensor, error_of_thread());
	if (outcome == REFS_STALE_RING)
		connection_ring_anew(&client->connection);
	return r;
}

/* Add a hold, unless the handle has none. */
static bool add_hold(struct fsdp_tensor *tensor)
{
	uint32_t n = atomic_load_explicit(&tensor->holds, memory_order_relaxed);

	while (n)
		if (atomic_compare_exchange_weak_explicit(
			    &tensor->holds, &n, n + 1, memory_order_relaxed,
			    memory_order_relaxed))
			return true;
	return false;
}

int fsdp_hold(struct fsdp_tensor *tensor)
{
	struct fsdp_client *client;

	if (!is_usable(tensor))
		return client_check_tensor(tensor, error_of_thread());
	client = tensor->client;
	refs_hold(&client->refs, tensor->slot);
	if (__builtin_expect(add_hold(tensor), 1))
		return 0;
	/* The handle is not held: take back the hold that was counted above. */
	tensor_give_back(client, tensor->slot, 1);
	return refuse(tensor);
}

int fsdp_release(struct fsdp_tensor *tensor)
{
	struct fsdp_client *client;

	if (!is_usable(tensor) ||
	    __builtin_expect(!tensor_take_hold(tensor), 0))
		return refuse(tensor);
	client = tensor->client;
	if (__builtin_expect(
		    refs_release(&client->refs, &client->table, tensor->slot),
		    0))
		connection_ring_anew(&client->connection);
	return 0;
}

int fsdp_release_on(struct fsdp_tensor *tensor, void *stream)
{
	struct error *err = error_of_thread();
	int r;

	if (!stream)
		return fsdp_release(tensor);
	r = client_check_tensor(tensor, err);
	if (r < 0)
		return r;
	if (!tensor_take_hold(tensor))
		return client_check_held(tensor, err);
	r = stream_drop(tensor, stream, err);
	/* Relaxed: as in fsdp_hold(); delta was not lowered. */
	if (r < 0)
		atomic_fetch_add_explicit(&tensor->holds, 1,
					  memory_order_relaxed);
	return r;
}

static void put_holds(struct fsdp_tensor *const *tensors, size_t n)
{
	for (size_t i = 0; i < n; i++)
		atomic_fetch_add_explicit(&tensors[i]->holds, 1,
					  memory_order_relaxed);
}

/* Take one hold of each handle; the broker drops these holds. */
static int take_holds(struct fsdp_client *client,
		      struct fsdp_tensor *const *tensors, size_t n,
		      struct release_item *items, struct error *err)
{
	for (size_t i = 0; i < n; i++) {
		struct fsdp_tensor *tensor = tensors[i];
		int r = client_check_held(tensor, err);

		if (r == 0 && tensor->client != client)
			r = error_set(err, -EINVAL,
				      "the tensor is of another connection");
		if (r == 0 && !tensor_take_hold(tensor))
			r = refuse(tensor);
		if (r < 0) {
			put_holds(tensors, i);
			return error_wrap(err, r, "tensors[%zu]", i);
		}
		items[i] = (struct release_item){
			.ref = {.slot = tensor->slot,
				.generation = tensor->generation},
			.n_holds = 1,
		};
	}
	return 0;
}

int fsdp_release_sync(struct fsdp_client *client,
		      struct fsdp_tensor *const *tensors, size_t n)
{
	struct error *err = error_of_thread();
	struct release_item items[FSDP_MAX_BATCH];
	struct request request = {
		.kind = MESSAGE_RELEASE,
		.release = {.n_items = (uint32_t)n, .items = items},
	};
	int r;

	r = client_check_batch(client, n, err);
	if (r == 0)
		r = take_holds(client, tensors, n, items, err);
	if (r < 0 || n == 0)
		return r;
	r = client_command(client, &request, err);
	if (r < 0 && r != -EINPROGRESS)
		put_holds(tensors, n);
	return r;
}

/* Repeat an unsharing without a reply. If the next broker is not back yet, a
 * hold that it may count stays until the connection ends. */
static void end_doubt(struct fsdp_tensor *tensor)
{
	if (atomic_exchange(&tensor->is_in_doubt, false) &&
	    client_unshare(tensor, 0, NULL) == -ETIMEDOUT) /* Others use it. */
		tensor_give_back(tensor->client, tensor->slot, 1);
}

void fsdp_free(struct fsdp_tensor *tensor)
{
	uint32_t n;

	/* In a forked child a lock may be held for ever by a thread that does
	 * not exist there; fsdp_close() frees the memory. */
	if (!tensor || guard_is_forked(&tensor->client->guard))
		return;
	if (atomic_load_explicit(&tensor->is_in_doubt, memory_order_relaxed))
		end_doubt(tensor);
	n = atomic_exchange_explicit(&tensor->holds, 0, memory_order_relaxed);
	if (n)
		tensor_give_back(tensor->client, tensor->slot, n);
	tensor_free(tensor);
}

void tensor_end(struct fsdp_tensor *tensor)
{
	uint32_t n;

	if (!tensor || guard_is_forked(&tensor->client->guard))
		return;
	n = atomic_exchange_explicit(&tensor->holds, 0, memory_order_relaxed);
	if (n)
		(void)tensor_give_back_unrung(tensor->client, tensor->slot, n);
	tensor_free(tensor);
}

/* --- looking at a handle ------------------------------------------------- */

/* Relaxed: a caller that races with the last release gets an address that soon
 * becomes invalid, whatever this function returns. */
static bool is_held(const struct fsdp_tensor *tensor)
{
	return tensor &&
	       atomic_load_explicit(&tensor->holds, memory_order_relaxed);
}

const void *fsdp_data(const struct fsdp_tensor *tensor)
{
	return is_held(tensor) ? tensor->data : NULL;
}

void *fsdp_data_mut(struct fsdp_tensor *tensor)
{
	/* Writable memory is not mapped in a forked child. */
	if (!is_held(tensor) || guard_is_forked(&tensor->client->guard) ||
	    !atomic_load_explicit(&tensor->is_writable, memory_order_relaxed))
		return NULL;
	return tensor->data;
}

int fsdp_tensor_info(const struct fsdp_tensor *tensor, struct fsdp_info *ret)
{
	struct error *err = error_of_thread();
	const struct desc_device *on;
	const struct desc_rest *rest;
	const struct desc *desc;
	struct tensor_type type;
	struct fsdp_info info;

	/* A forked child may call this, so client_check() is left out. */
	if (!tensor || !tensor->is_live)
		return client_check_tensor(tensor, err);
	desc = tensor_desc(tensor);
	rest = desc_rest(desc);
	on = desc_device(desc);
	desc_type(desc, &type);
	info = (struct fsdp_info){
		.dtype = (enum fsdp_dtype)type.dtype,
		.n_dims = type.n_dims,
		.size = rest->size,
		.version = rest->version,
		.slot = desc->slot,
		.generation = desc->generation,
		.name = desc->name,
		.device = device_public(on ? on->device : NULL),
		.is_tainted = stream_peek(tensor) == WRITTEN_NEVER,
	};
	memcpy(info.shape, type.shape, sizeof(info.shape));
	memcpy(info.strides, type.strides, sizeof(info.strides));
	return sized_give(ret, &info, SIZED(fsdp_info), err);
}
