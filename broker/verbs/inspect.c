/*
 * Requests that inspect the broker: ping, who, clients and status.
 */
#include "broker/base/clock.h"
#include "broker/broker.h"
#include "broker/comm/gather_look.h"
#include "broker/comm/run_board.h"
#include "broker/session/session.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/index.h"
#include "broker/tensor/place.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/verbs/verbs.h"
#include "proto/ending.h"
#include "proto/error.h"
#include "proto/name.h"
#include "shm/chunk.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_ITEMS MESSAGE_MAX_ITEMS
/* The number of holders in a page. For each of them a file in /proc is read,
 * which takes about 5 us. */
#define PAGE_HOLDERS 32
/* The number of grants that one request visits. The grants of a session with
 * more are counted in several requests. */
#define MAX_GRANTS 4096

int verb_ping(struct verb_call *call, struct error *err)
{
	(void)call;
	(void)err;
	return VERB_DONE;
}

/* --- who ----------------------------------------------------------------- */

static int find_slot(const struct verb_call *call, uint32_t *ret,
		     struct error *err)
{
	const struct who_request *request = &call->request->who;
	const struct broker *broker = call->broker;
	uint32_t slot, owner;

	if (*request->name)
		slot = index_find(&broker->store, request->name);
	else
		slot = slot_find(&broker->store, &request->ref, err);
	if (!slot && *request->name)
		return error_set(err, -ENOENT, "there is no tensor \"%s\"",
				 request->name);
	if (!slot)
		return -ESTALE;
	owner = slot_access(&broker->store, slot).uid;
	if (!access_is_owner(&call->session->holdings.credentials, owner) &&
	    !session_is_admin(call->session))
		return error_set(
			err, -EACCES,
			"the holders of a tensor of uid %u are shown only to "
			"that user, to root and to members of admin_group",
			owner);
	*ret = slot;
	return 0;
}

/* Returns the holds of a grant for display: the broker's part, if the client's
 * part is not known yet. */
static int64_t holds_of(const struct broker *broker, uint32_t grant)
{
	int64_t holds = grant_holds(&broker->store, grant);

	if (holds == INT64_MAX)
		return catalog_grant(&broker->store.catalog, grant)->granted;
	return holds;
}

/* Returns whether the session uses the slot. A session that has released it
 * uses it until its device has finished. */
static bool is_using(const struct broker *broker, uint32_t grant)
{
	return grant_holds(&broker->store, grant) > 0 ||
	       grant_is_fenced(&broker->store, grant);
}

static void fill_holder(const struct broker *broker, uint32_t grant,
			uint32_t writer, struct holder *ret)
{
	uint32_t index = catalog_grant(&broker->store.catalog, grant)->session;
	const struct session *session = session_at(&broker->sessions, index);
	const struct session_record *record =
		catalog_session(&broker->store.catalog, index);

	*ret = (struct holder){
		.session = record->id,
		.pid = record->pid,
		.uid = record->uid,
		.command = record->command,
		.holds = holds_of(broker, grant),
		.is_connected = session && session->peer,
		.is_writer = index == writer,
		.is_ending = process_is_ending((pid_t)record->pid),
	};
}

int verb_who(struct verb_call *call, struct error *err)
{
	const struct broker *broker = call->broker;
	const struct catalog *catalog = &broker->store.catalog;
	struct who_reply *reply = &call->reply->who;
	const struct slot_record *record;
	uint32_t slot = 0, grant;
	uint64_t position = 0;
	char *name;
	int r;

	r = find_slot(call, &slot, err);
	if (r < 0)
		return r;
	name = verb_scratch(call, NAME_MAX_SIZE + 1);
	reply->holders =
		verb_scratch(call, PAGE_HOLDERS * sizeof(struct holder));
	if (!name || !reply->holders)
		return error_nomem(err, "the holders");
	record = catalog_slot(catalog, slot);
	slot_place(&broker->store, slot, name, &reply->place);
	reply->state = slot_state(&broker->store, slot);
	reply->n_tickets = record->n_tickets;
	for (grant = record->grants.first; grant;
	     grant = catalog_grant(catalog, grant)->slot_link.next) {
		if (position++ < call->request->who.cursor ||
		    !is_using(broker, grant))
			continue;
		if (reply->n_holders == PAGE_HOLDERS) {
			reply->next_cursor = position - 1;
			break;
		}
		fill_holder(broker, grant, record->writer,
			    &reply->holders[reply->n_holders++]);
	}
	return VERB_DONE;
}

