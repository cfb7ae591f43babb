/*
 * Connecting, and connecting again after the broker has gone away.
 */
#pragma once

struct call;
struct connection;
struct error;
struct welcome;

/* A broker that is not there is told at once; a full backlog, and one that is
 * just being replaced, are waited for. */
int reconnect_first(struct connection *c, struct welcome *ret,
		    struct error *err);

/*
 * The reader, for whom `mine` waits, connects again; all calls are to be sent
 * again then. The lock is held but while it tries. 0 also if `mine` was
 * interrupted. -ESTALE: the session is lost for good.
 */
int reconnect(struct connection *c, struct call *mine, struct error *err);

/* The epoch of the broker that we are connected to is that of the table now. */
void reconnect_note_epoch(struct connection *c);
