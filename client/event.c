/*
 * Events in flight, and events of other processes.
 */
#include "client/event.h"
#include "client/client.h"
#include "client/post.h"
#include "cuda/event_ipc.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct handle) == MESSAGE_HANDLE_SIZE, "it travels");

struct event_sent {
	struct event_sent *next;
	struct event_ipc *event;
	bool may_end;  /* the broker has received it */
	bool is_stuck; /* its device has failed: it never becomes complete */
	size_t n_refs;
	struct slot_ref refs[]; /* what it orders */
};

static uint64_t number_of(const struct event_sent *sent)
{
	return sent->event->handle.generation;
}

void event_book_init(struct event_book *book)
{
	*book = (struct event_book){.first = NULL};
	pthread_mutex_init(&book->lock, NULL);
}

static void drop_all(struct event_sent *first)
{
	while (first) {
		struct event_sent *sent = first;

		first = sent->next;
		event_ipc_drop(sent->event);
		free(sent);
	}
}

void event_book_deinit(struct event_book *book)
{
	drop_all(book->first);
	book->first = book->last = NULL;
}

/* --- the book (lock held) ------------------------------------------------ */

static void append(struct event_book *book, struct event_sent *sent)
{
	sent->next = NULL;
	if (book->last)
		book->last->next = sent;
	else
		book->first = sent;
	book->last = sent;
	/* Relaxed: see event_are_sent(). */
	atomic_fetch_add_explicit(&book->n, 1, memory_order_relaxed);
}

static struct event_sent *find(const struct event_book *book, uint64_t number)
{
	struct event_sent *sent = book->first;

	while (sent && number_of(sent) != number)
		sent = sent->next;
	return sent;
}

static bool is_done(struct event_sent *sent)
{
	bool is_done = false;

	if (sent->may_end && !sent->is_stuck &&
	    event_ipc_query(sent->event, &is_done, NULL) < 0)
		sent->is_stuck = true;
	return is_done && !sent->is_stuck;
}

/* Move the complete events to another list. An event is not queried if an
 * earlier one of the same stream is not complete. */
static struct event_sent *take_done(struct event_book *book)
{
	struct event_sent *sent = book->first, *next, *done = NULL;
	struct event_sent **end = &done;
	CUstream busy = NULL;

	book->first = book->last = NULL;
	atomic_store_explicit(&book->n, 0, memory_order_relaxed);
	for (; sent; sent = next) {
		next = sent->next;
		if ((!busy || sent->event->stream != busy) && is_done(sent)) {
			*end = sent;
			end = &sent->next;
			continue;
		}
		busy = sent->event->stream;
		append(book, sent);
	}
	*end = NULL;
	return done;
}

/* --- producer ------------------------------------------------------------ */

/* If the limit is reached, some of those in flight may be complete. */
static int record(struct fsdp_client *client, const struct device *device,
		  CUstream stream, struct event_ipc **ret, struct error *err)
{
	struct request ping = {.kind = MESSAGE_PING};
	int r = event_ipc_record(device, stream, ret, err);

	if (r != -EAGAIN)
		return r;
	r = client_command(client, &ping, err);
	return r < 0 ? r : event_ipc_record(device, stream, ret, err);
}

int event_record(struct fsdp_client *client, const struct device *device,
		 void *stream, struct fsdp_tensor *const *tensors, size_t n,
		 struct tensor_order *ret, const uint8_t **ret_handle,
		 struct error *err)
{
	struct event_book *book = &client->events;
	struct event_sent *sent =
		calloc(1, sizeof(*sent) + n * sizeof(*sent->refs));
	int r;

	if (!sent)
		return error_nomem(err, "an event");
	r = record(client, device, stream, &sent->event, err);
	if (r < 0) {
		free(sent);
		return r;
	}
	for (size_t i = 0; i < n; i++)
		sent->refs[i] = (struct slot_ref){tensors[i]->slot,
						  tensors[i]->generation};
	sent->n_refs = n;
	*ret = (struct tensor_order){.session = client->connection.self.session,
				     .value = number_of(sent)};
	*ret_handle = (const uint8_t *)&sent->event->handle;
	pthread_mutex_lock(&book->lock);
	append(book, sent);
	pthread_mutex_unlock(&book->lock);
	return 0;
}

static bool is_own(const struct fsdp_client *client,
		   const struct tensor_order *order)
{
	return order->session == client->connection.self.session;
}

void event_sent(struct fsdp_client *client, const struct tensor_order *order)
{
	struct event_book *book = &client->events;
	struct event_sent *sent;

	if (!event_orders(order) || !is_own(client, order))
		return;
	pthread_mutex_lock(&book->lock);
	sent = find(book, order->value);
	if (sent)
		sent->may_end = true;
	pthread_mutex_unlock(&book->lock);
}

/* One request's worth. */
struct telling {
	struct fsdp_client *client;
	struct ordered_item items[MESSAGE_MAX_ITEMS];
	uint32_t n;
};

