/*
 * Items: sending and receiving.
 *
 * The description of an item is built in private memory and copied to the
 * shared page when the item is sent. A receiver first copies it, and then
 * checks the copy.
 */
#include "client/channel_impl.h"
#include "client/sized.h"
#include "client/spec.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(FSDP_ITEM_PARTS == SLOTS_PARTS, "one limit of parts");
_Static_assert(FSDP_ITEM_ALIGN == SLOTS_ALIGN, "one alignment");
_Static_assert(FSDP_ITEM_TEXT == SLOTS_TEXT, "one size of texts");
_Static_assert(FSDP_MAX_DIMS == SLOTS_DIMS, "one limit of dims");

/* limit of a sleep, in case a sender dies before it wakes us */
#define SLICE_MS 1000

/* --- memory -------------------------------------------------------------- */

static struct fsdp_item *item_new(struct fsdp_channel *channel)
{
	struct fsdp_item *item;

	pthread_mutex_lock(&channel->lock);
	item = channel->free_items;
	if (item) {
		channel->free_items = item->next_free;
	} else {
		item = aligned_alloc(_Alignof(struct fsdp_item), sizeof(*item));
		if (item) {
			memset(item, 0, sizeof(*item));
			item->channel = channel;
			item->next = channel->items;
			channel->items = item;
		}
	}
	pthread_mutex_unlock(&channel->lock);
	return item;
}

static void item_free(struct fsdp_item *item)
{
	struct fsdp_channel *channel = item->channel;
	struct fsdp_tensor *tensor;

	atomic_store_explicit(&item->use, ITEM_FREE, memory_order_release);
	pthread_mutex_lock(&channel->lock);
	tensor = buffer_end_use(item->buffer);
	item->buffer = NULL;
	item->is_kept = false;
	item->next_free = channel->free_items;
	channel->free_items = item;
	pthread_mutex_unlock(&channel->lock);
	fsdp_free(tensor);
}

static int check_item(const struct fsdp_item *item, enum item_use use,
		      struct error *err)
{
	int r;

	if (!item)
		return error_set(err, -EINVAL, "the item is NULL");
	r = channel_check(item->channel, err);
	if (r < 0 ||
	    atomic_load_explicit(&item->use, memory_order_acquire) == (int)use)
		return r;
	return error_set(err, -EINVAL,
			 use == ITEM_BEGUN
				 ? "the item is not being written; begin it "
				   "first"
				 : "the item is not held; receive it first");
}

/* --- waiting ------------------------------------------------------------- */

struct patience {
	struct fsdp_channel *channel;
	int64_t until_ns;
	int64_t asked_ms; /* when the interrupt function was last called */
	bool is_begun;
};

static int64_t end_of_slice(const struct patience *patience)
{
	const struct interrupt *interrupt =
		&patience->channel->client->connection.self.interrupt;
	int64_t slice_ns =
		bell_now_ns() + interrupt_slice(interrupt, SLICE_MS) * MS_NS;

	return patience->until_ns < slice_ns ? patience->until_ns : slice_ns;
}

static const char *missing(const struct fsdp_channel *channel)
{
	const struct slots *slots = &channel->slots;

	if (channel->role == FSDP_CONSUMER)
		return "item";
	return slots->mode == SLOTS_BROADCAST && !slots_consumers(slots)
		       ? "consumer"
		       : "free slot";
}

/* Returns 0 if the caller may wait. Its last sleep was cut or has ended
 * (`is_cut`), or it was woken, but others were faster. */
static int check_patience(struct patience *patience, bool is_cut,
			  struct error *err)
{
	struct fsdp_channel *channel = patience->channel;
	const struct interrupt *interrupt =
		&channel->client->connection.self.interrupt;

	if (interrupt_is_due(interrupt, is_cut, &patience->asked_ms) &&
	    interrupt_is_asked(interrupt))
		return interrupt_refuse(err);
	if (bell_now_ns() < patience->until_ns)
		return 0;
	channel_watch_arm(channel);
	return error_set(err, -ETIMEDOUT, "channel '%s' has no %s yet",
			 channel->name, missing(channel));
}

/* Call this before each wait. The first call reads the clock; a call of the
 * library that does not wait never does. */
