/*
 * The memory of one run of a request, freed after its reply was sent.
 */
#pragma once
#include "broker/verbs/verbs.h"

struct scratch_piece; /* scratch.c */

/* Room for places is always there, since they are filled in after changes
 * were made; the rest is on the heap. */
struct scratch {
	struct scratch_piece *pieces;
	struct chunk_ref chunks[VERB_MAX_FDS];
	struct tensor_place places[MESSAGE_MAX_ITEMS];
};

/* Free what verb_scratch() has given. */
void scratch_deinit(struct scratch *scratch);
