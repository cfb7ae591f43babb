/*
 * Sessions: one for each connected client process, with everything the broker
 * holds for it.
 *
 * A session begins with a hello and ends with a goodbye or with the death of
 * its process, which a pidfd reports. Losing the connection does not end it:
 * the process may still be reading tensors. After a restart of the broker, a
 * session is a catalog record whose process must still be the same (pid and
 * start time); it gets its ref-counter file back when the client reconnects.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include "broker/tensor/holdings.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

struct sessions;
struct error;
struct frame;
struct peer;
struct session;
struct waiter;

/* The key of requests that wait until other sessions have ended; no name begins
 * with a slash. */
#define SESSION_DRAIN_KEY "//drain"

/* A request was parked: it is answered later. */
#define REQUEST_PARKED 1

/* What sessions call in the rooms above; set by broker.c. */
struct session_hooks {
	void *data;
	/*
	 * A request of a peer with a session: run it, and reply (0) or park it
	 * (REQUEST_PARKED). Takes the descriptors that it uses out of the
	 * frame. Negative: the peer broke the protocol, and its connection is
	 * to be closed.
	 */
	int (*on_request)(void *data, struct peer *peer, struct frame *frame,
			  struct error *err);
	/* Run a parked request again. True: it was answered, or its session is
	 * gone, and the caller frees the waiter. */
	bool (*on_rerun)(void *data, struct waiter *waiter);
	/* The session ends: it leaves its communicators. Called before its
	 * holds are dropped; the caller commits. */
	void (*on_end)(void *data, struct session *session);
};

struct session {
	struct holdings holdings; /* first: session_of() */
	struct sessions *sessions;
	/* Owned; -1 if it could not be opened after a restart. */
	int pidfd;
	int doorbell_fd; /* owned; -1 until connected once */
	uv_poll_t pidfd_poll, doorbell_poll;
	/* In the deadlines, while pidfd is -1 or the session is dead. */
	uint32_t look_position;
	uint64_t look_ms;  /* delay of the next look, doubled each time */
	struct peer *peer; /* NULL: not connected */
	struct waiter *first_waiter; /* parked requests, newest first */
	uint32_t n_waiting;
	uint64_t n_requests;
	/* State of the present connection: */
	/* By chunk record: the id of the chunk whose descriptor the
	 * client has. */
	uint32_t sent_chunks[TABLE_CHUNKS];
	/* One bit for each recorded reply that was sent over
	 * this connection. */
	uint64_t sent_replies;
	/* The client may have been sent a chunk on a device. */
	bool has_device_memory;
	bool is_dead;     /* its process has exited */
	bool is_watching; /* it asked for events */
	bool is_draining; /* more pending bits: an idle round is planned */
	bool is_ending;   /* session_end_round() is planned */
	/* While is_ending: number of the goodbye to reply to; 0: none. */
	uint64_t goodbye;
	uint32_t maker_hand; /* while is_ending: last block visited */
	bool is_stopping;
	uint8_t n_handles; /* uv handles that are not closed yet */
};

/*
 * Make a session for the process of `pidfd` (consumed, also on failure): its
 * record, files and watchers. Charges its uid.
 */
int session_new(struct sessions *sessions, pid_t pid, uid_t uid, gid_t gid,
		int pidfd, uint64_t budget, struct session **ret,
		struct error *err);

enum session_outcome {
	SESSION_ALIVE = 0,
	SESSION_GONE = 1, /* its process has exited */
};

/*
 * Make a session for an adopted record. If it is SESSION_GONE, the caller ends
 * it by session_end(). Only the kernel's report of an exit ends a session: if
 * the process cannot be watched now, for example for lack of descriptors, the
 * session stays with pidfd -1, and the process is looked up again later.
 */
int session_adopt(struct sessions *sessions, uint32_t index, struct error *err);

/* Take the pidfd of a peer that has reconnected to its session (consumed, also
 * on failure). A session without a pidfd keeps it. */
int session_watch_process(struct session *session, int pidfd,
			  struct error *err);

/* Is it an eventfd without EFD_SEMAPHORE? The descriptor stays open. */
int session_check_doorbell(int fd, struct error *err);

/* Give an adopted session its ref-counter file and doorbell back.
 * Consumes the fds, also on failure. Updates the state of slots that were
 * released meanwhile. */
int session_reattach(struct session *session, int refs_fd, int doorbell_fd,
		     struct error *err);

/* Is there capacity for one more session, for the process at the other end of
 * `sock_fd`? The last ones are reserved for administrators, as all are while
 * the broker is being drained. -EUSERS, -ESHUTDOWN. */
int session_check_room(struct sessions *sessions, uid_t uid, gid_t gid,
		       int sock_fd, struct error *err);

/* The live session with this id and token, or NULL with `err` set. */
struct session *session_find(struct sessions *sessions, uint64_t id,
			     const uint8_t token[TOKEN_SIZE],
			     struct error *err);

/*
 * End the session: parked requests, staged bundles, tied names, WRITING slots,
 * grants, recorded replies, record. Records above about a thousand are left for
 * later rounds of the loop, in which other clients are served; until then the
 * session exists, but no client can reconnect to it. A `goodbye` (number of the
 * request; 0: none) gets its reply at the end. The struct is freed once its
 * handles are closed.
 */
void session_end(struct session *session, uint64_t goodbye);

/* The session's process has exited: end the session at once, or, if it has
 * device memory that must be quarantined, after the quarantine. */
void session_end_dead(struct session *session);

/* Run one more round of the end. True: it was the last, and the session
 * is gone. */
bool session_end_round(struct session *session);

/* Stop the watchers but keep the record, when the broker shuts down. */
void session_stop(struct session *session);

/* Collect what the client marked as released, as if it had rung its doorbell: a
 * client does not ring when a request follows anyway. Commits, so call it
 * before making changes. */
void session_collect(struct session *session);

/* What doorbells and ends of sessions left for later. True: there is more. */
bool sessions_on_idle(struct sessions *sessions);

/* May it see what others hold? Root, the broker's own user and the admin group
 * may. */
bool session_is_admin(const struct session *session);

static inline struct session *session_of(struct holdings *holdings)
{
	return (struct session *)holdings; /* its first member */
}

/* Returns the session of that record, or NULL if it has no session. */
struct session *session_at(const struct sessions *sessions, uint32_t index);

static inline struct session_record *
session_record(const struct session *session)
{
	return holdings_record(&session->holdings);
}
