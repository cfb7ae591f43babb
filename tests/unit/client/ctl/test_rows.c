/* Tests rows that are kept in order: all, or the first ones only. */
#include "client/ctl/rows.h"
#include "tests/lib/check.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct row {
	const char *name;
	uint64_t number;
	uint32_t small;
};

static const struct column columns[] = {
	{"NAME", .kind = COLUMN_TEXT, .offset = offsetof(struct row, name)},
	{">NUMBER", .kind = COLUMN_U64, .offset = offsetof(struct row, number)},
	{">SMALL", .kind = COLUMN_U32, .offset = offsetof(struct row, small)},
	{0}};

static struct rows rows;

static void setup(void)
{
	rows = (struct rows){.columns = columns,
			     .size = sizeof(struct row),
			     .by = &columns[1]};
}

static void teardown(void)
{
	rows_clear(&rows);
}

TestSuite(rows, .init = setup, .fini = teardown);

/* The name is overwritten at once, so that rows must have copies. */
static void add(uint64_t number)
{
	char name[32];
	const struct row row = {name, number, (uint32_t)(number % 3)};

	snprintf(name, sizeof(name), "%05" PRIu64, number);
	cr_assert(zero(int, rows_add(&rows, &row)));
	memset(name, 'x', sizeof(name) - 1);
}

static const struct row *row_at(size_t i)
{
	return (const struct row *)(void *)(rows.items + i * rows.size);
}

static void expect_numbers(const uint64_t *numbers, size_t n)
{
	rows_cut(&rows);
	rows_sort(&rows);
	cr_assert(eq(sz, rows.n, n));
	for (size_t i = 0; i < n; i++) {
		char name[32];

		snprintf(name, sizeof(name), "%05" PRIu64, numbers[i]);
		cr_expect(eq(u64, row_at(i)->number, numbers[i]));
		cr_expect(eq(str, (char *)row_at(i)->name, name));
	}
}

/* Each number below 1,000 once, in an order that is neither up nor down. */
static void add_thousand(void)
{
	for (uint64_t i = 0; i < 1000; i++)
		add(i * 7 % 1000);
}

Test(rows, all_rows_are_kept_in_descending_order)
{
	const uint64_t numbers[] = {9, 5, 2};

	add(5);
	add(9);
	add(2);
	expect_numbers(numbers, 3);
	cr_expect(eq(sz, rows.n_added, 3));
}

Test(rows, only_the_largest_rows_are_kept)
{
	const uint64_t numbers[] = {999, 998, 997};

	rows.n_max = 3;
	add_thousand();
	cr_expect(le(sz, rows.n, 6));
	expect_numbers(numbers, 3);
	cr_expect(eq(sz, rows.n_added, 1000));
}

Test(rows, a_reversed_order_keeps_the_smallest)
{
	const uint64_t numbers[] = {0, 1, 2, 3};

	rows.n_max = 4;
	rows.is_reversed = true;
	add_thousand();
	expect_numbers(numbers, 4);
}

Test(rows, texts_are_in_alphabetical_order)
{
	const uint64_t numbers[] = {0, 1};

	rows.n_max = 2;
	rows.by = &columns[0];
	add_thousand();
	expect_numbers(numbers, 2);
}

Test(rows, equal_rows_stay_in_the_order_of_addition)
{
	const uint64_t numbers[] = {2, 5, 8, 11, 14};

	rows.n_max = 5;
	rows.by = &columns[2];
	for (uint64_t i = 0; i < 100; i++)
		add(i);
	expect_numbers(numbers, 5);
}

Test(rows, fewer_rows_than_the_maximum_are_all_kept)
{
	const uint64_t numbers[] = {2, 1};

	rows.n_max = 5;
	add(1);
	add(2);
	expect_numbers(numbers, 2);
}

Test(rows, a_cleared_list_is_empty)
{
	const uint64_t numbers[] = {4, 3};

	rows.n_max = 2;
	add_thousand();
	rows_clear(&rows);
	cr_expect(zero(sz, rows.n_added));
	add(3);
	add(4);
	expect_numbers(numbers, 2);
}