static int be_patient(struct patience *patience, int32_t timeout_ms,
		      struct error *err)
{
	int64_t now_ns;

	if (patience->is_begun)
		return check_patience(patience, false, err);
	now_ns = bell_now_ns();
	patience->is_begun = true;
	patience->asked_ms = now_ns / MS_NS;
	patience->until_ns =
		timeout_ms < 0 ? INT64_MAX : now_ns + timeout_ms * MS_NS;
	return 0;
}

/* --- giving back --------------------------------------------------------- */

static void give_back(struct fsdp_channel *channel,
		      const struct slots_hold *hold)
{
	if (channel->role == FSDP_PRODUCER)
		slots_cancel(&channel->slots, hold);
	else
		slots_release(&channel->slots, channel->place, hold);
	channel_report_free(channel, hold->at);
}

/* Send an item. If all consumers of a broadcast have left, this frees the
 * slot. */
static void publish(struct fsdp_channel *channel, const struct slots_hold *hold,
		    const struct slots_head *head)
{
	slots_publish(&channel->slots, channel->place, hold, head);
	channel_report_free(channel, hold->at);
}

/* --- sending ------------------------------------------------------------- */

#define CLAIM_WAIT 1

/* Returns CLAIM_WAIT if there is no free slot. */
static int try_claim(struct fsdp_channel *channel, struct slots_hold *ret,
		     struct error *err)
{
	channel_forget_surplus(channel);
	if (channel_has_news(channel))
		return error_set(err, -EPIPE,
				 "all consumers of channel '%s' have left",
				 channel->name);
	if (!slots_claim(&channel->slots, channel->place, ret))
		return CLAIM_WAIT;
	channel_reset_lag(channel);
	return 0;
}

static int wait_and_claim(struct fsdp_channel *channel, int32_t timeout_ms,
			  struct slots_hold *ret, struct error *err)
{
	struct slots_wait wait = {.slots = &channel->slots,
				  .place = channel->place,
				  .is_over = channel_has_news,
				  .data = channel};
	struct patience patience = {.channel = channel};
	enum bell_outcome outcome;
	int64_t until_ns;
	int r = CLAIM_WAIT;

	while (r == CLAIM_WAIT) {
		r = be_patient(&patience, timeout_ms, err);
		if (r < 0)
			return r;
		until_ns = channel_lag_ends(channel, end_of_slice(&patience));
		outcome = slots_wait_credit(&wait, until_ns);
		r = channel_report_ending(channel, wait.ending, err);
		if (r == 0 && outcome == BELL_AGAIN)
			r = check_patience(&patience, true, err);
		if (r == 0)
			r = channel_report_lag(channel, err);
		if (r == 0)
			r = try_claim(channel, ret, err);
	}
	return r;
}

static int claim(struct fsdp_channel *channel, int32_t timeout_ms,
		 struct slots_hold *ret, struct error *err)
{
	int r = try_claim(channel, ret, err);

	if (r != CLAIM_WAIT)
		return r;
	channel_begin_wait(channel);
	r = wait_and_claim(channel, timeout_ms, ret, err);
	channel_end_wait(channel);
	return r;
}

/* Make an item in the claimed slot. On failure the slot is given back. */
static int begin(struct fsdp_channel *channel, int32_t timeout_ms,
		 const struct slots_hold *hold, struct fsdp_item **ret,
		 struct error *err)
{
	struct fsdp_item *item = item_new(channel);
	int r;

	r = item ? channel_find_buffer(channel, hold->at, timeout_ms,
				       &item->buffer, err)
		 : error_nomem(err, "an item");
	if (r < 0) {
		if (item)
			item_free(item);
		give_back(channel, hold);
		return r;
	}
	item->hold = *hold;
	item->used = 0;
	item->head.kind = SLOTS_ITEM;
	item->head.n_parts = 0;
	item->head.fence = 0;
	atomic_fetch_add_explicit(&channel->n_begun, 1, memory_order_relaxed);
	atomic_store_explicit(&item->use, ITEM_BEGUN, memory_order_release);
	*ret = item;
	return 0;
}

