/*
 * The events in flight that this process recorded (client/event.h). An event is
 * identified by its number, which is the generation of its handle.
 */
#pragma once
#include "client/stream_list.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct connection;
struct error;
struct event_ipc;
struct fsdp_tensor;
struct handle;

void event_book_deinit(struct stream_list *book);

/* Add a recorded event, which orders the tensors. Consumes the event, also on
 * failure. */
int event_book_add(struct stream_list *book, struct event_ipc *event,
		   struct fsdp_tensor *const *tensors, size_t n,
		   struct error *err);

/* Call this when the broker has received or refused the event: from then on the
 * event may be reported complete. */
void event_book_end(struct stream_list *book, uint64_t number);

/* Find the handle of an event. Returns false if it is not in flight any
 * more. */
bool event_book_find(struct stream_list *book, uint64_t number,
		     struct handle *ret);

/* Tell whether the event is complete, as far as is known. */
bool event_book_is_over(struct stream_list *book, uint64_t number);

/* Report the complete events to the broker before this thread's next request.
 * They are kept until event_book_told(). Returns NULL if there are none. */
struct stream_node *event_book_tell(struct stream_list *book,
				    struct connection *connection);
/* If the broker has replied, drop the events. Otherwise keep them, to report
 * them again. */
void event_book_told(struct stream_list *book, struct stream_node *told,
		     bool is_answered);
