/*
 * The events in flight that this process recorded (client/event.h).
 *
 * They are found by their number, the generation of their handle.
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

/* Take a recorded event (also on failure), which orders the tensors. */
int event_book_add(struct event_book *book, struct event_ipc *event,
		   struct fsdp_tensor *const *tensors, size_t n,
		   struct error *err);

/* The broker has received the event, or has refused it: from now on it may be
 * reported complete. */
void event_book_end(struct event_book *book, uint64_t number);

/* False: it is not in flight any more. */
bool event_book_find(struct event_book *book, uint64_t number,
		     struct handle *ret);

/* Is it complete, as far as is known? */
bool event_book_is_over(struct event_book *book, uint64_t number);

/* Is any event in flight? */
static inline bool event_book_is_busy(const struct event_book *book)
{
	/* Relaxed: the thread that has just added one sees it. */
	return atomic_load_explicit(&book->n, memory_order_relaxed) > 0;
}

/* Tell the broker, before this thread's next request, which events are
 * complete. They are kept until event_book_told(). */
struct event_sent *event_book_tell(struct event_book *book,
				   struct connection *connection);
/* The broker has replied, so these events are dropped; or it has not, and they
 * are reported again. */
void event_book_told(struct event_book *book, struct event_sent *told,
		     bool is_answered);
