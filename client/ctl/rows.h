/*
 * Copies of the rows of a list, sorted by one column: all rows, or only the
 * first ones. If a list has a million rows and a screen shows fifty, most rows
 * cost one comparison and no memory.
 */
#pragma once
#include "client/ctl/sheet.h"

#include <stdbool.h>
#include <stddef.h>

struct rows {
	const struct column *columns; /* borrowed */
	size_t size;                  /* of a row, in bytes */
	const struct column *by;      /* one of the columns */
	bool is_reversed;
	size_t n_max;   /* number of rows to keep; 0: all */
	size_t n_added; /* rows since rows_clear() */
	char *items;
	size_t n, capacity;
	/* The number of rows at the beginning that are sorted. No dropped row
	 * comes before any of them. */
	size_t n_best;
};

/*
 * Adds a copy of a row, and of the texts of its columns of kind COLUMN_TEXT.
 * Returns -ENOMEM without a sentence. The columns, their order and n_max must
 * not change between the first call and rows_cut().
 */
int rows_add(struct rows *rows, const void *row);
/* Drops all rows after the first `n_max`. */
void rows_cut(struct rows *rows);
/*
 * Sorts the rows: the largest number or the first text comes first. Equal rows
 * keep their order, as long as qsort() of glibc has memory for its copy.
 */
void rows_sort(struct rows *rows);
void rows_clear(struct rows *rows);
