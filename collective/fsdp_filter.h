/*
 * fsdp_filter() finds the collectives of a graph that belong to FSDP, by their
 * tags or by the nodes around them (bucketing.h has the rules).
 */
#pragma once
#include "collective/graph.h"
#include <stdbool.h>

struct error;

/*
 * Sets the entries of `is_fsdp` (n_nodes entries, all false) for the
 * collectives of one kind in a checked graph. A search for all-gathers also
 * sets `is_fsdp_group` (n_groups entries, all false at first), and a search for
 * all-reduces reads it.
 */
int fsdp_filter(const struct graph *graph, enum graph_kind kind,
		bool *is_fsdp_group, bool *is_fsdp, struct error *err);
