/*
 * Fences of streams: marking, waiting and releasing.
 */
#include "client/stream.h"
#include "client/client.h"
#include "client/clock.h"
#include "client/deferred.h"
#include "client/event.h"
#include "client/pause.h"
#include "client/timeline.h"
#include "cuda/context.h"
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>

/* Each look for an event of another process sends a request to the broker, so
 * the pauses grow quickly. */
#define PAUSE_FOR_EVENT                                                        \
	((struct pause){.ns = PAUSE_MIN_NS, .max_ns = 4000000, .growth = 1})

static const char *name_of(const struct fsdp_tensor *tensor)
{
	return desc_name(tensor_desc(tensor));
}

/* --- marks --------------------------------------------------------------- */

static bool is_same(const struct fence *a, const struct fence *b)
{
	return a->timeline == b->timeline && a->value == b->value;
}

/*
 * Make `fence` the slot's fence if it covers the old one, that is, if the work
 * of the old fence is complete when `fence` is reached: both have the same
 * counter, which never decreases; or the stream has waited for the old one
 * (`waited`); or the old one has been reached. Otherwise return false.
 * `*ret_old` is the old fence.
 */
static bool replace_fence(struct fsdp_client *client, uint32_t slot,
			  const struct fence *fence, const struct fence *waited,
			  struct fence *ret_old)
{
	struct refs_entry *entry = &client->refs.entries[slot];
	struct fence old = {.session = fence->session};
	bool is_one, is_covered;

	pthread_mutex_lock(&client->fences_lock);
	old.timeline =
		atomic_load_explicit(&entry->timeline, memory_order_relaxed);
	old.value = atomic_load_explicit(&entry->fence, memory_order_relaxed);
	is_one = old.timeline == fence->timeline;
	is_covered =
		is_one || is_same(&old, waited) || timeline_peek(client, &old);
	/* Another thread may have stored a later value. Relaxed: the broker
	 * reads the fence when the slot is not held any more, and the count is
	 * lowered after this store, seq_cst. */
	if (is_covered && !(is_one && old.value > fence->value)) {
		atomic_store_explicit(&entry->timeline,
				      (uint16_t)fence->timeline,
				      memory_order_relaxed);
		atomic_store_explicit(&entry->fence, fence->value,
				      memory_order_relaxed);
	}
	pthread_mutex_unlock(&client->fences_lock);
	*ret_old = old;
	return is_covered;
}

static int set_fence(struct fsdp_client *client, uint32_t slot,
		     const struct device *device, CUstream stream,
		     const struct fence *fence, struct error *err)
{
	struct fence mine = *fence, old, waited = {0};

	while (!replace_fence(client, slot, &mine, &waited, &old)) {
		/* The old fence is one of our own timelines, so this never
		 * returns TIMELINE_FOR_HOST. */
		int r = timeline_wait(client, NULL, &old, device, stream, err);

		if (r == 0)
			r = timeline_signal(client, device, stream, &mine, err);
		if (r < 0)
			return r;
		waited = old;
	}
	return 0;
}

/* Find the device of a tensor. It is NULL if the tensor has no elements; then
 * it needs no fence. */
static int device_of(const struct fsdp_tensor *tensor,
		     const struct device **ret, struct error *err)
{
	const struct desc *desc = tensor_desc(tensor);
	const struct desc_device *it = desc_device(desc);

	*ret = it ? it->device : NULL;
	if (it || !desc->data)
		return 0;
	return error_set(
		err, -EINVAL,
		"%s is in host memory, and streams are only for tensors on "
		"devices; synchronise the stream, and pass NULL as stream",
		name_of(tensor));
}

