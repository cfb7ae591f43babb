/* rm: removes names one by one or by prefix. */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/format.h"
#include "client/ctl/listing.h"
#include "client/ctl/verb.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_rm(const struct args *args, struct error *err)
{
	if (args->n_operands == 0 && !args_has(args, ARG_TREE))
		return error_set(err, -EINVAL, "rm needs NAME... or --prefix");
	if (args->n_operands && args_has(args, ARG_TREE))
		return error_set(err, -EINVAL,
				 "rm takes names or --prefix, not both");
	for (size_t i = 0; i < args->n_operands; i++) {
		const char *name = args->operands[i];
		int r = name_is_bundle(name) ? name_check_bundle(name, err)
					     : name_check(name, err);

		if (r < 0)
			return r;
	}
	return 0;
}

/* Removes the names in batches. Each batch is removed completely or not at
 * all. */
static int remove_all(struct fsdp_client *client, const char *const *names,
		      size_t n, struct error *err)
{
	for (size_t i = 0; i < n; i += FSDP_MAX_BATCH) {
		size_t left = n - i;
		int r = fsdp_remove(client, names + i,
				    left < FSDP_MAX_BATCH ? left
							  : FSDP_MAX_BATCH);

		if (r < 0)
			broker_failed(err, r);
		if (r < 0 && i > 0)
			error_wrap(err, r, "only %zu of %zu names were removed",
				   i, n);
		if (r < 0)
			return r;
	}
	return 0;
}

/* --- by prefix ----------------------------------------------------------- */

/* The names to remove. A bundle is listed by its own name, not by its
 * members. */
struct names {
	char **list;
	size_t n, capacity;
	const char *prefix;
	struct error *err;
};

static int add_name(struct names *names, const char *name, size_t size)
{
	if (names->n == names->capacity) {
		size_t capacity = names->capacity ? names->capacity * 2 : 64;
		char **list =
			reallocarray(names->list, capacity, sizeof(*list));

		if (!list)
			return -ENOMEM;
		names->list = list;
		names->capacity = capacity;
	}
	names->list[names->n] = strndup(name, size);
	return names->list[names->n++] ? 0 : -ENOMEM;
}

static int add_entry(const struct fsdp_entry *entry, void *data)
{
	struct names *names = data;
	const char *name = entry->info->name;

	if (!entry->bundle)
		return add_name(names, name, strlen(name));
	if (entry->bundle_name_size >= strlen(names->prefix))
		return add_name(names, name, entry->bundle_name_size);
	return error_set(names->err, -EINVAL,
			 "'%s' is within the bundle '%.*s', which can only be "
			 "removed as a whole",
			 name, (int)entry->bundle_name_size, name);
}

static int compare(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;

	return strcmp(*x, *y);
}

/* Each member of a bundle has added the name of the bundle. */
static void drop_duplicates(struct names *names)
{
	size_t n = 0;

	if (names->n)
		qsort(names->list, names->n, sizeof(*names->list), compare);
	for (size_t i = 0; i < names->n; i++) {
		if (n && strcmp(names->list[n - 1], names->list[i]) == 0)
			free(names->list[i]);
		else
			names->list[n++] = names->list[i];
	}
	names->n = n;
}

static int remove_tree(struct fsdp_client *client, const struct args *args,
		       struct error *err)
{
	struct names names = {.prefix = args->prefix, .err = err};
	char count[FORMAT_SIZE];
	int r = fsdp_list(client, args->prefix, add_entry, &names);

	if (r < 0 && r != -EINVAL)
		r = broker_walk_failed(err, r);
	drop_duplicates(&names);
	if (r == 0 && names.n == 0)
		r = error_set(err, -ENOENT, "no name begins with '%s'",
			      args->prefix);
	if (r == 0)
		r = remove_all(client, (const char *const *)names.list, names.n,
			       err);
	if (r == 0)
		printf("%s removed\n", format_count(names.n, "name", count));
	for (size_t i = 0; i < names.n; i++)
		free(names.list[i]);
	free(names.list);
	return r;
}

static int run_rm(struct fsdp_client *client, const struct args *args,
		  struct error *err)
{
	int r;

	if (args_has(args, ARG_TREE))
		return remove_tree(client, args, err);
	r = remove_all(client, (const char *const *)args->operands,
		       args->n_operands, err);
	if (r < 0 && args->n_operands == 1)
		return listing_suggest(client, args->operands[0], r, err);
	return r;
}

const struct verb verbs_rm[] = {
	{.name = "rm",
	 .operands = "[NAME...]",
	 .summary = "remove names; the name of a bundle ends in '/'",
	 .accepts = ARG_BIT(ARG_TREE),
	 .n_max = SIZE_MAX,
	 .check = check_rm,
	 .run = run_rm},
	{0}};
