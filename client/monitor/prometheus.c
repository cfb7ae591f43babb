/*
 * Most metrics are values of the status, and each has a row in a table here.
 * Base units are seconds and bytes. Labels have few different values: uids,
 * devices, kinds of requests, names of communicators.
 */
#include "client/monitor/prometheus.h"
#include "client/monitor/snapshot.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NS 1e-9

static void write_head(FILE *file, const char *name, const char *type,
		       const char *help)
{
	fprintf(file, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Write the value of a label. Backslash, quote and newline are escaped. */
static void write_label(FILE *file, const char *text)
{
	for (; *text; text++) {
		if (*text == '\n')
			fputs("\\n", file);
		else if (*text == '"' || *text == '\\')
			fprintf(file, "\\%c", *text);
		else
			fputc(*text, file);
	}
}

/* --- the status ---------------------------------------------------------- */

/* The rows of one metric must be neighbours. */
static const struct row {
	const char *value; /* name of the value in the status */
	const char *name, *labels;
	const char *type; /* NULL: the same metric as in the row before */
	const char *help;
	double unit; /* the value is multiplied by this; 0: by 1 */
} rows[] = {
	{"uptime_ms", "fsdpd_uptime_seconds", "", "gauge",
	 "Time since the broker's start.", 1e-3},
	{"epoch", "fsdpd_epoch", "", "gauge",
	 "Brokers that have had this memory so far: 1 before a restart.", 0},
	{"supervised", "fsdpd_supervised", "", "gauge",
	 "1 if another process keeps the memory while the broker is restarted.",
	 0},
	{"rss", "fsdpd_resident_memory_bytes", "", "gauge",
	 "Memory of the broker itself, with its catalog.", 0},
	{"sessions", "fsdpd_sessions", "", "gauge",
	 "Processes that have a session.", 0},
	{"peers", "fsdpd_connections", "", "gauge", "Open connections.", 0},
	{"waiters", "fsdpd_parked_requests", "", "gauge",
	 "Requests that wait for a name or for memory.", 0},
	{"closing", "fsdpd_closing_descriptors", "", "gauge",
	 "Descriptors of clients that are being closed.", 0},
	{"slots", "fsdpd_tensors", "", "gauge", "Tensors, by version.", 0},
	{"slots_limbo", "fsdpd_limbo_tensors", "", "gauge",
	 "Tensors without a keeper that are still held.", 0},
	{"slots_fenced", "fsdpd_fenced_tensors", "", "gauge",
	 "Released tensors that a device still uses.", 0},
	{"blocks", "fsdpd_blocks", "", "gauge", "Blocks of memory.", 0},
	{"bundles", "fsdpd_bundles", "", "gauge", "Versions of bundles.", 0},
	{"tickets", "fsdpd_tickets", "", "gauge", "Valid tickets.", 0},
	{"grants", "fsdpd_grants", "", "gauge",
	 "Grants: pairs of a session and a tensor that it may hold.", 0},
	{"timelines", "fsdpd_timeline_files", "", "gauge",
	 "Sessions that order device tensors by a timeline.", 0},
	{"bytes_live", "fsdpd_memory_used_bytes", "where=\"host\"", "gauge",
	 "Memory in blocks.", 0},
	{"device_bytes_live", "fsdpd_memory_used_bytes", "where=\"device\"",
	 NULL, NULL, 0},
	{"memory_max", "fsdpd_memory_limit_bytes", "", "gauge",
	 "Limit of the host memory in chunks.", 0},
	{"chunk_bytes", "fsdpd_host_chunk_bytes", "", "gauge",
	 "Host memory in chunks.", 0},
	{"bytes_free", "fsdpd_host_free_bytes", "", "gauge",
	 "Free memory in chunks of the host.", 0},
	{"free_warm", "fsdpd_host_warm_bytes", "", "gauge",
	 "Free memory in chunks of the host that has pages.", 0},
	{"chunks", "fsdpd_chunks", "", "gauge", "Chunks of memory.", 0},
	{"shared_chunks", "fsdpd_shared_chunks", "", "gauge",
	 "Chunks that processes allocated themselves.", 0},
	{"shared_bytes", "fsdpd_shared_bytes", "", "gauge",
	 "Memory of chunks that processes allocated themselves.", 0},
	{"devices", "fsdpd_devices", "", "gauge", "Devices of the driver.", 0},
	{"comms_running", "fsdpd_running_communicators", "", "gauge",
	 "Communicators with ranks.", 0},
	{"groups", "fsdpd_groups", "", "gauge", "Groups of communicators.", 0},
	{"gathers_in_flight", "fsdpd_gathers_in_flight", "", "gauge",
	 "Groups that are being gathered or are unsharded.", 0},
	{"gathers_limited", "fsdpd_gathers_limited", "", "gauge",
	 "Gathers that wait for the limiter.", 0},
	{"gather_bytes_in_flight", "fsdpd_gather_in_flight_bytes", "", "gauge",
	 "Memory of the gathers in flight.", 0},
	{"jobs_running", "fsdpd_worker_jobs", "", "gauge",
	 "Jobs that fsdp-worker carries out.", 0},
	{"loop_longest_ns", "fsdpd_loop_longest_iteration_seconds", "", "gauge",
	 "Longest iteration since the start or a reset.", NS},
	{"loop_requests_ns", "fsdpd_loop_seconds_total", "task=\"requests\"",
	 "counter", "Time of the event loop, by task.", NS},
	{"loop_reruns_ns", "fsdpd_loop_seconds_total", "task=\"reruns\"", NULL,
	 NULL, NS},
	{"loop_chores_ns", "fsdpd_loop_seconds_total", "task=\"chores\"", NULL,
	 NULL, NS},
	{"loop_timers_ns", "fsdpd_loop_seconds_total", "task=\"timers\"", NULL,
	 NULL, NS},
	{"loop_closes_ns", "fsdpd_loop_seconds_total", "task=\"closes\"", NULL,
	 NULL, NS},
	{"loop_collectives_ns", "fsdpd_loop_seconds_total",
	 "task=\"collectives\"", NULL, NULL, NS},
	{"loop_other_ns", "fsdpd_loop_seconds_total", "task=\"other\"", NULL,
	 NULL, NS},
	{"loop_waiting_ns", "fsdpd_loop_seconds_total", "task=\"waiting\"",
	 NULL, NULL, NS},
	{"requests", "fsdpd_requests_total", "", "counter",
	 "Requests of all sessions.", 0},
	{"refused", "fsdpd_refused_requests_total", "", "counter",
	 "Requests that were refused.", 0},
	{"replayed", "fsdpd_replayed_requests_total", "", "counter",
	 "Requests that were repeated after a reconnect and got the recorded "
	 "reply.",
	 0},
	{"dropped_peers", "fsdpd_dropped_connections_total", "", "counter",
	 "Connections that got no session or broke the protocol.", 0},
	{"published", "fsdpd_published_tensors_total", "", "counter",
	 "Tensors that were published.", 0},
	{"freed_slots", "fsdpd_freed_tensors_total", "", "counter",
	 "Tensors that were freed.", 0},
	{"evicted", "fsdpd_evicted_tensors_total", "", "counter",
	 "Published tensors that were dropped for memory.", 0},
	{"limbo_collected", "fsdpd_limbo_collected_tensors_total", "",
	 "counter", "Tensors that were freed from limbo.", 0},
	{"tainted", "fsdpd_tainted_tensors_total", "", "counter",
	 "Device tensors whose writer died before it finished them, or whose "
	 "memory ended with its process.",
	 0},
	{"dead_sessions", "fsdpd_dead_sessions_total", "", "counter",
	 "Sessions that ended by the death of their process.", 0},
	{"chunks_created", "fsdpd_created_chunks_total", "", "counter",
	 "Chunks that were made.", 0},
	{"chunks_retired", "fsdpd_retired_chunks_total", "", "counter",
	 "Chunks that were given back.", 0},
	{"commits", "fsdpd_commits_total", "", "counter",
	 "Steps that all ranks committed.", 0},
	{"unshards", "fsdpd_unshards_total", "", "counter",
	 "Unshards of groups.", 0},
	{"gathers", "fsdpd_gathers_total", "", "counter",
	 "Gathers that were done.", 0},
	{"reductions", "fsdpd_reductions_total", "", "counter",
	 "Reductions that were done.", 0},
	{"bytes_gathered", "fsdpd_gathered_bytes_total", "", "counter",
	 "Bytes that gathers wrote.", 0},
	{"bytes_reduced", "fsdpd_reduced_bytes_total", "", "counter",
	 "Bytes that reductions read.", 0},
	{"limiter_waits", "fsdpd_limiter_waits_total", "", "counter",
	 "Gathers that had to wait for the limiter.", 0},
	{"comms_failed", "fsdpd_failed_communicators_total", "", "counter",
	 "Communicators that ended by a failure.", 0},
	{"jobs_failed", "fsdpd_failed_worker_jobs_total", "", "counter",
	 "Jobs of fsdp-worker that failed.", 0},
	{"worker_starts", "fsdpd_worker_starts_total", "", "counter",
	 "Starts of fsdp-worker.", 0},
};

static const struct snapshot_value *find(const struct snapshot *snapshot,
					 const char *name)
{
	for (size_t i = 0; i < snapshot->n_values; i++)
		if (strcmp(snapshot->values[i].name, name) == 0)
			return &snapshot->values[i];
	return NULL;
}

static void write_status(FILE *file, const struct snapshot *snapshot)
{
	const struct snapshot_value *value;

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		const struct row *row = &rows[i];

		if (row->type)
			write_head(file, row->name, row->type, row->help);
		/* A broker of another version may not have this value. */
		value = find(snapshot, row->value);
		if (!value)
			continue;
		fputs(row->name, file);
		if (*row->labels)
			fprintf(file, "{%s}", row->labels);
		if (row->unit > 0)
			fprintf(file, " %.9f\n",
				(double)value->value * row->unit);
		else
			fprintf(file, " %" PRIu64 "\n", value->value);
	}
}

/* --- histograms ---------------------------------------------------------- */

/* Only every fourth bucket is written; its limit is a power of 2. */
#define STEP 4

static void write_histogram(FILE *file, const char *name,
			    const struct snapshot *snapshot,
			    const struct snapshot_histogram *histogram)
{
	char label[64] = "";
	uint64_t n = 0;

	if (*histogram->name)
		snprintf(label, sizeof(label), "kind=\"%s\"", histogram->name);
	for (uint32_t i = 0; i + 1 < snapshot->n_buckets; i++) {
		n += histogram->counts[i];
		if (i % STEP == 0)
			fprintf(file,
				"%s_bucket{%s%sle=\"%.9g\"} %" PRIu64 "\n",
				name, label, *label ? "," : "",
				(double)snapshot->limits_ns[i] * NS, n);
	}
	fprintf(file, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, label,
		*label ? "," : "", histogram->n);
	fprintf(file, *label ? "%s_sum{%s} %.9f\n" : "%s_sum%s %.9f\n", name,
		label, (double)histogram->sum_ns * NS);
	fprintf(file,
		*label ? "%s_count{%s} %" PRIu64 "\n"
		       : "%s_count%s %" PRIu64 "\n",
		name, label, histogram->n);
}

static void write_histograms(FILE *file, const struct snapshot *snapshot)
{
	static const struct {
		enum fsdp_histogram_kind kind;
		const char *name, *help;
	} families[] = {
		{FSDP_HISTOGRAM_ITERATION, "fsdpd_loop_iteration_seconds",
		 "Time of one iteration of the event loop, without the wait "
		 "for events."},
		{FSDP_HISTOGRAM_REQUEST, "fsdpd_request_duration_seconds",
		 "Requests answered at once, from reading to the reply."},
		{FSDP_HISTOGRAM_PARKED, "fsdpd_parked_request_duration_seconds",
		 "Requests that waited, from parking to the reply."},
	};

	for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++) {
		write_head(file, families[i].name, "histogram",
			   families[i].help);
		for (size_t k = 0; k < snapshot->n_histograms; k++)
			if (snapshot->histograms[k].kind == families[i].kind)
				write_histogram(file, families[i].name,
						snapshot,
						&snapshot->histograms[k]);
	}
}

