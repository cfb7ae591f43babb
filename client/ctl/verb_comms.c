/* comms, groups and end: who trains together, and what of it is where. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static const char *const states[] = {[FSDP_COMM_KEPT] = "kept",
				     [FSDP_COMM_JOINING] = "joining",
				     [FSDP_COMM_RUNNING] = "running",
				     [FSDP_COMM_FAILED] = "failed"};

/* Who moves its bytes; of a kept one that is not known. */
static const char *home_name(const struct fsdp_comm_entry *entry)
{
	if (entry->state == FSDP_COMM_KEPT)
		return "-";
	return entry->is_on_devices && entry->home == FSDP_HOME_RANK ? "rank"
								     : "worker";
}

static const char *memory_name(const struct fsdp_comm_entry *entry)
{
	return entry->is_on_devices ? "devices" : "host";
}

/* A walk that ended early: our memory, or what the library said. */
static int walk_failed(struct error *err, int code)
{
	if (code == -ENOMEM)
		return error_set(err, code, "out of memory for the answer");
	return broker_failed(err, code);
}

/* NULL of either: no memory. */
static int append(json_t *array, json_t *item)
{
	return json_array_append_new(array, item) ? -ENOMEM : 0;
}

/* --- comms --------------------------------------------------------------- */

static int add_comm(const struct fsdp_comm_entry *entry, void *data)
{
	char size[FORMAT_SIZE], age[FORMAT_SIZE] = "-";
	struct table *table = data;
	int r;

	if (entry->state == FSDP_COMM_KEPT)
		format_age(entry->ttl_left_ms, age);
	r = table_add(table, NULL, "%s", entry->name);
	if (r == 0)
		r = table_add(table, NULL, "%s", states[entry->state]);
	if (r == 0)
		r = table_add(table, NULL, "%u/%u", entry->n_joined,
			      entry->n_local);
	if (r == 0)
		r = table_add(table, NULL, "%ux%u", entry->n_shards,
			      entry->n_ranks / entry->n_shards);
	if (r == 0)
		r = table_add(table, NULL, "%s", memory_name(entry));
	if (r == 0)
		r = table_add(table, NULL, "%s", home_name(entry));
	if (r == 0)
		r = table_add(table, NULL, "%" PRIu64, entry->step);
	if (r == 0)
		r = table_add(table, NULL, "%u", entry->n_groups);
	if (r == 0)
		r = table_add(table, NULL, "%s",
			      format_size(entry->n_bytes, size));
	if (r == 0)
		r = table_add(table, NULL, "%u", entry->n_in_flight);
	if (r == 0)
		r = table_add(table, NULL, "%s",
			      format_size(entry->bytes_in_flight, size));
	if (r == 0)
		r = table_add(table, NULL, "%u", entry->n_limited);
	if (r == 0)
		r = table_add(table, NULL, "%s", age);
	return r < 0 ? r : table_add(table, NULL, "%s", entry->note);
}

static int append_comm(const struct fsdp_comm_entry *entry, void *data)
{
	return append(
		data,
		json_pack("{s:o, s:I, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, "
			  "s:I, s:I, s:o, s:o, s:I, s:s, s:s}",
			  "name", document_text(entry->name), "uid",
			  (json_int_t)entry->uid, "state", states[entry->state],
			  "ranks", (json_int_t)entry->n_ranks, "joined",
			  (json_int_t)entry->n_joined, "shards",
			  (json_int_t)entry->n_shards, "groups",
			  (json_int_t)entry->n_groups, "step",
			  document_number(entry->step), "bytes",
			  document_number(entry->n_bytes), "ttl_left_ms",
			  document_number(entry->ttl_left_ms), "in_flight",
			  (json_int_t)entry->n_in_flight, "limited",
			  (json_int_t)entry->n_limited, "bytes_in_flight",
			  document_number(entry->bytes_in_flight), "note",
			  document_text(entry->note), "local",
			  (json_int_t)entry->n_local, "memory",
			  memory_name(entry), "home", home_name(entry)));
}

static int print_comms(struct fsdp_client *client, struct error *err)
{
	static const char *const titles[] = {
		"NAME",         "STATE",    ">LOCAL",   ">MESH",  "MEMORY",
		"HOME",         ">STEP",    ">GROUPS",  ">BYTES", ">IN FLIGHT",
		">THEIR BYTES", ">LIMITED", ">ENDS IN", "NOTE"};
	struct table table;
	int r;

	table_init(&table, titles, sizeof(titles) / sizeof(*titles));
	r = fsdp_comms(client, add_comm, &table);
	if (r < 0)
		r = walk_failed(err, r);
	else
		table_print(&table, stdout);
	table_deinit(&table);
	return r;
}

static int run_comms(struct fsdp_client *client, const struct args *args,
		     struct error *err)
{
	json_t *array;
	int r;

	if (!args_has(args, ARG_JSON))
		return print_comms(client, err);
	array = json_array();
	r = fsdp_comms(client, append_comm, array);
	if (r == 0)
		return document_print(array, err);
	json_decref(array);
	return walk_failed(err, r);
}

