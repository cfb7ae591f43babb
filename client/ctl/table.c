/*
 * Aligned columns. Width is counted in code points, which is right for all
 * but wide and combining characters; those only move the columns behind them.
 */
#include "client/ctl/table.h"

#include "proto/error.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void table_init(struct table *table, const char *const *titles,
		size_t n_columns)
{
	assert(n_columns > 0 && n_columns <= TABLE_MAX_COLUMNS);
	*table = TABLE_NULL;
	table->titles = titles;
	table->n_columns = n_columns;
}

void table_deinit(struct table *table)
{
	for (size_t i = 0; i < table->n_cells; i++)
		free(table->cells[i]);
	free(table->cells);
	*table = TABLE_NULL;
}

void table_clean(char *text)
{
	unsigned char *p = (unsigned char *)text;

	for (; *p; p++) {
		/* C1 controls are c2 80 to c2 9f in UTF-8 */
		if (*p < 0x20 || *p == 0x7f ||
		    (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0))
			*p = '?';
	}
}

static int reserve(struct table *table, struct error *err)
{
	size_t n_room = table->n_room ? table->n_room * 2 : 64;
	char **cells;

	if (table->n_cells < table->n_room)
		return 0;
	cells = reallocarray(table->cells, n_room, sizeof(*cells));
	if (!cells)
		return error_set(err, -ENOMEM, "out of memory for a table");
	table->cells = cells;
	table->n_room = n_room;
	return 0;
}

int table_add(struct table *table, struct error *err, const char *format, ...)
{
	va_list args;
	char *cell;
	int r;

	r = reserve(table, err);
	if (r < 0)
		return r;
	va_start(args, format);
	r = vasprintf(&cell, format, args);
	va_end(args);
	if (r < 0)
		return error_set(err, -ENOMEM, "out of memory for a table");
	table_clean(cell);
	table->cells[table->n_cells++] = cell;
	return 0;
}

static int width_of(const char *text)
{
	int width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

static void print_row(const struct table *table, const char *const *row,
		      const int *widths, FILE *file)
{
	for (size_t i = 0; i < table->n_columns; i++) {
		bool is_right = table->titles[i][0] == '>';
		const char *text = row[i];
		int pad;

		if (row == table->titles && is_right)
			text++;
		pad = widths[i] - width_of(text);
		if (is_right)
			fprintf(file, "%*s%s", pad, "", text);
		else if (i + 1 < table->n_columns)
			fprintf(file, "%s%*s", text, pad, "");
		else
			fputs(text, file);
		fputs(i + 1 < table->n_columns ? "  " : "\n", file);
	}
}

void table_print(const struct table *table, FILE *file)
{
	int widths[TABLE_MAX_COLUMNS];

	assert(table->n_cells % table->n_columns == 0);
	for (size_t i = 0; i < table->n_columns; i++)
		widths[i] = width_of(table->titles[i]) -
			    (table->titles[i][0] == '>');
	for (size_t i = 0; i < table->n_cells; i++) {
		int width = width_of(table->cells[i]);

		if (width > widths[i % table->n_columns])
			widths[i % table->n_columns] = width;
	}
	print_row(table, table->titles, widths, file);
	for (size_t i = 0; i < table->n_cells; i += table->n_columns)
		print_row(table, (const char *const *)table->cells + i, widths,
			  file);
}
