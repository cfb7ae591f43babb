/* Compares the loops over elements, on each level, with the definitions. */
#include "collective/host/kernel.h"
#include "tests/lib/check.h"
#include "tests/unit/collective/host/host_fixture.h"

#define MAX_N   1300
#define MAX_IN  5
#define MAX_OUT 3

static const uint32_t floats[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_F64};
static const uint32_t integers[] = {DTYPE_I8, DTYPE_I16, DTYPE_I32, DTYPE_I64,
				    DTYPE_U8, DTYPE_U16, DTYPE_U32, DTYPE_U64};

/* Compute one element by the definition in kernel.h. */
static union number fold_one(uint32_t from, uint32_t to, const union number *in,
			     uint32_t n_in, double factor, double divisor)
{
	union number sum = in[0];

	if (!is_float(from)) {
		for (uint32_t k = 1; k < n_in; k++)
			sum.i += in[k].i;
		if (is_signed(from))
			sum.i = (uint64_t)((int64_t)sum.i / (int64_t)divisor);
		else
			sum.i /= (uint64_t)divisor;
		return sum;
	}
	if (from == DTYPE_F64) {
		sum.f *= factor;
		for (uint32_t k = 1; k < n_in; k++)
			sum.f += in[k].f * factor;
		sum.f /= divisor;
	} else {
		float x = (float)in[0].f * (float)factor;

		for (uint32_t k = 1; k < n_in; k++)
			x += (float)in[k].f * (float)factor;
		sum.f = (double)(x / (float)divisor);
	}
	sum.f = round_float(to, sum.f);
	return sum;
}

/* Draw any bits, which include NaN, infinities and subnormals. */
static void fill_bits(struct dice *dice, void *to, size_t size)
{
	for (size_t i = 0; i < size; i++)
		((uint8_t *)to)[i] = (uint8_t)dice_next(dice);
}

/* The arguments and results of one call. */
struct call {
	uint32_t from, to, n_in, n_out;
	size_t n;
	double factor, divisor;
	uint64_t inputs[MAX_IN][MAX_N + 1];
	const void *in[MAX_IN];
	uint8_t *memory[MAX_OUT];
	void *out[MAX_OUT];
};

static void call_init(struct call *call, struct dice *dice, uint32_t from,
		      uint32_t to)
{
	const double factors[] = {1, 0.5, 1.0 / 3};
	const double divisors[] = {1, 2, 3, 7, 64, 1000};
	uint32_t shift = dice_throw(dice, 3);

	call->from = from;
	call->to = to;
	call->n_in = 1 + dice_throw(dice, MAX_IN);
	call->n_out = 1 + dice_throw(dice, MAX_OUT);
	call->n = dice_throw(dice, MAX_N);
	call->factor = factors[dice_throw(dice, 3)];
	call->divisor = divisors[dice_throw(dice, 6)];
	for (uint32_t k = 0; k < call->n_in; k++) {
		if (dice_throw(dice, 2))
			fill_bits(dice, call->inputs[k],
				  sizeof(call->inputs[k]));
		else
			memory_fill(dice, from, call->inputs[k], MAX_N);
		call->in[k] = call->inputs[k];
	}
	for (uint32_t k = 0; k < call->n_out; k++) {
		call->memory[k] = memory_new(sizeof(call->inputs[0]));
		call->out[k] = call->memory[k] + shift * dtype_size(to);
	}
}

static bool is_output_right(const struct call *call, const uint8_t *out)
{
	size_t size = dtype_size(call->to);
	bool is_same = true;

	for (size_t i = 0; i < call->n; i++) {
		union number x[MAX_IN] = {{0}}, want;
		uint64_t bits = 0;

		for (uint32_t k = 0; k < call->n_in; k++)
			x[k] = number_load(call->from,
					   (const uint8_t *)call->in[k] +
						   i * dtype_size(call->from));
		want = fold_one(call->from, call->to, x, call->n_in,
				call->factor, call->divisor);
		number_store(call->to, &bits, want);
		if (memcmp(&bits, out + i * size, size) != 0)
			is_same = false;
	}
	for (size_t i = 0; i < 64; i++) {
		if (out[call->n * size + i] != CANARY)
			is_same = false;
	}
	return is_same;
}

/* Compare one random call of the kernel with fold_one(). */
static bool is_right(const struct kernels *kernels, struct dice *dice,
		     uint32_t from, uint32_t to)
{
	static struct call call;
	bool is_right = true;

	call_init(&call, dice, from, to);
	kernels->fold[from][to](call.out, call.n_out, call.in, call.n_in,
				call.n, call.factor, call.divisor,
				dice_throw(dice, 2));
	kernel_flush();
	for (uint32_t k = 0; k < call.n_out; k++) {
		if (!is_output_right(&call, call.out[k]))
			is_right = false;
		if (!memory_free(call.memory[k], sizeof(call.inputs[0])))
			is_right = false;
	}
	return is_right;
}

Test(kernel, every_sum_and_cast_gives_the_bits_of_the_definition)
{
	struct dice dice = {1};
	const struct kernels *kernels;

	for (int level = 0; level < N_KERNEL_LEVELS; level++) {
		kernels = kernels_get(level);
		if (!kernels)
			continue;
		for (int i = 0; i < 4 * 4 * 25; i++) {
			uint32_t from = floats[i % 4];
			uint32_t to = floats[i / 4 % 4];

			cr_assert(is_right(kernels, &dice, from, to),
				  "%s: %s to %s", kernels->name,
				  dtype_name(from), dtype_name(to));
		}
	}
}

