/*
 * The limiter has a queue of tickets in the order of their requests. FSDP1's
 * form also has a queue of the events of tickets that were freed.
 *
 * A ticket is one allocation from its request until it is forgotten. Freeing a
 * ticket moves it to the queue of events, so freeing needs no memory and cannot
 * fail. Both forms admit in order; they differ in when a ticket is ready.
 */
#include "collective/limiter.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct ticket {
	uint64_t number;
	uint64_t bytes;
	bool is_exempt;
	bool is_admitted;
	/* FSDP1: the ticket whose event this one took from the queue; 0 if it
	 * took no event. */
	uint64_t waits_for;
	bool is_wait_over; /* that event has completed */
	/* FSDP1: its own event, which is queued, has completed */
	bool is_complete;
	struct ticket *next;
};

struct queue {
	struct ticket *first, **end;
};

struct limiter {
	struct limiter_options options; /* defaults are filled in */
	struct queue live; /* waiting or in flight, ordered by number */
	/* FSDP1: in the order in which the tickets were freed */
	struct queue events;
	uint64_t last_number;
	uint32_t n_counted;  /* in flight and not exempt */
	uint64_t bytes_live; /* sum over `live` */
	struct limiter_state state;
};

/* --- the window ---------------------------------------------------------- */

struct window window_of(const struct limiter_options *options)
{
	return (struct window){
		.limit =
			options->limit ? options->limit : LIMITER_DEFAULT_LIMIT,
		.limit_bytes = options->limit_bytes ? options->limit_bytes
						    : UINT64_MAX,
	};
}

/*
 * A large request is admitted if only exempt groups are in flight. Their bytes
 * do not count here, because they stay until the work that includes this
 * request has ended. A request that does not fit beside them would wait
 * forever.
 */
static bool fits_window(const struct window *window, uint64_t bytes,
			bool is_exempt)
{
	if (!is_exempt && window->n_counted >= window->limit)
		return false;
	if (window->bytes <= window->limit_bytes &&
	    bytes <= window->limit_bytes - window->bytes)
		return true;
	return window->n_counted == 0;
}

bool window_admit(struct window *window, uint64_t bytes, bool is_exempt)
{
	if (!fits_window(window, bytes, is_exempt))
		return false;
	window->n_counted += !is_exempt;
	/* The bytes of exempt requests may add up to any number. */
	if (__builtin_add_overflow(window->bytes, bytes, &window->bytes))
		window->bytes = UINT64_MAX;
	return true;
}

/* --- tickets ------------------------------------------------------------- */

static void queue_init(struct queue *queue)
{
	queue->first = NULL;
	queue->end = &queue->first;
}

static void queue_append(struct queue *queue, struct ticket *ticket)
{
	ticket->next = NULL;
	*queue->end = ticket;
	queue->end = &ticket->next;
}

/* Returns the link to the ticket of that number. The link is NULL if there is
 * no such ticket. */
static struct ticket **queue_find(struct queue *queue, uint64_t number)
{
	struct ticket **link = &queue->first;

	while (*link && (*link)->number != number)
		link = &(*link)->next;
	return link;
}

static struct ticket *queue_steal(struct queue *queue, struct ticket **link)
{
	struct ticket *ticket = *link;

	*link = ticket->next;
	if (!ticket->next)
		queue->end = link;
	return ticket;
}

static void queue_deinit(struct queue *queue)
{
	while (queue->first)
		free(queue_steal(queue, &queue->first));
}

static const struct ticket *find_live(const struct limiter *limiter,
				      uint64_t number)
{
	const struct ticket *ticket = limiter->live.first;

	while (ticket && ticket->number != number)
		ticket = ticket->next;
	return ticket;
}

int limiter_new(const struct limiter_options *options, struct limiter **ret,
		struct error *err)
{
	struct limiter *limiter;

	if (options->kind != LIMITER_WINDOW && options->kind != LIMITER_FSDP1)
		return error_set(err, -EINVAL, "there is no limiter of kind %d",
				 (int)options->kind);
	limiter = calloc(1, sizeof(*limiter));
	if (!limiter)
		return error_nomem(err, "a limiter");
	limiter->options = *options;
	limiter->options.limit = window_of(options).limit;
	limiter->options.limit_bytes = window_of(options).limit_bytes;
	queue_init(&limiter->live);
	queue_init(&limiter->events);
	*ret = limiter;
	return 0;
}

void limiter_free(struct limiter *limiter)
{
	if (!limiter)
		return;
	queue_deinit(&limiter->live);
	queue_deinit(&limiter->events);
	free(limiter);
}

