/*
 * The reader: the thread that polls and receives for all threads that wait for
 * a reply. Callers hold the lock of the connection.
 */
#pragma once

struct call;
struct connection;
struct error;

/* Send the call and wait for its reply. On failure the call is freed. */
int reader_run(struct connection *c, struct call *call, struct error *err);
/* Wait for the reply of a call that was sent. */
int reader_wait(struct connection *c, struct call *call, struct error *err);

/* Be the reader until `mine` is complete or interrupted or, if `mine` is a
 * begun call, until there are no more frames. */
void reader_lead(struct connection *c, struct call *mine);

/* Be the reader only to replace a socket that the broker has closed, if that is
 * possible at once. */
void reader_reconnect(struct connection *c);

/* Return the error of a call that has failed. Frees the call, or leaves it as
 * an orphan if the broker may grant something for it, which must then be
 * returned. */
int reader_give_up(struct connection *c, struct call *call, struct error *err);
