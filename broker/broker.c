/*
 * How the broker is set up, run and stopped.
 */
#include "broker/broker.h"
#include "broker/adopt.h"
#include "broker/comm/comm_progress.h"
#include "broker/comm/comm_run.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/gather_buffers.h"
#include "broker/comm/run_board.h"
#include "broker/session/descriptors.h"
#include "broker/session/leftover.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/channel_buffer.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/evictable.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/socket_path.h"
#include "shm/chunk.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

/* --- loop ---------------------------------------------------------------- */

static bool run_sessions(void *data)
{
	struct broker *broker = data;

	return sessions_on_idle(&broker->sessions);
}

static bool run_comms(void *data)
{
	struct broker *broker = data;

	return comms_on_idle(&broker->comms);
}

static bool run_chores(void *data)
{
	struct broker *broker = data;

	return chores_on_idle(&broker->store);
}

static bool run_peers(void *data)
{
	struct broker *broker = data;

	return peers_on_idle(&broker->sessions);
}

static bool run_waiters(void *data)
{
	struct broker *broker = data;

	return waiters_on_idle(&broker->sessions);
}

/* --- hooks ---------------------------------------------------------------- */

static void on_room(void *data)
{
	struct broker *broker = data;

	waiters_on_room(&broker->sessions);
	channels_on_room(&broker->store);
	comms_on_room(&broker->comms);
}

static void on_name(void *data, const char *name)
{
	struct broker *broker = data;

	waiters_on_name(&broker->sessions, name);
}

static void on_round(void *data)
{
	struct broker *broker = data;

	waiters_on_round(&broker->sessions);
}

static void on_short(void *data, const uint32_t *uid)
{
	struct broker *broker = data;

	gather_buffers_recall(&broker->comms, uid);
}

static void on_chunk_gone(void *data, uint32_t chunk)
{
	struct broker *broker = data;

	engine_forget_chunk(&broker->engine, chunk);
}

static int on_request(void *data, struct peer *peer, struct frame *frame,
		      struct error *err)
{
	return verb_dispatch(data, peer, frame, err);
}

static bool on_rerun(void *data, struct waiter *waiter)
{
	return verb_rerun(data, waiter);
}

static void on_jobs_room(void *data)
{
	struct broker *broker = data;

	comms_on_room(&broker->comms);
}

static void on_worker_death(void *data, const struct error *cause)
{
	struct broker *broker = data;

	comms_on_worker_death(&broker->comms, cause);
}

static void on_closer(void *data, uint32_t uid)
{
	struct broker *broker = data;

	meter_begin(&broker->base.loop.meter);
	peers_resume(&broker->sessions, uid);
	listener_update(&broker->sessions);
	(void)meter_end(&broker->base.loop.meter, METER_CLOSES);
}

static void add_deferred(struct broker *broker)
{
	/* Sessions come first, since they wake requests. A handler that another
	 * one wakes runs in the same round. */
	const struct {
		struct deferred *handler;
		bool (*run)(void *data);
		enum meter_task task;
		bool is_long;
	} handlers[] = {
		{&broker->sessions.draining, run_sessions, METER_CLOSES, true},
		{&broker->comms.progress, run_comms, METER_COLLECTIVES, false},
		{&broker->store.chores.rounds, run_chores, METER_CHORES, true},
		{&broker->sessions.waiters.reruns, run_waiters, METER_RERUNS,
		 false},
		{&broker->sessions.resuming, run_peers, METER_REQUESTS, false},
	};

	for (size_t i = 0; i < sizeof(handlers) / sizeof(*handlers); i++) {
		handlers[i].handler->run = handlers[i].run;
		handlers[i].handler->data = broker;
		handlers[i].handler->task = handlers[i].task;
		handlers[i].handler->is_long = handlers[i].is_long;
		loop_add(&broker->base.loop, handlers[i].handler);
	}
}

/* Give each part the pointers that it borrows. */
static void lend(struct broker *broker)
{
	struct store *store = &broker->store;

	store->base = &broker->base;
	store->devices.base = &broker->base;
	channels_init(store);
	store->pools.base = &broker->base;
	store->pools.catalog = &store->catalog;
	store->pools.table = &store->table;
	store->pools.devices = &store->devices;
	broker->sessions.base = &broker->base;
	broker->sessions.store = store;
	broker->engine.store = store;
	broker->engine.first_limit = &broker->first_limit;
	broker->comms.store = store;
	broker->comms.engine = &broker->engine;
}

