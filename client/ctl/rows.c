/*
 * Rows are appended without order. When there are twice as many as the limit,
 * they are sorted and the second half is dropped. From then on a new row is
 * added only if it comes before the last of the sorted rows.
 */
#include "client/ctl/rows.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* --- order --------------------------------------------------------------- */

static int compare_u64(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int compare_fields(const struct column *column, const void *a,
			  const void *b)
{
	switch (column->kind) {
	case COLUMN_TEXT:
		return strcmp(*(const char *const *)b, *(const char *const *)a);
	case COLUMN_BOOL:
		return *(const bool *)a - *(const bool *)b;
	case COLUMN_U32:
	case COLUMN_I32:
		return compare_u64(*(const uint32_t *)a, *(const uint32_t *)b);
	case COLUMN_I64:
	case COLUMN_U64:
	case COLUMN_SIZE:
	case COLUMN_AGE:
	case COLUMN_HEX:
		break;
	}
	return compare_u64(*(const uint64_t *)a, *(const uint64_t *)b);
}

/* Returns a negative number if `a` comes before `b`. */
static int compare(const void *a, const void *b, void *data)
{
	const struct rows *rows = data;
	size_t offset = rows->by->offset;
	int r = compare_fields(rows->by, (const char *)b + offset,
			       (const char *)a + offset);

	return rows->is_reversed ? -r : r;
}

/* --- rows ---------------------------------------------------------------- */

static char *row_at(const struct rows *rows, size_t i)
{
	return rows->items + i * rows->size;
}

static int copy_texts(const struct rows *rows, char *row)
{
	int r = 0;

	for (const struct column *column = rows->columns; column->title;
	     column++) {
		char **text = (char **)(row + column->offset);

		if (column->kind != COLUMN_TEXT)
			continue;
		*text = strdup(*text);
		if (!*text)
			r = -ENOMEM;
	}
	return r;
}

static void free_texts(const struct rows *rows, char *row)
{
	for (const struct column *column = rows->columns; column->title;
	     column++) {
		if (column->kind == COLUMN_TEXT)
			free(*(char **)(row + column->offset));
	}
}

static void drop_from(struct rows *rows, size_t first)
{
	for (size_t i = first; i < rows->n; i++)
		free_texts(rows, row_at(rows, i));
	rows->n = first;
}

static bool reserve(struct rows *rows)
{
	size_t capacity = rows->capacity ? 2 * rows->capacity : 64;
	char *items;

	if (rows->n < rows->capacity)
		return true;
	items = reallocarray(rows->items, capacity, rows->size);
	if (!items)
		return false;
	rows->items = items;
	rows->capacity = capacity;
	return true;
}

int rows_add(struct rows *rows, const void *row)
{
	rows->n_added++;
	if (rows->n_best &&
	    compare(row_at(rows, rows->n_best - 1), row, rows) <= 0)
		return 0;
	if (rows->n_max && rows->n == 2 * rows->n_max)
		rows_cut(rows);
	if (!reserve(rows))
		return -ENOMEM;
	memcpy(row_at(rows, rows->n), row, rows->size);
	return copy_texts(rows, row_at(rows, rows->n++));
}

void rows_cut(struct rows *rows)
{
	if (!rows->n_max || rows->n <= rows->n_max)
		return;
	rows_sort(rows);
	drop_from(rows, rows->n_max);
	rows->n_best = rows->n_max;
}

void rows_sort(struct rows *rows)
{
	if (rows->n)
		qsort_r(rows->items, rows->n, rows->size, compare, rows);
}

void rows_clear(struct rows *rows)
{
	drop_from(rows, 0);
	free(rows->items);
	rows->items = NULL;
	rows->capacity = rows->n_added = rows->n_best = 0;
}
