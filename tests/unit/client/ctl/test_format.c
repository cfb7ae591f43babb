/* Compares numbers in their form for people with what printf() makes of
 * them. */
#include "client/ctl/format.h"
#include "tests/lib/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void expect_size(uint64_t size)
{
	static const char *const units[] = {"KiB", "MiB", "GiB",
					    "TiB", "PiB", "EiB"};
	char expected[FORMAT_SIZE], buffer[FORMAT_SIZE];
	double value = (double)size / 1024;
	size_t i = 0;

	for (; value >= 1023.95 && i < 5; i++)
		value /= 1024;
	snprintf(expected, sizeof(expected), "%.1f %s", value, units[i]);
	if (size < 1024)
		snprintf(expected, sizeof(expected), "%" PRIu64 " B", size);
	cr_expect(eq(str, (char *)format_size(size, buffer), expected));
}

Test(format, sizes_are_rounded_as_printf_rounds)
{
	for (uint64_t size = 0; size < 3 << 20; size += 1 + size / 4096)
		expect_size(size);
	for (unsigned int shift = 10; shift < 53; shift++)
		for (int64_t step = -2; step <= 2; step++) {
			expect_size((UINT64_C(1) << shift) + (uint64_t)step);
			/* A quarter of a unit is halfway between two tenths. */
			expect_size((UINT64_C(5) << (shift - 2)) +
				    (uint64_t)step);
			expect_size((UINT64_C(7) << (shift - 2)) +
				    (uint64_t)step);
			expect_size(((UINT64_C(1) << shift) - 1) / 1024 * 1023 +
				    (uint64_t)step);
		}
	expect_size(UINT64_MAX);
}

Test(format, numbers_ages_and_shapes_are_printed_with_all_digits)
{
	const int64_t extremes[8] = {INT64_MIN, INT64_MIN, INT64_MIN,
				     INT64_MIN, INT64_MIN, INT64_MAX,
				     INT64_MIN, INT64_MIN};
	char buffer[FORMAT_SIZE], shape[FORMAT_SHAPE];

	cr_expect(eq(str, (char *)format_number(0, buffer), "0"));
	cr_expect(eq(str, (char *)format_number(UINT64_MAX, buffer),
		     "18446744073709551615"));
	cr_expect(eq(str, (char *)format_age(999, buffer), "999 ms"));
	cr_expect(eq(str, (char *)format_age(119999, buffer), "119 s"));
	cr_expect(eq(str, (char *)format_age(120000, buffer), "2 min"));
	cr_expect(eq(str, (char *)format_age(UINT64_MAX, buffer),
		     "213503982334 d"));
	cr_expect(eq(str, (char *)format_shape(extremes, 0, shape), "[]"));
	cr_expect(eq(str, (char *)format_shape(extremes + 4, 2, shape),
		     "[-9223372036854775808, 9223372036854775807]"));
	cr_expect(eq(sz, strlen(format_shape(extremes, 8, shape)), 175));
}