/* Find the device of all tensors; NULL: no tensor has elements. */
static int device_of_all(struct fsdp_tensor *const *tensors, size_t n,
			 const struct device **ret, struct error *err)
{
	char text[2][DEVICE_TEXT_SIZE];
	const struct device *device;

	*ret = NULL;
	for (size_t i = 0; i < n; i++) {
		int r = device_of(tensors[i], &device, err);

		if (r < 0)
			return r;
		if (!device)
			continue;
		if (*ret && device != *ret) {
			device_format(&device->uuid, text[0]);
			device_format(&(*ret)->uuid, text[1]);
			return error_set(
				err, -EINVAL,
				"%s is on %s, but the tensors before it are on "
				"%s; one stream is for tensors of one device",
				name_of(tensors[i]), text[0], text[1]);
		}
		*ret = device;
	}
	return 0;
}

static int mark_by_timeline(struct fsdp_tensor *const *tensors, size_t n,
			    const struct device *device, CUstream stream,
			    struct fence *ret, struct error *err)
{
	struct fsdp_client *client = tensors[0]->client;
	int r = timeline_signal(client, device, stream, ret, err);

	for (size_t i = 0; i < n && r == 0; i++)
		if (tensors[i]->data)
			r = set_fence(client, tensors[i]->slot, device, stream,
				      ret, err);
	return r;
}

/* The new event replaces an earlier one of the tensor, so the stream must wait
 * for that one first. */
static int follow_earlier(const struct fsdp_tensor *tensor,
			  const struct device *device, CUstream stream,
			  struct error *err)
{
	const struct slot_ref ref = {tensor->slot, tensor->generation};
	const struct desc_device *it = desc_device(tensor_desc(tensor));

	if (!it || !fence_is_event(&it->fence) ||
	    stream_peek(tensor) != WRITTEN_PENDING)
		return 0;
	return event_wait(tensor->client, &ref, &it->fence, device, stream,
			  err);
}

static int mark_by_event(struct fsdp_tensor *const *tensors, size_t n,
			 const struct device *device, CUstream stream,
			 struct fence *ret, const uint8_t **ret_event,
			 struct error *err)
{
	int r = context_check_stream(device, stream, err);

	for (size_t i = 0; i < n && r == 0; i++)
		r = follow_earlier(tensors[i], device, stream, err);
	return r < 0 ? r
		     : event_record(tensors[0]->client, device, stream, tensors,
				    n, ret, ret_event, err);
}

int stream_mark(struct fsdp_tensor *const *tensors, size_t n, void *stream,
		struct fence *ret, const uint8_t **ret_event, struct error *err)
{
	const struct device *device;
	int r = device_of_all(tensors, n, &device, err);

	*ret = (struct fence){0};
	*ret_event = NULL;
	if (r < 0 || !device)
		return r;
	return event_is_for(device)
		       ? mark_by_event(tensors, n, device, stream, ret,
				       ret_event, err)
		       : mark_by_timeline(tensors, n, device, stream, ret, err);
}

/* --- waits --------------------------------------------------------------- */

static bool is_tainted(const struct fsdp_tensor *tensor)
{
	uint64_t word = table_load(&tensor->client->table, tensor->slot);

	return table_word_is_tainted(word) &&
	       table_word_generation(word) == tensor->generation;
}

/* Store whether the tensor is written. If its writer has died, the value of the
 * counter does not count: the broker marks the tensor as tainted before it
 * wakes the waiting streams. */
static enum written learn(const struct fsdp_tensor *tensor, bool is_reached)
{
	struct desc_device *it = desc_device(tensor_desc(tensor));
	enum written now = is_reached ? WRITTEN_YES : WRITTEN_PENDING;

	if (is_tainted(tensor))
		now = WRITTEN_NEVER;
	/* Relaxed: the load of the counter ordered the device's writes. */
	if (now != WRITTEN_PENDING)
		atomic_store_explicit(&it->written, (uint8_t)now,
				      memory_order_relaxed);
	return now;
}

enum written stream_peek(const struct fsdp_tensor *tensor)
{
	struct desc_device *it = desc_device(tensor_desc(tensor));
	enum written now;