void broker_link(struct broker *broker)
{
	lend(broker);
	add_deferred(broker);
	broker->base.wake =
		(struct wake){broker, on_room, on_name, on_round, on_short};
	collect_init(&broker->store);
	broker->store.pools.hooks = (struct pool_hooks){broker, on_chunk_gone};
	broker->sessions.hooks = (struct session_hooks){
		.data = broker,
		.on_request = on_request,
		.on_rerun = on_rerun,
		.on_end = comm_end_session,
	};
	broker->engine.hooks = (struct engine_hooks){
		.data = broker,
		.on_room = on_jobs_room,
		.on_death = on_worker_death,
	};
}

/* --- stopping ------------------------------------------------------------- */

static void close_handle(uv_handle_t *handle)
{
	/* A handle that was never initialised has no loop. */
	if (handle->loop && !uv_is_closing(handle))
		uv_close(handle, NULL);
}

/* Stop the communicators and the engine. Communicators end first, so that no
 * callback of the engine reaches a communicator that could submit more jobs. */
static void stop_collectives(struct broker *broker)
{
	comms_deinit(&broker->comms);
	engine_stop(&broker->engine);
	if (broker->store.catalog.header)
		catalog_commit(&broker->store.catalog);
}

/* Close all handles of the loop, which ends when the last one is closed. */
static void stop(struct broker *broker)
{
	if (broker->base.loop.is_stopping)
		return;
	broker->base.loop.is_stopping = true;
	fdstore_notify_now(&broker->base.fdstore, "STOPPING=1");
	stop_collectives(broker);
	failpoint("broker.left");
	listener_close(&broker->sessions.listener);
	while (broker->sessions.peers)
		peer_close(broker->sessions.peers);
	leftovers_close(broker->sessions.leftovers);
	for (uint32_t i = 1; i <= CATALOG_MAX_SESSIONS; i++) {
		if (session_at(&broker->sessions, i))
			session_stop(session_at(&broker->sessions, i));
	}
	if (broker->base.deadlines.timer.loop)
		deadlines_stop(&broker->base.deadlines);
	close_handle((uv_handle_t *)&broker->sigterm);
	close_handle((uv_handle_t *)&broker->sigint);
	close_handle((uv_handle_t *)&broker->sighup);
	close_handle((uv_handle_t *)&broker->watchdog);
	loop_stop(&broker->base.loop);
	closer_stop(&broker->base.closer);
	fdstore_stop(&broker->base.fdstore);
	close_handle((uv_handle_t *)&broker->parent_poll);
}

/* Log the end of the broker, which cannot know whether systemd will start it
 * again. */
static void log_stop(const struct broker *broker, int number)
{
	const struct accounts *accounts = &broker->base.accounts;
	uint64_t n = accounts_total(accounts, ACCOUNT_SLOTS);

	if (n == 0) {
		log_line(LOG_LEVEL_INFO, "stopping: %s", strsignal(number));
		return;
	}
	log_line(LOG_LEVEL_WARNING,
		 "stopping: %s; %" PRIu64 " tensor%s (%" PRIu64 " bytes) %s",
		 strsignal(number), n, n == 1 ? "" : "s",
		 accounts_total(accounts, ACCOUNT_BYTES) -
			 run_boards_memory(&broker->comms, NULL) +
			 accounts_total(accounts, ACCOUNT_DEVICE_BYTES),
		 broker->base.fdstore.is_kept && !broker->is_supervised
			 ? "will be dropped unless fsdpd is "
			   "started again at once, "
			   "as 'systemctl restart' does"
			 : "will be dropped");
}

static void on_stop(uv_signal_t *handle, int number)
{
	log_stop(handle->data, number);
	stop(handle->data);
}

static void on_watchdog(uv_timer_t *timer)
{
	struct broker *broker = timer->data;

	/* A service manager that does not read its socket cannot miss the
	 * message. */
	fdstore_notify_now(&broker->base.fdstore, "WATCHDOG=1");
}

/* Start the watchdog timer if the service manager asks for it. Otherwise it
 * does not run, so that an idle broker does not wake up. */
static int start_watchdog(struct broker *broker)
{
	uint64_t usec = 0;
	int r;

	if (sd_watchdog_enabled(0, &usec) <= 0)
		return 0;
	r = uv_timer_init(&broker->base.loop.uv, &broker->watchdog);
	if (r < 0)
		return r;
	broker->watchdog.data = broker;
	return uv_timer_start(&broker->watchdog, on_watchdog, 0,
			      usec / 2 / 1000 + 1);
}

