/*
 * The verbs of fsdpctl: what each takes, says, and does. verbs.c has the table.
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
	const char *summary;  /* one line; NULL: help does not list it */
	uint64_t accepts;     /* ARG_BIT()s besides ARGS_COMMON */
	size_t n_min, n_max;  /* operands */
	bool is_local;        /* needs no broker; its client is NULL */
	/* Do the options fit each other? A refusal is a usage error. NULL:
	 * nothing to check. */
	int (*check)(const struct args *args, struct error *err);
	int (*run)(struct fsdp_client *client, const struct args *args,
		   struct error *err);
};

/* One per family, in verb_<family>.c; each ends with a row without name. */
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

/* All families; the last one is NULL. */
extern const struct verb *const verb_families[];

/* What the completion of shells calls; it looks into the families. */
extern const struct verb verb_complete;

/* clang-format off */
#define for_each_verb(verb)                                                    \
	for (const struct verb *const *family = verb_families; *family;        \
	     family++)                                                         \
		for (const struct verb *verb = *family; verb->name; verb++)
/* clang-format on */
