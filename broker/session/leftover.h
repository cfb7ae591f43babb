/*
 * Leftovers: sockets of connections that the broker has ended, but whose
 * clients have not read everything.
 *
 * The kernel limits the descriptors that the broker has sent and nobody has
 * read. Those in a socket that only the client has count as well, so the broker
 * keeps its end, and the charge of the connection, until the client has read
 * everything or closed its end. So a user can leave only as many descriptors
 * unread as its quota permits. The kernel reports neither as an event: for the
 * broker a client that closes its socket looks like one that only shuts it
 * down, which can still read. So a deadline checks it at growing intervals.
 */
#pragma once
#include "broker/base/retry.h"
#include <stdbool.h>
#include <stdint.h>

struct account;
struct closer;

struct leftover {
	struct leftover **list; /* of sessions.h */
	struct closer *closer;
	int sock_fd; /* owned */
	uint32_t uid;
	bool took_fds;           /* the client could send descriptors */
	struct account *account; /* NULL: nothing is charged */
	uint64_t charge;         /* ACCOUNT_QUEUE */
	struct retry look;       /* the caller sets its deadlines */
	/* Private. */
	struct leftover *next, **at;
};

/* Closes the socket and refunds the charge, if there is an account. */
void leftover_close(const struct leftover *leftover);

/* Ends the connection, which the client sees after what it has not read, and
 * does the rest when the client has read that or closed its end; or at once if
 * memory runs out. */
void leftover_keep(const struct leftover *leftover);

/* Closes the sockets in the list, when the broker ends. */
void leftovers_close(struct leftover *list);