static int check_producer(const struct fsdp_channel *channel, struct error *err)
{
	int r = channel_check_role(channel, FSDP_PRODUCER, err);

	if (r == 0 && channel->is_ended)
		r = error_set(err, -ENODATA,
			      "this producer has ended channel '%s'",
			      channel->name);
	return r;
}

int fsdp_item_begin(struct fsdp_channel *channel, int32_t timeout_ms,
		    struct fsdp_item **ret)
{
	struct error *err = error_of_thread();
	struct slots_hold hold;
	int r = check_producer(channel, err);

	if (r == 0)
		r = claim(channel, timeout_ms, &hold, err);
	return r < 0 ? r : begin(channel, timeout_ms, &hold, ret, err);
}

static int refuse_large(const struct fsdp_item *item, uint64_t size,
			struct error *err)
{
	return error_set(
		err, -ERANGE,
		"%" PRIu64 " bytes do not fit after the %" PRIu64
		" that the item has already: items have at most %" PRIu64
		" bytes in channel '%s'",
		size, item->used, item->channel->slots.capacity,
		item->channel->name);
}

int fsdp_item_part(struct fsdp_item *item, const struct fsdp_spec *spec,
		   void **ret)
{
	struct error *err = error_of_thread();
	int r = check_item(item, ITEM_BEGUN, err);
	struct slots_part *part;
	struct tensor_type type;
	uint64_t size, at;

	if (r == 0 && !spec)
		r = error_set(err, -EINVAL, "the spec is NULL");
	if (r == 0)
		r = spec_to_type(spec, NULL, &type, err);
	if (r < 0)
		return r;
	if (item->head.n_parts == SLOTS_PARTS)
		return error_set(err, -E2BIG,
				 "an item has at most %d arrays; put several "
				 "into one",
				 SLOTS_PARTS);
	size = tensor_type_numel(&type) * dtype_size(type.dtype);
	at = (item->used + SLOTS_ALIGN - 1) & ~(uint64_t)(SLOTS_ALIGN - 1);
	if (at > item->channel->slots.capacity ||
	    size > item->channel->slots.capacity - at)
		return refuse_large(item, size, err);
	part = &item->head.parts[item->head.n_parts++];
	*part = (struct slots_part){
		.dtype = type.dtype, .n_dims = type.n_dims, .offset = at};
	memcpy(part->shape, type.shape, sizeof(part->shape));
	item->used = at + size;
	*ret = item->buffer->data + at;
	return 0;
}

/* If several threads end one item, this returns true to one of them. */
static bool end_use(struct fsdp_item *item, enum item_use use)
{
	int expected = (int)use;

	return atomic_compare_exchange_strong(&item->use, &expected, ITEM_FREE);
}

static void end_begun(struct fsdp_item *item)
{
	atomic_fetch_sub_explicit(&item->channel->n_begun, 1,
				  memory_order_relaxed);
	item_free(item);
}

int fsdp_item_send(struct fsdp_item *item)
{
	struct error *err = error_of_thread();
	int r = check_item(item, ITEM_BEGUN, err);

	if (r < 0 || !end_use(item, ITEM_BEGUN))
		return r;
	publish(item->channel, &item->hold, &item->head);
	end_begun(item);
	return 0;
}

void fsdp_item_cancel(struct fsdp_item *item)
{
	if (!item || check_item(item, ITEM_BEGUN, NULL) < 0 ||
	    !end_use(item, ITEM_BEGUN))
		return;
	give_back(item->channel, &item->hold);
	end_begun(item);
}

int fsdp_item_fail(struct fsdp_channel *channel, int32_t timeout_ms,
		   const char *text)
{
	struct error *err = error_of_thread();
	struct slots_head head = {.kind = SLOTS_ERROR};
	struct slots_hold hold;
	int r = check_producer(channel, err);

	if (r < 0)
		return r;
	if (!text || strlen(text) >= SLOTS_TEXT)
		return error_set(err, text ? -E2BIG : -EINVAL,
				 "the text of an error has 0 to %d bytes",
				 SLOTS_TEXT - 1);
	r = claim(channel, timeout_ms, &hold, err);
	if (r < 0)
		return r;
	memcpy(head.text, text, strlen(text) + 1);
	publish(channel, &hold, &head);
	return 0;
}

