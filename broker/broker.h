/*
 * The broker: all its parts, owned by one thread.
 *
 * Nothing here is locked. Long operations run on libuv's worker threads with
 * copied arguments, and their results come back as callbacks on the loop.
 */
#pragma once
#include "broker/base/account.h"
#include "broker/base/closer.h"
#include "broker/base/config.h"
#include "broker/base/deadline.h"
#include "broker/base/fdstore.h"
#include "broker/base/log.h"
#include "broker/base/loop.h"
#include "broker/base/wake.h"
#include "broker/catalog/catalog.h"
#include "broker/comm/comm.h"
#include "broker/engine/engine.h"
#include "broker/memory/devices.h"
#include "broker/memory/pool.h"
#include "broker/session/listener.h"
#include "broker/session/peer.h"
#include "broker/session/session.h"
#include "broker/session/waiter.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/chore.h"
#include "broker/tensor/events.h"
#include "broker/tensor/evict.h"
#include "broker/tensor/limbo.h"
#include "proto/frame.h"
#include "shm/table.h"
#include <sys/resource.h>
#include <uv.h>

struct broker {
	struct loop loop;
	struct wake wake;
	struct config config;
	struct catalog catalog;
	struct table table;
	struct fdstore fdstore;
	struct closer closer;
	struct accounts accounts;
	struct deadlines deadlines;
	struct devices devices;
	struct pools pools;
	struct limbo limbo;
	struct evictables evictables;
	struct chores chores;
	struct bundle bundles[CATALOG_BUNDLES]; /* indexed by record */
	uint32_t n_leased; /* grants that leases have still to make */
	struct waiters waiters;
	struct events events;
	struct engine engine;
	struct comms comms;
	struct listener listener;
	/* Owned; the read-only descriptor that is sent to clients. */
	int table_readonly_fd;
	struct session_hooks hooks;
	struct peer *peers;
	uint32_t n_peers;
	struct holdings *holdings[CATALOG_MAX_SESSIONS + 1]; /* by record */
	uint32_t n_sessions;
	bool is_draining;         /* only administrators get new sessions */
	uint32_t n_timelines;     /* timeline files */
	uint32_t prefix_position; /* in the deadlines */
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
	uint64_t n_published, n_evicted, n_freed_slots, n_dead_sessions;
	uint64_t n_tainted;
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
