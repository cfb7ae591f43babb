/* status and ping: show the state of the broker and the time of a round
 * trip. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/counters.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LABEL "%-13s "

/* --- lines --------------------------------------------------------------- */

static uint64_t get(const struct counters *counters, const char *name)
{
	return counters_find(counters, name);
}

static void print_broker(const struct counters *c)
{
	char age[FORMAT_SIZE];

	printf(LABEL "pid %" PRIu64 ", up %s, %s\n", "broker", get(c, "pid"),
	       format_age(get(c, "uptime_ms"), age),
	       get(c, "supervised") ? "supervised" : "not supervised");
}

static void print_sandbox(const struct counters *c)
{
	static const char *const calls[] = {
		"all system calls",
		"system calls but those refused",
		"listed system calls",
	};
	uint64_t which = get(c, "sandbox_calls");

	if (which >= sizeof(calls) / sizeof(*calls))
		return;
	printf(LABEL "%s, %s\n", "may use", calls[which],
	       get(c, "sandbox_files") ? "listed files" : "all files");
}

static void print_memory(const char *what, uint64_t used, uint64_t max,
			 uint64_t chunks)
{
	char sizes[3][FORMAT_SIZE];

	printf(LABEL "%s used of %s (%s in chunks)\n", what,
	       format_size(used, sizes[0]), format_size(max, sizes[1]),
	       format_size(chunks, sizes[2]));
}

/* The broker counts used bytes for all devices together, so they are not shown
 * for each device. */
static void print_devices(const struct counters *c)
{
	char name[FSDP_DEVICE_TEXT + 16], sizes[2][FORMAT_SIZE];
	uint64_t used = get(c, "device_bytes_live");

	for (size_t i = 0; i < c->n; i++) {
		const char *end = strstr(c->list[i].name, "_memory_max");
		int n = end ? (int)(end - c->list[i].name) : 0;

		if (n == 0)
			continue;
		snprintf(name, sizeof(name), "%.*s_chunk_bytes", n,
			 c->list[i].name);
		printf(LABEL "%s in chunks of %s on %.*s\n", "device",
		       format_size(get(c, name), sizes[0]),
		       format_size(c->list[i].value, sizes[1]), n,
		       c->list[i].name);
	}
	if (used)
		printf(LABEL "%s used on all devices\n", "",
		       format_size(used, sizes[0]));
}

static void print_contents(const struct counters *c)
{
	char texts[2][FORMAT_SIZE];

	printf(LABEL "%" PRIu64 ", of which %" PRIu64 " in limbo; %s, %s\n",
	       "tensors", get(c, "slots"), get(c, "slots_limbo"),
	       format_count(get(c, "bundles"), "bundle", texts[0]),
	       format_count(get(c, "tickets"), "ticket", texts[1]));
	printf(LABEL "%" PRIu64 ", of which %" PRIu64
		     " connected; %s waiting\n",
	       "sessions", get(c, "sessions"), get(c, "peers"),
	       format_count(get(c, "waiters"), "request", texts[0]));
	if (get(c, "comms"))
		printf(LABEL "%" PRIu64 ", of which %" PRIu64
			     " running; %s, %s in flight\n",
		       "communicators", get(c, "comms"),
		       get(c, "comms_running"),
		       format_count(get(c, "groups"), "group", texts[0]),
		       format_count(get(c, "gathers_in_flight"), "gather",
				    texts[1]));
}

static void print_loop(const struct counters *c)
{
	char time[FORMAT_SIZE];

	printf(LABEL "longest iteration %s\n", "loop",
	       format_ns(get(c, "loop_longest_ns"), time));
}

static void print_own(const struct counters *c)
{
	char sizes[2][FORMAT_SIZE], count[FORMAT_SIZE];

	printf(LABEL "%s in host memory, %s on devices, %s\n", "yours",
	       format_size(get(c, "own_bytes"), sizes[0]),
	       format_size(get(c, "own_device_bytes"), sizes[1]),
	       format_count(get(c, "own_slots"), "tensor", count));
}

/* --- warnings ------------------------------------------------------------ */

/* Each row is printed as a warning if the counter is at least `least`. */
static const struct {
	const char *name;
	uint64_t least;
	const char *noun, *is, *are, *text;
} warnings[] = {
	{"slots_limbo", 1000, "tensor", "is", "are",
	 "in limbo: fsdpctl limbo shows who holds them"},
	{"tainted", 1, "tensor", "was", "were",
	 "tainted, because a process died before its device had finished"},
	{"jobs_failed", 1, "fsdp-worker job", "has", "have",
	 "failed: the broker's log says why"},
	{"dropped_peers", 1, "connection", "was", "were",
	 "dropped: the broker's log says why"},
};

