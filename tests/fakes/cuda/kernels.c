/*
 * The fake's versions of our kernels (cuda/kernels/kernels.cu). They process a
 * table as the definitions in cuda/kernels.h say, one element at a time. They
 * divide the work into tiles, rows and vectors as the device does, so a wrong
 * table has the same effect as on a device. Every float is a double.
 */
#include "cuda/kernels/params.h"
#include "tests/fakes/cuda/registry.h"
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum fake_kind {
	FAKE_COPY,
	FAKE_CHUNK_CAT,
	FAKE_GRAD_OUT,
	FAKE_GRAD_ADD,
};

/* --- floats -------------------------------------------------------------- */

struct format {
	/* number of bits, and exponent of the least normal number */
	int n_mantissa, least;
	uint64_t infinity, sign;
};

static const struct format f16 = {10, -14, 0x7c00, 0x8000};
static const struct format bf16 = {7, -126, 0x7f80, 0x8000};

static double power_of_two(int exponent)
{
	uint64_t bits = (uint64_t)(exponent + 1023) << 52;
	double power;

	memcpy(&power, &bits, sizeof(power));
	return power;
}

static double decode_small(const struct format *format, uint64_t bits)
{
	uint64_t magnitude = bits & (format->sign - 1);
	uint64_t one = UINT64_C(1) << format->n_mantissa;
	uint64_t exponent = magnitude >> format->n_mantissa;
	double value;

	if (magnitude > format->infinity)
		return NAN;
	if (magnitude == format->infinity)
		value = INFINITY;
	else if (exponent == 0)
		value = (double)magnitude *
			power_of_two(format->least - format->n_mantissa);
	else
		value = (double)(magnitude % one + one) *
			power_of_two((int)exponent - 1 + format->least -
				     format->n_mantissa);
	return bits & format->sign ? -value : value;
}

/* Encodes in units of the last place, to which the sum with 2^52 rounds. The
 * leading 1 of normal numbers adds one to the exponent's field. */
static uint64_t encode_small(const struct format *format, double value)
{
	uint64_t sign = signbit(value) ? format->sign : 0, bits;
	double magnitude = fabs(value), units;
	int exponent;

	if (isnan(value))
		return format->infinity | UINT64_C(1)
						  << (format->n_mantissa - 1);
	if (magnitude >= 0x1p200)
		return sign | format->infinity;
	exponent = magnitude < power_of_two(format->least) ? format->least
							   : ilogb(magnitude);
	units = magnitude * power_of_two(format->n_mantissa - exponent);
	units = units + 0x1p52 - 0x1p52;
	bits = ((uint64_t)(exponent - format->least) << format->n_mantissa) +
	       (uint64_t)units;
	return sign | (bits < format->infinity ? bits : format->infinity);
}

static double decode(uint32_t dtype, uint64_t bits)
{
	uint32_t low = (uint32_t)bits;
	double value;
	float single;

	switch (dtype) {
	case DTYPE_F16:
		return decode_small(&f16, bits);
	case DTYPE_BF16:
		return decode_small(&bf16, bits);
	case DTYPE_F32:
		memcpy(&single, &low, sizeof(single));
		return (double)single;
	default:
		memcpy(&value, &bits, sizeof(value));
		return value;
	}
}

static uint64_t encode(uint32_t dtype, double value)
{
	float single = (float)value;
	uint64_t bits = 0;

	switch (dtype) {
	case DTYPE_F16:
		return encode_small(&f16, value);
	case DTYPE_BF16:
		return encode_small(&bf16, value);
	case DTYPE_F32:
		memcpy(&bits, &single, sizeof(single));
		return isnan(value) ? 0x7fc00000 : bits;
	default:
		memcpy(&bits, &value, sizeof(value));
		return isnan(value) ? UINT64_C(0x7ff8) << 48 : bits;
	}
}

/* Computes in the accumulator of that dtype. */
static double product_in(uint32_t dtype, double a, double b)
{
	return dtype == DTYPE_F64 ? a * b : (double)((float)a * (float)b);
}

static double quotient_in(uint32_t dtype, double a, double b)
{
	return dtype == DTYPE_F64 ? a / b : (double)((float)a / (float)b);
}

static double sum_in(uint32_t dtype, double a, double b)
{
	return dtype == DTYPE_F64 ? a + b : (double)((float)a + (float)b);
}

static uint64_t float_result(enum fake_kind kind,
			     const struct kernels_params *params, uint32_t from,
			     uint32_t to, uint64_t x, uint64_t old)
{
	double value = decode(from, x);
	uint64_t y;

	if (kind >= FAKE_GRAD_OUT && params->is_scaled)
		value = quotient_in(from, value, params->factor);
	y = encode(to, value);
	if (kind == FAKE_CHUNK_CAT && params->is_scaled)
		y = encode(to, product_in(to, decode(to, y), params->factor));
	if (kind == FAKE_GRAD_ADD)
		y = encode(to, sum_in(to, decode(to, old), decode(to, y)));
	return y;
}

/* --- integers ------------------------------------------------------------ */

static bool is_signed(uint32_t dtype)
{
	return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 ||
	       dtype == DTYPE_I64;
}

