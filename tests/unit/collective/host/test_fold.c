/* Tests folds of whole tensors: the defined operations, their order, and NaN.
 * Random values of all dtypes are in integration/test_collective_values. */
#include "collective/host/fold.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <math.h>

static struct fold fold_of(uint32_t dtype, uint32_t how)
{
	struct fold fold;

	cr_assert(zero(int, fold_init(&fold, dtype, how, 3, NULL)));
	return fold;
}

Test(fold, undefined_operations_are_refused)
{
	struct fold fold;
	struct error err = ERROR_NULL;

	cr_expect(eq(int, fold_init(&fold, DTYPE_F32, FOLD_BAND, 2, &err),
		     -EINVAL));
	cr_expect(eq(str, err.msg, "the and of tensors of f32 is not defined"));
	cr_expect(eq(int, fold_init(&fold, DTYPE_BOOL, FOLD_MEAN, 2, NULL),
		     -EINVAL));
	cr_expect(eq(int, fold_init(&fold, DTYPE_C64, FOLD_PRODUCT, 2, NULL),
		     -EINVAL));
	cr_expect(eq(int, fold_init(&fold, DTYPE_F8_E5M2, FOLD_SUM, 2, NULL),
		     -EINVAL));
	cr_expect(eq(int, fold_init(&fold, DTYPE_F32, 8, 2, NULL), -EINVAL));
	cr_expect(eq(int, fold_init(&fold, DTYPE_MAX + 1, FOLD_SUM, 2, NULL),
		     -EINVAL));
}

Test(fold, inputs_are_added_from_the_first_to_the_last)
{
	const float a = 0x1p24f, b = 1, c = 1;
	const void *in[] = {&a, &b, &c}, *backwards[] = {&c, &b, &a};
	const struct fold fold = fold_of(DTYPE_F32, FOLD_SUM);
	float sum;

	fold_run(&fold, &sum, in, 3, sizeof(sum));
	cr_expect(eq(flt, sum, 0x1p24f));
	fold_run(&fold, &sum, backwards, 3, sizeof(sum));
	cr_expect(eq(flt, sum, 0x1p24f + 2));
}

Test(fold, products_of_halves_are_rounded_once)
{
	const uint16_t a = 0x7800, b = 0x5000,
		       c = 0x0c00; /* 2^15, 2^5, 2^-12 */
	const void *in[] = {&a, &b, &c};
	const struct fold fold = fold_of(DTYPE_F16, FOLD_PRODUCT);
	uint16_t product;

	fold_run(&fold, &product, in, 3, sizeof(product));
	cr_expect(eq(u16, product, 0x5c00)); /* 2^8, though 2^20 is infinite */
}

Test(fold, minimum_and_maximum_are_nan_for_a_nan_at_any_position)
{
	const double numbers[] = {1, NAN, 2};

	for (int at = 0; at < 3; at++) {
		for (uint32_t how = FOLD_MIN; how <= FOLD_MAX; how++) {
			const struct fold fold = fold_of(DTYPE_F64, how);
			const void *in[3];
			double out;

			for (int i = 0; i < 3; i++)
				in[i] = &numbers[(i + at) % 3];
			fold_run(&fold, &out, in, 3, sizeof(out));
			cr_expect(ne(int, isnan(out), 0));
		}
	}
}
