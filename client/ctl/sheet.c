/* A list by its columns. */
#include "client/ctl/sheet.h"

#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "proto/error.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

_Static_assert(COLUMN_BUFFER >= FORMAT_SIZE && COLUMN_BUFFER >= FORMAT_SHAPE,
	       "what format.h writes");

static bool is_end(const struct column *column)
{
	return !column->title && !column->key;
}

static bool is_shown(const struct sheet *sheet, const struct column *column)
{
	return column->title && (!column->is_long || sheet->is_long);
}

void sheet_init(struct sheet *sheet, const struct column *columns,
		const struct args *args)
{
	size_t n = 0;

	*sheet = (struct sheet){.columns = columns,
				.is_json = args_has(args, ARG_JSON),
				.is_long = args_has(args, ARG_LONG)};
	if (sheet->is_json) {
		sheet->array = json_array();
		return;
	}
	for (; !is_end(columns); columns++) {
		if (!is_shown(sheet, columns))
			continue;
		assert(n < TABLE_MAX_COLUMNS);
		sheet->titles[n++] = columns->title;
	}
	table_init(&sheet->table, sheet->titles, n);
}

void sheet_deinit(struct sheet *sheet)
{
	table_deinit(&sheet->table);
	json_decref(sheet->array);
}

static const char *text_of(const struct column *column, const void *field,
			   char buffer[COLUMN_BUFFER])
{
	switch (column->kind) {
	case COLUMN_TEXT:
		return *(const char *const *)field;
	case COLUMN_BOOL:
		return *(const bool *)field ? "yes" : "no";
	case COLUMN_U32:
		snprintf(buffer, COLUMN_BUFFER, "%u", *(const uint32_t *)field);
		break;
	case COLUMN_I32:
		snprintf(buffer, COLUMN_BUFFER, "%d", *(const int32_t *)field);
		break;
	case COLUMN_I64:
		snprintf(buffer, COLUMN_BUFFER, "%" PRId64,
			 *(const int64_t *)field);
		break;
	case COLUMN_U64:
		snprintf(buffer, COLUMN_BUFFER, "%" PRIu64,
			 *(const uint64_t *)field);
		break;
	case COLUMN_SIZE:
		return format_size(*(const uint64_t *)field, buffer);
	case COLUMN_AGE:
		return format_age(*(const uint64_t *)field, buffer);
	case COLUMN_HEX:
		snprintf(buffer, COLUMN_BUFFER, "%016" PRIx64,
			 *(const uint64_t *)field);
		break;
	}
	return buffer;
}

static json_t *json_of(const struct column *column, const void *field)
{
	char buffer[COLUMN_BUFFER];

	switch (column->kind) {
	case COLUMN_BOOL:
		return json_boolean(*(const bool *)field);
	case COLUMN_U32:
		return json_integer(*(const uint32_t *)field);
	case COLUMN_I32:
		return json_integer(*(const int32_t *)field);
	case COLUMN_I64:
		return json_integer(*(const int64_t *)field);
	case COLUMN_U64:
	case COLUMN_SIZE:
	case COLUMN_AGE:
		return document_number(*(const uint64_t *)field);
	case COLUMN_TEXT:
		if (column->text)
			return document_text(column->text(field, buffer));
		break;
	case COLUMN_HEX:
		break;
	}
	return document_text(text_of(column, field, buffer));
}

json_t *sheet_object(const struct column *columns, const void *row)
{
	json_t *object = json_object();

	for (; !is_end(columns); columns++) {
		const void *field = (const char *)row + columns->offset;

		if (columns->key &&
		    json_object_set_new(object, columns->key,
					columns->json
						? columns->json(field)
						: json_of(columns, field))) {
			json_decref(object);
			return NULL;
		}
	}
	return object;
}

static int add_cells(struct sheet *sheet, const void *row)
{
	const struct column *column = sheet->columns;
	char buffer[COLUMN_BUFFER];

	for (; !is_end(column); column++) {
		const void *field = (const char *)row + column->offset;

		if (is_shown(sheet, column))
			table_add(&sheet->table, "%s",
				  column->text
					  ? column->text(field, buffer)
					  : text_of(column, field, buffer));
	}
	return sheet->table.is_incomplete ? -ENOMEM : 0;
}

int sheet_add(struct sheet *sheet, const void *row)
{
	if (!sheet->is_json)
		return add_cells(sheet, row);
	return json_array_append_new(sheet->array,
				     sheet_object(sheet->columns, row))
		       ? -ENOMEM
		       : 0;
}

int sheet_print(struct sheet *sheet, struct error *err)
{
	if (sheet->is_json)
		return document_print(json_incref(sheet->array), err);
	table_print(&sheet->table, stdout);
	return 0;
}

int sheet_finish(struct sheet *sheet, int r, struct error *err)
{
	r = r < 0 ? broker_walk_failed(err, r) : sheet_print(sheet, err);
	sheet_deinit(sheet);
	return r;
}