/* The value is truncated when it is stored. */
static uint64_t integer_result(enum fake_kind kind,
			       const struct kernels_params *params,
			       uint32_t dtype, uint32_t size, uint64_t x,
			       uint64_t old)
{
	unsigned int n_above = 64 - 8 * size;
	int64_t divisor = kind >= FAKE_GRAD_OUT ? (int64_t)params->factor : 1;
	uint64_t value;

	if (is_signed(dtype))
		value = (uint64_t)(((int64_t)(x << n_above) >> n_above) /
				   divisor);
	else
		value = x / (uint64_t)divisor;
	return kind == FAKE_GRAD_ADD ? old + value : value;
}

/* --- rows ---------------------------------------------------------------- */

static uint64_t read_bits(const uint8_t *from, uint32_t size)
{
	uint64_t bits = 0;

	memcpy(&bits, from, size);
	return bits;
}

static void move_one(enum fake_kind kind, const struct kernels_params *params,
		     const struct kernels_row *row, const uint8_t *from,
		     uint8_t *to)
{
	uint64_t x = read_bits(from, row->from_size);
	uint64_t old = kind == FAKE_GRAD_ADD ? read_bits(to, row->to_size) : 0;
	uint64_t y;

	if (row->to_dtype >= DTYPE_F16)
		y = float_result(kind, params, row->from_dtype, row->to_dtype,
				 x, old);
	else
		y = integer_result(kind, params, row->from_dtype,
				   row->from_size, x, old);
	memcpy(to, &y, row->to_size);
}

static bool is_aligned(const void *at, uint32_t element_size,
		       const struct kernels_row *row)
{
	return (uintptr_t)at % (element_size << row->vector_shift) == 0;
}

/* Copies `n` elements that are contiguous on both sides. All after the first
 * n_moved are zeros. A vector begins with the first element. */
static void run_range(enum fake_kind kind, const struct kernels_params *params,
		      const struct kernels_row *row, const uint8_t *from,
		      uint8_t *to, uint64_t n, uint64_t n_moved)
{
	if (n_moved >> row->vector_shift > 0 &&
	    (!is_aligned(from, row->from_size, row) ||
	     !is_aligned(to, row->to_size, row)))
		fake_trap(CUDA_ERROR_MISALIGNED_ADDRESS);
	/* If nothing is moved, there may be no source. */
	if (row->path == KERNELS_BYTES && n_moved > 0)
		memcpy(to, from, n_moved);
	for (uint64_t i = 0; row->path != KERNELS_BYTES && i < n_moved; i++)
		move_one(kind, params, row, from + i * row->from_size,
			 to + i * row->to_size);
	memset(to + n_moved * row->to_size, 0, (n - n_moved) * row->to_size);
}

/* Copies the elements from `begin` to `end`. */
static void run_tile(enum fake_kind kind, const struct kernels_params *params,
		     const struct kernels_row *row, uint64_t begin,
		     uint64_t end)
{
	while (begin < end) {
		uint64_t block = begin / row->part, at = begin % row->part;
		uint64_t outer = block / row->n_inner;
		uint64_t inner = block % row->n_inner;
		uint64_t left = row->part - at, n_moved = 0;
		uint64_t n = left < end - begin ? left : end - begin;
		const uint8_t *from =
			params->from + row->from + outer * row->from_outer +
			inner * row->from_inner + at * row->from_size;
		uint8_t *to = params->to + row->to + outer * row->to_outer +
			      inner * row->to_inner + at * row->to_size;

		if (row->numel > begin)
			n_moved = row->numel - begin;
		run_range(kind, params, row, from, to, n,
			  n_moved < n ? n_moved : n);
		begin += n;
	}
}

static void run(enum fake_kind kind, void **parameters,
		const struct fake_launch *launch)
{
	const struct kernels_params *params = parameters[0];

	if (launch->block[0] != KERNELS_THREADS || launch->block[1] != 1 ||
	    launch->block[2] != 1)
		fake_trap(CUDA_ERROR_LAUNCH_FAILED);
	for (uint32_t i = 0; i < params->n_rows; i++) {
		const struct kernels_row *row = &params->rows[i];
		uint64_t n = params->tiles[i + 1] - params->tiles[i];

		for (uint64_t k = 0; k < n; k++) {
			uint64_t begin = k << row->tile_shift;
			uint64_t end = (k + 1) << row->tile_shift;

			if (end > row->padded_numel)
				end = row->padded_numel;
			run_tile(kind, params, row, begin, end);
		}
	}
}

#define FAKE(function, kind)                                                   \
	static void run_##function(void **parameters,                          \
				   const struct fake_launch *launch)           \
	{                                                                      \
		run(kind, parameters, launch);                                 \
	}                                                                      \
	static struct fake_kernel function = {                                 \
		.name = "fsdp_" #function,                                     \
		.fn = run_##function,                                          \
		.n_params = 1,                                                 \
		.sizes = {sizeof(struct kernels_params)},                      \
	}

FAKE(copy_in, FAKE_COPY);
FAKE(copy_out, FAKE_COPY);
FAKE(chunk_cat, FAKE_CHUNK_CAT);
FAKE(grad_out, FAKE_GRAD_OUT);
FAKE(grad_add, FAKE_GRAD_ADD);

__attribute__((constructor)) static void add_fakes(void)
{
	registry_add(&copy_in);
	registry_add(&copy_out);
	registry_add(&chunk_cat);
	registry_add(&grad_out);
	registry_add(&grad_add);
}
