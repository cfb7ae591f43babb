/* comms, groups and end: communicators, and the groups of their parameters. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/listing.h"
#include "client/ctl/sheet.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/name.h"

#include <inttypes.h>
#include <stdio.h>

/* The executor is unknown while a communicator has no ranks. */
static const char *text_executor(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_comm_entry *entry = field;

	(void)buffer;
	if (entry->state == FSDP_COMM_KEPT)
		return "-";
	return entry->executor == FSDP_EXECUTOR_RANK ? "rank" : "worker";
}

static const char *text_memory(const void *field, char buffer[COLUMN_BUFFER])
{
	(void)buffer;
	return *(const bool *)field ? "devices" : "host";
}

static const char *text_local(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_comm_entry *entry = field;

	snprintf(buffer, COLUMN_BUFFER, "%u/%u", entry->n_joined,
		 entry->n_local);
	return buffer;
}

static const char *text_mesh(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_comm_entry *entry = field;

	snprintf(buffer, COLUMN_BUFFER, "%ux%u", entry->n_shards,
		 entry->n_ranks / entry->n_shards);
	return buffer;
}

/* --- comms --------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct fsdp_comm_entry, member)

static const struct column comm_columns[] = {
	{"NAME", "name", COLUMN_TEXT, AT(name)},
	{NULL, "uid", COLUMN_U32, AT(uid)},
	{"STATE", "state", COLUMN_TEXT, AT(state),
	 .text = listing_text_comm_state},
	{">LOCAL", .text = text_local},
	{NULL, "joined", COLUMN_U32, AT(n_joined)},
	{NULL, "local", COLUMN_U32, AT(n_local)},
	{">MESH", .text = text_mesh},
	{NULL, "ranks", COLUMN_U32, AT(n_ranks)},
	{NULL, "shards", COLUMN_U32, AT(n_shards)},
	{"MEMORY", "memory", COLUMN_TEXT, AT(is_on_devices),
	 .text = text_memory},
	{"EXECUTOR", "executor", COLUMN_TEXT, .text = text_executor},
	{">STEP", "step", COLUMN_U64, AT(step)},
	{">GROUPS", "groups", COLUMN_U32, AT(n_groups)},
	{">KEPT", "bytes", COLUMN_SIZE, AT(n_bytes)},
	{">IN FLIGHT", "in_flight", COLUMN_U32, AT(n_in_flight)},
	{">THEIR BYTES", "bytes_in_flight", COLUMN_SIZE, AT(bytes_in_flight)},
	{">LIMITED", "limited", COLUMN_U32, AT(n_limited)},
	{">ENDS IN", "ttl_left_ms", COLUMN_AGE, AT(ttl_left_ms),
	 .text = listing_text_end},
	{"NOTE", "note", COLUMN_TEXT, AT(note)},
	{0}};
#undef AT

SHEET_RUN(run_comms, fsdp_comms, struct fsdp_comm_entry, comm_columns)

/* --- groups -------------------------------------------------------------- */

static const char *text_buckets(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_group_entry *entry = field;

	snprintf(buffer, COLUMN_BUFFER, "%u+%u", entry->n_gather_buckets,
		 entry->n_reduce_buckets);
	return buffer;
}

static const char *text_whole(const void *field, char buffer[COLUMN_BUFFER])
{
	uint64_t size = *(const uint64_t *)field;

	return size ? format_size(size, buffer) : "in place";
}

#define AT(member) .offset = offsetof(struct fsdp_group_entry, member)

static const struct column group_columns[] = {
	{"COMM", "comm", COLUMN_TEXT, AT(comm)},
	{"NAME", "name", COLUMN_TEXT, AT(name)},
	{">PARAMS", "params", COLUMN_U32, AT(n_params)},
	{">BUCKETS", .text = text_buckets},
	{NULL, "gather_buckets", COLUMN_U32, AT(n_gather_buckets)},
	{NULL, "reduce_buckets", COLUMN_U32, AT(n_reduce_buckets)},
	{">STEP", "step", COLUMN_U64, AT(step)},
	{">SHARDS", "shards_bytes", COLUMN_SIZE, AT(shards_bytes)},
	{">WHOLE", "full_bytes", COLUMN_SIZE, AT(full_bytes),
	 .text = text_whole},
	{"UNSHARDED", "is_unsharded", COLUMN_BOOL, AT(is_unsharded)},
	{">GATHERS", "gathers", COLUMN_U64, AT(n_gathers)},
	{">REDUCTIONS", "reductions", COLUMN_U64, AT(n_reductions)},
	{"HASH", "hash", COLUMN_HEX, AT(hash)},
	{0}};
#undef AT

static int add_group(const struct fsdp_group_entry *entry, void *data)
{
	return sheet_add(data, entry);
}

