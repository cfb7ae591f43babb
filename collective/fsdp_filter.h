/*
 * Which collectives of a graph are FSDP's, by the shape of what is around
 * them (bucketing.h has the rules) or by what the caller says.
 */
#pragma once
#include "collective/graph.h"
#include <stdbool.h>

struct error;

/*
 * Set `is_fsdp` (n_nodes entries, all false) for those of one kind in a
 * checked graph. `is_fsdp_group` (n_groups entries, all false at first) is set
 * by a search for all-gathers and read by one for all-reduces.
 */
int fsdp_filter(const struct graph *graph, enum graph_kind kind,
		bool *is_fsdp_group, bool *is_fsdp, struct error *err);
