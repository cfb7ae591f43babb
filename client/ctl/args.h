/*
 * The command line: every option of every verb, in one table, with its kind
 * of value. Values are checked here, so that verbs see numbers only.
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
	ARG_BUCKET_MODE, /* also --mode: only one of the two is taken */
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
	ARG_TREE, /* also --prefix: only one of the two is taken */
	ARG_NEWER_THAN,
	ARG_CANCEL,
	ARG_VIEW,
	ARG_COLUMN, /* also --sort: only one of the two is taken */
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
/* What every verb takes. */
#define ARGS_COMMON (ARG_BIT(ARG_HELP) | ARG_BIT(ARG_SOCKET))
/* What may stand before the verb. */
#define ARGS_GLOBAL                                                            \
	(ARGS_COMMON | ARG_BIT(ARG_VERSION) | ARG_BIT(ARG_JSON) |              \
	 ARG_BIT(ARG_QUIET) | ARG_BIT(ARG_TIMEOUT))

/* How one kind of collective is put in buckets. */
struct args_rule {
	uint32_t mode; /* enum bucketing_mode */
	double caps_mb[ARGS_MAX_CAPS];
	uint32_t n_caps;
};

/* What ls goes by. */
enum args_sort { SORT_NAME, SORT_BYTES, SORT_AGE, SORT_HOLDERS, SORT_N };
/* What top lists, in the order of the keys 1, 2, ... */
enum top_view {
	TOP_PROCESSES,
	TOP_USERS,
	TOP_TENSORS,
	TOP_LIMBO,
	TOP_POOLS,
	TOP_COMMS,
	TOP_N
};
/* What du adds up by. */
enum args_by { BY_UID, BY_PROCESS, BY_BUNDLE, BY_PREFIX, BY_N };

struct args {
	uint64_t given; /* ARG_BIT() of each option that was there */
	const char *socket, *prefix, *output, *name;
	int32_t timeout_ms; /* 0: do not wait, -1: for ever */
	uint64_t ttl_ms;    /* 0: never */
	uint64_t newer_than;
	uint32_t mode, gid;
	uint32_t cast;           /* enum dtype; 0: none */
	struct tensor_type type; /* of --dtype and --shape */
	uint32_t count;
	struct args_rule gather, reduce;
	struct fsdp_device device; /* all 0: host memory */
	enum args_sort sort;
	enum args_by by;
	enum top_view view;
	const char *column; /* title of one that top sorts by; NULL */
	uint32_t delay_ms;
	uint32_t n_rows;       /* of a page; 0: all */
	char *const *operands; /* borrowed from argv */
	size_t n_operands;
};

typedef int args_read_fn(struct args *args, const char *text,
			 struct error *err);

/* A row of the table of options. */
struct args_option {
	const char *name;
	char letter;       /* 0: none */
	const char *value; /* what stands behind it; NULL: nothing */
	args_read_fn *read;
	const char *help;
	const char *choices; /* all values, for completion; NULL: too many */
};
const struct args_option *args_option(enum arg arg);

/* What holds when no option is given. */
void args_init(struct args *args);

/*
 * Read the options of `argv`, whose first word is who they are for, on top of
 * what `args` has. Only those in `accepts` are taken. With `is_before_verb`
 * it stops at the first word that is no option. All refusals are mistakes of
 * the person who typed.
 */
int args_parse(struct args *args, int argc, char **argv, uint64_t accepts,
	       bool is_before_verb, struct error *err);

static inline bool args_has(const struct args *args, enum arg arg)
{
	return args->given & ARG_BIT(arg);
}

/* One line for each option in `accepts`. */
void args_print_help(uint64_t accepts, FILE *file);