/* --- receiving ----------------------------------------------------------- */

/* Report the deaths of producers to one of the threads that see them. */
static int report_death(struct fsdp_channel *channel, struct error *err)
{
	const struct slots_people *people = &channel->slots.page->people;
	char name[SLOTS_NAME];

	atomic_store_explicit(&channel->n_died, channel_n_died(channel),
			      memory_order_relaxed);
	memcpy(name, people->last_name, sizeof(name));
	name[sizeof(name) - 1] = '\0';
	return error_set(err, -EOWNERDEAD,
			 "process %u (%s), a producer of channel '%s', has "
			 "died; what it had sent was received",
			 people->last_pid, name, channel->name);
}

static int take(struct fsdp_channel *channel, int32_t timeout_ms,
		struct slots_hold *ret, struct error *err)
{
	struct slots_wait wait = {.slots = &channel->slots,
				  .place = channel->place,
				  .seen = &channel->seen,
				  .is_over = channel_has_news,
				  .data = channel};
	struct patience patience = {.channel = channel};
	enum bell_outcome outcome;
	int r = 0;

	while (r == 0) {
		/* Read these before the slots, so that items that were sent
		 * before an end or a death are received first. */
		bool is_over = channel_has_ended(channel);
		bool has_death = channel_n_died(channel) != channel->n_died;

		channel_forget_surplus(channel);
		if (slots_take(&channel->slots, channel->place, &channel->seen,
			       ret))
			return 0;
		if (channel_is_cut(channel))
			return channel_refuse_cut(channel, err);
		if (has_death)
			return report_death(channel, err);
		if (is_over)
			return error_set(err, -ENODATA,
					 "all producers of channel '%s' have "
					 "ended",
					 channel->name);
		r = be_patient(&patience, timeout_ms, err);
		if (r < 0)
			return r;
		outcome = slots_wait_item(&wait, end_of_slice(&patience));
		r = channel_report_ending(channel, wait.ending, err);
		if (r == 0 && outcome == BELL_AGAIN)
			r = check_patience(&patience, true, err);
	}
	return r;
}

static int check_part(const struct slots_part *part, uint64_t capacity)
{
	struct tensor_type type = {.dtype = part->dtype,
				   .n_dims = part->n_dims};
	uint64_t size;

	if (part->n_dims > SLOTS_DIMS || part->offset % SLOTS_ALIGN)
		return -EBADMSG;
	memcpy(type.shape, part->shape, sizeof(type.shape));
	for (uint32_t i = 0; i < type.n_dims; i++) {
		if (type.shape[i] < 0)
			return -EBADMSG;
	}
	tensor_type_contiguous(&type);
	if (tensor_type_check(&type, &size, NULL) < 0 ||
	    part->offset > capacity || size > capacity - part->offset)
		return -EBADMSG;
	return 0;
}

static int check_head(const struct slots_head *head, uint64_t capacity)
{
	int r = head->kind == SLOTS_ITEM && head->n_parts <= SLOTS_PARTS
			? 0
			: -EBADMSG;

	for (uint32_t i = 0; r == 0 && i < head->n_parts; i++)
		r = check_part(&head->parts[i], capacity);
	return r;
}

/* Drop an item that cannot be received, and return its error. */
static int refuse(struct fsdp_channel *channel, const struct fsdp_item *item,
		  struct error *err)
{
	give_back(channel, &item->hold);
	if (item->head.kind == SLOTS_ERROR)
		return error_set(err, -EREMOTEIO, "%s", item->head.text);
	return error_set(err, -EBADMSG,
			 "an item of channel '%s' was malformed; one of its "
			 "producers does not use libfsdp",
			 channel->name);
}

static int accept_item(struct fsdp_channel *channel, int32_t timeout_ms,
		       struct fsdp_item *item, struct error *err)
{
	int r;

	slots_read(&channel->slots, &item->hold, &item->head);
	if (check_head(&item->head, channel->slots.capacity) < 0)
		return refuse(channel, item, err);
	r = channel_find_buffer(channel, item->hold.at, timeout_ms,
				&item->buffer, err);
	/* Check this last: when a consumer is cut, its slot may get another
	 * buffer. */
	if (channel_is_cut(channel)) {
		give_back(channel, &item->hold);
		return channel_refuse_cut(channel, err);
	}
	if (r < 0) {
		slots_put_back(&channel->slots, channel->place, &channel->seen,
			       &item->hold);
		channel_report_free(channel, item->hold.at);
	}
	return r;
}

