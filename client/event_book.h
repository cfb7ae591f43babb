/*
 * The events in flight that this process recorded (client/event.h). An event is
 * identified by its number, which is the generation of its handle.
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct connection;
struct error;
struct event_ipc;
struct event_sent;
struct fsdp_tensor;
struct handle;

struct event_book {
	pthread_mutex_t lock;
	struct event_sent *first, *last; /* in flight, oldest first; owned */
	_Atomic uint32_t n;
};

void event_book_init(struct event_book *book);
void event_book_deinit(struct event_book *book);

/* Add a recorded event, which orders the tensors. Consumes the event, also on
 * failure. */
int event_book_add(struct event_book *book, struct event_ipc *event,
		   struct fsdp_tensor *const *tensors, size_t n,
		   struct error *err);

/* Call this when the broker has received or refused the event: from then on the
 * event may be reported complete. */
void event_book_end(struct event_book *book, uint64_t number);

/* Find the handle of an event. Returns false if it is not in flight any
 * more. */
bool event_book_find(struct event_book *book, uint64_t number,
		     struct handle *ret);

/* Tell whether the event is complete, as far as is known. */
bool event_book_is_over(struct event_book *book, uint64_t number);

/* Tell whether any event is in flight. */
static inline bool event_book_is_busy(const struct event_book *book)
{
	/* Relaxed: a thread that has added one sees its own addition. */
	return atomic_load_explicit(&book->n, memory_order_relaxed) > 0;
}

/* Report the complete events to the broker before this thread's next request.
 * They are kept until event_book_told(). Returns NULL if there are none. */
struct event_sent *event_book_tell(struct event_book *book,
				   struct connection *connection);
/* If the broker has replied, drop the events. Otherwise keep them, to report
 * them again. */
void event_book_told(struct event_book *book, struct event_sent *told,
		     bool is_answered);
