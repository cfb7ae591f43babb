/* Tests that the words of assertions compare as their names say, in the range
 * of their type, and that a failure names its values. Each failing test shows
 * that cr_assert() and cr_expect() make it fail. */
#include "tests/lib/check.h"
#include <math.h>

#define RELATIONS(tag, small, large)                                           \
	do {                                                                   \
		cr_assert(eq(tag, small, small) && !eq(tag, small, large));    \
		cr_assert(ne(tag, small, large) && !ne(tag, large, large));    \
		cr_assert(lt(tag, small, large) && !lt(tag, small, small) &&   \
			  !lt(tag, large, small));                             \
		cr_assert(le(tag, small, large) && le(tag, small, small) &&    \
			  !le(tag, large, small));                             \
		cr_assert(gt(tag, large, small) && !gt(tag, small, small) &&   \
			  !gt(tag, small, large));                             \
		cr_assert(ge(tag, large, small) && ge(tag, small, small) &&    \
			  !ge(tag, small, large));                             \
	} while (0)

Test(check, values_are_compared_in_the_range_of_their_type)
{
	RELATIONS(int, -1, 1);
	RELATIONS(i64, INT64_MIN, INT64_MAX);
	RELATIONS(u64, (uint64_t)1, UINT64_MAX);
	RELATIONS(sz, (size_t)0, SIZE_MAX);
	RELATIONS(dbl, -0.5, 1e-300);
	RELATIONS(str, "a", "ab");
	cr_assert(!zero(int, 256) && zero(int, 0));
	cr_assert(eq(i32, UINT32_MAX, -1) && !eq(i64, UINT32_MAX, -1));
}

Test(check, nan_does_not_equal_itself)
{
	cr_assert(!eq(dbl, NAN, NAN) && ne(dbl, NAN, NAN));
	cr_assert(!le(dbl, NAN, 1) && !ge(dbl, NAN, 1));
	cr_assert(!epsilon_eq(dbl, NAN, 1, 1));
	cr_assert(epsilon_eq(dbl, 1, 1.5, 0.5) && !epsilon_eq(dbl, 1, 2, 0.5));
}

Test(check, a_null_text_is_less_than_any_text)
{
	RELATIONS(str, (const char *)NULL, "");
	cr_assert(zero(ptr, NULL) && ne(ptr, "", NULL));
}

/* A failure names the values of the last comparison in this assertion, and none
 * of an earlier one. */
Test(check, a_failure_reports_its_values)
{
	char *said;

	check_begin();
	check_int(CHECK_EQ, 1, -2);
	said = check_sentence("eq(int, a, b)", ": %s", "why");
	cr_expect(eq(str, said, "eq(int, a, b) (1, -2): why"));
	free(said);
	check_begin();
	said = check_sentence("is_open", ": ");
	cr_expect(eq(str, said, "is_open"));
	free(said);
}
