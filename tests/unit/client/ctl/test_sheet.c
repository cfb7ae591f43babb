/* Tests lists: the order of rows, and how cells become lines. */
#include "client/ctl/args.h"
#include "client/ctl/sheet.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_ROWS 20000

struct row {
	const char *name;
	uint64_t number;
};

static const struct column columns[] = {
	{"NAME", "name", COLUMN_TEXT, .offset = offsetof(struct row, name)},
	{">NUMBER", "number", COLUMN_U64,
	 .offset = offsetof(struct row, number)},
	{0}};

static struct sheet sheet;

static void setup(void)
{
	const struct args args = {0};

	sheet_init(&sheet, columns, &args);
}

static void teardown(void)
{
	sheet_deinit(&sheet);
}

TestSuite(sheet, .init = setup, .fini = teardown);

static void add(const char *name, uint64_t number, uint64_t key)
{
	const struct row row = {name, number};

	cr_assert(zero(int, sheet_add_by(&sheet, key, &row)));
}

static void expect_lines(int width, const char *expected)
{
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	table_print_within(&sheet.table, width, file);
	fclose(file);
	cr_expect(eq(str, text, (char *)expected));
	free(text);
}

/* Puts the rows in order. */
static void print(void)
{
	fflush(stdout);
	cr_assert(ne(ptr, freopen("/dev/null", "w", stdout), NULL));
	cr_assert(zero(int, sheet_print(&sheet, NULL)));
}

Test(sheet, rows_are_sorted_by_key_then_text_then_order_of_addition)
{
	add("same/prefix/b", 1, 0);
	add("same/prefix/a", 2, 7);
	add("same/prefix", 3, 0);
	add("same/prefix/b", 4, 0);
	add("same/prefix/b/much/longer", 5, 0);
	add("same/prefix/\xc3\xa9", 6, 0);
	print();
	expect_lines(0, "NAME                       NUMBER\n"
			"same/prefix/a                   2\n"
			"same/prefix                     3\n"
			"same/prefix/b                   1\n"
			"same/prefix/b                   4\n"
			"same/prefix/b/much/longer       5\n"
			"same/prefix/\xc3\xa9                   6\n");
}

Test(sheet, texts_that_are_too_wide_are_cut_in_the_middle)
{
	add("a/title/that/is/\xc3\xa9/too/long", 1, 0);
	expect_lines(23, "NAME             NUMBER\n"
			 "a/title..o/long       1\n");
	expect_lines(12, "NAME\na/tit../long\n");
}

Test(sheet, control_characters_become_question_marks)
{
	add("\x1b[1m", 1, 0);
	add("1234567\x7f", 2, 0);
	add("\x01", 3, 0);
	add("\xc2\x9b~ !", 4, 0);
	add("\xc3\xa9\xc3\xa9", 5, 0);
	expect_lines(0, "NAME      NUMBER\n"
			"?[1m           1\n"
			"1234567?       2\n"
			"?              3\n"
			"?\x9b~ !           4\n"
			"\xc3\xa9\xc3\xa9             5\n");
}

Test(sheet, many_rows_are_sorted_without_losing_any)
{
	char name[32];

	/* 7919 is a prime: each number comes once. */
	for (uint64_t i = 0; i < N_ROWS; i++) {
		uint64_t number = i * 7919 % N_ROWS;

		snprintf(name, sizeof(name), "model/%06u/x",
			 (unsigned int)number);
		add(name, number, 0);
	}
	print();
	for (size_t i = 0; i < N_ROWS; i++) {
		const char *cell = sheet.table.rows[i];

		snprintf(name, sizeof(name), "model/%06zu/x", i);
		cr_assert(eq(str, (char *)cell, name));
		cr_assert(eq(sz, (size_t)atol(cell + strlen(cell) + 1), i));
	}
}

Test(sheet, a_cell_may_be_larger_than_one_block_of_memory)
{
	size_t size = 1 << 20;
	char *name = malloc(size + 1);

	memset(name, 'x', size);
	name[size] = '\0';
	add("a", 1, 0);
	add(name, 2, 0);
	cr_expect(eq(str, (char *)sheet.table.rows[0], "a"));
	cr_expect(eq(str, (char *)sheet.table.rows[1], name));
	cr_expect(eq(str, (char *)sheet.table.rows[1] + size + 1, "2"));
	free(name);
}