	if (!it)
		return WRITTEN_YES;
	now = (enum written)atomic_load_explicit(&it->written,
						 memory_order_relaxed);
	/* The contents were lost when the process that owned the memory
	 * ended. */
	if (now == WRITTEN_YES && it->is_legacy && is_tainted(tensor))
		return WRITTEN_NEVER;
	if (now != WRITTEN_PENDING)
		return now;
	/* A forked child has no timelines, and cannot use the driver. */
	if (guard_is_forked(&tensor->client->guard))
		return is_tainted(tensor) ? WRITTEN_NEVER : WRITTEN_PENDING;
	return learn(tensor,
		     fence_is_event(&it->fence)
			     ? event_peek(tensor->client, &it->fence)
			     : timeline_peek(tensor->client, &it->fence));
}

/* Do the same as stream_peek(), with a request to the broker if necessary. */
static int look(const struct fsdp_tensor *tensor, enum written *ret,
		struct error *err)
{
	const struct slot_ref ref = {tensor->slot, tensor->generation};
	struct desc_device *it = desc_device(tensor_desc(tensor));
	bool is_reached;
	int r;

	*ret = stream_peek(tensor);
	if (*ret != WRITTEN_PENDING)
		return 0;
	r = fence_is_event(&it->fence)
		    ? event_look(tensor->client, &ref, &it->fence, it->device,
				 &is_reached, err)
		    : timeline_look(tensor->client, &ref, &it->fence,
				    &is_reached, err);
	if (r == 0)
		*ret = learn(tensor, is_reached);
	return r;
}

int stream_refuse_tainted(const struct fsdp_tensor *tensor, struct error *err)
{
	const struct desc_device *it = desc_device(tensor_desc(tensor));

	if (it && it->is_legacy)
		return error_set(err, -EOWNERDEAD,
				 "%s (slot %u, generation %" PRIu64 ") is "
				 "tainted: it is in memory of a process that "
				 "has ended; it must be made again",
				 name_of(tensor), tensor->slot,
				 tensor->generation);
	return error_set(
		err, -EOWNERDEAD,
		"%s (slot %u, generation %" PRIu64
		") is tainted: the process that was writing it died before its "
		"device had finished; it must be made again",
		name_of(tensor), tensor->slot, tensor->generation);
}

static bool is_by_event(const struct fsdp_tensor *tensor)
{
	return fence_is_event(&desc_device(tensor_desc(tensor))->fence);
}

/* Pause, and look again. */
static int wait_on(const struct fsdp_tensor *tensor, struct pause *pause,
		   int64_t *asked_ms, enum written *ret, struct error *err)
{
	bool is_asked_for = is_by_event(tensor);
	int r = interrupt_sleep(&tensor->client->connection.self.interrupt,
				pause_next(pause), asked_ms, err);

	if (r < 0)
		return r;
	if (is_asked_for)
		return look(tensor, ret, err);
	*ret = stream_peek(tensor);
	return 0;
}

static int wait_here(const struct fsdp_tensor *tensor, int64_t *start_ms,
		     int32_t timeout_ms, enum written *ret, struct error *err)
{
	struct pause pause = is_by_event(tensor) ? PAUSE_FOR_EVENT : PAUSE_INIT;
	int64_t asked_ms = 0;
	int r = look(tensor, ret, err);

	if (*start_ms == 0)
		*start_ms = clock_now_ms();
	while (r == 0 && *ret == WRITTEN_PENDING) {
		if (timeout_ms >= 0 && clock_now_ms() - *start_ms >= timeout_ms)
			return error_set(err, -ETIMEDOUT,
					 "%s is published, but the stream that "
					 "writes it has not finished; wait "
					 "longer, or make a stream wait for it",
					 name_of(tensor));
		r = wait_on(tensor, &pause, &asked_ms, ret, err);
	}
	return r;
}

/* Wait on the host in place of the stream: later work of the stream comes after
 * everything that the host has seen. */
