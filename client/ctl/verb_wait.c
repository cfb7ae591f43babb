/* wait waits until a name is published; watch shows the events of names. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/contents.h"
#include "client/ctl/document.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- wait ---------------------------------------------------------------- */

static int check_wait(const struct args *args, struct error *err)
{
	const char *name = args->operands[0];

	return name_is_bundle(name) ? name_check_bundle(name, err)
				    : name_check(name, err);
}

/* Holds the name, because a get can wait until a name is published.
 * fsdp_close() frees the handles. */
static int hold(struct fsdp_client *client, const char *name,
		const struct fsdp_get_options *options, uint64_t *ret_version,
		struct error *err)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_tensor **tensors = NULL;
	size_t n = 0;
	int r = contents_hold(client, name, options, &tensors, &n, err);

	if (n > 0)
		fsdp_tensor_info(tensors[0], &info);
	*ret_version = info.version;
	free(tensors);
	return r;
}

static int run_wait(struct fsdp_client *client, const struct args *args,
		    struct error *err)
{
	struct fsdp_get_options options = {
		.struct_size = sizeof(options),
		.timeout_ms =
			args_has(args, ARG_TIMEOUT) ? args->timeout_ms : -1,
		.newer_than = args->newer_than,
	};
	uint64_t version = 0;
	int r = hold(client, args->operands[0], &options, &version, err);

	if (r < 0)
		return r;
	if (args_has(args, ARG_JSON))
		return document_print(json_pack("{s:s, s:o}", "name",
						args->operands[0], "version",
						document_number(version)),
				      err);
	printf("%s version %" PRIu64 "\n", args->operands[0], version);
	return 0;
}

/* --- watch --------------------------------------------------------------- */

struct watch {
	bool is_json;
	uint64_t n_left; /* number of events to show; UINT64_MAX: no limit */
	struct error *err;
};

static int show_line(const struct fsdp_event *event, const char *kind)
{
	char name[FSDP_MAX_NAME + 1];

	if (event->kind == FSDP_EVENT_LOST)
		return puts(kind);
	snprintf(name, sizeof(name), "%s", event->name);
	table_clean(name);
	return printf("%s %s %" PRIu64 "\n", kind, name, event->version);
}

static int show_object(const struct fsdp_event *event, const char *kind)
{
	json_t *object =
		event->kind == FSDP_EVENT_LOST
			? json_pack("{s:s}", "event", kind)
			: json_pack("{s:s, s:o, s:o, s:o, s:o}", "event", kind,
				    "name", document_text(event->name),
				    "version", document_number(event->version),
				    "uid", document_number(event->uid),
				    "age_ms", document_number(event->age_ms));
	int r = object ? json_dumpf(object, stdout, JSON_COMPACT) : -1;

	json_decref(object);
	return r < 0 ? r : putchar('\n');
}

static int show(const struct fsdp_event *event, void *data)
{
	static const char *const kinds[] = {
		[FSDP_EVENT_LOST] = "lost",
		[FSDP_EVENT_PUBLISHED] = "published",
		[FSDP_EVENT_REMOVED] = "removed",
		[FSDP_EVENT_EXPIRED] = "expired",
		[FSDP_EVENT_EVICTED] = "evicted",
		[FSDP_EVENT_ENDED] = "ended"};
	struct watch *watch = data;
	const char *kind = kinds[event->kind];
	int r = watch->is_json ? show_object(event, kind)
			       : show_line(event, kind);

	/* flush each line, so that a reader of a pipe gets it at once */
	if (r < 0 || fflush(stdout) == EOF)
		return error_errno(watch->err, errno ? -errno : -ENOMEM,
				   "cannot write standard output");
	return --watch->n_left == 0;
}

static int run_watch(struct fsdp_client *client, const struct args *args,
		     struct error *err)
{
	const char *prefix = args->n_operands ? args->operands[0] : NULL;
	struct watch watch = {.is_json = args_has(args, ARG_JSON),
			      .n_left = args_has(args, ARG_COUNT) ? args->count
								  : UINT64_MAX,
			      .err = err};
	uint64_t cursor = 0;
	int r;

	do {
		bool is_first = cursor == 0;

		r = fsdp_watch(client, prefix, &cursor, -1, show, &watch);
		if (r == 0 && is_first && !args_has(args, ARG_QUIET))
			fputs("watching\n", stderr);
	} while (r == 0);
	if (r < 0 && !err->code)
		return broker_failed(err, r);
	return r < 0 ? r : 0;
}

const struct verb verbs_wait[] = {
	{.name = "wait",
	 .operands = "NAME",
	 .summary = "wait until a tensor or a bundle is published",
	 .accepts = ARG_BIT(ARG_NEWER_THAN) | ARG_BIT(ARG_TIMEOUT) |
		    ARG_BIT(ARG_JSON),
	 .n_min = 1,
	 .n_max = 1,
	 .check = check_wait,
	 .run = run_wait},
	{.name = "watch",
	 .operands = "[PREFIX]",
	 .summary = "print a line for each event of a name",
	 .accepts = ARG_BIT(ARG_COUNT) | ARG_BIT(ARG_QUIET) | ARG_BIT(ARG_JSON),
	 .n_max = 1,
	 .run = run_watch},
	{0}};
