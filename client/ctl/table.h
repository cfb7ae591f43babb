/*
 * Aligned columns for people. Rows are collected first, so that each column can
 * be as wide as its widest cell.
 *
 * Cells can come from other processes (a command can have any name), so
 * characters that would control the terminal are shown as '?'.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define TABLE_MAX_COLUMNS 24

struct table_text; /* defined in table.c */

struct table {
	size_t n_columns;
	/* borrowed; '>' at the beginning: right-aligned */
	const char *const *titles;
	/* The first cell of each row. The other cells follow it in memory, each
	 * after the 0 that ends the one before. The rows may be reordered. */
	const char **rows;
	size_t n_rows, capacity;
	char *row;                       /* the row that is being added */
	size_t column;                   /* number of cells that it has */
	size_t sizes[TABLE_MAX_COLUMNS]; /* of these cells, in bytes */
	int widths[TABLE_MAX_COLUMNS];   /* of the widest cell or the title */
	/* Whether a cell of the column has fewer characters than bytes. */
	bool is_wide[TABLE_MAX_COLUMNS];
	struct table_text *texts; /* pieces of memory, the newest first */
	char *next, *end;         /* the free part of the newest piece */
	bool is_incomplete;       /* there was no memory for a cell */
};

#define TABLE_NULL ((struct table){0})

void table_init(struct table *table, const char *const *titles,
		size_t n_columns);
void table_deinit(struct table *table);

/* Adds the next cell, from left to right and row by row. The text is copied. If
 * there is no memory for a cell, the table is incomplete and ignores further
 * cells. */
void table_add_text(struct table *table, const char *text);
/* Adds a cell with a formatted text. */
void table_add(struct table *table, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* A column of texts does not become narrower than this to make the table
 * fit. */
#define TABLE_LEAST_TEXT 12

/*
 * Prints the titles and the rows. If they are wider than the terminal or
 * `width`, texts are cut in the middle, and if that is not enough, columns are
 * left out from the right. Nothing is cut if the file is not a terminal or
 * `width` is 0.
 */
void table_print(const struct table *table, FILE *file);
void table_print_within(const struct table *table, int width, FILE *file);

/* Replaces each character of `text` that would control the terminal with
 * '?'. */
void table_clean(char *text);
