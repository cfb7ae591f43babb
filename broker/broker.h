/*
 * The broker: all its parts, owned by one thread.
 *
 * Nothing here is locked. Long operations run on libuv's worker threads with
 * copied arguments, and their results come back as callbacks on the loop.
 */
#pragma once
#include "broker/base/base.h"
#include "broker/comm/comm.h"
#include "broker/engine/engine.h"
#include "broker/session/listener.h"
#include "broker/session/peer.h"
#include "broker/session/session.h"
#include "broker/session/waiter.h"
#include "broker/tensor/store.h"
#include "proto/frame.h"
#include <sys/resource.h>
#include <uv.h>

struct broker {
	struct base base;
	struct store store;
	struct waiters waiters;
	struct engine engine;
	struct comms comms;
	struct listener listener;
	/* Owned; the read-only descriptor that is sent to clients. */
	int table_readonly_fd;
	struct session_hooks hooks;
	struct peer *peers;
	uint32_t n_peers;
	uint32_t n_sessions;
	bool is_draining; /* only administrators get new sessions */
	uv_signal_t sigterm, sigint;
	uv_timer_t watchdog;
	/* The process that keeps our fds may be our parent. */
	uv_poll_t parent_poll;
	int parent_fd; /* its pidfd, owned; -1 */
	/* Sessions that are ending or have more pending bits to collect. */
	struct deferred draining;
	uint64_t started_ms;
	uint64_t death_logged_ms;
	/* The limit on descriptors at the start, restored in children. */
	struct rlimit first_limit;
	/* Adopted sessions whose process could not be watched at once. */
	uint32_t n_unwatched;
	/* Counters since the start. */
	uint64_t n_requests, n_replayed, n_refused, n_dropped_peers;
	uint64_t n_dead_sessions;
	uint8_t receive_buffer[FRAME_MAX_SIZE];
};

struct broker_options {
	const char *socket_path; /* NULL: the default */
	const char *config_path; /* NULL: /etc/fsdpd/fsdpd.conf if it exists */
	int listen_fd;           /* consumed; -1: bind socket_path */
	bool has_left_mps;       /* the environment named an MPS server */
};

/* Set the broker up, adopting what the fd store holds, and run it until it is
 * told to stop. */
int broker_open(struct broker *broker, const struct broker_options *options,
		struct error *err);
int broker_run(struct broker *broker, struct error *err);
void broker_close(struct broker *broker);

/* Tie the rooms together, once the loop is open: set the hooks by which lower
 * rooms call higher ones, and register the handlers of deferred work. */
void broker_link(struct broker *broker);
