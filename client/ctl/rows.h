/*
 * Copies of the rows of a list, in the order of one column: all of them, or
 * only the first ones. A list of a million rows of which a screen shows fifty
 * so costs one comparison for most of them, and no memory.
 */
#pragma once
#include "client/ctl/sheet.h"

#include <stdbool.h>
#include <stddef.h>

struct rows {
	const struct column *columns; /* borrowed */
	size_t size;                  /* of a row */
	const struct column *by;      /* one of the columns */
	bool is_reversed;
	size_t n_max;   /* so many are kept; 0: all */
	size_t n_added; /* since rows_clear() */
	char *items;
	size_t n, n_room;
	size_t n_best; /* so many in front are sorted, and no row that was
			* dropped belongs before one of them */
};

/*
 * Add a copy of a row, with copies of the texts that columns of kind
 * COLUMN_TEXT show; -ENOMEM, without a sentence. The columns, their order and
 * n_max must not change between the first call and rows_cut().
 */
int rows_add(struct rows *rows, const void *row);
/* Drop what is not among the first `n_max`. */
void rows_cut(struct rows *rows);
/*
 * Put the rows that are left in order: the largest number or the first text
 * comes first, and equal rows stay as they were added (by qsort() of glibc, as
 * long as there is memory for it).
 */
void rows_sort(struct rows *rows);
void rows_clear(struct rows *rows);