/* --- groups -------------------------------------------------------------- */

static int add_group(const struct fsdp_group_entry *entry, void *data)
{
	char size[FORMAT_SIZE];
	struct table *table = data;
	int r;

	r = table_add(table, NULL, "%s", entry->comm);
	if (r == 0)
		r = table_add(table, NULL, "%s", entry->name);
	if (r == 0)
		r = table_add(table, NULL, "%u", entry->n_params);
	if (r == 0)
		r = table_add(table, NULL, "%u+%u", entry->n_gather_buckets,
			      entry->n_reduce_buckets);
	if (r == 0)
		r = table_add(table, NULL, "%" PRIu64, entry->step);
	if (r == 0)
		r = table_add(table, NULL, "%s",
			      format_size(entry->shards_bytes, size));
	if (r == 0)
		r = table_add(table, NULL, "%s",
			      entry->full_bytes
				      ? format_size(entry->full_bytes, size)
				      : "in place");
	if (r == 0)
		r = table_add(table, NULL, "%s",
			      entry->is_unsharded ? "yes" : "no");
	if (r == 0)
		r = table_add(table, NULL, "%" PRIu64, entry->n_gathers);
	if (r == 0)
		r = table_add(table, NULL, "%" PRIu64, entry->n_reductions);
	return r < 0 ? r : table_add(table, NULL, "%016" PRIx64, entry->hash);
}

/* Hashes are 64 bits, which JSON's numbers are not. */
static json_t *document_hash(uint64_t hash)
{
	return json_sprintf("%016" PRIx64, hash);
}

static int append_group(const struct fsdp_group_entry *entry, void *data)
{
	return append(
		data,
		json_pack("{s:o, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:b, "
			  "s:o, s:o}",
			  "comm", document_text(entry->comm), "name",
			  document_text(entry->name), "params",
			  (json_int_t)entry->n_params, "gather_buckets",
			  (json_int_t)entry->n_gather_buckets, "reduce_buckets",
			  (json_int_t)entry->n_reduce_buckets, "step",
			  document_number(entry->step), "hash",
			  document_hash(entry->hash), "shards_bytes",
			  document_number(entry->shards_bytes), "full_bytes",
			  document_number(entry->full_bytes), "is_unsharded",
			  entry->is_unsharded, "gathers",
			  document_number(entry->n_gathers), "reductions",
			  document_number(entry->n_reductions)));
}

static int print_groups(struct fsdp_client *client, const char *comm,
			struct error *err)
{
	static const char *const titles[] = {
		"COMM",     "NAME",        ">PARAMS", ">BUCKETS",
		">STEP",    ">SHARDS",     ">WHOLE",  "UNSHARDED",
		">GATHERS", ">REDUCTIONS", "HASH"};
	struct table table;
	int r;

	table_init(&table, titles, sizeof(titles) / sizeof(*titles));
	r = fsdp_groups(client, comm, add_group, &table);
	if (r < 0)
		r = walk_failed(err, r);
	else
		table_print(&table, stdout);
	table_deinit(&table);
	return r;
}

/* --- one group's plan ---------------------------------------------------- */

/* What is said once, and the rows. */
struct plan {
	struct fsdp_plan_entry
		head; /* its name is not kept; n_shards 0: none */
	struct table table;
	json_t *params; /* owned by whoever made it */
};

static const char *layout_name(const struct fsdp_plan_entry *entry)
{
	return entry->layout == FSDP_LAYOUT_FLAT ? "flat" : "in_place";
}

/* Offsets of a parameter that has no gradient mean nothing. */
static int add_gradient_cells(struct table *table,
			      const struct fsdp_plan_entry *entry)
{
	int r;

	if (!entry->reduce_dtype) {
		r = table_add(table, NULL, "-");
		return r < 0 ? r : table_add(table, NULL, "-");
	}
	r = table_add(table, NULL, "%" PRIu64, entry->input_offset);
	return r < 0 ? r
		     : table_add(table, NULL, "%" PRIu64, entry->grad_offset);
}

static int add_bucket_cell(struct table *table,
			   const struct fsdp_plan_entry *entry)
{
	if (!entry->reduce_dtype)
		return table_add(table, NULL, "%u+-", entry->gather_bucket);
	return table_add(table, NULL, "%u+%u", entry->gather_bucket,
			 entry->reduce_bucket);
}

static int add_param(const struct fsdp_plan_entry *entry, void *data)
{
	struct plan *plan = data;
	struct table *table = &plan->table;
	char shape[FORMAT_SHAPE];
	const char *cells[] = {
		entry->name,
		fsdp_dtype_name(entry->dtype),
		fsdp_dtype_name(entry->full_dtype),
		entry->reduce_dtype ? fsdp_dtype_name(entry->input_dtype) : "-",
		entry->reduce_dtype ? fsdp_dtype_name(entry->reduce_dtype)
				    : "-",
		format_shape(entry->shape, entry->n_dims, shape)};
	int r = 0;

	plan->head = *entry;
	for (size_t i = 0; r == 0 && i < sizeof(cells) / sizeof(*cells); i++)
		r = table_add(table, NULL, "%s", cells[i]);
	if (r == 0)
		r = table_add(table, NULL, "%u", entry->shard_dim);
	if (r == 0)
		r = add_bucket_cell(table, entry);
	if (r == 0)
		r = table_add(table, NULL, "%" PRIu64, entry->chunk_bytes);
	if (r == 0)
		r = table_add(table, NULL, "%" PRIu64, entry->shard_offset);
	if (r == 0)
		r = table_add(table, NULL, "%" PRIu64, entry->full_offset);
	return r < 0 ? r : add_gradient_cells(table, entry);
}