/* --- pools --------------------------------------------------------------- */

static int compare_chunks(const void *a, const void *b)
{
	const struct fsdp_chunk *x = a, *y = b;
	int r = memcmp(&x->device, &y->device, sizeof(x->device));

	if (r == 0)
		r = (x->uid > y->uid) - (x->uid < y->uid);
	if (r == 0)
		r = (x->gid > y->gid) - (x->gid < y->gid);
	if (r == 0)
		r = (x->mode > y->mode) - (x->mode < y->mode);
	return r;
}

/* Sum up the chunks of each device and access class. */
static struct fsdp_chunk *sum_pools(const struct snapshot *snapshot,
				    size_t *ret_n)
{
	struct fsdp_chunk *pools =
		calloc(snapshot->n_chunks + 1, sizeof(*pools));
	size_t n = 0;

	*ret_n = 0;
	if (!pools)
		return NULL;
	if (snapshot->n_chunks)
		memcpy(pools, snapshot->chunks,
		       snapshot->n_chunks * sizeof(*pools));
	qsort(pools, snapshot->n_chunks, sizeof(*pools), compare_chunks);
	for (size_t i = 0; i < snapshot->n_chunks; i++) {
		if (n && compare_chunks(&pools[n - 1], &pools[i]) == 0) {
			pools[n - 1].size += pools[i].size;
			pools[n - 1].used += pools[i].used;
			pools[n - 1].n_blocks += pools[i].n_blocks;
		} else {
			pools[n++] = pools[i];
		}
	}
	*ret_n = n;
	return pools;
}

