/*
 * The command line: all options of all verbs, in one table, with the kind of
 * their values. Values are checked here, so that verbs get numbers only.
 */
#pragma once
#include "client/fsdp.h"
#include "proto/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct error;

enum arg {
	ARG_HELP,
	ARG_VERSION,
	ARG_SOCKET,
	ARG_JSON,
	ARG_QUIET,
	ARG_TIMEOUT,
	ARG_PREFIX,
	ARG_REPLACE,
	ARG_MODE,
	ARG_GROUP,
	ARG_TTL,
	ARG_EVICTABLE,
	ARG_OUTPUT,
	ARG_CAST,
	ARG_NAME,
	ARG_DTYPE,
	ARG_SHAPE,
	ARG_COUNT,
	ARG_FAITHFUL,
	ARG_BUCKET_MODE, /* --mode as well: no verb accepts both */
	ARG_GATHER_MODE,
	ARG_REDUCE_MODE,
	ARG_CAPS,
	ARG_GATHER_CAPS,
	ARG_REDUCE_CAPS,
	ARG_DEVICE,
	ARG_RESET,
	ARG_LONG,
	ARG_SORT,
	ARG_BUNDLES,
	ARG_BY,
	ARG_TREE, /* --prefix as well: no verb accepts both */
	ARG_NEWER_THAN,
	ARG_CANCEL,
	ARG_VIEW,
	ARG_COLUMN, /* --sort as well: no verb accepts both */
	ARG_DELAY,
	ARG_BATCH,
	ARG_PAGES,
	ARG_ROWS,
	ARG_ONCE,
	N_ARGS
};

#define ARGS_MAX_CAPS 16

#define ARG_BIT(arg) (UINT64_C(1) << (arg))
_Static_assert(N_ARGS <= 64, "a bit for each option");
/* The options that every verb accepts. */
#define ARGS_COMMON (ARG_BIT(ARG_HELP) | ARG_BIT(ARG_SOCKET))
/* The options that are allowed before the verb. */
#define ARGS_GLOBAL                                                            \
	(ARGS_COMMON | ARG_BIT(ARG_VERSION) | ARG_BIT(ARG_JSON) |              \
	 ARG_BIT(ARG_QUIET) | ARG_BIT(ARG_TIMEOUT))

/* How one kind of collective is divided into buckets. */
struct args_rule {
	uint32_t mode; /* enum bucketing_mode */
	double caps_mb[ARGS_MAX_CAPS];
	uint32_t n_caps;
};

/* The order of the lists of ls. */
enum args_sort { SORT_NAME, SORT_BYTES, SORT_AGE, SORT_HOLDERS, SORT_N };
/* The lists of top, in the order of the keys 1, 2, ... */
enum top_view {
	TOP_PROCESSES,
	TOP_USERS,
	TOP_TENSORS,
	TOP_LIMBO,
	TOP_POOLS,
	TOP_COMMS,
	TOP_N
};
/* What du sums up by. */
enum args_by { BY_UID, BY_PROCESS, BY_BUNDLE, BY_PREFIX, BY_N };

struct args {
	uint64_t given; /* ARG_BIT() of each option on the command line */
	const char *socket, *prefix, *output, *name;
	int32_t timeout_ms; /* 0: do not wait, -1: without a limit */
	uint64_t ttl_ms;    /* 0: the name stays */
	uint64_t newer_than;
	uint32_t mode, gid;
	uint32_t cast;           /* enum dtype; 0: no cast */
	struct tensor_type type; /* from --dtype and --shape */
	uint32_t count;
	struct args_rule gather, reduce;
	struct fsdp_device device; /* all 0: host memory */
	enum args_sort sort;
	enum args_by by;
	enum top_view view;
	const char *column; /* title of the column that top sorts by, or NULL */
	uint32_t delay_ms;
	uint32_t n_rows;       /* rows of a page; 0: all */
	char *const *operands; /* borrowed from argv */
	size_t n_operands;
};

typedef int args_read_fn(struct args *args, const char *text,
			 struct error *err);

/* A row of the table of options. */
struct args_option {
	const char *name;
	char letter;       /* 0: there is no short form */
	const char *value; /* placeholder of the value; NULL: it has no value */
	args_read_fn *read;
	const char *help;
	/* all values, for completion; NULL: too many to list */
	const char *choices;
};
const struct args_option *args_option(enum arg arg);

/* Sets the values that are used for options that are not given. */
void args_init(struct args *args);

/*
 * Reads the options of `argv` into `args`; options that it does not mention
 * keep their values. The first word of `argv` names the tool or the verb in
 * errors. Only options in `accepts` are allowed. With `is_before_verb` parsing
 * ends at the first word that is not an option. Every error is a usage error.
 */
int args_parse(struct args *args, int argc, char **argv, uint64_t accepts,
	       bool is_before_verb, struct error *err);

static inline bool args_has(const struct args *args, enum arg arg)
{
	return args->given & ARG_BIT(arg);
}

/* Prints one line for each option in `accepts`. */
void args_print_help(uint64_t accepts, FILE *file);