static int wait_in_its_place(const struct fsdp_tensor *tensor,
			     int64_t *start_ms, int32_t timeout_ms,
			     enum written *ret, struct error *err)
{
	int r = wait_here(tensor, start_ms, timeout_ms, ret, err);

	if (r != -ETIMEDOUT)
		return r;
	return error_set(
		err, r,
		"%s is published, but the stream that writes it has not "
		"finished; on this device a stream cannot wait for the stream "
		"of another user, so the call waits: pass a larger timeout_ms",
		name_of(tensor));
}

static int have_stream_wait(const struct fsdp_tensor *tensor,
			    const struct fsdp_get_options *options,
			    int64_t *start_ms, enum written *ret,
			    struct error *err)
{
	const struct slot_ref ref = {tensor->slot, tensor->generation};
	struct desc_device *it = desc_device(tensor_desc(tensor));
	CUstream stream = options->stream;
	int r = context_check_stream(it->device, stream, err);

	if (r < 0)
		return r;
	*ret = stream_peek(tensor);
	if (*ret != WRITTEN_PENDING)
		return 0;
	r = is_by_event(tensor)
		    ? event_wait(tensor->client, &ref, &it->fence, it->device,
				 stream, err)
		    : timeline_wait(tensor->client, &ref, &it->fence,
				    it->device, stream, err);
	if (r == TIMELINE_FOR_HOST)
		return wait_in_its_place(tensor, start_ms, options->timeout_ms,
					 ret, err);
	*ret = stream_peek(tensor);
	return r;
}

static int await(const struct fsdp_tensor *tensor,
		 const struct fsdp_get_options *options, int64_t *start_ms,
		 struct error *err)
{
	enum written written;
	int r;

	if (!stream_is_for(tensor))
		return 0;
	r = options->stream
		    ? have_stream_wait(tensor, options, start_ms, &written, err)
		    : wait_here(tensor, start_ms, options->timeout_ms, &written,
				err);
	if (r == 0 && written == WRITTEN_NEVER && !options->accepts_tainted)
		r = stream_refuse_tainted(tensor, err);
	return r;
}

int stream_await(struct fsdp_tensor *const *tensors, size_t n,
		 const struct fsdp_get_options *options, int64_t start_ms,
		 struct error *err)
{
	static const struct fsdp_get_options defaults;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = await(tensors[i], options ? options : &defaults, &start_ms,
			  err);
	return r;
}

/* --- releases ------------------------------------------------------------ */

int stream_drop(struct fsdp_tensor *tensor, void *stream, struct error *err)
{
	struct fsdp_client *client = tensor->client;
	struct fence fence;
	const struct device *device;
	int r = device_of(tensor, &device, err);

	if (r == 0 && device && event_is_for(device))
		return deferred_add(client, tensor->slot, device, stream, err);
	if (r == 0 && device)
		r = mark_by_timeline(&tensor, 1, device, stream, &fence, err);
	if (r == 0)
		tensor_give_back(client, tensor->slot, 1);
	return r;
}

/* --- public -------------------------------------------------------------- */

int fsdp_tensor_wait(struct fsdp_tensor *tensor, void *stream,
		     int32_t timeout_ms)
{
	const struct fsdp_get_options options = {.timeout_ms = timeout_ms,
						 .stream = stream};
	struct error *err = error_of_thread();
	int r = client_check_held(tensor, err);

	return r < 0 ? r : stream_await(&tensor, 1, &options, 0, err);
}

int fsdp_tensor_check(struct fsdp_tensor *tensor)
{
	struct error *err = error_of_thread();
	enum written written = WRITTEN_YES;
	int r = client_check_held(tensor, err);

	if (r == 0 && stream_is_for(tensor))
		r = look(tensor, &written, err);
	if (r < 0)
		return r;
	if (written == WRITTEN_NEVER)
		return stream_refuse_tainted(tensor, err);
	if (written == WRITTEN_PENDING)
		return error_set(err, -EAGAIN,
				 "the stream that writes %s has not finished",
				 name_of(tensor));
	return 0;
}
