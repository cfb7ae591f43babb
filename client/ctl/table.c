/*
 * Aligned columns. Width is counted in code points, which is right for all
 * but wide and combining characters; those only move the columns behind them.
 */
#include "client/ctl/table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

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

static bool reserve(struct table *table)
{
	size_t n_room = table->n_room ? table->n_room * 2 : 64;
	char **cells;

	if (table->n_cells < table->n_room)
		return true;
	cells = reallocarray(table->cells, n_room, sizeof(*cells));
	if (!cells)
		return false;
	table->cells = cells;
	table->n_room = n_room;
	return true;
}

void table_add(struct table *table, const char *format, ...)
{
	va_list args;
	char *cell;

	va_start(args, format);
	if (table->is_incomplete || !reserve(table) ||
	    vasprintf(&cell, format, args) < 0)
		table->is_incomplete = true;
	va_end(args);
	if (table->is_incomplete)
		return;
	table_clean(cell);
	table->cells[table->n_cells++] = cell;
}

static int width_of(const char *text)
{
	int width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

/* The first byte behind `n` characters. */
static const char *skip(const char *text, int n)
{
	while (*text && (n > 0 || ((unsigned char)*text & 0xc0) == 0x80)) {
		n -= ((unsigned char)text[1] & 0xc0) != 0x80;
		text++;
	}
	return text;
}

/* Names tell most by their beginning and their end. */
static void print_cell(const char *text, int width, FILE *file)
{
	int n = width_of(text), n_end = (width - 2) / 2;

	if (n <= width) {
		fputs(text, file);
		return;
	}
	fprintf(file, "%.*s..%s", (int)(skip(text, width - 2 - n_end) - text),
		text, skip(text, n - n_end));
}

static bool is_right(const struct table *table, size_t column)
{
	return table->titles[column][0] == '>';
}

/* How the columns are printed: the first `n` of them. */
struct layout {
	size_t n;
	int widths[TABLE_MAX_COLUMNS];
};

static void print_row(const struct table *table, const char *const *row,
		      const struct layout *layout, FILE *file)
{
	for (size_t i = 0; i < layout->n; i++) {
		const char *text = row[i];
		int pad;

		if (row == table->titles && is_right(table, i))
			text++;
		pad = layout->widths[i] - width_of(text);
		if (pad < 0)
			pad = 0;
		if (is_right(table, i))
			fprintf(file, "%*s", pad, "");
		print_cell(text, layout->widths[i], file);
		if (i + 1 == layout->n)
			break;
		fprintf(file, "%*s", is_right(table, i) ? 2 : pad + 2, "");
	}
	fputc('\n', file);
}

static struct layout natural_layout(const struct table *table)
{
	struct layout layout = {.n = table->n_columns};

	for (size_t i = 0; i < table->n_columns; i++)
		layout.widths[i] =
			width_of(table->titles[i]) - is_right(table, i);
	for (size_t i = 0; i < table->n_cells; i++) {
		int width = width_of(table->cells[i]);

		if (width > layout.widths[i % table->n_columns])
			layout.widths[i % table->n_columns] = width;
	}
	return layout;
}

static int total_width(const struct layout *layout)
{
	int total = 2 * ((int)layout->n - 1);

	for (size_t i = 0; i < layout->n; i++)
		total += layout->widths[i];
	return total;
}

/* Texts get shorter, the longest first, but not shorter than `least`. Numbers
 * stay whole. */
static bool shrink(const struct table *table, struct layout *layout, int width,
		   int least)
{
	while (total_width(layout) > width) {
		size_t longest = layout->n;

		for (size_t i = 0; i < layout->n; i++) {
			if (!is_right(table, i) && layout->widths[i] > least &&
			    (longest == layout->n ||
			     layout->widths[i] > layout->widths[longest]))
				longest = i;
		}
		if (longest == layout->n)
			return false;
		layout->widths[longest]--;
	}
	return true;
}

/* Cut texts in the middle; where that is not enough, drop columns from the
 * right. */
static struct layout fit(const struct table *table, int width)
{
	const struct layout natural = natural_layout(table);
	struct layout layout = natural;

	if (width <= 0)
		return natural;
	while (!shrink(table, &layout, width, TABLE_LEAST_TEXT) &&
	       layout.n > 1) {
		size_t n = layout.n - 1;

		layout = natural;
		layout.n = n;
	}
	return layout;
}

void table_print_within(const struct table *table, int width, FILE *file)
{
	const struct layout layout = fit(table, width);

	assert(table->n_cells % table->n_columns == 0);
	print_row(table, table->titles, &layout, file);
	for (size_t i = 0; i < table->n_cells; i += table->n_columns)
		print_row(table, (const char *const *)table->cells + i, &layout,
			  file);
}

void table_print(const struct table *table, FILE *file)
{
	struct winsize size = {0};

	if (!isatty(fileno(file)) || ioctl(fileno(file), TIOCGWINSZ, &size) < 0)
		size.ws_col = 0;
	table_print_within(table, size.ws_col, file);
}
