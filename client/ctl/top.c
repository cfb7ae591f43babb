/* Reads and prints the views of top. */
#include "client/ctl/top.h"

#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/format.h"
#include "client/ctl/listing.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- rows ---------------------------------------------------------------- */

struct process {
	struct fsdp_peer peer;
	uint64_t rate; /* requests per second */
};

static int keep_session(struct top_sessions *sessions,
			const struct fsdp_peer *peer)
{
	size_t capacity = sessions->capacity ? 2 * sessions->capacity : 64;
	struct top_session *items;

	if (sessions->n == sessions->capacity) {
		items = reallocarray(sessions->items, capacity, sizeof(*items));
		if (!items)
			return -ENOMEM;
		sessions->items = items;
		sessions->capacity = capacity;
	}
	sessions->items[sessions->n++] =
		(struct top_session){peer->session, peer->n_requests};
	return 0;
}

static uint64_t rate_of(const struct top *top, const struct fsdp_peer *peer)
{
	double seconds = (double)(top->ns - top->before_ns) / 1e9;
	const struct top_session *before = top->sessions_before.items;
	const struct top_session *end = before + top->sessions_before.n;

	for (; top->before_ns && before < end; before++) {
		/* A broker that was started again has begun again at 0. */
		if (before->session == peer->session &&
		    before->n_requests <= peer->n_requests)
			return (uint64_t)((double)(peer->n_requests -
						   before->n_requests) /
					  seconds);
	}
	return 0;
}

static int add_process(const struct fsdp_peer *peer, void *data)
{
	struct top *top = data;
	struct process row = {.peer = *peer, .rate = rate_of(top, peer)};
	int r = keep_session(&top->sessions, peer);

	return r < 0 ? r : rows_add(&top->rows, &row);
}

static int add_user(const struct fsdp_account *account, void *data)
{
	return rows_add(&((struct top *)data)->rows, account);
}

static int add_tensor(const struct fsdp_entry *entry, void *data)
{
	struct listed row = {.info = *entry->info, .entry = *entry};

	return rows_add(&((struct top *)data)->rows, &row);
}

static int add_pool(const struct fsdp_chunk *chunk, void *data)
{
	return rows_add(&((struct top *)data)->rows, chunk);
}

static int add_comm(const struct fsdp_comm_entry *entry, void *data)
{
	return rows_add(&((struct top *)data)->rows, entry);
}

/* --- columns ------------------------------------------------------------- */

static const char *text_limit(const void *field, char buffer[COLUMN_BUFFER])
{
	uint64_t limit = *(const uint64_t *)field;

	return limit == UINT64_MAX ? "-" : format_size(limit, buffer);
}

#define OF(row, member) .offset = offsetof(struct row, member)

static const struct column process_columns[] = {
	{">PID", .kind = COLUMN_U32, OF(process, peer.pid)},
	{"COMMAND", .kind = COLUMN_TEXT, OF(process, peer.command)},
	{"OWNER", .kind = COLUMN_U32, OF(process, peer.uid),
	 .text = listing_text_user},
	{">ALLOCATED", .kind = COLUMN_SIZE, OF(process, peer.n_bytes)},
	{">HELD", .kind = COLUMN_U64, OF(process, peer.n_slots)},
	{">REQ/S", .kind = COLUMN_U64, OF(process, rate)},
	{">REQUESTS", .kind = COLUMN_U64, OF(process, peer.n_requests)},
	{">WAITING", .kind = COLUMN_U32, OF(process, peer.n_waiting)},
	{">AGE", .kind = COLUMN_AGE, OF(process, peer.age_ms)},
	{0}};

static const struct column user_columns[] = {
	{"OWNER", .kind = COLUMN_U32, OF(fsdp_account, uid),
	 .text = listing_text_user},
	{">HOST", .kind = COLUMN_SIZE, OF(fsdp_account, n_bytes)},
	{">OF", .kind = COLUMN_U64, OF(fsdp_account, max_bytes),
	 .text = text_limit},
	{">DEVICES", .kind = COLUMN_SIZE, OF(fsdp_account, n_device_bytes)},
	{">TENSORS", .kind = COLUMN_U64, OF(fsdp_account, n_slots)},
	{">SESSIONS", .kind = COLUMN_U64, OF(fsdp_account, n_sessions)},
	{">WAITING", .kind = COLUMN_U64, OF(fsdp_account, n_waiting)},
	{0}};

