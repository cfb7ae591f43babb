#include "client/event_book.h"
#include "client/connection.h"
#include "client/one_way.h"
#include "client/tensor.h"
#include "cuda/event_ipc.h"
#include <stdlib.h>

struct event_sent {
	struct event_sent *next;
	struct event_ipc *event;
	bool may_end;  /* the broker has received or refused it */
	bool is_stuck; /* its device has failed, so it never becomes complete */
	size_t n_refs;
	struct slot_ref refs[]; /* the tensors that it orders */
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
	/* Relaxed: see event_book_is_busy(). */
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

/* --- events -------------------------------------------------------------- */

int event_book_add(struct event_book *book, struct event_ipc *event,
		   struct fsdp_tensor *const *tensors, size_t n,
		   struct error *err)
{
	struct event_sent *sent =
		calloc(1, sizeof(*sent) + n * sizeof(*sent->refs));

	if (!sent) {
		event_ipc_drop(event);
		return error_nomem(err, "an event");
	}
	sent->event = event;
	sent->n_refs = n;
	for (size_t i = 0; i < n; i++)
		sent->refs[i] = (struct slot_ref){tensors[i]->slot,
						  tensors[i]->generation};
	pthread_mutex_lock(&book->lock);
	append(book, sent);
	pthread_mutex_unlock(&book->lock);
	return 0;
}

void event_book_end(struct event_book *book, uint64_t number)
{
	struct event_sent *sent;

	pthread_mutex_lock(&book->lock);
	sent = find(book, number);
	if (sent)
		sent->may_end = true;
	pthread_mutex_unlock(&book->lock);
}

bool event_book_find(struct event_book *book, uint64_t number,
		     struct handle *ret)
{
	const struct event_sent *sent;

	pthread_mutex_lock(&book->lock);
	sent = find(book, number);
	if (sent)
		*ret = sent->event->handle;
	pthread_mutex_unlock(&book->lock);
	return sent;
}

bool event_book_is_over(struct event_book *book, uint64_t number)
{
	struct event_sent *sent;
	bool is_over = false;

	pthread_mutex_lock(&book->lock);
	sent = find(book, number);
	/* Complete events are dropped, so an event that is not found is
	 * over. */
	if (!sent || event_ipc_query(sent->event, &is_over, NULL) < 0)
		is_over = !sent;
	pthread_mutex_unlock(&book->lock);
	return is_over;
}

/* --- reports to the broker ----------------------------------------------- */

/* A request that is being filled. */
struct telling {
	struct connection *connection;
	struct ordered_item items[MESSAGE_MAX_ITEMS];
	uint32_t n;
};

static void send_told(struct telling *telling)
{
	const struct request request = {
		.kind = MESSAGE_ORDERED,
		.ordered = {telling->n, telling->items},
	};
	const struct one_way nobody = {.refused = NULL};

	/* Errors are ignored: if the connection has failed, the next request
	 * fails, too. */
	if (telling->n)
		(void)connection_send_one_way(telling->connection, &request,
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
			send_told(telling);
	}
}

static struct event_sent *tell_all(struct event_book *book,
				   struct connection *connection)
{
	struct telling telling;
	struct event_sent *done;

	pthread_mutex_lock(&book->lock);
	done = take_done(book);
	pthread_mutex_unlock(&book->lock);
	telling.connection = connection;
	telling.n = 0;
	for (const struct event_sent *sent = done; sent; sent = sent->next)
		tell(&telling, sent);
	send_told(&telling);
	return done;
}

struct event_sent *event_book_tell(struct event_book *book,
				   struct connection *connection)
{
	return event_book_is_busy(book) ? tell_all(book, connection) : NULL;
}

void event_book_told(struct event_book *book, struct event_sent *told,
		     bool is_answered)
{
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
