/*
 * Sessions: one for each client process, with everything that the broker holds
 * for it.
 *
 * A session begins with a hello and ends with a goodbye or with the death of
 * its process, which a pidfd reports. A lost connection does not end it,
 * because the process may still be reading tensors. After a restart of the
 * broker, a session is a catalog record whose process must still be the same
 * (pid and start time); it gets its ref-counter file back when the client
 * reconnects.
 */
#pragma once
#include "broker/base/retry.h"
#include "broker/catalog/catalog.h"
#include "broker/tensor/holdings.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

struct comm_rank;
struct sessions;
struct error;
struct frame;
struct peer;
struct session;
struct waiter;

/* The key of requests that wait until other sessions have ended. Names do not
 * begin with a slash. */
#define SESSION_DRAIN_KEY "//drain"

/* The request was parked, and the reply follows later. */
#define REQUEST_PARKED 1

/* Functions of the folders above that sessions call; broker.c sets them. */
struct session_hooks {
	void *data;
	/*
	 * Run a request of a peer with a session, and reply (0) or park it
	 * (REQUEST_PARKED). Takes the descriptors that the request uses out of
	 * the frame. If the result is negative, the peer broke the protocol,
	 * and the caller closes its connection.
	 */
	int (*on_request)(void *data, struct peer *peer, struct frame *frame,
			  struct error *err);
	/* Run a parked request again. Returns true if a reply was sent or the
	 * session is gone, and the caller then frees the waiter. */
	bool (*on_rerun)(void *data, struct waiter *waiter);
	/* Remove an ending session from its communicators. This is called
	 * before its holds are dropped; the caller commits. */
	void (*on_end)(struct session *session);
};

struct session {
	struct holdings holdings; /* the first field, see session_of() */
	struct sessions *sessions;
	/* Owned; -1 if it could not be opened after a restart. */
	int pidfd;
	int doorbell_fd; /* owned; -1 until connected once */
	uv_poll_t pidfd_poll, doorbell_poll;
	struct retry look;            /* at the process, while pidfd is -1 */
	uint32_t quarantine_position; /* the deadline, after its death */
	struct peer *peer;            /* NULL: not connected */
	struct waiter *first_waiter;  /* parked requests, newest first */
	uint32_t n_waiting;
	struct comm_rank *first_rank; /* its ranks, newest first (comm.h) */
	uint64_t n_requests;
	/* The following fields belong to the present connection. */
	/* For each chunk record, the id of the chunk whose descriptor the
	 * client has. */
	uint32_t sent_chunks[TABLE_CHUNKS];
	/* One bit for each recorded reply: those that were sent over this
	 * connection, those of them that have been read, and those that the
	 * client certainly has (recorded_reply.c). */
	uint64_t sent_replies, read_replies, received_replies;
	/* The bytes of all requests, and of those that may have been sent
	 * before `read_replies` were read. */
	uint64_t n_request_bytes, n_earlier_bytes;
	/* Whether the client may have been sent a chunk of a device. */
	bool has_device_memory;
	bool is_dead;     /* its process has exited */
	bool is_watching; /* it asked for events */
	bool is_draining; /* it has more pending bits, for an idle round */
	bool is_ending;   /* session_end_round() is planned */
	/* The number of the goodbye to reply to while is_ending; 0: none. */
	uint64_t goodbye;
	uint32_t maker_hand; /* while is_ending: last block visited */
	bool is_stopping;
	uint8_t n_handles; /* uv handles that are not closed yet */
};

/*
 * Make a session for the process of `pidfd` (consumed, also on failure), with
 * its record, files and watchers. Charges its uid.
 */
int session_new(struct sessions *sessions, pid_t pid, uid_t uid, gid_t gid,
		int pidfd, uint64_t budget, struct session **ret,
		struct error *err);

enum session_outcome {
	SESSION_ALIVE = 0,
	SESSION_GONE = 1, /* its process has exited */
};

/*
 * Make a session for an adopted record. Returns an enum session_outcome or an
 * error; if it is SESSION_GONE, the caller ends the session by session_end().
 * Only the kernel's report of an exit ends a session: if the process cannot be
 * watched now, for example for lack of descriptors, the session stays with
 * pidfd -1, and the process is looked up again later.
 */
int session_adopt(struct sessions *sessions, uint32_t index, struct error *err);

/* Watch a reconnected process by its pidfd (consumed, also on failure), unless
 * the session has a pidfd already. */
int session_watch_process(struct session *session, int pidfd,
			  struct error *err);

/* Check that `fd` is an eventfd without EFD_SEMAPHORE. The descriptor stays
 * open. */
int session_check_doorbell(int fd, struct error *err);

/* Give an adopted session its ref-counter file and doorbell back. Consumes the
 * fds, also on failure. Updates the states of slots that were released in the
 * meantime, or begins to do so, if there are many. */
int session_reattach(struct session *session, int refs_fd, int doorbell_fd,
		     struct error *err);

/* Check that there is capacity for one more session, for the process at the
 * other end of `sock_fd`. The last ones are reserved for administrators, as are
 * all while the broker is being drained. Returns -EUSERS or -ESHUTDOWN if
 * not. */
int session_check_room(struct sessions *sessions, uid_t uid, gid_t gid,
		       int sock_fd, struct error *err);

/* Returns the live session with this id and token, or NULL with `err` set. */
struct session *session_find(struct sessions *sessions, uint64_t id,
			     const uint8_t token[TOKEN_SIZE],
			     struct error *err);

/*
 * End the session, with its parked requests, staged bundles, tied names,
 * WRITING slots, grants, recorded replies and record. If there are more than
 * about a thousand records, or many sessions end together, the rest is ended in
 * later rounds of the loop, between which other clients are served; until then
 * the session exists, but no client can reconnect to it. `goodbye` is the
 * number of the request to reply to at the end, or 0. The struct is freed when
 * its handles are closed.
 */
void session_end(struct session *session, uint64_t goodbye);

/* End the session of a process that has exited: at once, or after the
 * quarantine if it has device memory that needs one. */
void session_end_dead(struct session *session);

/* Run one more round of the end. Returns true if it was the last, and the
 * session is gone. */
bool session_end_round(struct session *session);

/* Stop the watchers but keep the record, because the broker shuts down. */
void session_stop(struct session *session);

/* Collect the slots that the client marked as released, as if it had rung its
 * doorbell, which a client does not do if a request follows anyway. This
 * commits, so call it before making changes. */
void session_collect(struct session *session);

/*
 * Returns whether a session may now do work that could also wait for an idle
 * round. Many processes may die at once, or ring their doorbells, and the loop
 * handles all these events before it serves other clients; so they share a time
 * limit. The work is not limited while no client can connect yet.
 */
bool session_may_work(struct sessions *sessions);

/* Continue the work that doorbells, ends and reconnects of sessions left for
 * later, one session after another, for a limited time. Returns true if there
 * may be more. */
bool sessions_on_idle(struct sessions *sessions);

/* Returns whether the session may see the tensors and sessions of others: root,
 * the broker's own user and the admin group may. */
bool session_is_admin(const struct session *session);

/* Returns the session that has these holdings; NULL for NULL. */
static inline struct session *session_of(struct holdings *holdings)
{
	return (struct session *)holdings; /* its first member */
}

/* Returns the session of that record, or NULL if the record has none. */
struct session *session_at(const struct sessions *sessions, uint32_t index);

static inline struct session_record *
session_record(const struct session *session)
{
	return holdings_record(&session->holdings);
}