static const struct column tensor_columns[] = {
	{"NAME", .kind = COLUMN_TEXT, OF(listed, info.name),
	 .text = listing_text_name},
	{">BYTES", .kind = COLUMN_SIZE, OF(listed, info.size)},
	{">HOLDERS", .kind = COLUMN_U32, OF(listed, entry.n_holders)},
	{">AGE", .kind = COLUMN_AGE, OF(listed, entry.age_ms)},
	{">KEEPS", .kind = COLUMN_SIZE, OF(listed, entry.block_size)},
	{"OWNER", .kind = COLUMN_U32, OF(listed, entry.uid),
	 .text = listing_text_user},
	{">MAKER", .kind = COLUMN_U32, OF(listed, entry.maker_pid),
	 .text = listing_text_pid},
	{0}};

static const struct column pool_columns[] = {
	{">CHUNK", .kind = COLUMN_U32, OF(fsdp_chunk, chunk)},
	{"OWNER", .kind = COLUMN_U32, OF(fsdp_chunk, uid),
	 .text = listing_text_user},
	{"MODE", .kind = COLUMN_U32, OF(fsdp_chunk, mode),
	 .text = listing_text_mode},
	{">SIZE", .kind = COLUMN_SIZE, OF(fsdp_chunk, size)},
	{">USED", .kind = COLUMN_SIZE, OF(fsdp_chunk, used)},
	{">NO PAGES", .kind = COLUMN_SIZE, OF(fsdp_chunk, reserved)},
	{">BLOCKS", .kind = COLUMN_U32, OF(fsdp_chunk, n_blocks)},
	{"SEALED", .kind = COLUMN_BOOL, OF(fsdp_chunk, is_sealed)},
	{"DEVICE", .kind = COLUMN_U32, OF(fsdp_chunk, device),
	 .text = listing_text_device},
	{0}};

static const struct column comm_columns[] = {
	{"NAME", .kind = COLUMN_TEXT, OF(fsdp_comm_entry, name)},
	{"STATE", .kind = COLUMN_U32, OF(fsdp_comm_entry, state),
	 .text = listing_text_comm_state},
	{">RANKS", .kind = COLUMN_U32, OF(fsdp_comm_entry, n_ranks)},
	{">STEP", .kind = COLUMN_U64, OF(fsdp_comm_entry, step)},
	{">GROUPS", .kind = COLUMN_U32, OF(fsdp_comm_entry, n_groups)},
	{">KEPT", .kind = COLUMN_SIZE, OF(fsdp_comm_entry, n_bytes)},
	{">IN FLIGHT", .kind = COLUMN_U32, OF(fsdp_comm_entry, n_in_flight)},
	{">THEIR BYTES", .kind = COLUMN_SIZE,
	 OF(fsdp_comm_entry, bytes_in_flight)},
	{"NOTE", .kind = COLUMN_TEXT, OF(fsdp_comm_entry, note)},
	{0}};

static const struct {
	const char *name;
	const struct column *columns;
	size_t size; /* of a row, in bytes */
	size_t sort; /* index of the column to sort by at first */
} views[TOP_N] = {
	[TOP_PROCESSES] = {"processes", process_columns, sizeof(struct process),
			   3},
	[TOP_USERS] = {"users", user_columns, sizeof(struct fsdp_account), 1},
	[TOP_TENSORS] = {"tensors", tensor_columns, sizeof(struct listed), 1},
	[TOP_LIMBO] = {"limbo", tensor_columns, sizeof(struct listed), 3},
	[TOP_POOLS] = {"pools", pool_columns, sizeof(struct fsdp_chunk), 3},
	[TOP_COMMS] = {"comms", comm_columns, sizeof(struct fsdp_comm_entry),
		       3},
};

const char *top_view_name(enum top_view view)
{
	return views[view].name;
}

void top_sort_next(struct top *top)
{
	const struct column *columns = views[top->view].columns;

	top->rows.by = top->rows.by[1].title ? top->rows.by + 1 : columns;
}

bool top_sort_by(struct top *top, const char *title)
{
	const struct column *column = views[top->view].columns;

	for (; column->title; column++) {
		if (strcasecmp(column->title + (*column->title == '>'),
			       title) != 0)
			continue;
		top->rows.by = column;
		return true;
	}
	return false;
}

void top_list_titles(const struct top *top, char ret[TOP_TITLES])
{
	const struct column *column = views[top->view].columns;
	int n = 0;

	for (; column->title; column++)
		n += snprintf(ret + n, (size_t)(TOP_TITLES - n), "%s%s",
			      n ? ", " : "",
			      column->title + (*column->title == '>'));
	assert(n < TOP_TITLES);
}

/* --- reading ------------------------------------------------------------- */

void top_set_view(struct top *top, enum top_view view)
{
	rows_clear(&top->rows);
	top->view = view;
	top->rows.columns = views[view].columns;
	top->rows.size = views[view].size;
	top->rows.by = &views[view].columns[views[view].sort];
	top->rows.is_reversed = false;
}

