/*
 * The catalog, the state table and the chunks come from the fd store, if they
 * are there. The volatile state (accounts, arenas, deadlines, table words,
 * sessions) is rebuilt from the catalog. A catalog whose adoption killed two
 * brokers is not adopted again.
 */
#include "broker/adopt.h"
#include "broker/broker.h"
#include "broker/comm/run_adopt.h"
#include "broker/comm/run_board.h"
#include "broker/comm/verdict.h"
#include "broker/tensor/bundle_commit.h"
#include "broker/tensor/channel_resize.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/lease.h"
#include "broker/tensor/prefix.h"
#include "broker/tensor/slot_adopt.h"
#include "broker/tensor/ticket.h"
#include "broker/tensor/timeline_file.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/memfd.h"
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* The number of sessions that the log names after a restart. Each has at most
 * 58 bytes. */
enum { MAX_NAMED_SESSIONS = 4 };

/* Tell whether another start may take the memory over, since it may have the
 * memory or descriptors that were missing, or be of the earlier version. */
static bool may_succeed_later(int r)
{
	return error_is_short(r) || r == -EPROTO;
}

/* Fail the start, but keep the files in the fd store. */
static int put_off(int r, struct error *err)
{
	return error_wrap(err, r,
			  "cannot take over the memory of the earlier broker "
			  "yet, and leave it to the next start");
}

/* End all runs of an earlier broker. Ranks that have mapped its table must not
 * continue with a broker that does not know them. */
static void end_runs(int table_fd)
{
	struct table table;

	if (table_open(&table, table_fd, true, NULL) < 0)
		return;
	verdicts_clear(&table);
	table_close(&table);
}

static int adopt_files(struct broker *broker, struct error *err)
{
	int catalog_fd = fdstore_take(&broker->base.fdstore, "catalog");
	int table_fd = fdstore_take(&broker->base.fdstore, "table");
	int r;

	if (catalog_fd < 0 && table_fd < 0)
		return -ENOENT;
	if (catalog_fd < 0 || table_fd < 0) {
		close(catalog_fd >= 0 ? catalog_fd : table_fd);
		return error_set(
			err, -EUCLEAN,
			"only one of catalog and state table was kept");
	}
	r = catalog_adopt(&broker->store.catalog, catalog_fd, err);
	if (may_succeed_later(r))
		close(table_fd);
	else if (r < 0)
		end_runs(table_fd);
	if (r < 0)
		return r;
	r = table_open(&broker->store.table, table_fd, true, err);
	if (r < 0) {
		if (error_is_short(r))
			catalog_put_off_adoption(&broker->store.catalog);
		else
			r = error_wrap(err, -EUCLEAN, "the state table");
		catalog_close(&broker->store.catalog);
	}
	return r;
}

static int create_files(struct broker *broker, struct error *err)
{
	int r;

	fdstore_remove(&broker->base.fdstore, "catalog");
	fdstore_remove(&broker->base.fdstore, "table");
	r = catalog_create(&broker->store.catalog, err);
	if (r == 0)
		r = table_create(&broker->store.table, err);
	if (r == 0)
		r = fdstore_put(&broker->base.fdstore, broker->store.table.fd,
				"table", err);
	/* The catalog is stored last: with it, the memory can be adopted. */
	if (r == 0)
		r = fdstore_put(&broker->base.fdstore, broker->store.catalog.fd,
				"catalog", err);
	return r;
}

/* Open the catalog and the table. `*ret_is_adopted` tells whether those of an
 * earlier broker were found. */
static int open_files(struct broker *broker, bool *ret_is_adopted,
		      struct error *err)
{
	struct error cause = ERROR_NULL;
	int r;

	r = adopt_files(broker, &cause);
	*ret_is_adopted = r == 0;
	if (may_succeed_later(r)) {
		*err = cause;
		return put_off(r, err);
	}
	if (r < 0) {
		if (cause.code)
			log_note(LOG_LEVEL_WARNING,
				 "fsdpd started without the memory of the "
				 "earlier broker: %s",
				 cause.msg);
		r = create_files(broker, err);
		if (r < 0)
			return r;
	}
	r = memfd_open_readonly(broker->store.table.fd,
				&broker->sessions.table_readonly_fd, err);
	if (r < 0)
		return r;
	catalog_set(&broker->store.catalog, broker->store.catalog.header->epoch,
		    broker->store.catalog.header->epoch + 1);
	catalog_commit(&broker->store.catalog);
	atomic_store_explicit(&broker->store.table.header->epoch,
			      broker->store.catalog.header->epoch,
			      memory_order_seq_cst);
	return 0;
}

