/*
 * The memory bandwidth of this machine, which is the floor of collectives.
 *
 * *Copy* reads one array and writes another; *triad* is STREAM's a[i] = b[i] +
 * s * c[i]; *cast* is our own kernel from f32 to bf16. Several processes do
 * each of them at once, each with its part of the arrays and on a CPU of its
 * own, by plain or by streaming stores, whichever is quicker here for the size.
 * Bytes moved are those read and written, as STREAM counts them.
 */
#pragma once
#include "stage.h"

enum bandwidth_kind {
	BANDWIDTH_COPY,
	BANDWIDTH_TRIAD,
	BANDWIDTH_CAST,
	N_BANDWIDTHS,
};

/* Size of one array. Larger ones would not be slower, because already no part
 * of this one stays in the caches. */
#define BANDWIDTH_MAX (UINT64_C(384) << 20)

struct bandwidth; /* the arrays, shared with processes forked later */

struct bandwidth *bandwidth_new(uint32_t n_ranks);
void bandwidth_free(struct bandwidth *bandwidth);

/* Returns an order for one pass of `kind` that moves `moved` bytes. If the
 * arrays are too small for that, the pass moves fewer bytes, and `ret_scale` is
 * `moved` divided by these. Passes for an all-gather read several places in
 * turn, if they fit, as ranks read several groups. */
struct stage_order bandwidth_order(enum bandwidth_kind kind,
				   enum collective collective, uint64_t moved,
				   double *ret_scale);

/* Run a rank until the stage ends. */
void bandwidth_serve(struct stage *stage, uint32_t rank, void *bandwidth);