static void write_pool_labels(FILE *file, const char *name,
			      const struct fsdp_chunk *pool)
{
	static const struct fsdp_device host;
	char device[FSDP_DEVICE_TEXT] = "host";

	if (memcmp(&pool->device, &host, sizeof(host)) != 0)
		fsdp_device_format(&pool->device, device);
	fprintf(file, "%s{device=\"%s\",uid=\"%u\",gid=\"%u\",mode=\"%04o\"} ",
		name, device, pool->uid, pool->gid, pool->mode);
}

static void write_pools(FILE *file, const struct snapshot *snapshot)
{
	size_t n;
	struct fsdp_chunk *pools = sum_pools(snapshot, &n);

	write_head(file, "fsdpd_pool_size_bytes", "gauge",
		   "Memory in chunks, by device and access class.");
	for (size_t i = 0; i < n; i++) {
		write_pool_labels(file, "fsdpd_pool_size_bytes", &pools[i]);
		fprintf(file, "%" PRIu64 "\n", pools[i].size);
	}
	write_head(file, "fsdpd_pool_used_bytes", "gauge",
		   "Memory in blocks, by device and access class.");
	for (size_t i = 0; i < n; i++) {
		write_pool_labels(file, "fsdpd_pool_used_bytes", &pools[i]);
		fprintf(file, "%" PRIu64 "\n", pools[i].used);
	}
	free(pools);
}

