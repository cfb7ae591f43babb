/*
 * A list with columns. One table of columns describes both the table for people
 * and the document for programs.
 */
#pragma once
#include "client/ctl/table.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct args;
struct error;

/* The type of a field in a row, and how people see it. */
enum column_kind {
	COLUMN_TEXT, /* const char * */
	COLUMN_BOOL, /* "yes", "no" */
	COLUMN_U32,
	COLUMN_I32,
	COLUMN_I64,
	COLUMN_U64,
	COLUMN_SIZE, /* uint64_t: "1.5 KiB" */
	COLUMN_AGE,  /* uint64_t, milliseconds: "12 s" */
	/* uint64_t: 16 digits; in documents also a text, because JSON readers
	 * may not keep all 64 bits of a number */
	COLUMN_HEX,
};

/* The longest text of a column is a name with its final 0. */
#define COLUMN_BUFFER 256

struct column {
	/* '>' at the beginning: right-aligned; NULL: it is not in tables */
	const char *title;
	const char *key; /* in documents; NULL: it is not in documents */
	enum column_kind kind;
	size_t offset; /* of the field in a row */
	bool is_long;  /* shown only with --long */
	/* Makes the text for people; NULL: the kind of the column does. For a
	 * COLUMN_TEXT, documents have the same text. */
	const char *(*text)(const void *field, char buffer[COLUMN_BUFFER]);
	/* Makes the value for documents; NULL: the kind of the column does. */
	json_t *(*json)(const void *field);
};

/* A list to which rows are added. Either the table or the array is used. */
struct sheet {
	/* the last one has neither title nor key */
	const struct column *columns;
	/* the columns of the table */
	const struct column *shown[TABLE_MAX_COLUMNS];
	const char *titles[TABLE_MAX_COLUMNS];
	bool is_json;
	struct table table;
	json_t *array;
	uint64_t *keys; /* from sheet_add_by() */
	size_t n_keys;
};

/* Begins a list as --json and --long in `args` require. `columns` is
 * borrowed. */
void sheet_init(struct sheet *sheet, const struct column *columns,
		const struct args *args);
void sheet_deinit(struct sheet *sheet);

/* Adds a row. Returns -ENOMEM without a sentence. */
int sheet_add(struct sheet *sheet, const void *row);
/* Adds a row to a list that is sorted when it is printed: first by `key`, the
 * largest first, then by the text of the first column, then in the order of the
 * calls. All rows of the list must be added by this function. */
int sheet_add_by(struct sheet *sheet, uint64_t key, const void *row);

int sheet_print(struct sheet *sheet, struct error *err);
/* Ends a list whose rows were added during a walk, and frees it. `r` is the
 * result of the walk: if it is negative, this reports the error, otherwise it
 * prints the rows. */
int sheet_finish(struct sheet *sheet, int r, struct error *err);

/* Defines the function `run` of a verb that prints a row for each `item` that
 * `walk` finds. */
#define SHEET_RUN(run, walk, item, columns)                                    \
	static int run##_add(const item *row, void *sheet)                     \
	{                                                                      \
		return sheet_add(sheet, row);                                  \
	}                                                                      \
	static int run(struct fsdp_client *client, const struct args *args,    \
		       struct error *err)                                      \
	{                                                                      \
		struct sheet sheet;                                            \
		int r;                                                         \
                                                                               \
		sheet_init(&sheet, columns, args);                             \
		r = walk(client, run##_add, &sheet);                           \
		return sheet_finish(&sheet, r, err);                           \
	}

/* Returns one row as an object, or NULL if there is no memory. */
json_t *sheet_object(const struct column *columns, const void *row);
