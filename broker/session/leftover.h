/*
 * Leftovers: sockets of connections that the broker has ended, but whose
 * clients have not read everything.
 *
 * The kernel limits the descriptors that the broker has sent and nobody has
 * read. Those in a socket that only the client has count as well, so the broker
 * keeps its end, and the charge of the connection, until the client closes its
 * own. So a user can leave only as many descriptors unread as its quota
 * permits.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

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
	/* Private. */
	uv_poll_t poll;
	struct leftover *next, **at;
};

/* Closes the socket and refunds the charge, if there is an account. */
void leftover_close(const struct leftover *leftover);

/* Does the same when the client has closed its end, which sees the end of the
 * connection after what it has not read; or at once if that is impossible. */
void leftover_keep(uv_loop_t *loop, const struct leftover *leftover);

/* Closes the sockets in the list, when the broker ends. */
void leftovers_close(struct leftover *list);
