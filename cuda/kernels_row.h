/*
 * From entries, as callers think of them, to rows, as the device goes through
 * them (kernels/params.h): checked, and with the way that is quickest for how
 * they are aligned.
 */
#pragma once
#include "cuda/kernels.h"
#include "cuda/kernels/params.h"

/* -EINVAL: see kernels_table_new(). */
int kernels_row_make(enum kernels_kind kind, const struct kernels_entry *entry,
		     struct kernels_row *ret, struct error *err);

uint64_t kernels_row_count_tiles(const struct kernels_row *row);