static int print_groups(struct fsdp_client *client, const struct args *args,
			struct error *err)
{
	const char *comm = args->n_operands ? args->operands[0] : NULL;
	struct sheet sheet;

	sheet_init(&sheet, group_columns, args);
	return sheet_finish(&sheet,
			    fsdp_groups(client, comm, add_group, &sheet), err);
}

/* --- one group's plan ---------------------------------------------------- */

/* The properties of the whole group, and the rows of its parameters. */
struct plan {
	struct fsdp_plan_entry head; /* without the name */
	struct sheet sheet;
};

static const char *layout_name(const struct fsdp_plan_entry *entry)
{
	return entry->layout == FSDP_LAYOUT_FLAT ? "flat" : "in_place";
}

static const char *text_dtype(const void *field, char buffer[COLUMN_BUFFER])
{
	(void)buffer;
	return fsdp_dtype_name(*(const enum fsdp_dtype *)field);
}

static const char *text_shape(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_plan_entry *entry = field;

	return format_shape(entry->shape, entry->n_dims, buffer);
}

static json_t *json_shape(const void *field)
{
	const struct fsdp_plan_entry *entry = field;

	return document_shape(entry->shape, entry->n_dims);
}

/* A parameter without a gradient is not reduced, so the offsets in its
 * reduction have no meaning. */
static bool is_frozen(const struct fsdp_plan_entry *entry)
{
	return !entry->reduce_dtype;
}

/* The dtype of the gradient or of the sum; "-" for a parameter without a
 * gradient. */
static const char *text_grad_dtype(const struct fsdp_plan_entry *entry,
				   enum fsdp_dtype dtype)
{
	return is_frozen(entry) ? "-" : fsdp_dtype_name(dtype);
}

static const char *text_input_dtype(const void *field,
				    char buffer[COLUMN_BUFFER])
{
	const struct fsdp_plan_entry *entry = field;

	(void)buffer;
	return text_grad_dtype(entry, entry->input_dtype);
}

static const char *text_reduce_dtype(const void *field,
				     char buffer[COLUMN_BUFFER])
{
	const struct fsdp_plan_entry *entry = field;

	(void)buffer;
	return text_grad_dtype(entry, entry->reduce_dtype);
}

static const char *text_plan_buckets(const void *field,
				     char buffer[COLUMN_BUFFER])
{
	const struct fsdp_plan_entry *entry = field;

	if (is_frozen(entry))
		snprintf(buffer, COLUMN_BUFFER, "%u+-", entry->gather_bucket);
	else
		snprintf(buffer, COLUMN_BUFFER, "%u+%u", entry->gather_bucket,
			 entry->reduce_bucket);
	return buffer;
}

static const char *text_number(const struct fsdp_plan_entry *entry,
			       uint64_t number, char buffer[COLUMN_BUFFER])
{
	if (is_frozen(entry))
		return "-";
	snprintf(buffer, COLUMN_BUFFER, "%" PRIu64, number);
	return buffer;
}

static const char *text_input(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_plan_entry *entry = field;

	return text_number(entry, entry->input_offset, buffer);
}

static const char *text_grad(const void *field, char buffer[COLUMN_BUFFER])
{
	const struct fsdp_plan_entry *entry = field;

	return text_number(entry, entry->grad_offset, buffer);
}

static json_t *json_grad_dtype(const struct fsdp_plan_entry *entry,
			       enum fsdp_dtype dtype)
{
	return is_frozen(entry) ? json_null()
				: json_string(fsdp_dtype_name(dtype));
}

static json_t *json_input_dtype(const void *field)
{
	const struct fsdp_plan_entry *entry = field;

	return json_grad_dtype(entry, entry->input_dtype);
}

static json_t *json_reduce_dtype(const void *field)
{
	const struct fsdp_plan_entry *entry = field;

	return json_grad_dtype(entry, entry->reduce_dtype);
}

static json_t *json_number(const struct fsdp_plan_entry *entry, uint64_t number)
{
	return is_frozen(entry) ? json_null() : document_number(number);
}

static json_t *json_reduce_bucket(const void *field)
{
	const struct fsdp_plan_entry *entry = field;

	return json_number(entry, entry->reduce_bucket);
}

static json_t *json_input(const void *field)
{
	const struct fsdp_plan_entry *entry = field;

	return json_number(entry, entry->input_offset);
}

static json_t *json_grad(const void *field)
{
	const struct fsdp_plan_entry *entry = field;

	return json_number(entry, entry->grad_offset);
}

#define AT(member) .offset = offsetof(struct fsdp_plan_entry, member)

