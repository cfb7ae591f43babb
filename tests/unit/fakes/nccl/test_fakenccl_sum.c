/*
 * Compares sums of the fake NCCL with sums made one element at a time
 * (tests/lib/scalar.h): every 16-bit float, and values at the limits.
 */
#include "tests/fakes/nccl/sum.h"
#include "tests/lib/check.h"
#include "tests/lib/scalar.h"

struct kind {
	ncclDataType_t type;
	enum fsdp_dtype dtype;
};

static const struct kind floats[] = {
	{ncclFloat16, FSDP_F16},
	{ncclBfloat16, FSDP_BF16},
	{ncclFloat32, FSDP_F32},
	{ncclFloat64, FSDP_F64},
};
static const struct kind integers[] = {
	{ncclInt8, FSDP_I8},    {ncclUint8, FSDP_U8},  {ncclInt32, FSDP_I32},
	{ncclUint32, FSDP_U32}, {ncclInt64, FSDP_I64}, {ncclUint64, FSDP_U64},
};

/* Compute (a * factor + b * factor) / divisor as the fake does. */
static uint64_t sum_of(const struct kind *kind, const uint64_t *bits,
		       uint32_t n, double factor, uint32_t divisor)
{
	uint64_t inputs[2] = {0}, out = 0;
	const void *places[2] = {&inputs[0], &inputs[1]};
	const double factors[2] = {factor, factor};
	const struct sum sum = {kind->type, n, places, factors, divisor};

	for (uint32_t i = 0; i < n; i++)
		scalar_store(kind->dtype, &inputs[i], 0, bits[i]);
	sum_run(&sum, &out, 1);
	return scalar_load(kind->dtype, &out, 0);
}

static uint64_t expected_sum(const struct kind *kind, const uint64_t *bits,
			     uint32_t n, double factor, uint32_t divisor)
{
	enum fsdp_dtype accumulator = scalar_accumulator(kind->dtype);
	double total = 0;

	for (uint32_t i = 0; i < n; i++) {
		double x = scalar_multiply(accumulator,
					   scalar_decode(kind->dtype, bits[i]),
					   factor);

		total = i == 0 ? x : scalar_add(accumulator, total, x);
	}
	total = scalar_divide(accumulator, total, divisor);
	return scalar_encode(kind->dtype, total);
}

static void expect_sum(const struct kind *kind, const uint64_t *bits,
		       uint32_t n, double factor, uint32_t divisor)
{
	uint64_t found = sum_of(kind, bits, n, factor, divisor);
	uint64_t expected = expected_sum(kind, bits, n, factor, divisor);

	if (!scalar_is_same(kind->dtype, found, expected))
		cr_assert(eq(u64, found, expected),
			  "dtype %d: 0x%lx and 0x%lx, times %g, by %u",
			  kind->dtype, bits[0], bits[1], factor, divisor);
}

Test(fakenccl_sum, every_16_bit_float_is_preserved_by_a_sum_of_one)
{
	for (int k = 0; k < 2; k++)
		for (uint64_t bits = 0; bits < 65536; bits++) {
			const uint64_t one[2] = {bits};

			expect_sum(&floats[k], one, 1, 1, 1);
			expect_sum(&floats[k], one, 1, 1.0 / 3, 1);
			expect_sum(&floats[k], one, 1, 1, 3);
		}
}

/* The numbers are the same in every run. */
static uint64_t next_random(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) +
		 UINT64_C(1442695040888963407);
	return *state ^ *state >> 31;
}

Test(fakenccl_sum, sums_of_two_floats_are_rounded_once)
{
	uint64_t state = 1;

	for (int i = 0; i < 200000; i++) {
		const struct kind *kind = &floats[i % 4];
		const uint64_t bits[2] = {
			scalar_encode(kind->dtype,
				      (double)(int32_t)next_random(&state) /
					      4096),
			scalar_encode(kind->dtype,
				      (double)(int32_t)next_random(&state) /
					      1048576),
		};

		expect_sum(kind, bits, 2, i % 3 ? 1 : 0.7, i % 5 ? 1 : 2);
	}
}

static uint64_t expected_integer(const struct kind *kind, const uint64_t *bits,
				 uint32_t divisor)
{
	uint64_t sum = scalar_widen(kind->dtype, bits[0]) +
		       scalar_widen(kind->dtype, bits[1]);

	return scalar_narrow(kind->dtype,
			     scalar_divide_integer(kind->dtype, sum, divisor));
}

Test(fakenccl_sum, integers_wrap_and_are_divided_towards_zero)
{
	uint64_t state = 2;

	for (int i = 0; i < 60000; i++) {
		const struct kind *kind = &integers[i % 6];
		const uint64_t bits[2] = {next_random(&state),
					  next_random(&state)};
		uint64_t own[2];

		for (int j = 0; j < 2; j++)
			own[j] = scalar_narrow(kind->dtype, bits[j]);
		cr_assert(eq(u64, sum_of(kind, own, 2, 1, 1 + i % 3),
			     expected_integer(kind, own, 1 + i % 3)));
	}
}