static void post(struct telling *telling)
{
	const struct request request = {
		.kind = MESSAGE_ORDERED,
		.ordered = {telling->n, telling->items},
	};
	const struct post nobody = {.refused = NULL};

	/* If it fails, so does the next request. */
	if (telling->n)
		(void)connection_post(&telling->client->connection, &request,
				      &nobody, NULL);
	telling->n = 0;
}

static void tell(struct telling *telling, const struct event_sent *sent)
{
	for (size_t i = 0; i < sent->n_refs; i++) {
		telling->items[telling->n++] = (struct ordered_item){
			.ref = sent->refs[i],
			.event = number_of(sent),
		};
		if (telling->n == MESSAGE_MAX_ITEMS)
			post(telling);
	}
}

static struct event_sent *tell_all(struct fsdp_client *client)
{
	struct event_book *book = &client->events;
	struct telling telling;
	struct event_sent *done;

	pthread_mutex_lock(&book->lock);
	done = take_done(book);
	pthread_mutex_unlock(&book->lock);
	telling.client = client;
	telling.n = 0;
	for (const struct event_sent *sent = done; sent; sent = sent->next)
		tell(&telling, sent);
	post(&telling);
	return done;
}

struct event_sent *event_tell(struct fsdp_client *client)
{
	return event_are_sent(&client->events) ? tell_all(client) : NULL;
}

void event_told(struct fsdp_client *client, struct event_sent *told,
		bool is_answered)
{
	struct event_book *book = &client->events;

	if (is_answered) {
		drop_all(told);
		return;
	}
	pthread_mutex_lock(&book->lock);
	while (told) {
		struct event_sent *sent = told;

		told = sent->next;
		append(book, sent);
	}
	pthread_mutex_unlock(&book->lock);
}

/* --- consumer ------------------------------------------------------------ */

/* The tensor has no order any more: it is written, or tainted. */
#define EVENT_OVER 1

static int find_own(struct fsdp_client *client,
		    const struct tensor_order *order, struct handle *ret)
{
	struct event_book *book = &client->events;
	const struct event_sent *sent;

	pthread_mutex_lock(&book->lock);
	sent = find(book, order->value);
	if (sent)
		*ret = sent->event->handle;
	pthread_mutex_unlock(&book->lock);
	return sent ? 0 : EVENT_OVER;
}

static int ask(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct tensor_order *order, struct handle *ret,
	       struct error *err)
{
	const struct request request = {
		.kind = MESSAGE_TIMELINES,
		.timelines = {.session = order->session, .ref = *ref},
	};
	struct answer answer;
	int r;

	if (is_own(client, order))
		return find_own(client, order, ret);
	r = client_call(client, &request, &answer, err);
	if (r < 0)
		return r == -ESRCH ? EVENT_OVER : r;
	if (answer.reply.timelines.has_event)
		r = handle_decode(answer.reply.timelines.event, HANDLE_SIZE,
				  HANDLE_EVENT, ret, err);
	else
		r = error_set(err, -EPROTO, "fsdpd sent no event");
	answer_deinit(&answer);
	return r;
}

/* If the event was dropped after the broker's reply, the broker knows it by
 * now. */
static int open_event(struct fsdp_client *client, const struct slot_ref *ref,
		      const struct tensor_order *order,
		      const struct device *device,
		      struct event_ipc_import **ret, struct error *err)
{
	struct handle handle;
	int r;

	for (int i = 0; i < 2; i++) {
		r = ask(client, ref, order, &handle, err);
		if (r == 0)
			r = event_ipc_open(device, &handle, ret, err);
		if (r != -EINVAL)
			break;
	}
	/* Our own, and dropped. */
	return r == -ESTALE ? EVENT_OVER : r;
}

bool event_peek(struct fsdp_client *client, const struct tensor_order *order)
{
	struct event_book *book = &client->events;
	struct event_sent *sent;
	bool is_over = false;

	if (!is_own(client, order))
		return false;
	pthread_mutex_lock(&book->lock);
	sent = find(book, order->value);
	/* Complete events are no longer there. */
	if (!sent || event_ipc_query(sent->event, &is_over, NULL) < 0)
		is_over = !sent;
	pthread_mutex_unlock(&book->lock);
	return is_over;
}

int event_look(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct tensor_order *order, const struct device *device,
	       bool *ret, struct error *err)
{
	struct event_ipc_import *import;
	int r = open_event(client, ref, order, device, &import, err);

	*ret = r == EVENT_OVER;
	if (r == 0) {
		r = event_ipc_import_query(import, ret, err);
		event_ipc_close(import);
	}
	return r < 0 && r != -EINVAL ? r : 0;
}

int event_wait(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct tensor_order *order, const struct device *device,
	       void *stream, struct error *err)
{
	struct event_ipc_import *import;
	struct handle handle;
	int r = open_event(client, ref, order, device, &import, err);

	if (r != 0)
		return r == EVENT_OVER ? 0 : r;
	r = event_ipc_wait(import, device, stream, err);
	event_ipc_close(import);
	/* As above: it was dropped after it was opened. */
	if (r == -EINVAL &&
	    ask(client, ref, order, &handle, NULL) == EVENT_OVER)
		r = 0;
	return r;
}