static void on_hangup(uv_signal_t *handle, int number)
{
	(void)number;
	reload_start(handle->data);
}

static int start_signal(struct broker *broker, uv_signal_t *handle, int number,
			uv_signal_cb on_signal)
{
	int r = uv_signal_init(&broker->base.loop.uv, handle);

	if (r < 0)
		return r;
	handle->data = broker;
	return uv_signal_start(handle, on_signal, number);
}

static int open_loop(struct broker *broker, struct error *err)
{
	int r;

	r = loop_open(&broker->base.loop, err);
	if (r < 0)
		return r;
	broker_link(broker);
	r = start_signal(broker, &broker->sigterm, SIGTERM, on_stop);
	if (r == 0)
		r = start_signal(broker, &broker->sigint, SIGINT, on_stop);
	if (r == 0)
		r = start_signal(broker, &broker->sighup, SIGHUP, on_hangup);
	if (r == 0)
		r = start_watchdog(broker);
	if (r < 0)
		return error_set(err, r, "cannot set up the event loop: %s",
				 uv_strerror(r));
	r = closer_init(&broker->base.closer, &broker->base.loop.uv, on_closer,
			broker, err);
	if (r < 0)
		return r;
	return deadlines_init(&broker->base.deadlines, &broker->base.loop.uv,
			      &broker->base.loop.meter, err);
}

/* --- environment --------------------------------------------------------- */

/* Take a socket that the service manager passed under any name. */
static int take_listener(struct fdstore *store)
{
	const char *name;
	unsigned int id;
	int fd = fdstore_take(store, "listen");

	for (uint32_t i = 0; fd < 0 && i < store->n_inherited; i++) {
		name = store->inherited[i].name;
		if (store->inherited[i].fd < 0 ||
		    strcmp(name, "catalog") == 0 ||
		    strcmp(name, "table") == 0 || strcmp(name, "worker") == 0 ||
		    sscanf(name, "c%u", &id) == 1 ||
		    sscanf(name, "t%u", &id) == 1 ||
		    sscanf(name, "channel%u", &id) == 1 ||
		    sscanf(name, "board%u", &id) == 1)
			continue;
		fd = fdstore_take(store, name);
	}
	return fd;
}

static int open_listener(struct broker *broker,
			 const struct broker_options *options,
			 struct error *err)
{
	const char *path = options->socket_path;
	int fd = options->listen_fd;
	char default_path[SOCKET_PATH_SIZE];
	int r;

	if (fd < 0)
		fd = take_listener(&broker->base.fdstore);
	if (fd < 0 && !path) {
		r = socket_path_to_listen(default_path, err);
		if (r < 0)
			return r;
		path = default_path;
	}
	return listener_open(&broker->sessions, path, fd, err);
}

/* Retry operations that the fd store refused, because it has space again. */
static void on_store_room(void *data)
{
	struct broker *broker = data;

	pools_on_store(&broker->store.pools);
	wake_room(&broker->base.wake);
}

static void check_keeper(struct broker *broker)
{
	if (!fdstore_probe(&broker->base.fdstore))
		log_note(LOG_LEVEL_WARNING,
			 "the process that kept this broker's memory has "
			 "exited, so a crash will lose all tensors; restart "
			 "fsdpd when no process needs them");
}

static void on_parent(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	uv_poll_stop(poll);
	check_keeper(poll->data);
}

/* Log the death of the --supervised parent. If another process keeps the
 * memory, or the parent cannot be watched, fdstore_put() notices that the
 * keeper is gone. */
static int watch_keeper(struct broker *broker, struct error *err)
{
	int r;

	if (!broker->base.fdstore.is_kept)
		return 0;
	r = fdstore_watch(&broker->base.fdstore, &broker->base.loop.uv,
			  on_store_room, broker, err);
	if (r < 0)
		return r;
	broker->parent_fd = (int)syscall(SYS_pidfd_open, getppid(), 0);
	if (broker->parent_fd < 0)
		return 0;
	r = uv_poll_init(&broker->base.loop.uv, &broker->parent_poll,
			 broker->parent_fd);
	broker->parent_poll.data = broker;
	if (r == 0)
		r = uv_poll_start(&broker->parent_poll, UV_READABLE, on_parent);
	if (r < 0)
		return error_set(
			err, r,
			"cannot watch the process that keeps the memory: %s",
			uv_strerror(r));
	/* The keeper may have died before our parent was looked up. */
	check_keeper(broker);
	return 0;
}

