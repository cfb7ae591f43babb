/* status and ping: is the broker well, and how far away. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int add_value(const char *name, uint64_t value, void *data)
{
	int r = table_add(data, NULL, "%s", name);

	return r < 0 ? r : table_add(data, NULL, "%" PRIu64, value);
}

static int add_value_document(const char *name, uint64_t value, void *data)
{
	return json_object_set_new(data, name, document_number(value)) ? -ENOMEM
								       : 0;
}

static int status_failed(struct error *err, int code)
{
	if (code == -ENOMEM)
		return error_set(err, code, "out of memory for the answer");
	return broker_failed(err, code);
}

static int print_status(struct fsdp_client *client, struct error *err)
{
	static const char *const titles[] = {"COUNTER", ">VALUE"};
	struct table table;
	char *note = NULL;
	int r;

	table_init(&table, titles, 2);
	r = fsdp_status(client, add_value, &table, &note);
	if (r < 0) {
		r = status_failed(err, r);
		goto out;
	}
	table_print(&table, stdout);
	if (*note) {
		table_clean(note);
		printf("\n%s\n", note);
	}
out:
	free(note);
	table_deinit(&table);
	return r;
}

static int print_status_document(struct fsdp_client *client, struct error *err)
{
	json_t *counters = json_object();
	char *note = NULL;
	int r = fsdp_status(client, add_value_document, counters, &note);

	if (r < 0) {
		json_decref(counters);
		return status_failed(err, r);
	}
	r = document_print(json_pack("{s:o, s:o}", "counters", counters, "note",
				     document_text(note)),
			   err);
	free(note);
	return r;
}

static int run_status(struct fsdp_client *client, const struct args *args,
		      struct error *err)
{
	int r = args_has(args, ARG_JSON) ? print_status_document(client, err)
					 : print_status(client, err);

	if (r < 0 || !args_has(args, ARG_RESET))
		return r;
	r = fsdp_status_reset(client);
	return r < 0 ? broker_failed(err, r) : 0;
}

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
	char max[FORMAT_SIZE];

	if (is_json)
		return document_print(
			json_pack("{s:I, s:o, s:o, s:o, s:o}", "count",
				  (json_int_t)n, "min_ns",
				  document_number(ns[0]), "median_ns",
				  document_number(ns[n / 2]), "p99_ns",
				  document_number(p99), "max_ns",
				  document_number(ns[n - 1])),
			err);
	printf("%u round trips: min %s, median %s, p99 %s, max %s\n", n,
	       format_ns(ns[0], min), format_ns(ns[n / 2], mid),
	       format_ns(p99, high), format_ns(ns[n - 1], max));
	return 0;
}

static int run_ping(struct fsdp_client *client, const struct args *args,
		    struct error *err)
{
	uint64_t *ns = calloc(args->count, sizeof(*ns));
	int r = 0;

	if (!ns)
		return error_set(err, -ENOMEM, "out of memory for %u times",
				 args->count);
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
	 .summary = "show the broker's counters, and what it wants you to know",
	 .accepts = ARG_BIT(ARG_JSON) | ARG_BIT(ARG_RESET),
	 .run = run_status},
	{.name = "ping",
	 .operands = "",
	 .summary = "measure round trips to the broker",
	 .accepts = ARG_BIT(ARG_JSON) | ARG_BIT(ARG_COUNT),
	 .run = run_ping},
	{0}};
