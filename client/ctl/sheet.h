/*
 * A list by its columns: one table of them makes the table for people and the
 * document for programs.
 */
#pragma once
#include "client/ctl/table.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct args;
struct error;

/* What a field of a row is, and how people see it. */
enum column_kind {
	COLUMN_TEXT, /* const char * */
	COLUMN_BOOL, /* "yes", "no" */
	COLUMN_U32,
	COLUMN_I32,
	COLUMN_I64,
	COLUMN_U64,
	COLUMN_SIZE, /* uint64_t: "1.5 KiB" */
	COLUMN_AGE,  /* uint64_t, milliseconds: "12 s" */
	COLUMN_HEX,  /* uint64_t: 16 digits; a text in documents, too, whose
		      * numbers are no 64 bits */
};

#define COLUMN_BUFFER 192

struct column {
	const char *title; /* '>' in front: right-aligned; NULL: no column */
	const char *key;   /* in documents; NULL: not there */
	enum column_kind kind;
	size_t offset; /* of the field in a row */
	bool is_long;  /* a column with --long only */
	/* What people see of the field, if not what its kind makes of it; of a
	 * COLUMN_TEXT programs see the same. */
	const char *(*text)(const void *field, char buffer[COLUMN_BUFFER]);
	/* Likewise what programs see. */
	json_t *(*json)(const void *field);
};

/* A list in the making; either the table or the array is filled. */
struct sheet {
	const struct column *columns; /* end with one that has no name */
	const struct column *shown[TABLE_MAX_COLUMNS]; /* in the table */
	const char *titles[TABLE_MAX_COLUMNS];
	bool is_json;
	struct table table;
	json_t *array;
	uint64_t *keys; /* of sheet_add_by() */
	size_t n_keys;
};

/* As --json and --long say. `columns` are borrowed. */
void sheet_init(struct sheet *sheet, const struct column *columns,
		const struct args *args);
void sheet_deinit(struct sheet *sheet);

/* One more row; -ENOMEM, without a sentence. */
int sheet_add(struct sheet *sheet, const void *row);
/* The same for all rows of a sheet that is printed in order: first by `key`,
 * the largest first, then by the text of the first column, then as they were
 * added. */
int sheet_add_by(struct sheet *sheet, uint64_t key, const void *row);

int sheet_print(struct sheet *sheet, struct error *err);
/* The rows are there if `r`, the result of a walk, is not negative: print them,
 * or tell the reason why the walk failed; then free the sheet. */
int sheet_finish(struct sheet *sheet, int r, struct error *err);

/* One row as an object; NULL: no memory. */
json_t *sheet_object(const struct column *columns, const void *row);