/* --- clients ------------------------------------------------------------- */

/*
 * A position in the list of clients: a session, and a grant of it. The
 * request's cursor contains all of it; if a client invents one, it only gets
 * useless results.
 */
struct place {
	uint32_t session; /* index */
	/* The record to visit next; 0: the first of the session. */
	uint32_t grant;
	/* The number of tensors before it that the session holds. */
	uint32_t n_held;
};

#define CURSOR_SESSION_BITS 13
#define CURSOR_GRANT_BITS   25

static struct place place_of_cursor(uint64_t cursor)
{
	const uint64_t mask = (UINT64_C(1) << CURSOR_GRANT_BITS) - 1;

	return (struct place){
		.session =
			(uint32_t)(cursor & ((1u << CURSOR_SESSION_BITS) - 1)),
		.grant = (uint32_t)(cursor >> CURSOR_SESSION_BITS & mask),
		.n_held = (uint32_t)(cursor >> (CURSOR_SESSION_BITS +
						CURSOR_GRANT_BITS) &
				     mask),
	};
}

static uint64_t cursor_of_place(struct place place)
{
	assert(catalog_capacity(SECTION_GRANT) < 1u << CURSOR_GRANT_BITS);
	return place.session | (uint64_t)place.grant << CURSOR_SESSION_BITS |
	       (uint64_t)place.n_held
		       << (CURSOR_SESSION_BITS + CURSOR_GRANT_BITS);
}

/* Returns whether the slot is held. Grants of an earlier generation hold
 * nothing. */
static bool is_held(const struct broker *broker, uint32_t grant,
		    struct refs_peek *peek)
{
	const struct catalog *catalog = &broker->store.catalog;
	const struct grant_record *record = catalog_grant(catalog, grant);

	return record->generation ==
		       catalog_slot(catalog, record->slot)->generation &&
	       grant_peek_is_held(&broker->store, grant, peek);
}

/*
 * Count the tensors that the session at `place` holds. Returns false if there
 * are more than this request may visit, with `place` at the next grant. A grant
 * that is dropped between two pages ends the count early.
 */
static bool count_held(const struct broker *broker, struct place *place,
		       uint32_t *n_seen)
{
	const struct catalog *catalog = &broker->store.catalog;
	uint32_t grant = place->grant;
	struct refs_peek peek = {0};

	if (!grant)
		grant = catalog_session(catalog, place->session)->grants.first;
	if (grant > catalog_n_touched(catalog, SECTION_GRANT))
		return true;
	while (grant &&
	       catalog_grant(catalog, grant)->session == place->session) {
		if (++*n_seen > MAX_GRANTS) {
			place->grant = grant;
			return false;
		}
		place->n_held += is_held(broker, grant, &peek);
		grant = catalog_grant(catalog, grant)->session_link.next;
	}
	return true;
}

static void fill_client(const struct session *session, uint32_t n_held,
			struct client_item *ret)
{
	const struct session_record *record = session_record(session);

	*ret = (struct client_item){
		.session = record->id,
		.pid = record->pid,
		.uid = record->uid,
		.command = record->command,
		.is_connected = session->peer != NULL,
		.n_slots = n_held,
		.n_bytes = session->holdings.n_bytes,
		.n_requests = session->n_requests,
		.age_ms = now_ms() - record->born_ms,
		.n_waiting = session->n_waiting,
	};
}