static const struct column plan_columns[] = {
	{"NAME", "name", COLUMN_TEXT, AT(name)},
	{"DTYPE", "dtype", COLUMN_TEXT, AT(dtype), .text = text_dtype},
	{"WHOLE", "full_dtype", COLUMN_TEXT, AT(full_dtype),
	 .text = text_dtype},
	{"INPUT", "input_dtype", .text = text_input_dtype,
	 .json = json_input_dtype},
	{"REDUCE", "reduce_dtype", .text = text_reduce_dtype,
	 .json = json_reduce_dtype},
	{"SHAPE", "shape", .text = text_shape, .json = json_shape},
	{">DIM", "shard_dim", COLUMN_U32, AT(shard_dim)},
	{">BUCKETS", .text = text_plan_buckets},
	{NULL, "gather_bucket", COLUMN_U32, AT(gather_bucket)},
	{NULL, "reduce_bucket", .json = json_reduce_bucket},
	{">CHUNK", "chunk_bytes", COLUMN_U64, AT(chunk_bytes)},
	{">SHARD AT", "shard_offset", COLUMN_U64, AT(shard_offset)},
	{NULL, "shard_stride", COLUMN_U64, AT(shard_stride)},
	{">WHOLE AT", "full_offset", COLUMN_U64, AT(full_offset)},
	{">INPUT AT", "input_offset", .text = text_input, .json = json_input},
	{">GRAD AT", "grad_offset", .text = text_grad, .json = json_grad},
	{0}};

static int add_param(const struct fsdp_plan_entry *entry, void *data)
{
	struct plan *plan = data;

	plan->head = *entry;
	return sheet_add(&plan->sheet, entry);
}

static int print_table(struct plan *plan, struct error *err)
{
	char shards[FORMAT_SIZE], replicas[FORMAT_SIZE];

	printf("%s, %s, layout %s%s, hash %016" PRIx64 "\n\n",
	       format_count(plan->head.n_shards, "shard", shards),
	       format_count(plan->head.n_replicas, "replica", replicas),
	       layout_name(&plan->head),
	       plan->head.is_in_place ? " (an unshard moves nothing)" : "",
	       plan->head.hash);
	return sheet_print(&plan->sheet, err);
}

/* Hashes are strings, because JSON readers may not keep all 64 bits of a
 * number. */
static int print_document(const struct plan *plan, struct error *err)
{
	return document_print(
		json_pack("{s:I, s:I, s:s, s:b, s:o, s:O}", "shards",
			  (json_int_t)plan->head.n_shards, "replicas",
			  (json_int_t)plan->head.n_replicas, "layout",
			  layout_name(&plan->head), "is_in_place",
			  plan->head.is_in_place, "hash",
			  json_sprintf("%016" PRIx64, plan->head.hash),
			  "params", plan->sheet.array),
		err);
}

static int print_plan(struct fsdp_client *client, const struct args *args,
		      struct error *err)
{
	struct plan plan = {0};
	int r;

	sheet_init(&plan.sheet, plan_columns, args);
	r = fsdp_group_plan(client, args->operands[0], args->operands[1],
			    add_param, &plan);
	if (r < 0)
		r = broker_walk_failed(err, r);
	else if (plan.sheet.is_json)
		r = print_document(&plan, err);
	else
		r = print_table(&plan, err);
	sheet_deinit(&plan.sheet);
	return r;
}

static int check_groups(const struct args *args, struct error *err)
{
	for (size_t i = 0; i < args->n_operands; i++) {
		int r = name_check(args->operands[i], err);

		if (r < 0)
			return r;
	}
	return 0;
}

static int run_groups(struct fsdp_client *client, const struct args *args,
		      struct error *err)
{
	return args->n_operands == 2 ? print_plan(client, args, err)
				     : print_groups(client, args, err);
}

/* --- end ----------------------------------------------------------------- */

/* Communicators are ended one by one. After an error the earlier ones are
 * ended, and the later ones are not. */
static int run_end(struct fsdp_client *client, const struct args *args,
		   struct error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < args->n_operands; i++)
		r = fsdp_comm_remove(client, args->operands[i]);
	return r < 0 ? broker_failed(err, r) : 0;
}

const struct verb verbs_comms[] = {
	{.name = "comms",
	 .operands = "",
	 .summary = "list the communicators and their states",
	 .accepts = ARG_BIT(ARG_JSON),
	 .run = run_comms},
	{.name = "groups",
	 .operands = "[COMM [GROUP]]",
	 .summary = "list groups of parameters, or show the plan of one",
	 .accepts = ARG_BIT(ARG_JSON),
	 .n_max = 2,
	 .check = check_groups,
	 .run = run_groups},
	{.name = "end",
	 .operands = "COMM...",
	 .summary = "remove communicators that no process is in, with their "
		    "groups",
	 .n_min = 1,
	 .n_max = SIZE_MAX,
	 .check = check_groups,
	 .run = run_end},
	{0}};
