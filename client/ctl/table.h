/*
 * Aligned columns for people: rows are collected, then printed with every
 * column as wide as its widest cell.
 *
 * Cells can come from other processes (a command's name can be anything), so
 * bytes that would steer a terminal are shown as '?'.
 */
#pragma once
#include <stddef.h>
#include <stdio.h>

struct error;

#define TABLE_MAX_COLUMNS 16

struct table {
	size_t n_columns;
	const char *const *titles; /* borrowed; '>' in front: right-aligned */
	char **cells;              /* n_columns to a row */
	size_t n_cells, n_room;
};

#define TABLE_NULL ((struct table){0})

void table_init(struct table *table, const char *const *titles,
		size_t n_columns);
void table_deinit(struct table *table);

/* Add the next cell, left to right, row by row; the text is copied. */
int table_add(struct table *table, struct error *err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Titles, then the rows. */
void table_print(const struct table *table, FILE *file);

/* Show `text` with '?' for what would steer a terminal. In place. */
void table_clean(char *text);
