/*
 * All sessions and connections, and the state that they share.
 */
#pragma once
#include "broker/base/base.h"
#include "broker/session/death.h"
#include "broker/session/listener.h"
#include "broker/session/peer.h"
#include "broker/session/session.h"
#include "broker/session/waiter.h"
#include "broker/tensor/store.h"
#include "proto/frame.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct sessions {
	/* Borrowed. These and the hooks are set first. */
	struct base *base;
	struct store *store;
	struct session_hooks hooks;
	/* The broker's own user, who administers it as root does. */
	uid_t own_uid;
	struct waiters waiters;
	struct listener listener;
	/* Owned; the read-only descriptor that is sent to clients. */
	int table_readonly_fd;
	struct peer *peers;
	struct leftover *leftovers; /* ended connections, leftover.h */
	uint32_t n_peers, n_users;  /* connections, and users who have one */
	/* Users with connections to be read in a later iteration. */
	struct account *postponed;
	struct deferred resuming;
	uint32_t n; /* sessions; they are found by session_at() */
	/* Sessions that are ending or have more pending bits to collect. */
	struct deferred draining;
	uint32_t hand; /* the session that was visited last for this */
	/* The limit of session_may_work(), and the iteration of the loop that
	 * it is for, by its begin. */
	uint64_t work_end_ns, work_turn_ns;
	struct deaths deaths;
	/* Adopted sessions whose process could not be watched at once. */
	uint32_t n_unwatched;
	/* Counters since the start. */
	uint64_t n_requests, n_replayed, n_refused, n_dropped_peers;
	bool is_short_noted; /* a reply that the kernel refused was logged */
	uint8_t receive_buffer[FRAME_MAX_SIZE];
};
