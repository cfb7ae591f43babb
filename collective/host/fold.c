#include "collective/host/fold.h"
#include "proto/error.h"
#include <errno.h>
#include <string.h>

/* Elements of a block. All buffers of a block fit in the first-level cache. */
#define BLOCK 1024 /* elements */

/* --- pairs --------------------------------------------------------------- */

#define PAIR(name, type, value)                                                \
	static void name(void *acc, const void *in, size_t n)                  \
	{                                                                      \
		type *restrict to = acc;                                       \
		const type *restrict from = in;                                \
                                                                               \
		for (size_t i = 0; i < n; i++) {                               \
			const type a = to[i], b = from[i];                     \
                                                                               \
			to[i] = (type)(value);                                 \
		}                                                              \
	}

/* For floats, the first NaN is kept. */
#define ORDER(type)                                                            \
	PAIR(min_##type, type, a < b || a != a ? a : b)                        \
	PAIR(max_##type, type, a > b || a != a ? a : b)

ORDER(float)
ORDER(double)
ORDER(int8_t)
ORDER(int16_t)
ORDER(int32_t)
ORDER(int64_t)
ORDER(uint8_t)
ORDER(uint16_t)
ORDER(uint32_t)
ORDER(uint64_t)

PAIR(product_float, float, a *b)
PAIR(product_double, double, a *b)

/* Signed integers have the same bits as unsigned ones. The factors are widened
 * first, because 16 bits times 16 bits would be a signed int. */
#define BITS(type)                                                             \
	PAIR(product_##type, type, (uint64_t)a *b)                             \
	PAIR(band_##type, type, a &b)                                          \
	PAIR(bor_##type, type, a | b)                                          \
	PAIR(bxor_##type, type, a ^ b)

BITS(uint8_t)
BITS(uint16_t)
BITS(uint32_t)
BITS(uint64_t)

/* --- the tables ---------------------------------------------------------- */

#define HOWS (FOLD_BXOR + 1)

#define FLOAT_PAIRS(type)                                                      \
	{                                                                      \
		[FOLD_PRODUCT] = product_##type, [FOLD_MIN] = min_##type,      \
		[FOLD_MAX] = max_##type                                        \
	}
#define INTEGER_PAIRS(type, bits)                                              \
	{                                                                      \
		[FOLD_PRODUCT] = product_##bits, [FOLD_MIN] = min_##type,      \
		[FOLD_MAX] = max_##type, [FOLD_BAND] = band_##bits,            \
		[FOLD_BOR] = bor_##bits, [FOLD_BXOR] = bxor_##bits             \
	}

/* f16 and bf16 have no row, since they are widened first. */
static fold_pair_fn *const pairs[DTYPE_MAX + 1][HOWS] = {
	[DTYPE_BOOL] = {[FOLD_SUM] = bor_uint8_t,
			[FOLD_PRODUCT] = band_uint8_t,
			[FOLD_MIN] = band_uint8_t,
			[FOLD_MAX] = bor_uint8_t,
			[FOLD_BAND] = band_uint8_t,
			[FOLD_BOR] = bor_uint8_t,
			[FOLD_BXOR] = bxor_uint8_t},
	[DTYPE_U8] = INTEGER_PAIRS(uint8_t, uint8_t),
	[DTYPE_I8] = INTEGER_PAIRS(int8_t, uint8_t),
	[DTYPE_U16] = INTEGER_PAIRS(uint16_t, uint16_t),
	[DTYPE_I16] = INTEGER_PAIRS(int16_t, uint16_t),
	[DTYPE_U32] = INTEGER_PAIRS(uint32_t, uint32_t),
	[DTYPE_I32] = INTEGER_PAIRS(int32_t, uint32_t),
	[DTYPE_U64] = INTEGER_PAIRS(uint64_t, uint64_t),
	[DTYPE_I64] = INTEGER_PAIRS(int64_t, uint64_t),
	[DTYPE_F16] = FLOAT_PAIRS(float),
	[DTYPE_BF16] = FLOAT_PAIRS(float),
	[DTYPE_F32] = FLOAT_PAIRS(float),
	[DTYPE_F64] = FLOAT_PAIRS(double),
};

static const char *const names[HOWS] = {
	[FOLD_SUM] = "sum", [FOLD_MEAN] = "mean", [FOLD_PRODUCT] = "product",
	[FOLD_MIN] = "min", [FOLD_MAX] = "max",   [FOLD_BAND] = "and",
	[FOLD_BOR] = "or",  [FOLD_BXOR] = "xor",
};

const char *fold_name(uint32_t how)
{
	return how < HOWS ? names[how] : "?";
}

/* --- folding ------------------------------------------------------------- */

static bool is_half(uint32_t dtype)
{
	return dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

static uint32_t part_of_complex(uint32_t dtype)
{
	if (dtype == DTYPE_C64)
		return DTYPE_F32;
	return dtype == DTYPE_C128 ? DTYPE_F64 : dtype;
}

int fold_init(struct fold *ret, uint32_t dtype, uint32_t how, uint32_t n_ranks,
	      struct error *err)
{
	bool is_linear = how == FOLD_SUM || how == FOLD_MEAN;
	struct fold fold = {.kernels = kernels_best(),
			    .dtype = is_linear ? part_of_complex(dtype) : dtype,
			    .divisor = how == FOLD_MEAN ? n_ranks : 1};

	if (dtype > DTYPE_MAX || how >= HOWS)
		return error_set(err, -EINVAL,
				 "there is no dtype %u, or no reduction %u",
				 dtype, how);
	fold.width = dtype_size(fold.dtype);
	fold.pair = pairs[fold.dtype][how];
	if (!fold.pair &&
	    !(is_linear && fold.kernels->fold[fold.dtype][fold.dtype]))
		return error_set(err, -EINVAL,
				 "the %s of tensors of %s is not defined",
				 names[how], dtype_name(dtype));
	*ret = fold;
	return 0;
}

static void fold_pairs(const struct fold *fold, uint8_t *out,
		       const void *const *in, uint32_t n_in, size_t at,
		       size_t n)
{
	const size_t size = n * fold->width;

	memcpy(out + at, (const uint8_t *)in[0] + at, size);
	for (uint32_t i = 1; i < n_in; i++)
		fold->pair(out + at, (const uint8_t *)in[i] + at, n);
}

/* A fold of one input is a cast. */
static void cast(const struct fold *fold, void *out, uint32_t to,
		 const void *in, uint32_t from, size_t n)
{
	fold->kernels->fold[from][to](&out, 1, &in, 1, n, 1, 1, false);
}

static void fold_halves(const struct fold *fold, uint8_t *out,
			const void *const *in, uint32_t n_in, size_t at,
			size_t n)
{
	float acc[BLOCK], next[BLOCK];

	cast(fold, acc, DTYPE_F32, (const uint8_t *)in[0] + at, fold->dtype, n);
	for (uint32_t i = 1; i < n_in; i++) {
		cast(fold, next, DTYPE_F32, (const uint8_t *)in[i] + at,
		     fold->dtype, n);
		fold->pair(acc, next, n);
	}
	cast(fold, out + at, fold->dtype, acc, DTYPE_F32, n);
}

void fold_run(const struct fold *fold, void *out, const void *const *in,
	      uint32_t n_in, size_t size)
{
	size_t n_left = size / fold->width, n;

	if (!fold->pair) {
		fold->kernels->fold[fold->dtype][fold->dtype](
			&out, 1, in, n_in, n_left, 1, fold->divisor, false);
		return;
	}
	for (size_t at = 0; n_left > 0; at += n * fold->width, n_left -= n) {
		n = n_left < BLOCK ? n_left : BLOCK;
		if (is_half(fold->dtype))
			fold_halves(fold, out, in, n_in, at, n);
		else
			fold_pairs(fold, out, in, n_in, at, n);
	}
}
