/*
 * Sessions: one connected client process each, and all it has of us.
 *
 * A session begins with a hello and ends with a goodbye or with the death of
 * its process, known by pidfd. Losing the connection ends nothing: the process
 * may still read. After a restart of the broker a session is a catalog record
 * whose process must still be the same (pid and start time); it gets its
 * ref-counter file back when the client reconnects.
 */
#pragma once
#include "broker/catalog.h"
#include "broker/chore.h"
#include "shm/refs.h"
#include "shm/timeline.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

struct account;
struct broker;
struct error;
struct peer;
struct waiter;

#define SESSION_MAX_GROUPS 64

struct session {
	struct broker *broker;
	uint32_t index;   /* catalog record, and place in broker.sessions */
	struct refs refs; /* REFS_NULL until the client has reconnected */
	struct timelines timelines; /* TIMELINES_NULL until asked for */
	int timelines_readonly_fd;  /* owned; -1 until first asked for */
	int pidfd;       /* owned; -1: it could not be opened after a restart */
	int doorbell_fd; /* owned; -1 until connected once */
	uv_poll_t pidfd_poll, doorbell_poll;
	/* In the deadlines, while pidfd is -1 or the session is dead. */
	uint32_t look_position;
	uint64_t look_ms;       /* from now to the next look */
	struct peer *peer;      /* NULL: not connected */
	struct account *account;
	gid_t groups[SESSION_MAX_GROUPS];
	uint32_t n_groups;
	struct chore lease;          /* while it has one: lease.h */
	struct waiter *first_waiter; /* parked requests, oldest first */
	uint32_t n_waiting;
	uint64_t n_requests;
	/* Pages of the ref-counter file in which it has had a grant, and which
	 * its uid is charged for, until it ends: a bit each. */
	uint64_t ref_pages[REFS_MAX_PAGES / 64];
	uint32_t n_ref_pages;
	uint64_t n_bytes; /* of blocks it made, against its budget */
	/* Of this connection: */
	uint32_t sent_chunks[TABLE_CHUNKS]; /* by chunk record: the id whose fd
					       the client has */
	uint64_t sent_outcomes; /* a bit per outcome: its reply went out */
	bool has_device_memory; /* it may have been sent a chunk on a device */
	bool is_dead;        /* its process has ended */
	bool is_draining;    /* more pending bits: an idle round is planned */
	bool is_ending;      /* likewise, of session_end_round() */
	uint64_t goodbye;    /* is_ending: to be answered; 0: nothing */
	uint32_t maker_hand; /* is_ending: block that was looked at last */
	bool is_stopping;
	uint8_t n_handles; /* uv handles not closed yet */
};

/*
 * A new session for the process behind `pidfd` (consumed, also on failure):
 * record, files, watchers. Charges its uid.
 */
int session_new(struct broker *broker, pid_t pid, uid_t uid, gid_t gid,
		int pidfd, uint64_t budget, struct session **ret,
		struct error *err);

enum session_outcome {
	SESSION_ALIVE = 0,
	SESSION_GONE = 1, /* its process has ended */
};

/*
 * A session for a record that was adopted; the caller ends it by session_end()
 * if it is gone. Only the kernel's word ends it: where the process cannot be
 * watched now, for want of descriptors say, the session stays, with its pidfd
 * -1, and the process is looked for again later.
 */
int session_adopt(struct broker *broker, uint32_t index, struct session **ret,
		  struct error *err);

/* The pidfd of a peer that has come back to its session (consumed, also on
 * failure): the session's own if it has none. */
int session_watch_process(struct session *session, int pidfd,
			  struct error *err);

/* Is it an eventfd, and none that counts down one by one? Closes nothing. */
int session_check_doorbell(int fd, struct error *err);

/* Give an adopted session its ref-counter file and doorbell back. Consumes
 * the fds, also on failure. Settles what was released meanwhile. */
int session_reattach(struct session *session, int refs_fd, int doorbell_fd,
		     struct error *err);

/* May one more session begin, of who is at the other end of `sock_fd`? The last
 * ones are for administrators. -EUSERS. */
int session_check_room(struct broker *broker, uid_t uid, gid_t gid, int sock_fd,
		       struct error *err);

/* Token and id fit a live session? NULL with a sentence if not. */
struct session *session_find(struct broker *broker, uint64_t id,
			     const uint8_t token[TOKEN_SIZE],
			     struct error *err);

/*
 * It is over: parked requests, staged bundles, tied names, WRITING slots,
 * grants, outcomes, record. What is more than a thousand of them is left for
 * the next rounds of the loop, in which others are served; until then the
 * session is known, and nobody can come back to it. A `goodbye` (number of the
 * request; 0: none) is answered at the end. Memory of the struct is freed once
 * its handles are closed.
 */
void session_end(struct session *session, uint64_t goodbye);

/* Its process has ended: end it, or, where it has memory on a device and that
 * is in quarantine, have it ended when that is over. */
void session_end_dead(struct session *session);

/* One round more. True: that was the last, and the session is gone. */
bool session_end_round(struct session *session);

/* Stop watchers without ending anything: shutdown of the broker. */
void session_stop(struct session *session);

/* A peer with this session has come (after a check of its identity) or, NULL,
 * the connection is gone. The groups are those of the peer's socket. */
void session_attach_peer(struct session *session, struct peer *peer);

/* Look at what the client says to have released, as if it had rung: it has not
 * where a request follows anyway. Commits: call it before changes. */
void session_collect(struct session *session);

/* Work that a ring left for later. True: there is more. */
bool session_on_idle(struct session *session);

/* Is `gid` the session's primary or one of its other groups? */
bool session_in_group(const struct session *session, gid_t gid);

enum access { ACCESS_READ = 4, ACCESS_WRITE = 2 };

/* May the session use memory of this class so? Root may. */
bool session_may(const struct session *session,
		 const struct access_class *class, enum access access);

/* May it see holders and remove what others own? (owner, root; admin group
 * for seeing) */
bool session_is_owner(const struct session *session, uint32_t uid);
bool session_is_admin(const struct session *session);

struct session_record *session_record(const struct session *session);
