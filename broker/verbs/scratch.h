/*
 * The memory of one run of a request. It is freed when the reply was sent.
 */
#pragma once
#include "broker/verbs/verbs.h"

struct scratch_piece; /* scratch.c */

/* Space for chunks and locations is always available, since they are filled in
 * when changes were made already; other memory comes from the heap. */
struct scratch {
	struct scratch_piece *pieces;
	struct chunk_ref chunks[VERB_MAX_FDS];
	struct tensor_place places[MESSAGE_MAX_ITEMS];
};

/* Free the memory that verb_scratch() returned. */
void scratch_deinit(struct scratch *scratch);