int verb_clients(struct verb_call *call, struct error *err)
{
	const struct broker *broker = call->broker;
	struct clients_reply *reply = &call->reply->clients;
	struct place place = place_of_cursor(call->request->clients.cursor);
	bool is_admin = session_is_admin(call->session);
	uint32_t uid = session_record(call->session)->uid;
	const struct session *session;
	uint32_t n_seen = 0;

	reply->items =
		verb_scratch(call, PAGE_ITEMS * sizeof(struct client_item));
	if (!reply->items)
		return error_nomem(err, "the clients");
	while (place.session <= CATALOG_MAX_SESSIONS) {
		session = session_at(&broker->sessions, place.session);
		if (session &&
		    (is_admin || session_record(session)->uid == uid)) {
			if (reply->n_items == PAGE_ITEMS ||
			    !count_held(broker, &place, &n_seen)) {
				reply->next_cursor = cursor_of_place(place);
				break;
			}
			fill_client(session, place.n_held,
				    &reply->items[reply->n_items++]);
		}
		place = (struct place){.session = place.session + 1};
	}
	return VERB_DONE;
}

/* --- status -------------------------------------------------------------- */

/* Returns the resident memory of the broker, including the catalog; 0:
 * unknown. */
static uint64_t resident_bytes(void)
{
	unsigned long long n_pages = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (!file)
		return 0;
	if (fscanf(file, "%*u %llu", &n_pages) != 1)
		n_pages = 0;
	fclose(file);
	return n_pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void add(struct status_reply *reply, const char *name, uint64_t value)
{
	reply->values[reply->n_values++] =
		(struct status_value){.name = name, .value = value};
}

static void add_memory(const struct broker *broker, struct status_reply *reply)
{
	const struct catalog *catalog = &broker->store.catalog;
	uint64_t warm, free_bytes;

	pools_free_bytes(&broker->store.pools, &warm, &free_bytes);
	add(reply, "slots", catalog_n_live(catalog, SECTION_SLOT));
	add(reply, "slots_limbo", catalog->header->limbo.n);
	add(reply, "blocks", catalog_n_live(catalog, SECTION_BLOCK));
	add(reply, "bundles", catalog_n_live(catalog, SECTION_BUNDLE));
	add(reply, "tickets", catalog_n_live(catalog, SECTION_TICKET));
	add(reply, "grants", catalog_n_live(catalog, SECTION_GRANT));
	add(reply, "chunks", broker->store.pools.n_chunks);
	add(reply, "chunk_bytes", broker->store.pools.host.total_size);
	add(reply, "bytes_live",
	    accounts_total(&broker->base.accounts, ACCOUNT_BYTES) -
		    run_boards_memory(&broker->comms, NULL));
	add(reply, "bytes_free", free_bytes);
	add(reply, "free_warm", warm);
	add(reply, "memory_max", broker->base.config.memory_max);
	add(reply, "chunks_created", broker->store.pools.n_created);
	add(reply, "chunks_retired", broker->store.pools.n_retired);
	add(reply, "trims", broker->store.pools.n_trims);
	add(reply, "catalog_blob_bytes", catalog_blob_bytes(catalog));
	add(reply, "rss", resident_bytes());
	add(reply, "huge_pages", huge_pages_state());
}

static void add_counters(const struct broker *broker,
			 struct status_reply *reply)
{
	add(reply, "requests", broker->sessions.n_requests);
	add(reply, "replayed", broker->sessions.n_replayed);
	add(reply, "refused", broker->sessions.n_refused);
	add(reply, "dropped_peers", broker->sessions.n_dropped_peers);
	add(reply, "published", broker->store.n_published);
	add(reply, "evicted", broker->store.n_evicted);
	add(reply, "eviction_looks", broker->store.evictables.n_looked);
	add(reply, "freed_slots", broker->store.n_freed_slots);
	add(reply, "dead_sessions", broker->sessions.deaths.n);
	add(reply, "limbo_collected", broker->store.limbo.n_collected);
	add(reply, "doorbell_rings", broker->store.limbo.n_rings);
	add(reply, "loop_longest_ns", broker->base.loop.meter.longest_ns);
}

/* Add the time since the start, by the kind of work. */
static void add_loop(const struct meter *meter, struct status_reply *reply)
{
	static const char *const names[METER_N] = {
		[METER_REQUESTS] = "loop_requests_ns",
		[METER_RERUNS] = "loop_reruns_ns",
		[METER_CHORES] = "loop_chores_ns",
		[METER_TIMERS] = "loop_timers_ns",
		[METER_CLOSES] = "loop_closes_ns",
		[METER_COLLECTIVES] = "loop_collectives_ns",
		[METER_OTHER] = "loop_other_ns",
	};

	for (int i = 0; i < METER_N; i++)
		add(reply, names[i], meter->task_ns[i]);
	add(reply, "loop_waiting_ns", meter_waited(meter));
}

/* Add the sums over all present communicators. */
static void add_limiters(const struct broker *broker,
			 struct status_reply *reply)
{
	const struct comm *comm = broker->comms.first;
	uint64_t n_in_flight = 0, n_waiting = 0, bytes = 0;
	struct limiter_state state;

	for (; comm; comm = comm->next) {
		limiter_state(comm->limiter, &state);
		gathers_look_up(comm, &state);
		n_in_flight += state.n_in_flight;
		n_waiting += state.n_waiting;
		bytes += state.bytes_in_flight;
	}
	add(reply, "gathers_in_flight", n_in_flight);
	add(reply, "gathers_limited", n_waiting);
	add(reply, "gather_bytes_in_flight", bytes);
}

static void add_collectives(const struct broker *broker,
			    struct status_reply *reply)
{
	const struct catalog *catalog = &broker->store.catalog;
	const struct comms *comms = &broker->comms;
	const struct engine *engine = &broker->engine;
	struct gather_totals totals = {
		.n_unshards = comms->n_unshards,
		.n_limited = comms->n_limited,
		.n_gathers = engine->n_gathers,
		.n_bytes = engine->bytes_gathered,
	};

	gathers_add_totals(comms, &totals);
	add(reply, "comms", catalog_n_live(catalog, SECTION_COMM));
	add(reply, "comms_running", comms->n);
	add(reply, "groups", catalog_n_live(catalog, SECTION_GROUP));
	add_limiters(broker, reply);
	add(reply, "comms_failed", comms->n_failed);
	add(reply, "commits", comms->n_commits);
	add(reply, "unshards", totals.n_unshards);
	add(reply, "limiter_waits", totals.n_limited);
	add(reply, "gathers", totals.n_gathers);
	add(reply, "reductions", engine->n_reductions);
	add(reply, "bytes_gathered", totals.n_bytes);
	add(reply, "bytes_reduced", engine->bytes_reduced);
	add(reply, "jobs_running", engine->n_jobs);
	add(reply, "jobs_failed", engine->n_failed);
	add(reply, "worker_starts", engine->n_starts);
	add(reply, "worker_pid", (uint64_t)engine->pid);
}

/* The size of a name that contains a device. */
#define DEVICE_NAME_SIZE (DEVICE_TEXT_SIZE + 32)

static int add_named(struct verb_call *call, const char *text, const char *what,
		     uint64_t value, struct error *err)
{
	char *name = verb_scratch(call, DEVICE_NAME_SIZE);

	if (!name)
		return error_nomem(err, "the status");
	snprintf(name, DEVICE_NAME_SIZE, "%s_%s", text, what);
	add(&call->reply->status, name, value);
	return 0;
}

static int add_device(struct verb_call *call, const struct device *device,
		      struct error *err)
{
	const struct broker *broker = call->broker;
	char text[DEVICE_TEXT_SIZE];
	int r;

	device_format(&device->uuid, text);
	r = add_named(call, text, "chunk_bytes",
		      pools_device_size(&broker->store.pools, &device->uuid),
		      err);
	if (r == 0)
		r = add_named(
			call, text, "memory_max",
			devices_memory_max(&broker->store.devices, device),
			err);
	return r;
}

static int add_devices(struct verb_call *call, struct error *err)
{
	const struct broker *broker = call->broker;
	struct status_reply *reply = &call->reply->status;
	struct driver_info driver = {0};
	uint64_t shared_size;
	uint32_t n_shared;
	int r = 0;

	/* While the driver is being loaded, only the thread that loads it may
	 * access it. */
	if (broker->store.devices.state != DEVICES_LOADING)
		driver_describe(&driver);
	add(reply, "driver_loading",
	    broker->store.devices.state == DEVICES_LOADING);
	add(reply, "driver_version", (uint64_t)driver.version);
	add(reply, "driver_is_fake", driver.is_fake);
	add(reply, "timelines", broker->store.pools.n_timelines);
	add(reply, "slots_fenced", broker->store.limbo.n_fenced);
	add(reply, "tainted", broker->store.n_tainted);
	add(reply, "device_bytes_live",
	    accounts_total(&broker->base.accounts, ACCOUNT_DEVICE_BYTES));
	pools_shared(&broker->store.pools, &n_shared, &shared_size);
	add(reply, "shared_chunks", n_shared);
	add(reply, "shared_bytes", shared_size);
	add(reply, "devices", broker->store.devices.n);
	for (uint32_t i = 0; i < broker->store.devices.n && r == 0; i++)
		r = add_device(call, &broker->store.devices.list[i], err);
	return r;
}

/* Returns the inode of the state table, which all clients map. No other broker
 * on this kernel has it, and a restart that keeps the tensors keeps it. */
static uint64_t memory_id(const struct broker *broker)
{
	struct stat st = {0};

	(void)fstat(broker->store.table.fd, &st);
	return st.st_ino;
}

/* The number of values that fit into a page; each device has two. */
#define MAX_VALUES MESSAGE_MAX_ITEMS

static void add_process(const struct broker *broker, struct status_reply *reply)
{
	add(reply, "epoch", broker->store.catalog.header->epoch);
	add(reply, "memory_id", memory_id(broker));
	add(reply, "pid", (uint64_t)getpid());
	add(reply, "uptime_ms", now_ms() - broker->started_ms);
	add(reply, "supervised", broker->base.fdstore.is_kept);
	add(reply, "sandbox_calls", broker->confinement.calls);
	add(reply, "sandbox_files", broker->confinement.has_files);
	add(reply, "sessions", broker->sessions.n);
	add(reply, "peers", broker->sessions.n_peers);
	add(reply, "waiters", broker->sessions.waiters.n);
	add(reply, "draining", broker->store.catalog.header->is_draining);
	add(reply, "closing", closer_n_open(&broker->base.closer));
}

/* Add the charges of the user who sent the request. Boards are those of all
 * users if this is an administrator. */
static void add_own(const struct verb_call *call, struct status_reply *reply)
{
	const struct account *account = call->session->holdings.account;
	const bool is_admin = session_is_admin(call->session);

	add(reply, "board_bytes",
	    run_boards_memory(&call->broker->comms,
			      is_admin ? NULL : &account->uid));
	add(reply, "own_bytes", account->used[ACCOUNT_BYTES]);
	add(reply, "own_device_bytes", account->used[ACCOUNT_DEVICE_BYTES]);
	add(reply, "own_slots", account->used[ACCOUNT_SLOTS]);
	add(reply, "own_queue_bytes", account->used[ACCOUNT_QUEUE]);
}

int verb_status(struct verb_call *call, struct error *err)
{
	struct broker *broker = call->broker;
	struct status_reply *reply = &call->reply->status;

	if (call->request->status.resets && !session_is_admin(call->session))
		return error_set(err, -EPERM,
				 "cannot reset counters: only root, the "
				 "broker's user and members of "
				 "admin_group may");
	run_boards_count(&broker->comms);
	reply->values =
		verb_scratch(call, MAX_VALUES * sizeof(struct status_value));
	if (!reply->values)
		return error_nomem(err, "the status");
	reply->version = FSDP_VERSION;
	reply->note = log_notes();
	add_process(broker, reply);
	add_memory(broker, reply);
	add_counters(broker, reply);
	add_loop(&broker->base.loop.meter, reply);
	if (call->request->status.resets)
		meter_reset(&broker->base.loop.meter);
	add_collectives(broker, reply);
	add_own(call, reply);
	return add_devices(call, err);
}
