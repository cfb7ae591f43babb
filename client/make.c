/*
 * Makes, publishes and removes tensors.
 */
#include "client/client.h"
#include "client/device.h"
#include "client/event.h"
#include "client/places.h"
#include "client/sized.h"
#include "client/spec.h"
#include "client/stream.h"
#include "cuda/driver_api.h"
#include <errno.h>

/* --- alloc and view ------------------------------------------------------ */

int fsdp_alloc(struct fsdp_client *client, const struct fsdp_spec *specs,
	       size_t n, const struct fsdp_access *access, int32_t timeout_ms,
	       struct fsdp_tensor **ret)
{
	return fsdp_alloc_on(client, NULL, specs, n, access, timeout_ms, ret);
}

int fsdp_alloc_on(struct fsdp_client *client, const struct fsdp_device *device,
		  const struct fsdp_spec *specs, size_t n,
		  const struct fsdp_access *access, int32_t timeout_ms,
		  struct fsdp_tensor **ret)
{
	struct error *err = error_of_thread();
	struct alloc_request alloc = {
		.access = spec_access(access),
		.timeout_ms = timeout_ms,
		.n_items = (uint32_t)n,
		.device = device_uuid_of(device),
	};
	struct places_use use = {.n = n, .is_writable = true};
	struct received received;
	int r;

	r = client_check_batch(client, n, err);
	if (r == 0)
		r = device_check_usable(&alloc.device, err);
	if (r < 0 || n == 0)
		return r;
	r = spec_alloc(client, &alloc, specs, NULL, &received, err);
	return r < 0 ? r : places_receive(client, &received, &use, ret, err);
}

/* Make the view writable if its base is. */
static void inherit(const struct fsdp_tensor *base, struct fsdp_tensor *view)
{
	view->bundle = base->bundle;
	atomic_store_explicit(
		&view->is_writable,
		atomic_load_explicit(&base->is_writable, memory_order_relaxed),
		memory_order_relaxed);
}

int fsdp_view(struct fsdp_tensor *base, const struct fsdp_spec *spec,
	      const int64_t *strides, uint64_t offset, struct fsdp_tensor **ret)
{
	struct error *err = error_of_thread();
	struct alloc_item item = {
		.is_view = true,
		.base_offset = offset,
		.name = "",
	};
	struct request request = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT},
			  .n_items = 1,
			  .items = &item},
	};
	struct places_use use = {.n = 1};
	struct fsdp_client *client;
	struct fsdp_tensor *view;
	struct received received;
	int r;

	r = client_check_held(base, err);
	if (r < 0)
		return error_wrap(err, r, "base");
	r = spec_to_type(spec, strides, &item.type, err);
	if (r < 0)
		return error_wrap(err, r, "spec");
	client = base->client;
	item.base = (struct slot_ref){.slot = base->slot,
				      .generation = base->generation};
	r = client_call(client, &request, &received, err);
	if (r == 0)
		r = places_receive(client, &received, &use, &view, err);
	if (r < 0)
		return r;
	inherit(base, view);
	*ret = view;
	return 0;
}

/* --- publish ------------------------------------------------------------- */

static struct stripe *stripe_of(const struct fsdp_tensor *tensor)
{
	return &tensor->client->stripes[tensor->stripe];
}

/* Make the descriptor that the handle gets when it is published. Returns NULL
 * if there is no memory. */
static struct desc *describe(const struct fsdp_publication *publication)
{
	const struct desc *now = tensor_desc(publication->tensor);
	const struct desc_device *on = desc_device(now);
	struct location location = {now->data, on ? on->device : NULL,
				    on && on->is_legacy};
	const char *name = publication->name ? publication->name : "";
	struct stripe *stripe = stripe_of(publication->tensor);
	struct tensor_place place = {
		.ref = {.slot = now->slot, .generation = now->generation},
		.chunk = desc_rest(now)->chunk,
		.size = desc_rest(now)->size,
	};
	struct desc *desc;

