/*
 * Aligned columns for people: rows are collected, then printed with every
 * column as wide as its widest cell.
 *
 * Cells can come from other processes (a command's name can be anything), so
 * bytes that would steer a terminal are shown as '?'.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define TABLE_MAX_COLUMNS 24

struct table_text; /* table.c */

struct table {
	size_t n_columns;
	const char *const *titles; /* borrowed; '>' in front: right-aligned */
	/* The first cell of each row; its others follow, each behind the 0 of
	 * the one before. They may be put in another order. */
	const char **rows;
	size_t n_rows, n_room;
	char *row;                       /* the next one, */
	size_t column;                   /* which has so many cells, */
	size_t sizes[TABLE_MAX_COLUMNS]; /* each of so many bytes */
	int widths[TABLE_MAX_COLUMNS];   /* of the widest cell or the title */
	/* Some cell has not one byte for each column of the terminal. */
	bool is_wide[TABLE_MAX_COLUMNS];
	struct table_text *texts; /* the newest first */
	char *next, *end;         /* what is left of it */
	bool is_incomplete;       /* there was no memory for a cell */
};

#define TABLE_NULL ((struct table){0})

void table_init(struct table *table, const char *const *titles,
		size_t n_columns);
void table_deinit(struct table *table);

/* Add the next cell, left to right, row by row; the text is copied. Without
 * memory for one, the table gets no more cells. */
void table_add_text(struct table *table, const char *text);
/* The same with a text that is made of several. */
void table_add(struct table *table, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Texts are not cut to less than this to make a table fit. */
#define TABLE_LEAST_TEXT 12

/*
 * Titles, then the rows. On a terminal that is too narrow, texts are cut in
 * the middle and, if they are short already, columns are left out from the
 * right; elsewhere, also if `width` is 0, the table is whole.
 */
void table_print(const struct table *table, FILE *file);
void table_print_within(const struct table *table, int width, FILE *file);

/* Show `text` with '?' for what would steer a terminal. In place. */
void table_clean(char *text);
