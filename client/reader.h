/*
 * The reader: the thread that polls and receives for all threads that wait for
 * a reply. Callers hold the lock of the connection.
 */
#pragma once

struct call;
struct connection;
struct error;

/* Send and wait. A failure ends the call. */
int reader_run(struct connection *c, struct call *call, struct error *err);
/* The same for a call that was sent. */
int reader_wait(struct connection *c, struct call *call, struct error *err);

/* Read until `mine` is complete or, if `mine` is a begun call, while there are
 * frames. */
void reader_lead(struct connection *c, struct call *mine);

/* The call has failed: free it, or leave it as an orphan, since its grants, if
 * there are any, must be returned. */
int reader_give_up(struct connection *c, struct call *call, struct error *err);
