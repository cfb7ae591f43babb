/*
 * Converts entries, as callers describe parameters, to rows, as the device
 * processes them (kernels/params.h). It checks the entries, and chooses the
 * fastest path that their alignment allows.
 */
#pragma once
#include "cuda/kernels.h"
#include "cuda/kernels/params.h"

/* Returns -EINVAL as kernels_table_new() says. */
int kernels_row_make(enum kernels_kind kind, const struct kernels_entry *entry,
		     struct kernels_row *ret, struct error *err);

uint64_t kernels_row_count_tiles(const struct kernels_row *row);
