/*
 * The broker: all its parts, which one thread owns.
 *
 * Nothing here is locked. Long operations run on libuv's worker threads with
 * copied arguments, and their results return as callbacks of the loop.
 */
#pragma once
#include "broker/base/base.h"
#include "broker/comm/comm.h"
#include "broker/confine.h"
#include "broker/engine/engine.h"
#include "broker/session/sessions.h"
#include "broker/tensor/store.h"
#include "broker/verbs/reload.h"
#include "proto/frame.h"
#include <sys/resource.h>
#include <uv.h>

struct broker {
	struct base base;
	struct config_source config_source; /* borrowed */
	struct reload reload;
	struct store store;
	struct sessions sessions;
	struct engine engine;
	struct comms comms;
	uv_signal_t sigterm, sigint, sighup;
	uv_timer_t watchdog;
	/* The parent of this process may be the process that keeps our fds. */
	uv_poll_t parent_poll;
	int parent_fd; /* pidfd of the parent, owned; -1: none */
	bool is_supervised;
	struct confinement confinement;
	uint64_t started_ms;
	/* The limit on descriptors at the start, which is restored in
	 * children. */
	struct rlimit first_limit;
};

struct broker_options {
	const char *socket_path; /* NULL: the default */
	struct config_source config;
	int listen_fd;     /* consumed; -1: bind socket_path */
	bool has_left_mps; /* the environment named an MPS server */
	/* The parent is the supervisor, which ends when the broker stops. */
	bool is_supervised;
};

/* broker_open() sets the broker up and adopts the files of the fd store. The
 * memory of the broker must be zero: most of it is never used, and so is never
 * mapped if it comes from calloc(). broker_run() runs it until a signal stops
 * it. */
int broker_open(struct broker *broker, const struct broker_options *options,
		struct error *err);
int broker_run(struct broker *broker, struct error *err);
void broker_close(struct broker *broker);

/* Connect the parts when the loop is open: set the hooks by which lower folders
 * call higher ones, and register the handlers of deferred work. */
void broker_link(struct broker *broker);