static int adopt_sessions(struct broker *broker, uint8_t *ret_is_gone,
			  struct error *err)
{
	const struct catalog *catalog = &broker->store.catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_SESSION);
	int r;

	for (uint32_t i = 1; i <= n; i++) {
		if (catalog_session(catalog, i)->id == 0)
			continue;
		r = session_adopt(&broker->sessions, i, err);
		if (r < 0)
			return r;
		ret_is_gone[i] = r == SESSION_GONE;
	}
	if (broker->sessions.n_unwatched)
		log_line(LOG_LEVEL_WARNING,
			 "cannot watch %u processes of earlier sessions, "
			 "perhaps because no descriptors are left: their "
			 "sessions stay, and fsdpd tries again",
			 broker->sessions.n_unwatched);
	timeline_file_drop_strays(&broker->store);
	return 0;
}

/* Rebuild all volatile state from the catalog. */
static int rebuild(struct broker *broker, uint8_t *ret_is_gone,
		   struct error *err)
{
	int r;

	failpoint("adopt.begin");
	r = adopt_sessions(broker, ret_is_gone, err);
	if (r < 0)
		return r;
	grant_adopt_all(&broker->store);
	r = pools_adopt(&broker->store.pools, err);
	failpoint("adopt.pools");
	if (r == 0)
		r = prefix_adopt_all(&broker->store, err);
	if (r == 0)
		r = ticket_adopt_all(&broker->store, err);
	if (r == 0)
		r = bundle_adopt_all(&broker->store, err);
	if (r == 0)
		r = channels_adopt(&broker->store, err);
	slot_forget_pins(&broker->store);
	if (r == 0)
		r = comms_adopt(&broker->comms, &broker->sessions, err);
	if (r < 0)
		return r;
	lease_adopt_all(&broker->store);
	return slot_adopt_all(&broker->store, err);
}

/* Names the first sessions: ": process 5 (python) of uid 7, and 3 more". */
static void name_sessions(const struct broker *broker, char *ret, size_t size)
{
	const struct catalog *catalog = &broker->store.catalog;
	uint32_t n_touched = catalog_n_touched(catalog, SECTION_SESSION);
	uint32_t n = 0, n_named = 0;
	int used = 0;

	*ret = '\0';
	for (uint32_t i = 1; i <= n_touched; i++) {
		const struct session_record *record =
			catalog_session(catalog, i);

		if (record->id == 0 || n++ >= MAX_NAMED_SESSIONS)
			continue;
		used += snprintf(ret + used, size - (size_t)used,
				 "%s process %u (%s) of uid %u",
				 n_named++ ? "," : ":", record->pid,
				 record->command, record->uid);
	}
	if (n > n_named)
		snprintf(ret + used, size - (size_t)used, ", and %u more",
			 n - n_named);
}

static void log_adopted(const struct broker *broker)
{
	uint32_t n = catalog_n_live(&broker->store.catalog, SECTION_SLOT);
	uint32_t n_sessions = broker->sessions.n;
	char sessions[MAX_NAMED_SESSIONS * 58 + 32];

	name_sessions(broker, sessions, sizeof(sessions));
	log_line(LOG_LEVEL_INFO, "took over %u tensor%s and %u session%s%s", n,
		 n == 1 ? "" : "s", n_sessions, n_sessions == 1 ? "" : "s",
		 sessions);
}

/* Continue with the catalog, and end the sessions whose process has exited in
 * the meantime. */
static int adopt_records(struct broker *broker, struct error *err)
{
	uint8_t is_gone[CATALOG_MAX_SESSIONS + 1] = {0};
	int r = rebuild(broker, is_gone, err);

	if (r < 0)
		return r;
	catalog_commit(&broker->store.catalog);
	failpoint("adopt.slots");
	for (uint32_t i = 1; i <= CATALOG_MAX_SESSIONS; i++) {
		if (is_gone[i])
			session_end_dead(session_at(&broker->sessions, i));
	}
	channels_retire(&broker->store);
	catalog_adopted(&broker->store.catalog);
	failpoint("adopt.end");
	log_adopted(broker);
	return 0;
}

/* Drop files in the fd store that no catalog describes. */
static int drop_strays(struct broker *broker, struct error *err)
{
	timeline_file_drop_strays(&broker->store);
	channels_drop_strays(&broker->store);
	run_boards_drop_strays(&broker->store);
	return pools_adopt(&broker->store.pools, err);
}

int broker_adopt(struct broker *broker, struct error *err)
{
	bool is_adopted = false;
	int r;

	r = engine_adopt(&broker->engine, err);
	if (r == 0)
		r = open_files(broker, &is_adopted, err);
	if (r < 0 && !is_adopted)
		return r;
	accounts_init(&broker->base.accounts, &broker->base.config);
	pools_init(&broker->store.pools);
	if (r == 0 && !is_adopted)
		return drop_strays(broker, err);
	if (r == 0)
		r = adopt_records(broker, err);
	if (r < 0)
		comms_put_off(&broker->comms);
	if (is_adopted && error_is_short(r)) {
		catalog_put_off_adoption(&broker->store.catalog);
		r = put_off(r, err);
	}
	return r;
}
