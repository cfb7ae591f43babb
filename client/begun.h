/*
 * Calls that are begun now and collected later, so that one thread can wait for
 * many of them, and for other things, with poll(2).
 */
#pragma once
#include <stdint.h>

struct answer;
struct call;
struct connection;
struct error;
struct request;

/*
 * A connection_call() without waiting: begun now, and collected when the
 * descriptor of connection_poll_fd() is readable. What was begun must be
 * collected or abandoned before the connection is closed.
 */
int connection_begin(struct connection *connection,
		     const struct request *request, struct call **ret,
		     struct error *err);

#define CONNECTION_PENDING 1

/* What connection_call() returns, and then the call is no more; or
 * CONNECTION_PENDING. Waits only to reconnect. */
int connection_collect(struct connection *connection, struct call *call,
		       struct answer *ret, struct error *err);

/* Nobody will collect it. */
void connection_abandon(struct connection *connection, struct call *call);

/* Readable while something begun can be collected, or the socket must be looked
 * at for it. Made when it is first asked for; the connection's. */
int connection_poll_fd(struct connection *connection, struct error *err);