static int append_param(const struct fsdp_plan_entry *entry, void *data)
{
	struct plan *plan = data;
	bool is_frozen = !entry->reduce_dtype;

	plan->head = *entry;
	return append(
		plan->params,
		json_pack("{s:o, s:s, s:s, s:o, s:o, s:o, s:I, s:I, s:o, s:o, "
			  "s:o, s:o, s:o, s:o, s:o}",
			  "name", document_text(entry->name), "dtype",
			  fsdp_dtype_name(entry->dtype), "full_dtype",
			  fsdp_dtype_name(entry->full_dtype), "input_dtype",
			  is_frozen ? json_null()
				    : json_string(fsdp_dtype_name(
					      entry->input_dtype)),
			  "reduce_dtype",
			  is_frozen ? json_null()
				    : json_string(fsdp_dtype_name(
					      entry->reduce_dtype)),
			  "shape", document_shape(entry->shape, entry->n_dims),
			  "shard_dim", (json_int_t)entry->shard_dim,
			  "gather_bucket", (json_int_t)entry->gather_bucket,
			  "reduce_bucket",
			  is_frozen ? json_null()
				    : json_integer(entry->reduce_bucket),
			  "chunk_bytes", document_number(entry->chunk_bytes),
			  "shard_offset", document_number(entry->shard_offset),
			  "shard_stride", document_number(entry->shard_stride),
			  "full_offset", document_number(entry->full_offset),
			  "input_offset",
			  is_frozen ? json_null()
				    : document_number(entry->input_offset),
			  "grad_offset",
			  is_frozen ? json_null()
				    : document_number(entry->grad_offset)));
}

static int print_plan(struct fsdp_client *client, const char *comm,
		      const char *group, struct error *err)
{
	static const char *const titles[] = {
		"NAME",      "DTYPE",     "WHOLE",    "INPUT",  "REDUCE",
		"SHAPE",     ">DIM",      ">BUCKETS", ">CHUNK", ">SHARD AT",
		">WHOLE AT", ">INPUT AT", ">GRAD AT"};
	struct plan plan = {0};
	int r;

	table_init(&plan.table, titles, sizeof(titles) / sizeof(*titles));
	r = fsdp_group_plan(client, comm, group, add_param, &plan);
	if (r < 0) {
		r = walk_failed(err, r);
	} else {
		printf("%u shards, %u replicas, layout %s%s, hash %016" PRIx64
		       "\n\n",
		       plan.head.n_shards, plan.head.n_replicas,
		       layout_name(&plan.head),
		       plan.head.is_in_place ? " (an unshard moves nothing)"
					     : "",
		       plan.head.hash);
		table_print(&plan.table, stdout);
	}
	table_deinit(&plan.table);
	return r;
}

static int print_plan_document(struct fsdp_client *client, const char *comm,
			       const char *group, struct error *err)
{
	struct plan plan = {.params = json_array()};
	int r = fsdp_group_plan(client, comm, group, append_param, &plan);

	if (r < 0) {
		json_decref(plan.params);
		return walk_failed(err, r);
	}
	return document_print(
		json_pack("{s:I, s:I, s:s, s:b, s:o, s:o}", "shards",
			  (json_int_t)plan.head.n_shards, "replicas",
			  (json_int_t)plan.head.n_replicas, "layout",
			  layout_name(&plan.head), "is_in_place",
			  plan.head.is_in_place, "hash",
			  document_hash(plan.head.hash), "params", plan.params),
		err);
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
	const char *comm = args->n_operands ? args->operands[0] : NULL;
	json_t *array;
	int r;

	if (args->n_operands == 2)
		return args_has(args, ARG_JSON)
			       ? print_plan_document(client, comm,
						     args->operands[1], err)
			       : print_plan(client, comm, args->operands[1],
					    err);
	if (!args_has(args, ARG_JSON))
		return print_groups(client, comm, err);
	array = json_array();
	r = fsdp_groups(client, comm, append_group, array);
	if (r == 0)
		return document_print(array, err);
	json_decref(array);
	return walk_failed(err, r);
}

/* --- end ----------------------------------------------------------------- */

/* They are ended one by one; what stands before one that is not is ended. */
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
	 .summary = "list the communicators, and how they are",
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
	 .summary = "end the groups of communicators that nobody is in",
	 .n_min = 1,
	 .n_max = SIZE_MAX,
	 .check = check_groups,
	 .run = run_end},
	{0}};