static bool is_ready(const struct limiter *limiter, const struct ticket *ticket)
{
	struct window window = window_of(&limiter->options);

	if (limiter->options.kind == LIMITER_FSDP1)
		return !ticket->waits_for || ticket->is_wait_over;
	window.n_counted = limiter->n_counted;
	window.bytes = limiter->state.bytes_in_flight;
	return fits_window(&window, ticket->bytes, ticket->is_exempt);
}

/* Tickets are admitted in order: one that is not ready delays all later ones.
 * So every rank sees the same sequence, and a large request is not overtaken
 * forever. */
static void admit_ready(struct limiter *limiter)
{
	struct ticket *ticket = limiter->live.first;

	for (; ticket; ticket = ticket->next) {
		if (ticket->is_admitted)
			continue;
		if (!is_ready(limiter, ticket))
			return;
		ticket->is_admitted = true;
		limiter->n_counted += !ticket->is_exempt;
		limiter->state.n_waiting--;
		limiter->state.n_in_flight++;
		limiter->state.bytes_in_flight += ticket->bytes;
	}
}

/* This is dequeue_if_needed() of _FreeEventQueue: it takes at most one event,
 * and only if the queue is full. */
static void take_event(struct limiter *limiter, struct ticket *ticket)
{
	struct ticket *event;

	if (limiter->state.n_events < limiter->options.limit)
		return;
	event = queue_steal(&limiter->events, &limiter->events.first);
	limiter->state.n_events--;
	ticket->waits_for = event->number;
	ticket->is_wait_over = event->is_complete;
	free(event);
}

int limiter_request(struct limiter *limiter, uint64_t bytes, bool is_exempt,
		    uint64_t *ret_ticket, struct error *err)
{
	struct ticket *ticket;

	/* While this sum does not overflow, no sum of bytes below does. */
	if (bytes > UINT64_MAX - limiter->bytes_live)
		return error_set(err, -EOVERFLOW,
				 "the unsharded memory of all requests would "
				 "exceed 2^64 bytes");
	ticket = calloc(1, sizeof(*ticket));
	if (!ticket)
		return error_nomem(err, "a ticket of the limiter");
	ticket->number = ++limiter->last_number;
	ticket->bytes = bytes;
	ticket->is_exempt = is_exempt;
	if (limiter->options.kind == LIMITER_FSDP1)
		take_event(limiter, ticket);
	queue_append(&limiter->live, ticket);
	limiter->bytes_live += bytes;
	limiter->state.n_waiting++;
	admit_ready(limiter);
	if (!ticket->is_admitted)
		limiter->state.n_waits++;
	*ret_ticket = ticket->number;
	return 0;
}

bool limiter_is_admitted(const struct limiter *limiter, uint64_t ticket)
{
	const struct ticket *found = find_live(limiter, ticket);

	return found && found->is_admitted;
}

void limiter_free_ticket(struct limiter *limiter, uint64_t ticket,
			 bool enqueues)
{
	struct ticket **link = queue_find(&limiter->live, ticket), *freed;

	assert(*link);
	freed = queue_steal(&limiter->live, link);
	limiter->bytes_live -= freed->bytes;
	if (freed->is_admitted) {
		limiter->n_counted -= !freed->is_exempt;
		limiter->state.n_in_flight--;
		limiter->state.bytes_in_flight -= freed->bytes;
	} else {
		limiter->state.n_waiting--;
	}
	if (freed->is_admitted && enqueues &&
	    limiter->options.kind == LIMITER_FSDP1) {
		queue_append(&limiter->events, freed);
		limiter->state.n_events++;
	} else {
		free(freed);
	}
	admit_ready(limiter);
}

/* The event is still in the queue, or a ticket took it, or that ticket was
 * withdrawn and nothing needs to be done. */
void limiter_complete(struct limiter *limiter, uint64_t ticket)
{
	struct ticket *event = *queue_find(&limiter->events, ticket);
	struct ticket *waiting = limiter->live.first;

	if (event)
		event->is_complete = true;
	for (; waiting; waiting = waiting->next) {
		if (waiting->waits_for == ticket)
			waiting->is_wait_over = true;
	}
	admit_ready(limiter);
}

void limiter_state(const struct limiter *limiter, struct limiter_state *ret)
{
	*ret = limiter->state;
}

uint64_t limiter_waited_for(const struct limiter *limiter, uint64_t ticket)
{
	const struct ticket *found = find_live(limiter, ticket);

	return found ? found->waits_for : 0;
}
