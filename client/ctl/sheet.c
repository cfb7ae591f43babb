/* Makes the table or the document of a list from its columns. */
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
#include <stdlib.h>
#include <string.h>

_Static_assert(COLUMN_BUFFER >= FORMAT_SIZE && COLUMN_BUFFER >= FORMAT_SHAPE,
	       "what format.h writes");

static bool is_end(const struct column *column)
{
	return !column->title && !column->key;
}

void sheet_init(struct sheet *sheet, const struct column *columns,
		const struct args *args)
{
	size_t n = 0;

	*sheet = (struct sheet){.columns = columns,
				.is_json = args_has(args, ARG_JSON)};
	if (sheet->is_json) {
		sheet->array = json_array();
		return;
	}
	for (; !is_end(columns); columns++) {
		if (!columns->title ||
		    (columns->is_long && !args_has(args, ARG_LONG)))
			continue;
		assert(n < TABLE_MAX_COLUMNS);
		sheet->shown[n] = columns;
		sheet->titles[n++] = columns->title;
	}
	table_init(&sheet->table, sheet->titles, n);
}

void sheet_deinit(struct sheet *sheet)
{
	table_deinit(&sheet->table);
	json_decref(sheet->array);
	free(sheet->keys);
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
		return format_number(*(const uint32_t *)field, buffer);
	case COLUMN_I32:
		snprintf(buffer, COLUMN_BUFFER, "%d", *(const int32_t *)field);
		break;
	case COLUMN_I64:
		snprintf(buffer, COLUMN_BUFFER, "%" PRId64,
			 *(const int64_t *)field);
		break;
	case COLUMN_U64:
		return format_number(*(const uint64_t *)field, buffer);
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
	char buffer[COLUMN_BUFFER];

	for (size_t i = 0; i < sheet->table.n_columns; i++) {
		const struct column *column = sheet->shown[i];
		const void *field = (const char *)row + column->offset;

		table_add_text(&sheet->table,
			       column->text ? column->text(field, buffer)
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

/* --- order --------------------------------------------------------------- */

/* The sort key of a row. `text` is borrowed from the row. */
struct order {
	uint64_t key;
	uint64_t head; /* the first bytes of `text` that can differ */
	const char *text;
	size_t row;
};

int sheet_add_by(struct sheet *sheet, uint64_t key, const void *row)
{
	size_t n = sheet->n_keys;
	uint64_t *keys = sheet->keys;
	int r = sheet_add(sheet, row);

	if (r < 0)
		return r;
	if ((n & (n - 1)) == 0) {
		keys = reallocarray(keys, n ? 2 * n : 1, sizeof(*keys));
		if (!keys)
			return -ENOMEM;
		sheet->keys = keys;
	}
	keys[sheet->n_keys++] = key;
	return 0;
}

static const char *text_of_row(const struct sheet *sheet, size_t row)
{
	const json_t *object = json_array_get(sheet->array, row);

	if (!sheet->is_json)
		return sheet->table.rows[row];
	return json_string_value(json_object_get(object, sheet->columns->key));
}

static struct order order_of(const struct sheet *sheet, size_t row)
{
	return (struct order){.key = sheet->keys[row],
			      .text = text_of_row(sheet, row),
			      .row = row};
}

static int compare(const void *a, const void *b)
{
	const struct order *x = a, *y = b;
	int r;

	if (x->key != y->key)
		return x->key > y->key ? -1 : 1;
	if (x->head != y->head)
		return x->head < y->head ? -1 : 1;
	r = strcmp(x->text, y->text);
	if (r == 0)
		r = x->row < y->row ? -1 : x->row > y->row;
	return r;
}

/* Returns whether the rows are in order already. They often are, because many
 * names are published in their order. */
static bool is_sorted(const struct sheet *sheet)
{
	struct order last, next;

	for (size_t i = 0; i < sheet->n_keys; i++, last = next) {
		next = order_of(sheet, i);
		if (i && compare(&last, &next) > 0)
			return false;
	}
	return true;
}

/* Returns the number of bytes at the beginning that all texts have in
 * common. */
static size_t common_size(const struct order *order, size_t n)
{
	const char *first = order[0].text;
	size_t size = strlen(first);

	for (size_t i = 1; i < n; i++) {
		const char *text = order[i].text;

		if (strncmp(first, text, size) == 0)
			continue;
		for (size = 0; first[size] == text[size];)
			size++;
	}
	return size;
}

/* Texts differ only after the bytes that all have in common, and mostly in the
 * next 8. Comparing those as one number avoids reading both texts, which are
 * elsewhere in memory. */
static void set_heads(struct order *order, size_t n)
{
	size_t size = common_size(order, n);

	for (size_t i = 0; i < n; i++) {
		const char *text = order[i].text + size;

		for (size_t k = 0; k < 8; k++) {
			order[i].head =
				order[i].head << 8 | (unsigned char)*text;
			text += *text != '\0';
		}
	}
}

static int order_array(struct sheet *sheet, const struct order *order)
{
	json_t *array = json_array();

	for (size_t i = 0; i < sheet->n_keys; i++) {
		json_t *object = json_array_get(sheet->array, order[i].row);

		if (json_array_append(array, object)) {
			json_decref(array);
			return -ENOMEM;
		}
	}
	json_decref(sheet->array);
	sheet->array = array;
	return 0;
}

/* Sorts the rows that sheet_add_by() has added. */
static int sort(struct sheet *sheet)
{
	size_t n = sheet->n_keys;
	struct order *order;
	int r = 0;

	if (is_sorted(sheet))
		return 0;
	order = calloc(n, sizeof(*order));
	if (!order)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		order[i] = order_of(sheet, i);
	set_heads(order, n);
	qsort(order, n, sizeof(*order), compare);
	if (sheet->is_json)
		r = order_array(sheet, order);
	for (size_t i = 0; !sheet->is_json && i < n; i++)
		sheet->table.rows[i] = order[i].text;
	free(order);
	return r;
}

int sheet_print(struct sheet *sheet, struct error *err)
{
	if (sort(sheet) < 0)
		return error_nomem(err, "a list");
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