/* --- users --------------------------------------------------------------- */

static void write_number(FILE *file, uint64_t value)
{
	if (value == UINT64_MAX)
		fputs("+Inf\n", file);
	else
		fprintf(file, "%" PRIu64 "\n", value);
}

static void write_accounts(FILE *file, const struct snapshot *snapshot)
{
#define AT(member) offsetof(struct fsdp_account, member)
	static const struct {
		const char *name, *help;
		const char *label; /* follows that of the uid */
		size_t offset;
	} columns[] = {
		{"fsdpd_user_memory_bytes", "Memory charged to a user.",
		 ",where=\"host\"", AT(n_bytes)},
		{"fsdpd_user_memory_bytes", NULL, ",where=\"device\"",
		 AT(n_device_bytes)},
		{"fsdpd_user_memory_limit_bytes",
		 "The most memory that a user may have.", ",where=\"host\"",
		 AT(max_bytes)},
		{"fsdpd_user_memory_limit_bytes", NULL, ",where=\"device\"",
		 AT(max_device_bytes)},
		{"fsdpd_user_tensors", "Tensors of a user.", "", AT(n_slots)},
		{"fsdpd_user_tensors_limit", "The most tensors of a user.", "",
		 AT(max_slots)},
		{"fsdpd_user_sessions", "Sessions of a user.", "",
		 AT(n_sessions)},
		{"fsdpd_user_sessions_limit", "The most sessions of a user.",
		 "", AT(max_sessions)},
		{"fsdpd_user_parked_requests", "Requests of a user that wait.",
		 "", AT(n_waiting)},
	};
#undef AT

	for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); i++) {
		if (columns[i].help)
			write_head(file, columns[i].name, "gauge",
				   columns[i].help);
		for (size_t k = 0; k < snapshot->n_accounts; k++) {
			const struct fsdp_account *account =
				&snapshot->accounts[k];
			uint64_t value;

			memcpy(&value,
			       (const char *)account + columns[i].offset,
			       sizeof(value));
			fprintf(file, "%s{uid=\"%u\"%s} ", columns[i].name,
				account->uid, columns[i].label);
			write_number(file, value);
		}
	}
}

