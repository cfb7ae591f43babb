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
 * Do the same as connection_call() without waiting: begin the call now, and
 * collect it when the descriptor of connection_poll_fd() is readable. Every
 * begun call must be collected or abandoned before the connection is closed.
 */
int connection_begin(struct connection *connection,
		     const struct request *request, struct call **ret,
		     struct error *err);

#define CONNECTION_PENDING 1

/* Return what connection_call() would return and end the call, or return
 * CONNECTION_PENDING. The function waits only for a reconnect, which the
 * caller's interrupt function may end (-EINTR). */
int connection_collect(struct connection *connection, struct call *call,
		       struct received *ret, struct error *err);

/* Do the same in two steps: wait until the call has its reply, which
 * call_peek() can then read, and decode it. CALL_AGAIN: the request must be
 * repeated. */
int connection_await(struct connection *connection, struct call *call,
		     struct error *err);
int connection_take(struct connection *connection, struct call *call,
		    struct received *ret, struct error *err);

/* End a call that will not be collected. If its reply grants something, the
 * grant is returned. */
void connection_abandon(struct connection *connection, struct call *call);

/* Return a descriptor that is readable while a begun call can be collected, or
 * while the socket must be read for one. It is created by the first call, and
 * owned by the connection. */
int connection_poll_fd(struct connection *connection, struct error *err);