	desc_type(now, &place.type);
	/* The state of earlier work is copied; with a stream, mark_run()
	 * replaces the fence. */
	if (on) {
		place.fence = on->fence;
		place.is_tainted =
			stream_peek(publication->tensor) == WRITTEN_NEVER;
	}
	pthread_mutex_lock(&stripe->lock);
	desc = desc_new(stripe, &place, name, location);
	pthread_mutex_unlock(&stripe->lock);
	return desc;
}

static void forget(const struct fsdp_publication *publications, size_t n,
		   struct desc **desc)
{
	for (size_t i = 0; i < n; i++) {
		struct stripe *stripe = stripe_of(publications[i].tensor);

		pthread_mutex_lock(&stripe->lock);
		desc_drop(stripe, desc[i]);
		pthread_mutex_unlock(&stripe->lock);
	}
}

/* Make all descriptors before the request, because after it nothing may
 * fail. */
static int describe_all(const struct fsdp_publication *publications, size_t n,
			struct desc **ret, struct error *err)
{
	for (size_t i = 0; i < n; i++) {
		ret[i] = describe(&publications[i]);
		if (ret[i])
			continue;
		forget(publications, i, ret);
		return error_nomem(err, "a description");
	}
	return 0;
}

static void show(struct fsdp_publication *publication, struct desc *desc,
		 uint64_t version)
{
	struct fsdp_tensor *tensor = publication->tensor;
	struct stripe *stripe = stripe_of(tensor);

	desc_rest(desc)->version = version;
	publication->version = version;
	pthread_mutex_lock(&stripe->lock);
	/* The old descriptor is kept, because a name that fsdp_tensor_info()
	 * returned must stay valid while the handle exists. Release: a thread
	 * that loads the new pointer sees the contents of the descriptor. */
	desc_rest(desc)->older = tensor_desc(tensor);
	atomic_store_explicit(&tensor->desc, desc, memory_order_release);
	atomic_store_explicit(&tensor->is_writable, false,
			      memory_order_relaxed);
	pthread_mutex_unlock(&stripe->lock);
}

static const struct device *device_of(const struct desc *desc)
{
	const struct desc_device *on = desc_device(desc);

	return on ? on->device : NULL;
}

