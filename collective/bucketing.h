/*
 * This header has the bucketing passes over a graph. They decide which
 * collectives of FSDP are sent together, and rewrite the graph accordingly.
 *
 * There are three passes, for all-gathers, reduce-scatters and all-reduces.
 * Each works on the result of the one before. A pass takes the collectives that
 * belong to FSDP, in the order of their waits, runs bucket_plan() on them, and
 * merges each bucket that has more than one member. The behaviour is that of
 * the newer form of PyTorch's passes (fsdp.py and bucketing.py in
 * torch/_inductor/fx_passes). A collective belongs to FSDP if its tag says so,
 * or else by these filters:
 *
 *   all-gather      its ancestors include exactly one placeholder
 *   reduce-scatter  only unary operations lead from it to the output
 *   all-reduce      its group is that of an all-gather of FSDP
 *
 * The filters look at the graph that the caller gave. With `is_faithful` each
 * filter looks at the result of the pass before, the behaviour that bucket.h
 * describes for `is_faithful` applies, and mixed dtypes are not padded. The
 * buckets are then those of PyTorch 2.13 (docs/graph.md describes the
 * differences; python/tests/test_inductor.py compares the results).
 *
 * A pass takes O(n log n) time for n nodes and inputs.
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
	/* merges all-gathers of a group with any dtypes */
	BUCKETING_MULTIDTYPE,
	BUCKETING_COALESCED, /* merges reduce-scatters as a list */
	BUCKETING_N_MODES
};

struct bucketing_rule {
	enum bucketing_mode mode; /* default for kinds without this mode */
	const double *caps_mb;    /* as in bucket.h */
	uint32_t n_caps;
};

struct bucketing_options {
	struct bucketing_rule gather; /* of all-gathers */
	struct bucketing_rule reduce; /* of reduce-scatters and all-reduces */
	bool is_faithful;
};

/* What a pass did with a collective. */
enum bucketing_fate {
	BUCKETING_MERGED,
	BUCKETING_ALONE,     /* the only one in its bucket; unchanged */
	BUCKETING_FILTERED,  /* does not belong to FSDP */
	BUCKETING_LEFT_OVER, /* faithful: in no bucket */
};

struct bucketing_member {
	char *name;    /* of the collective; owned */
	uint64_t size; /* bytes: the larger of input and result */
	enum bucketing_fate fate;
};

struct bucketing_bucket {
	enum graph_kind kind;
	enum merge_form form;
	uint32_t group; /* index in the result's graph */
	enum graph_reduce reduce;
	/* of the new collective; "" if nothing was merged */
	char name[MERGE_NAME_SIZE];
	struct merge_layout layout;       /* has an entry for each member */
	struct bucketing_member *members; /* owned */
	uint32_t n_members;
	uint64_t size; /* bytes of all members */
};

struct bucketing {
	struct graph graph; /* the rewritten graph; owned, like the rest */
	struct bucketing_bucket *buckets;
	uint32_t n_buckets;
	struct bucketing_member *left; /* collectives in no bucket */
	uint32_t n_left;
};

#define BUCKETING_NULL ((struct bucketing){0})

/*
 * Checks `graph`, and runs the passes on a copy of it. The rewritten graph
 * passes graph_check(). Returns -EINVAL if the graph or a cap is invalid, or,
 * with `is_faithful`, if an entry of a buffer cannot be viewed in its own
 * dtype.
 */
int bucketing_run(const struct graph *graph,
		  const struct bucketing_options *options,
		  struct bucketing *ret, struct error *err);
void bucketing_deinit(struct bucketing *bucketing);

const char *bucketing_mode_name(enum bucketing_mode mode);
/* Returns BUCKETING_N_MODES if no mode has that name. */
enum bucketing_mode bucketing_mode_by_name(const char *name);

/* Returns a few words for a table, such as "not fsdp". */
const char *bucketing_fate_name(enum bucketing_fate fate);