/* --- communicators ------------------------------------------------------- */

static uint64_t comm_step(const struct fsdp_comm_entry *comm)
{
	return comm->step;
}

static uint64_t comm_ranks(const struct fsdp_comm_entry *comm)
{
	return comm->n_joined;
}

static uint64_t comm_bytes(const struct fsdp_comm_entry *comm)
{
	return comm->n_bytes;
}

static uint64_t comm_in_flight(const struct fsdp_comm_entry *comm)
{
	return comm->n_in_flight;
}

static void write_comms(FILE *file, const struct snapshot *snapshot)
{
	static const struct {
		const char *name, *help;
		uint64_t (*get)(const struct fsdp_comm_entry *comm);
	} columns[] = {
		{"fsdpd_communicator_step",
		 "The last step that all ranks committed.", comm_step},
		{"fsdpd_communicator_ranks", "Ranks that have joined.",
		 comm_ranks},
		{"fsdpd_communicator_shard_bytes", "Memory of kept shards.",
		 comm_bytes},
		{"fsdpd_communicator_gathers_in_flight",
		 "Groups that are being gathered or are unsharded.",
		 comm_in_flight},
	};

	for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); i++) {
		write_head(file, columns[i].name, "gauge", columns[i].help);
		for (size_t k = 0; k < snapshot->n_comms; k++) {
			const struct fsdp_comm_entry *comm =
				&snapshot->comms[k];

			fprintf(file, "%s{uid=\"%u\",communicator=\"",
				columns[i].name, comm->uid);
			write_label(file, comm->name);
			fprintf(file, "\"} %" PRIu64 "\n",
				columns[i].get(comm));
		}
	}
}

void prometheus_write(FILE *file, const struct snapshot *snapshot)
{
	write_head(file, "fsdpd_up", "gauge", "1 if the broker answers.");
	fprintf(file, "fsdpd_up %d\n", snapshot != NULL);
	if (!snapshot)
		return;
	write_status(file, snapshot);
	write_histograms(file, snapshot);
	write_pools(file, snapshot);
	write_accounts(file, snapshot);
	write_comms(file, snapshot);
}