static void warn_of_counters(const struct counters *c)
{
	char count[FORMAT_SIZE];

	for (size_t i = 0; i < sizeof(warnings) / sizeof(*warnings); i++) {
		uint64_t n = get(c, warnings[i].name);

		if (n >= warnings[i].least)
			printf("warning: %s %s %s\n",
			       format_count(n, warnings[i].noun, count),
			       n == 1 ? warnings[i].is : warnings[i].are,
			       warnings[i].text);
	}
}

static void warn_of_memory(const struct counters *c)
{
	uint64_t used = get(c, "bytes_live"), max = get(c, "memory_max");

	if (max && used >= max - max / 10)
		printf("warning: %" PRIu64 "%% of the host memory is used: "
		       "fsdpctl du shows the users\n",
		       used / (max / 100 ? max / 100 : 1));
}

static void print_note(const char *note)
{
	char *text = strdup(note), *line, *rest = text;

	while ((line = strsep(&rest, "\n"))) {
		table_clean(line);
		if (*line)
			printf("warning: %s\n", line);
	}
	free(text);
}

static void print_warnings(const struct counters *c)
{
	if (!get(c, "supervised"))
		puts("warning: the broker is not supervised: a restart loses "
		     "all tensors");
	if (get(c, "draining"))
		puts("warning: the broker is being drained and takes no new "
		     "sessions: fsdpctl drain --cancel ends that");
	warn_of_memory(c);
	warn_of_counters(c);
	print_note(c->note);
}

/* --- status -------------------------------------------------------------- */

static int print_status(const struct counters *c)
{
	print_broker(c);
	print_sandbox(c);
	print_memory("host memory", get(c, "bytes_live"), get(c, "memory_max"),
		     get(c, "chunk_bytes"));
	print_devices(c);
	print_contents(c);
	print_own(c);
	print_loop(c);
	print_warnings(c);
	return 0;
}

static int print_document(const struct counters *c, struct error *err)
{
	json_t *object = json_object();
	int r = 0;

	for (size_t i = 0; i < c->n; i++)
		r |= json_object_set_new(object, c->list[i].name,
					 document_number(c->list[i].value));
	if (r) {
		json_decref(object);
		object = NULL;
	}
	return document_print(json_pack("{s:o, s:o}", "counters", object,
					"note", document_text(c->note)),
			      err);
}

static int run_status(struct fsdp_client *client, const struct args *args,
		      struct error *err)
{
	struct counters counters = COUNTERS_NULL;
	int r = counters_read(client, &counters, err);

	if (r < 0)
		return r;
	r = args_has(args, ARG_JSON) ? print_document(&counters, err)
				     : print_status(&counters);
	counters_deinit(&counters);
	if (r < 0 || !args_has(args, ARG_RESET))
		return r;
	r = fsdp_status_reset(client);
	return r < 0 ? broker_failed(err, r) : 0;
}

/* --- ping ---------------------------------------------------------------- */

static int compare_times(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static int print_times(const uint64_t *ns, uint32_t n, bool is_json,
		       struct error *err)
{
	uint64_t p99 = ns[n - 1 - (n - 1) / 100];
	char min[FORMAT_SIZE], mid[FORMAT_SIZE], high[FORMAT_SIZE];
	char max[FORMAT_SIZE], count[FORMAT_SIZE];

	if (is_json)
		return document_print(
			json_pack("{s:I, s:o, s:o, s:o, s:o}", "count",
				  (json_int_t)n, "min_ns",
				  document_number(ns[0]), "median_ns",
				  document_number(ns[n / 2]), "p99_ns",
				  document_number(p99), "max_ns",
				  document_number(ns[n - 1])),
			err);
	printf("%s: min %s, median %s, p99 %s, max %s\n",
	       format_count(n, "round trip", count), format_ns(ns[0], min),
	       format_ns(ns[n / 2], mid), format_ns(p99, high),
	       format_ns(ns[n - 1], max));
	return 0;
}

static int run_ping(struct fsdp_client *client, const struct args *args,
		    struct error *err)
{
	uint64_t *ns = calloc(args->count, sizeof(*ns));
	int r = 0;

	if (!ns)
		return error_nomem(err, "%u times", args->count);
	for (uint32_t i = 0; i < args->count; i++) {
		uint64_t start_ns = format_now_ns();

		r = fsdp_ping(client);
		if (r < 0) {
			r = broker_failed(err, r);
			goto out;
		}
		ns[i] = format_now_ns() - start_ns;
	}
	qsort(ns, args->count, sizeof(*ns), compare_times);
	r = print_times(ns, args->count, args_has(args, ARG_JSON), err);
out:
	free(ns);
	return r;
}

const struct verb verbs_status[] = {
	{.name = "status",
	 .operands = "",
	 .summary =
		 "show the state of the broker, with a line for each warning",
	 .accepts = ARG_BIT(ARG_JSON) | ARG_BIT(ARG_RESET),
	 .run = run_status},
	{.name = "ping",
	 .operands = "",
	 .summary = "measure round trips to the broker",
	 .accepts = ARG_BIT(ARG_JSON) | ARG_BIT(ARG_COUNT),
	 .run = run_ping},
	{0}};
