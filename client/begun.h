/*
 * Calls that are begun now and collected later, so that one thread can wait for
 * many of them, and for other descriptors, with poll(2).
 */
#pragma once
#include <stdint.h>

struct received;
struct call;
struct connection;
struct error;
struct request;

/*
 * connection_call() without waiting: the call is begun now, and collected when
 * the descriptor of connection_poll_fd() is readable. Every begun call must be
 * collected or abandoned before the connection is closed.
 */
int connection_begin(struct connection *connection,
		     const struct request *request, struct call **ret,
		     struct error *err);

#define CONNECTION_PENDING 1

/* Returns the result of connection_call(), which ends the call, or
 * CONNECTION_PENDING. It waits only to reconnect. */
int connection_collect(struct connection *connection, struct call *call,
		       struct received *ret, struct error *err);

/* The same in two steps: wait until the reply is in the call, where
 * call_peek() sees it, and decode it. CALL_AGAIN: the request must be
 * repeated. */
int connection_await(struct connection *connection, struct call *call,
		     struct error *err);
int connection_take(struct connection *connection, struct call *call,
		    struct received *ret, struct error *err);

/* Nobody will collect it. */
void connection_abandon(struct connection *connection, struct call *call);

/* Readable while a begun call can be collected, or while the socket must be
 * read for one. Created at the first use; owned by the connection. */
int connection_poll_fd(struct connection *connection, struct error *err);
