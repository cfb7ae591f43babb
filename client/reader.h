/*
 * The reader: the thread that polls and receives for all that wait for an
 * answer. The lock of the connection is held around these.
 */
#pragma once

struct call;
struct connection;
struct error;

/* Send and wait. On failure the call is no more. */
int reader_run(struct connection *c, struct call *call, struct error *err);

/* Read as long as nothing ends `mine`, or, if it is collected, as long as
 * frames come. */
void reader_lead(struct connection *c, struct call *mine);

/* The call has failed: it is given back, or left as an orphan, since what it
 * may have been granted must not stay with us for ever. */
int reader_give_up(struct connection *c, struct call *call, struct error *err);
