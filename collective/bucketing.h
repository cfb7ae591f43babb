/*
 * The bucketing passes over a graph: which collectives of FSDP travel
 * together, and the graph in which they do.
 *
 * Three passes, all-gathers, reduce-scatters, all-reduces, each on what the one
 * before it left. A pass takes the collectives that are FSDP's, in the order of
 * their waits, runs bucket_plan() over them and merges the buckets of more than
 * one. The behaviour is that of PyTorch's passes (torch/_inductor/fx_passes,
 * fsdp.py and bucketing.py) in their newer form; a node's tag overrides what
 * the filters see.
 *
 *   all-gather      its ancestors have exactly one placeholder
 *   reduce-scatter  nothing but unary operations up to the output
 *   all-reduce      its group is one of an FSDP all-gather
 *
 * The filters look at the graph as it was given. With `is_faithful` each looks
 * at what the last pass left, the quirks that bucket.h names hold, and mixed
 * dtypes are not padded: buckets are then those of PyTorch 2.13
 * (docs/graph.md says what differs; python/tests/test_inductor.py compares the
 * two).
 *
 * The time grows with the nodes and their inputs, and their logarithm.
 */
#pragma once
#include "collective/graph.h"
#include "collective/merge.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

enum bucketing_mode {
	BUCKETING_DEFAULT,
	BUCKETING_CUSTOM_OPS,
	BUCKETING_MULTIDTYPE, /* all-gathers of a group whatever their dtype */
	BUCKETING_COALESCED,  /* reduce-scatters as lists */
	BUCKETING_N_MODES
};

struct bucketing_rule {
	enum bucketing_mode mode; /* of a kind that has it; else default */
	const double *caps_mb;    /* as in bucket.h */
	uint32_t n_caps;
};

struct bucketing_options {
	struct bucketing_rule gather; /* of all-gathers */
	struct bucketing_rule reduce; /* of reduce-scatters and all-reduces */
	bool is_faithful;
};

/* Where a collective ended up. */
enum bucketing_fate {
	BUCKETING_MERGED,
	BUCKETING_ALONE,     /* a bucket of its own; the graph keeps it */
	BUCKETING_FILTERED,  /* not FSDP's */
	BUCKETING_LEFT_OVER, /* faithful: dropped, or alone in a bucket */
};

struct bucketing_member {
	char *name;    /* owned; of the collective */
	uint64_t size; /* bytes: the larger of what goes in and comes out */
	enum bucketing_fate fate;
};

struct bucketing_bucket {
	enum graph_kind kind;
	enum merge_form form;
	uint32_t group; /* of the result's graph */
	enum graph_reduce reduce;
	char name[MERGE_NAME_SIZE];       /* of the collective; "": as it was */
	struct merge_layout layout;       /* an entry for each member */
	struct bucketing_member *members; /* owned */
	uint32_t n_members;
	uint64_t size; /* of all members */
};

struct bucketing {
	struct graph graph; /* rewritten; owned, like the rest */
	struct bucketing_bucket *buckets;
	uint32_t n_buckets;
	struct bucketing_member *left; /* collectives in no bucket */
	uint32_t n_left;
};

#define BUCKETING_NULL ((struct bucketing){0})

/*
 * Run the passes over `graph`, which is checked first and stays as it is.
 * -EINVAL: it is none; a cap; with `is_faithful`, an entry that cannot be
 * viewed in its dtype. The rewritten graph passes graph_check().
 */
int bucketing_run(const struct graph *graph,
		  const struct bucketing_options *options,
		  struct bucketing *ret, struct error *err);
void bucketing_deinit(struct bucketing *bucketing);

const char *bucketing_mode_name(enum bucketing_mode mode);
/* BUCKETING_N_MODES: there is none of that name. */
enum bucketing_mode bucketing_mode_by_name(const char *name);

/* "not fsdp", ...: a few words for a table. */
const char *bucketing_fate_name(enum bucketing_fate fate);