static void note_surroundings(struct broker *broker)
{
	descriptors_check(&broker->base.config);
	if (huge_pages_state() == HUGE_PAGES_NEVER)
		log_note(LOG_LEVEL_WARNING,
			 "the kernel grants shared memory no huge pages, "
			 "so that mapping is up to 50 times slower; to "
			 "change it: echo advise > /sys/kernel/mm/"
			 "transparent_hugepage/shmem_enabled");
	if (!broker->base.fdstore.is_kept)
		log_line(
			LOG_LEVEL_INFO,
			"no other process keeps the memory, so all tensors end "
			"with fsdpd; use the systemd unit or --supervised");
}

/* --- lifetime ------------------------------------------------------------ */

/* packaging/fsdpd/postinst compares the layout with that of a newer version. */
static void report_ready(struct broker *broker)
{
	char state[64];

	snprintf(state, sizeof(state), "READY=1\nSTATUS=catalog layout %d",
		 CATALOG_LAYOUT_VERSION);
	fdstore_notify(&broker->base.fdstore, state);
}

static int set_up(struct broker *broker, const struct broker_options *options,
		  struct error *err)
{
	int r;

	broker->config_source = options->config;
	broker->is_supervised = options->is_supervised;
	r = config_load(&broker->base.config, &broker->config_source, err);
	if (r < 0)
		return r;
	broker_give_up_rings(broker);
	r = open_loop(broker, err);
	if (r == 0)
		r = fdstore_open(&broker->base.fdstore, err);
	if (r == 0)
		r = open_listener(broker, options, err);
	if (r < 0)
		return r;
	engine_init(&broker->engine);
	/* This comes before fsdp-worker and all threads, which inherit it. */
	broker_confine(broker);
	r = broker_adopt(broker, err);
	if (r == 0)
		r = watch_keeper(broker, err);
	if (r < 0)
		return r;
	note_surroundings(broker);
	if (options->has_left_mps)
		log_line(LOG_LEVEL_INFO,
			 "fsdpd ignores CUDA_MPS_PIPE_DIRECTORY: it runs no "
			 "kernels, so it is not a client of MPS");
	devices_start(&broker->store.devices);
	report_ready(broker);
	return 0;
}

int broker_open(struct broker *broker, const struct broker_options *options,
		struct error *err)
{
	int r;

	log_clear_notes();
	broker->store.catalog = CATALOG_NULL;
	broker->store.table = TABLE_NULL;
	broker->base.fdstore = FDSTORE_NULL;
	broker->sessions.own_uid = geteuid();
	broker->sessions.table_readonly_fd = -1;
	broker->parent_fd = broker->engine.oom_fd = -1;
	broker->sessions.listener.fd = broker->sessions.listener.spare_fd = -1;
	broker->started_ms = now_ms();
	descriptors_raise(&broker->first_limit);
	r = set_up(broker, options, err);
	if (r < 0)
		broker_close(broker);
	return r;
}

int broker_run(struct broker *broker, struct error *err)
{
	int r = uv_run(&broker->base.loop.uv, UV_RUN_DEFAULT);

	if (r != 0)
		return error_set(err, -EBUSY,
				 "the event loop ended with handles open");
	return 0;
}

void broker_close(struct broker *broker)
{
	if (broker->base.loop.uv.data) {
		stop(broker);
		(void)uv_run(&broker->base.loop.uv, UV_RUN_DEFAULT);
		if (broker->store.catalog.header)
			bundle_drop_manifests(&broker->store);
		pools_deinit(&broker->store.pools);
		channels_deinit(&broker->store);
		loop_close(&broker->base.loop);
	}
	closer_deinit(&broker->base.closer);
	limbo_deinit(&broker->store.limbo);
	evictable_deinit(&broker->store);
	events_deinit(&broker->store.events);
	accounts_deinit(&broker->base.accounts);
	deaths_deinit(&broker->sessions.deaths);
	if (broker->sessions.table_readonly_fd >= 0)
		close(broker->sessions.table_readonly_fd);
	if (broker->parent_fd >= 0)
		close(broker->parent_fd);
	table_close(&broker->store.table);
	catalog_close(&broker->store.catalog);
	fdstore_close(&broker->base.fdstore);
	config_deinit(&broker->base.config);
}
