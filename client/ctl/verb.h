/*
 * The verbs of fsdpctl: their operands, options, help and functions. verbs.c
 * has the list.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct args;
struct error;
struct fsdp_client;

struct verb {
	const char *name;
	const char *operands; /* as in the usage line */
	/* for the usage; NULL: help does not list the verb */
	const char *summary;
	uint64_t accepts;    /* ARG_BIT() of options, besides ARGS_COMMON */
	size_t n_min, n_max; /* number of operands */
	bool is_local;       /* it runs without a broker; `client` is NULL */
	/* Checks that the options are compatible; an error is a usage error. It
	 * may be NULL. */
	int (*check)(const struct args *args, struct error *err);
	int (*run)(struct fsdp_client *client, const struct args *args,
		   struct error *err);
};

/* One array for each family, in verb_<family>.c. Each ends with a row without a
 * name. */
extern const struct verb verbs_load[];
extern const struct verb verbs_list[];
extern const struct verb verbs_rm[];
extern const struct verb verbs_hold[];
extern const struct verb verbs_prefixes[];
extern const struct verb verbs_tickets[];
extern const struct verb verbs_config[];
extern const struct verb verbs_du[];
extern const struct verb verbs_get[];
extern const struct verb verbs_put[];
extern const struct verb verbs_status[];
extern const struct verb verbs_metrics[];
extern const struct verb verbs_plan[];
extern const struct verb verbs_channels[];
extern const struct verb verbs_comms[];
extern const struct verb verbs_devices[];
extern const struct verb verbs_wait[];
extern const struct verb verbs_admin[];
extern const struct verb verbs_verify[];
extern const struct verb verbs_save[];
extern const struct verb verbs_restore[];
extern const struct verb verbs_top[];

/* All families. The list ends with NULL. */
extern const struct verb *const verb_families[];

/* The verb that the completion scripts of shells call. It is not in the list,
 * because it uses the list. */
extern const struct verb verb_complete;

/* clang-format off */
#define for_each_verb(verb)                                                    \
	for (const struct verb *const *family = verb_families; *family;        \
	     family++)                                                         \
		for (const struct verb *verb = *family; verb->name; verb++)
/* clang-format on */