Test(kernel, integers_wrap_and_divide_towards_zero)
{
	struct dice dice = {2};
	const struct kernels *kernels;

	for (int level = 0; level < N_KERNEL_LEVELS; level++) {
		kernels = kernels_get(level);
		if (!kernels)
			continue;
		for (int i = 0; i < 8 * 30; i++) {
			uint32_t dtype = integers[i % 8];
			uint32_t wide = dtype_accumulator(dtype);
			bool is_ok = is_right(kernels, &dice, dtype, dtype);

			is_ok &= is_right(kernels, &dice, dtype, wide);
			is_ok &= is_right(kernels, &dice, wide, dtype);
			cr_assert(is_ok, "%s: %s", kernels->name,
				  dtype_name(dtype));
		}
	}
}

static uint64_t cast_one(const struct kernels *kernels, uint32_t from,
			 uint32_t to, const void *value)
{
	uint64_t bits = 0;

	void *out = &bits;

	kernels->fold[from][to](&out, 1, &value, 1, 1, 1, 1, false);
	return bits;
}

Test(kernel, every_16_bit_float_survives_casts_to_a_wider_one_and_back)
{
	const struct kernels *kernels;

	for (int level = 0; level < N_KERNEL_LEVELS; level++) {
		kernels = kernels_get(level);
		if (!kernels)
			continue;
		int n_wrong = 0;

		for (int i = 0; i < 4 * 65536; i++) {
			uint32_t small = floats[i >> 16 & 1];
			uint32_t wide = floats[2 + (i >> 17)];
			uint16_t bits = (uint16_t)i, want = bits;
			uint64_t there = cast_one(kernels, small, wide, &bits);

			if (isnan(number_load(small, &bits).f))
				want = small == DTYPE_F16 ? 0x7e00 : 0x7fc0;
			if (cast_one(kernels, wide, small, &there) != want)
				n_wrong++;
		}
		cr_assert(eq(int, n_wrong, 0), "%s", kernels->name);
	}
}

/* The value is just above the middle between two bf16, or f16. An intermediate
 * f32 would be exactly the middle, and would round to the even one below. */
Test(kernel, f64_is_rounded_to_16_bits_once)
{
	const double to_bf16 = 1 + 0x1p-8 + 0x1p-40;
	const double to_f16 = 1 + 0x1p-11 + 0x1p-40;
	const double tiny = 0x1p-25 + 0x1p-70, large = 65520 - 0x1p-30;
	const struct kernels *kernels;

	for (int level = 0; level < N_KERNEL_LEVELS; level++) {
		kernels = kernels_get(level);
		if (!kernels)
			continue;
		cr_assert(eq(u64,
			     cast_one(kernels, DTYPE_F64, DTYPE_BF16, &to_bf16),
			     0x3f81));
		cr_assert(eq(u64,
			     cast_one(kernels, DTYPE_F64, DTYPE_F16, &to_f16),
			     0x3c01));
		cr_assert(eq(u64,
			     cast_one(kernels, DTYPE_F64, DTYPE_F16, &tiny),
			     1));
		cr_assert(eq(u64,
			     cast_one(kernels, DTYPE_F64, DTYPE_F16, &large),
			     0x7bff));
	}
}

#define MAX_COPY 12000

static void check_copy(const struct kernels *kernels, struct dice *dice,
		       bool is_streamed)
{
	static uint8_t from[MAX_COPY];
	uint32_t at = dice_throw(dice, 130);
	size_t size = dice_throw(dice, MAX_COPY);
	uint8_t *memory = memory_new(130 + MAX_COPY);
	bool is_whole = true;

	fill_bits(dice, from, sizeof(from));
	kernels->copy(memory + at, from, size, is_streamed);
	kernel_flush();
	cr_assert(eq(int, memcmp(memory + at, from, size), 0));
	for (size_t j = 0; j < 130 + MAX_COPY; j++) {
		if ((j < at || j >= at + size) && memory[j] != CANARY)
			is_whole = false;
	}
	cr_assert(is_whole);
	cr_assert(memory_free(memory, 130 + MAX_COPY));
}

Test(kernel, a_copy_writes_no_bytes_around_its_target)
{
	struct dice dice = {3};
	const struct kernels *kernels;

	for (int level = 0; level < N_KERNEL_LEVELS; level++) {
		kernels = kernels_get(level);
		for (int i = 0; kernels && i < 200; i++)
			check_copy(kernels, &dice, i % 2);
	}
}

Test(kernel, dtypes_that_cannot_be_reduced_have_no_accumulator)
{
	const uint32_t none[] = {
		0,         DTYPE_BOOL, DTYPE_F8_E4M3, DTYPE_F8_E5M2,
		DTYPE_C64, DTYPE_C128};

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		cr_assert(eq(u32, dtype_accumulator(none[i]), 0));
	cr_assert(eq(u32, dtype_accumulator(DTYPE_U8), DTYPE_U64));
	cr_assert(eq(u32, dtype_accumulator(DTYPE_F16), DTYPE_F32));
}