static int read_rows(struct top *top)
{
	switch (top->view) {
	case TOP_PROCESSES:
		return fsdp_clients(top->client, add_process, top);
	case TOP_USERS:
		return fsdp_accounts(top->client, add_user, top);
	case TOP_TENSORS:
		return fsdp_list_all(top->client, add_tensor, top);
	case TOP_LIMBO:
		return fsdp_limbo(top->client, add_tensor, top);
	case TOP_POOLS:
		return fsdp_chunks(top->client, add_pool, top);
	case TOP_COMMS:
		return fsdp_comms(top->client, add_comm, top);
	case TOP_N:
		break;
	}
	return 0;
}

int top_read(struct top *top, struct error *err)
{
	struct counters counters = COUNTERS_NULL;
	int r = counters_read(top->client, &counters, err);

	if (r < 0)
		return r;
	counters_deinit(&top->before);
	top->before = top->counters;
	top->before_ns = top->ns;
	top->counters = counters;
	top->ns = format_now_ns();
	rows_clear(&top->rows);
	free(top->sessions_before.items);
	top->sessions_before = top->sessions;
	top->sessions = (struct top_sessions){0};
	r = read_rows(top);
	rows_cut(&top->rows);
	return r < 0 ? broker_walk_failed(err, r) : 0;
}

/* --- printing ------------------------------------------------------------ */

static uint64_t get(const struct top *top, const char *name)
{
	return counters_find(&top->counters, name);
}

/* Returns by how much a counter grew per second since the last reading, or 0 at
 * the first one. */
static double rate(const struct top *top, const char *name)
{
	uint64_t now = get(top, name);
	uint64_t before = counters_find(&top->before, name);

	if (!top->before_ns || now < before)
		return 0;
	return (double)(now - before) * 1e9 /
	       (double)(top->ns - top->before_ns);
}

static void print_summary(const struct top *top, FILE *file)
{
	char texts[3][FORMAT_SIZE];

	fprintf(file,
		"fsdpd pid %" PRIu64 ", up %s; %s, %" PRIu64
		" connected, %s waiting\n",
		get(top, "pid"), format_age(get(top, "uptime_ms"), texts[0]),
		format_count(get(top, "sessions"), "session", texts[1]),
		get(top, "peers"),
		format_count(get(top, "waiters"), "request", texts[2]));
	fprintf(file, "memory: %s used of %s (%s in chunks); devices: ",
		format_size(get(top, "bytes_live"), texts[0]),
		format_size(get(top, "memory_max"), texts[1]),
		format_size(get(top, "chunk_bytes"), texts[2]));
	fprintf(file, "%s used\n",
		format_size(get(top, "device_bytes_live"), texts[0]));
	fprintf(file, "tensors: %" PRIu64 ", %" PRIu64 " in limbo; %s, %s\n",
		get(top, "slots"), get(top, "slots_limbo"),
		format_count(get(top, "bundles"), "bundle", texts[0]),
		format_count(get(top, "tickets"), "ticket", texts[1]));
	fprintf(file,
		"rates: %.0f requests/s, %.0f published/s, %.0f freed/s, "
		"%.0f evicted/s\n",
		rate(top, "requests"), rate(top, "published"),
		rate(top, "freed_slots"), rate(top, "evicted"));
	fprintf(file,
		"collectives: %s; %.0f gathers/s, %s/s, %.0f reductions/s, ",
		format_count(get(top, "comms_running"), "communicator",
			     texts[0]),
		rate(top, "gathers"),
		format_size((uint64_t)rate(top, "bytes_gathered"), texts[1]),
		rate(top, "reductions"));
	fprintf(file, "%s/s\n\n",
		format_size((uint64_t)rate(top, "bytes_reduced"), texts[0]));
}

int top_print(struct top *top, int width, FILE *file, struct error *err)
{
	const struct args args = {0};
	struct sheet sheet;
	int r = 0;

	print_summary(top, file);
	rows_sort(&top->rows);
	sheet_init(&sheet, top->rows.columns, &args);
	for (size_t i = 0; r == 0 && i < top->rows.n; i++)
		r = sheet_add(&sheet, top->rows.items + i * top->rows.size);
	if (r == 0)
		table_print_within(&sheet.table, width, file);
	sheet_deinit(&sheet);
	return r < 0 ? broker_walk_failed(err, r) : 0;
}

void top_deinit(struct top *top)
{
	rows_clear(&top->rows);
	free(top->sessions.items);
	free(top->sessions_before.items);
	counters_deinit(&top->counters);
	counters_deinit(&top->before);
}