int fsdp_item_receive(struct fsdp_channel *channel, int32_t timeout_ms,
		      struct fsdp_item **ret)
{
	struct error *err = error_of_thread();
	struct fsdp_item *item;
	int r = channel_check_role(channel, FSDP_CONSUMER, err);

	if (r < 0)
		return r;
	item = item_new(channel);
	if (!item)
		return error_nomem(err, "an item");
	r = take(channel, timeout_ms, &item->hold, err);
	if (r == 0)
		r = accept_item(channel, timeout_ms, item, err);
	if (r < 0) {
		item_free(item);
		return r;
	}
	atomic_store_explicit(&item->use, ITEM_RECEIVED, memory_order_release);
	*ret = item;
	return 0;
}

uint32_t fsdp_item_n_parts(const struct fsdp_item *item)
{
	return check_item(item, ITEM_RECEIVED, NULL) < 0 ? 0
							 : item->head.n_parts;
}

/* Find the type of array `i`. */
static int find_part(const struct fsdp_item *item, uint32_t i,
		     struct tensor_type *ret, struct error *err)
{
	int r = check_item(item, ITEM_RECEIVED, err);
	const struct slots_part *part;

	if (r < 0)
		return r;
	if (i >= item->head.n_parts)
		return error_set(err, -ERANGE,
				 "the item has %u arrays, which count from 0, "
				 "so it does not have array %u",
				 item->head.n_parts, i);
	part = &item->head.parts[i];
	*ret = (struct tensor_type){.dtype = part->dtype,
				    .n_dims = part->n_dims};
	memcpy(ret->shape, part->shape, sizeof(part->shape));
	return 0;
}

static bool may_change(const struct fsdp_channel *channel)
{
	return channel->is_writable && channel->slots.mode == SLOTS_SHARE;
}

int fsdp_item_view(const struct fsdp_item *item, uint32_t i,
		   struct fsdp_item_view *ret)
{
	struct error *err = error_of_thread();
	struct fsdp_item_view view = {0};
	struct tensor_type type;
	uint8_t *data;
	int r = find_part(item, i, &type, err);

	if (r < 0)
		return r;
	data = item->buffer->data + item->head.parts[i].offset;
	view.dtype = (enum fsdp_dtype)type.dtype;
	view.n_dims = type.n_dims;
	memcpy(view.shape, type.shape, sizeof(view.shape));
	view.size = tensor_type_numel(&type) * dtype_size(type.dtype);
	view.data = data;
	view.data_mut =
		may_change(item->channel) && !item->is_kept ? data : NULL;
	return sized_give(ret, &view, SIZED(fsdp_item_view), err);
}

int fsdp_item_release(struct fsdp_item *item)
{
	struct error *err = error_of_thread();
	struct fsdp_channel *channel;
	int r = check_item(item, ITEM_RECEIVED, err);

	if (r < 0 || !end_use(item, ITEM_RECEIVED))
		return r;
	channel = item->channel;
	if (!item->is_kept)
		give_back(channel, &item->hold);
	item_free(item);
	return 0;
}

/* --- keeping ------------------------------------------------------------- */

int fsdp_item_keep(struct fsdp_item *item, uint32_t i, struct fsdp_tensor **ret)
{
	struct error *err = error_of_thread();
	struct tensor_type type;
	struct fsdp_spec spec;
	int r = find_part(item, i, &type, err);

	if (r == 0 && !item->is_kept)
		r = channel_take_out(item, err);
	if (r < 0)
		return r;
	item->is_kept = true;
	spec = (struct fsdp_spec){.dtype = (enum fsdp_dtype)type.dtype,
				  .n_dims = type.n_dims};
	memcpy(spec.shape, type.shape, sizeof(spec.shape));
	return fsdp_view(item->buffer->tensor, &spec, NULL,
			 item->head.parts[i].offset, ret);
}