/* These two handles denote a stream of each device. */
static bool is_default_stream(const void *stream)
{
	return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* Return the number of items at the beginning of the array that have the same
 * stream: one value of a timeline serves for all of them. */
static size_t count_run(const struct fsdp_publication *publications, size_t n,
			struct desc *const *desc)
{
	bool is_default = is_default_stream(publications->stream);
	size_t run = 1;

	while (run < n && publications[run].stream == publications->stream &&
	       (!is_default || device_of(desc[run]) == device_of(*desc)))
		run++;
	return run;
}

static int mark_run(const struct fsdp_publication *publications, size_t n,
		    struct desc *const *desc, const uint8_t **ret_events,
		    struct error *err)
{
	struct fsdp_tensor *tensors[FSDP_MAX_BATCH];
	struct fence fence;
	const uint8_t *event;
	int r;

	for (size_t i = 0; i < n; i++)
		tensors[i] = publications[i].tensor;
	r = stream_mark(tensors, n, publications->stream, &fence, &event, err);
	for (size_t i = 0; i < n && r == 0; i++) {
		desc_set_fence(desc[i], &fence);
		ret_events[i] = desc[i]->is_on_device ? event : NULL;
	}
	return r;
}

/* Make the streams write a value after their work. The device must get the
 * write before the broker gets the request, because otherwise other processes
 * could wait for a write that never comes. */
static int mark_all(const struct fsdp_publication *publications, size_t n,
		    struct desc *const *desc, const uint8_t **ret_events,
		    struct error *err)
{
	size_t run;
	int r = 0;

	for (size_t i = 0; i < n; i++)
		ret_events[i] = NULL;
	for (size_t i = 0; i < n && r == 0; i += run) {
		run = count_run(publications + i, n - i, desc + i);
		if (publications[i].stream)
			r = mark_run(publications + i, run, desc + i,
				     ret_events + i, err);
	}
	return r;
}

/* After the request, events may be reported as complete, whether it was
 * executed or refused. */
static void end_marks(struct fsdp_client *client, size_t n,
		      struct desc *const *desc, const uint8_t *const *events)
{
	for (size_t i = 0; i < n; i++)
		if (events[i])
			event_sent(client, &desc_device(desc[i])->fence);
}

static int send_publish(struct fsdp_client *client,
			const struct fsdp_publication *publications, size_t n,
			struct desc *const *desc, const uint8_t *const *events,
			struct received *ret, struct error *err)
{
	struct publish_item items[FSDP_MAX_BATCH];
	struct request request = {
		.kind = MESSAGE_PUBLISH,
		.publish = {.n_items = (uint32_t)n, .items = items},
	};
	int r;

	for (size_t i = 0; i < n; i++) {
		const struct fsdp_publication *it = &publications[i];
		const struct desc_device *on = desc_device(desc[i]);
		bool is_timed = on && it->stream && !events[i];

		items[i] = (struct publish_item){
			.ref = {.slot = it->tensor->slot,
				.generation = it->tensor->generation},
			.name = it->name ? it->name : "",
			.flags = it->flags,
			.ttl_ms = it->ttl_ms,
			.timeline = is_timed ? on->fence.timeline : 0,
			.value = is_timed ? on->fence.value : 0,
			.event = events[i],
		};
	}
	r = client_call(client, &request, ret, err);
	if (r < 0 || ret->reply.versions.n_versions == n)
		return r;
	received_deinit(ret);
	return error_set(err, -EPROTO,
			 "fsdpd published another number of "
			 "tensors than asked");
}

static int take_publications(const struct fsdp_client *client,
			     const struct fsdp_publication *publications,
			     size_t n, struct fsdp_publication *ret,
			     struct error *err)
{
	int r;

	r = client_check_batch(client, n, err);
	for (size_t i = 0; i < n && r == 0; i++) {
		r = sized_take_item(&ret[i], publications, i, "publications",
				    SIZED(fsdp_publication), err);
		if (r < 0)
			return r;
		r = client_check_tensor(ret[i].tensor, err);
		if (r == 0 && ret[i].tensor->client != client)
			r = error_set(err, -EINVAL,
				      "the tensor is of another connection");
		if (r < 0)
			error_wrap(err, r, "publications[%zu].tensor", i);
	}
	return r;
}

/* Write `version` into the caller's structs. It is part of the first release's
 * struct, so all of them have it. Their size is the caller's, and need not be a
 * multiple of our alignment. */
static void give_versions(struct fsdp_publication *publications, size_t n,
			  const struct fsdp_publication *from)
{
	size_t stride = sized_stride(publications, SIZED(fsdp_publication));

	for (size_t i = 0; i < n; i++)
		memcpy((uint8_t *)publications + i * stride +
			       offsetof(struct fsdp_publication, version),
		       &from[i].version, sizeof(from[i].version));
}

int fsdp_publish(struct fsdp_client *client,
		 struct fsdp_publication *publications, size_t n)
{
	struct fsdp_publication items[FSDP_MAX_BATCH];
	struct error *err = error_of_thread();
	struct desc *desc[FSDP_MAX_BATCH];
	const uint8_t *events[FSDP_MAX_BATCH];
	struct received received;
	int r;

	r = take_publications(client, publications, n, items, err);
	if (r < 0 || n == 0)
		return r;
	r = describe_all(items, n, desc, err);
	if (r < 0)
		return r;
	r = mark_all(items, n, desc, events, err);
	if (r == 0)
		r = send_publish(client, items, n, desc, events, &received,
				 err);
	end_marks(client, n, desc, events);
	if (r < 0) {
		forget(items, n, desc);
		return r;
	}
	for (size_t i = 0; i < n; i++)
		show(&items[i], desc[i], received.reply.versions.versions[i]);
	received_deinit(&received);
	give_versions(publications, n, items);
	return 0;
}

int fsdp_remove(struct fsdp_client *client, const char *const *names, size_t n)
{
	struct error *err = error_of_thread();
	struct request request = {
		.kind = MESSAGE_REMOVE,
		.remove = {.n_names = (uint32_t)n,
			   .names = (const char **)names},
	};
	int r;

	r = client_check_batch(client, n, err);
	if (r < 0 || n == 0)
		return r;
	return client_command(client, &request, err);
}
