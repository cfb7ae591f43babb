#include "client/event_book.h"
#include "client/connection.h"
#include "client/one_way.h"
#include "client/tensor.h"
#include "cuda/event_ipc.h"
#include <stdlib.h>

struct event_sent {
	struct stream_node node;
	struct event_ipc *event;
	bool may_end;  /* the broker has received or refused it */
	bool is_stuck; /* its device has failed, so it never becomes complete */
	size_t n_refs;
	struct slot_ref refs[]; /* the tensors that it orders */
};

static struct event_sent *sent_of(struct stream_node *node)
{
	return (struct event_sent *)node;
}

static uint64_t number_of(const struct event_sent *sent)
{
	return sent->event->handle.generation;
}

static void drop_all(struct stream_node *first)
{
	while (first) {
		struct event_sent *sent = sent_of(first);

		first = first->next;
		event_ipc_drop(sent->event);
		free(sent);
	}
}

void event_book_deinit(struct stream_list *book)
{
	drop_all(book->first);
	book->first = book->last = NULL;
}

/* The lock of the book is held. */
static struct event_sent *find(const struct stream_list *book, uint64_t number)
{
	struct stream_node *node = book->first;

	while (node && number_of(sent_of(node)) != number)
		node = node->next;
	return node ? sent_of(node) : NULL;
}

static bool is_done(struct stream_node *node)
{
	struct event_sent *sent = sent_of(node);
	bool is_done = false;

	if (sent->may_end && !sent->is_stuck &&
	    event_ipc_query(sent->event, &is_done, NULL) < 0)
		sent->is_stuck = true;
	return is_done && !sent->is_stuck;
}

/* --- events -------------------------------------------------------------- */

int event_book_add(struct stream_list *book, struct event_ipc *event,
		   struct fsdp_tensor *const *tensors, size_t n,
		   struct error *err)
{
	struct event_sent *sent =
		calloc(1, sizeof(*sent) + n * sizeof(*sent->refs));

	if (!sent) {
		event_ipc_drop(event);
		return error_nomem(err, "an event");
	}
	sent->node.stream = event->stream;
	sent->event = event;
	sent->n_refs = n;
	for (size_t i = 0; i < n; i++)
		sent->refs[i] = (struct slot_ref){tensors[i]->slot,
						  tensors[i]->generation};
	stream_list_add(book, &sent->node);
	return 0;
}

void event_book_end(struct stream_list *book, uint64_t number)
{
	struct event_sent *sent;

	pthread_mutex_lock(&book->lock);
	sent = find(book, number);
	if (sent)
		sent->may_end = true;
	pthread_mutex_unlock(&book->lock);
}

bool event_book_find(struct stream_list *book, uint64_t number,
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

bool event_book_is_over(struct stream_list *book, uint64_t number)
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

static struct stream_node *tell_all(struct stream_list *book,
				    struct connection *connection)
{
	struct stream_node *done = stream_list_take_over(book, is_done);
	struct telling telling;

	telling.connection = connection;
	telling.n = 0;
	for (struct stream_node *node = done; node; node = node->next)
		tell(&telling, sent_of(node));
	send_told(&telling);
	return done;
}

struct stream_node *event_book_tell(struct stream_list *book,
				    struct connection *connection)
{
	return stream_list_is_busy(book) ? tell_all(book, connection) : NULL;
}

void event_book_told(struct stream_list *book, struct stream_node *told,
		     bool is_answered)
{
	if (is_answered)
		drop_all(told);
	else
		stream_list_add(book, told);
}
