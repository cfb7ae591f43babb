/* Tests structs that grow, with programs and libraries of different
 * releases. */
#include "client/sized.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <stdint.h>

/* These structs are one struct in the first release, in this library, and in a
 * later release. */
struct grown_first {
	size_t struct_size;
	uint64_t a;
};

struct grown {
	size_t struct_size;
	uint64_t a, b;
};

struct grown_later {
	size_t struct_size;
	uint64_t a, b, c;
};

static const struct sized type = {.name = "struct grown",
				  .first = sizeof(struct grown_first),
				  .desc = sizeof(struct grown)};

static struct grown taken;
static struct error err;

static int take(const void *given)
{
	taken = (struct grown){9, 9, 9};
	return sized_take(&taken, given, type, &err);
}

static void expect_taken(uint64_t a, uint64_t b)
{
	cr_expect(eq(u64, taken.a, a));
	cr_expect(eq(u64, taken.b, b));
}

Test(sized, a_null_struct_counts_as_zeros)
{
	cr_assert(zero(int, take(NULL)));
	expect_taken(0, 0);
}

Test(sized, a_struct_of_the_current_size_is_copied_completely)
{
	cr_assert(zero(int, take(&(struct grown){sizeof(taken), 1, 2})));
	expect_taken(1, 2);
}

Test(sized, size_0_copies_only_the_fields_of_the_first_release)
{
	cr_assert(zero(int, take(&(struct grown){0, 1, 2})));
	expect_taken(1, 0);
	cr_expect(eq(sz, taken.struct_size, sizeof(taken)));
}

Test(sized, fields_that_an_older_caller_lacks_are_zero)
{
	struct grown_first old = {sizeof(old), 1};

	cr_assert(zero(int, take(&old)));
	expect_taken(1, 0);
}

Test(sized, a_larger_struct_is_accepted_if_its_unknown_fields_are_zero)
{
	struct grown_later new = {sizeof(new), 1, 2, 0};

	cr_assert(zero(int, take(&new)));
	expect_taken(1, 2);
	cr_expect(eq(sz, taken.struct_size, sizeof(taken)));
}

Test(sized, a_larger_struct_is_refused_if_it_uses_unknown_fields)
{
	struct grown_later new = {sizeof(new), 1, 2, 3};

	cr_assert(eq(int, take(&new), -E2BIG));
	cr_expect(eq(str, err.msg,
		     "cannot use a struct grown of 32 bytes: this libfsdp "
		     "knows the first 24, and the others are not 0; install a "
		     "newer libfsdp"));
}

Test(sized, a_struct_smaller_than_that_of_the_first_release_is_refused)
{
	cr_assert(eq(int, take(&(struct grown){8, 1, 2}), -EINVAL));
	cr_expect(eq(str, err.msg,
		     "cannot use a struct grown with a struct_size of 8: it "
		     "has at least 16 bytes; set struct_size to its sizeof"));
}

Test(sized, an_impossible_size_is_refused_before_the_struct_is_read)
{
	cr_assert(eq(int, take(&(struct grown){SIZE_MAX, 1, 2}), -E2BIG));
	cr_assert(eq(int, take(&(struct grown){4097, 1, 2}), -E2BIG));
	cr_expect(eq(str, err.msg,
		     "cannot use a struct grown with a struct_size of 4097: "
		     "set struct_size to its sizeof"));
}

Test(sized, items_of_an_array_have_the_stride_of_the_caller)
{
	struct grown_first old[2] = {{sizeof(*old), 1}, {sizeof(*old), 3}};
	struct grown_later new[2] = {{sizeof(*new), 5, 6, 0},
				     {sizeof(*new), 7, 8, 0}};

	cr_assert(zero(int, sized_take_item(&taken, old, 1, "x", type, &err)));
	expect_taken(3, 0);
	cr_assert(zero(int, sized_take_item(&taken, new, 1, "x", type, &err)));
	expect_taken(7, 8);
}

Test(sized, items_of_different_sizes_are_refused_by_number)
{
	struct grown items[2] = {{sizeof(*items), 1, 2}, {0, 1, 2}};

	cr_assert(eq(int,
		     sized_take_item(&taken, items, 1, "items", type, &err),
		     -EINVAL));
	cr_expect(eq(str, err.msg,
		     "items[1].struct_size differs from items[0].struct_size; "
		     "set both to the same value"));
}

Test(sized, an_output_is_filled_up_to_the_size_of_the_caller)
{
	const struct grown from = {0, 1, 2};
	struct grown_first old[2] = {{sizeof(*old), 0}, {5, 6}};
	struct grown_later new = {sizeof(new), 0, 0, 9};

	cr_assert(zero(int, sized_give(&old[0], &from, type, &err)));
	cr_expect(eq(u64, old[0].a, 1));
	cr_expect(eq(sz, old[0].struct_size, sizeof(*old)));
	cr_expect(eq(sz, old[1].struct_size, 5), "beyond the caller's");
	cr_assert(zero(int, sized_give(&new, &from, type, &err)));
	cr_expect(eq(u64, new.b, 2));
	cr_expect(eq(u64, new.c, 9));
	cr_expect(eq(sz, new.struct_size, sizeof(from)));
}

Test(sized, an_output_that_is_too_small_is_not_written)
{
	const struct grown from = {0, 1, 2};
	struct grown ret = {8, 7, 7};

	cr_assert(eq(int, sized_give(&ret, &from, type, &err), -EINVAL));
	cr_expect(eq(u64, ret.a, 7));
}
