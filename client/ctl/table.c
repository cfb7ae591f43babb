/*
 * Formats aligned columns. Width is counted in code points. This is wrong only
 * for wide and combining characters: the columns after them are not aligned in
 * that row.
 */
#include "client/ctl/table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define TEXT_SIZE ((size_t)256 << 10)
#define PADDING   7 /* bytes after a row, which are 0 */

/* A piece of memory for the texts of many cells. */
struct table_text {
	struct table_text *next;
	char bytes[];
};

/* Returns whether a row consists of printable ASCII characters and the 0 after
 * each cell. It tests eight bytes at once, as one number. The highest bit of x
 * is set if x is not ASCII, that of x + 1 if x is 0x7f, that of x + 0x7f if x
 * is not 0, and that of x + 0x60 if x is not less than a space. Up to PADDING
 * bytes after `end` are read as well. */
static bool is_plain(const char *row, const char *end)
{
	const uint64_t ones = UINT64_C(0x0101010101010101);
	uint64_t found = 0, word;

	for (; row < end; row += 8) {
		memcpy(&word, row, 8);
		found |= word | (word + ones) |
			 ((word + ones * 0x7f) & ~(word + ones * 0x60));
	}
	return !(found & ones * 0x80);
}

static int width_of(const char *text)
{
	int width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

void table_init(struct table *table, const char *const *titles,
		size_t n_columns)
{
	assert(n_columns > 0 && n_columns <= TABLE_MAX_COLUMNS);
	*table = TABLE_NULL;
	table->titles = titles;
	table->n_columns = n_columns;
	for (size_t i = 0; i < n_columns; i++)
		table->widths[i] = width_of(titles[i] + (titles[i][0] == '>'));
}

void table_deinit(struct table *table)
{
	while (table->texts) {
		struct table_text *next = table->texts->next;

		free(table->texts);
		table->texts = next;
	}
	free(table->rows);
	*table = TABLE_NULL;
}

void table_clean(char *text)
{
	unsigned char *p = (unsigned char *)text;

	for (; *p; p++) {
		/* In UTF-8 the C1 control characters are c2 80 to c2 9f. */
		if (*p < 0x20 || *p == 0x7f ||
		    (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0))
			*p = '?';
	}
}

/* Reserves `size` more bytes for the last row. The cells of a row must follow
 * one another, so the row is copied if it needs a new piece of memory. */
static bool reserve(struct table *table, size_t size)
{
	size_t used = (size_t)(table->next - table->row);
	size_t room = TEXT_SIZE;
	struct table_text *text;

	if (size <= (size_t)(table->end - table->next))
		return true;
	if (room < 2 * (used + size))
		room = 2 * (used + size);
	text = malloc(sizeof(*text) + room);
	if (!text)
		return false;
	text->next = table->texts;
	table->texts = text;
	if (used)
		memcpy(text->bytes, table->row, used);
	table->row = text->bytes;
	table->next = text->bytes + used;
	table->end = text->bytes + room;
	return true;
}

/* Measures the cells of the last row, which is complete. */
static void measure_row(struct table *table)
{
	char *cell = table->row;
	bool is_wide;

	memset(table->next, 0, PADDING);
	is_wide = !is_plain(cell, table->next);
	for (size_t i = 0; i < table->n_columns; i++) {
		size_t size = table->sizes[i];
		int width = (int)size;

		if (is_wide) {
			table_clean(cell);
			width = width_of(cell);
			table->is_wide[i] |= width != (int)size;
		}
		if (width > table->widths[i])
			table->widths[i] = width;
		cell += size + 1;
	}
}

static bool end_row(struct table *table)
{
	size_t capacity = table->capacity ? table->capacity * 2 : 64;
	const char **rows;

	measure_row(table);
	if (table->n_rows == table->capacity) {
		rows = reallocarray(table->rows, capacity, sizeof(*rows));
		if (!rows)
			return false;
		table->rows = rows;
		table->capacity = capacity;
	}
	table->rows[table->n_rows++] = table->row;
	table->row = table->next;
	table->column = 0;
	return true;
}

void table_add_text(struct table *table, const char *text)
{
	size_t size = strlen(text);

	if (table->is_incomplete || !reserve(table, size + 1 + PADDING)) {
		table->is_incomplete = true;
		return;
	}
	table->next = mempcpy(table->next, text, size + 1);
	table->sizes[table->column++] = size;
	if (table->column == table->n_columns && !end_row(table))
		table->is_incomplete = true;
}

void table_add(struct table *table, const char *format, ...)
{
	va_list args;
	char *text;
	int r;

	va_start(args, format);
	r = vasprintf(&text, format, args);
	va_end(args);
	if (r < 0) {
		table->is_incomplete = true;
		return;
	}
	table_add_text(table, text);
	free(text);
}

/* Returns the first byte after `n` characters. */
static const char *skip(const char *text, int n)
{
	while (*text && (n > 0 || ((unsigned char)*text & 0xc0) == 0x80)) {
		n -= ((unsigned char)text[1] & 0xc0) != 0x80;
		text++;
	}
	return text;
}

/* Collects output, because one fwrite() for many cells is faster than one for
 * each. */
struct printer {
	FILE *file;
	size_t n;
	char bytes[32768];
};

static void flush(struct printer *printer)
{
	fwrite(printer->bytes, 1, printer->n, printer->file);
	printer->n = 0;
}

static inline void put(struct printer *printer, const char *text, size_t size)
{
	if (size > sizeof(printer->bytes) - printer->n)
		flush(printer);
	if (size > sizeof(printer->bytes)) {
		fwrite(text, 1, size, printer->file);
		return;
	}
	memcpy(printer->bytes + printer->n, text, size);
	printer->n += size;
}

/* memset() is faster with a constant size, so it always writes 32 spaces, of
 * which at most `n` are kept. */
static inline void put_spaces(struct printer *printer, int n)
{
	const int at_once = 32;

	for (; n > 0; n -= at_once) {
		if (at_once > (int)(sizeof(printer->bytes) - printer->n))
			flush(printer);
		memset(printer->bytes + printer->n, ' ', at_once);
		printer->n += (size_t)(n < at_once ? n : at_once);
	}
}

/* Cuts the text in the middle, because names differ most at their beginning and
 * their end. */
static void put_cut(struct printer *printer, const char *text, int n, int width)
{
	int n_end = (width - 2) / 2;
	const char *end;

	put(printer, text, (size_t)(skip(text, width - 2 - n_end) - text));
	put(printer, "..", 2);
	end = skip(text, n - n_end);
	put(printer, end, strlen(end));
}

static bool is_right(const struct table *table, size_t column)
{
	return table->titles[column][0] == '>';
}

/* How the first `n` columns are printed. Further columns are left out. */
struct layout {
	size_t n;
	int widths[TABLE_MAX_COLUMNS];
};

/* Prints one cell. Returns the end of its text in the table. */
static const char *put_column(const struct table *table, size_t i,
			      const char *text, const struct layout *layout,
			      struct printer *printer)
{
	bool right = is_right(table, i);
	size_t size = strlen(text);
	int n = table->is_wide[i] ? width_of(text) : (int)size;
	int width = layout->widths[i];

	if (right)
		put_spaces(printer, width - n);
	if (n <= width)
		put(printer, text, size);
	else
		put_cut(printer, text, n, width);
	if (i + 1 == layout->n)
		put(printer, "\n", 1);
	else
		put_spaces(printer, right || n > width ? 2 : width - n + 2);
	return text + size;
}

static void print_titles(const struct table *table, const struct layout *layout,
			 struct printer *printer)
{
	for (size_t i = 0; i < layout->n; i++)
		(void)put_column(table, i,
				 table->titles[i] + is_right(table, i), layout,
				 printer);
}

static void print_row(const struct table *table, const char *cell,
		      const struct layout *layout, struct printer *printer)
{
	for (size_t i = 0; i < layout->n; i++)
		cell = put_column(table, i, cell, layout, printer) + 1;
}

static struct layout natural_layout(const struct table *table)
{
	struct layout layout = {.n = table->n_columns};

	memcpy(layout.widths, table->widths, sizeof(layout.widths));
	return layout;
}

static int total_width(const struct layout *layout)
{
	int total = 2 * ((int)layout->n - 1);

	for (size_t i = 0; i < layout->n; i++)
		total += layout->widths[i];
	return total;
}

/* Makes columns of texts narrower, the widest first, until the table fits. No
 * column becomes narrower than `least`, and numbers keep their width. Returns
 * false if the table is still too wide. */
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

/* Cuts texts, and if that is not enough, leaves out columns on the right. */
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
	struct printer printer;

	assert(table->column == 0);
	printer.file = file;
	printer.n = 0;
	print_titles(table, &layout, &printer);
	for (size_t i = 0; i < table->n_rows; i++)
		print_row(table, table->rows[i], &layout, &printer);
	flush(&printer);
}

void table_print(const struct table *table, FILE *file)
{
	struct winsize size = {0};

	if (!isatty(fileno(file)) || ioctl(fileno(file), TIOCGWINSZ, &size) < 0)
		size.ws_col = 0;
	table_print_within(table, size.ws_col, file);
}
