/*
 * What the memory of this machine gives: the floor of collectives.
 *
 * *Copy* reads one array and writes another; *triad* is STREAM's
 * a[i] = b[i] + s * c[i]; *cast* is our own kernel from f32 to bf16. Each is
 * done by several processes at once, each with its part of the arrays and on a
 * CPU of its own, by plain or by streaming stores, whichever is quicker here
 * for the size. Bytes moved are those read and written, as STREAM counts them.
 */
#pragma once
#include "stage.h"

enum bandwidth_kind {
	BANDWIDTH_COPY,
	BANDWIDTH_TRIAD,
	BANDWIDTH_CAST,
	N_BANDWIDTHS,
};

/* Of one array. Larger ones would not be slower: caches keep nothing of it. */
#define BANDWIDTH_MAX (UINT64_C(384) << 20)

struct bandwidth; /* the arrays; shared with processes forked later */

struct bandwidth *bandwidth_new(uint32_t n_ranks);
void bandwidth_free(struct bandwidth *bandwidth);

/* One pass of `kind` that moves `moved` bytes, or fewer if the arrays are too
 * small for it: `ret_scale` is by how much. Passes for an all-gather read
 * several places in turns, if they fit, as ranks read several groups. */
struct stage_order bandwidth_order(enum bandwidth_kind kind,
				   enum collective collective, uint64_t moved,
				   double *ret_scale);

/* A rank's life. */
void bandwidth_serve(struct stage *stage, uint32_t rank, void *bandwidth);
