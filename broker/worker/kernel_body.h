/*
 * The kernels themselves, in plain C. A kernel_<level>.c includes this after
 * it has defined KERNELS, the name of its table, and LEVEL, that of its level.
 *
 * Small floats are converted by moving bits, without a branch, so that the
 * loops vectorise everywhere and hardware conversions, which differ in what
 * they do to NaN and subnormals, are not needed.
 */
#include "broker/worker/kernel.h"
#include "broker/worker/kernel_stream.h"
#include <math.h>
#include <string.h>

/* Elements at a time: what is between their steps stays in the first-level
 * cache, and the CPU sees far enough ahead to load the next meanwhile. */
#define PIECE 128

/* Bytes that inputs are asked for ahead of their use: the hardware begins anew
 * with every page of every input, which costs a sixth of the bandwidth. */
#define FETCH_AHEAD 1024

/* --- single values ------------------------------------------------------- */

static inline float as_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline uint32_t as_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float f32_of_bf16(uint16_t half)
{
	return as_float((uint32_t)half << 16);
}

/* The biases differ by 112. All ones in the exponent (infinity, NaN) must be
 * so in f32 too; subnormals count units of 2^-24. */
static inline float f32_of_f16(uint16_t half)
{
	uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
	uint32_t normal = magnitude + 0x38000000 +
			  (magnitude >= 0x0f800000 ? 0x38000000 : 0);
	uint32_t small = as_bits((float)(half & 0x3ff) * 0x1p-24f);
	uint32_t bits = magnitude < 0x00800000 ? small : normal;

	return as_float(bits | (uint32_t)(half & 0x8000) << 16);
}

/* The carry of the rounding may run into the exponent, up to infinity. */
static inline uint16_t bf16_of_f32(float value)
{
	uint32_t bits = as_bits(value);
	uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

/*
 * Below 2^-14 results are subnormal: multiples of 2^-24, which is the unit of
 * the last place of what 0.5 is added to, so that the addition rounds. From
 * 65520 on they are infinite.
 */
static inline uint16_t f16_of_f32(float value)
{
	uint32_t bits = as_bits(value), magnitude = bits & 0x7fffffff;
	uint32_t small = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000;
	uint32_t normal =
		(magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
	uint32_t half = magnitude < 0x38800000 ? small : normal;

	half = magnitude >= 0x477ff000 ? 0x7c00 : half;
	half |= bits >> 16 & 0x8000;
	return (uint16_t)(magnitude > 0x7f800000 ? 0x7e00 : half);
}

/*
 * f64 to f32, inexact results to the neighbour with an odd mantissa: what
 * rounds that to fewer bits rounds as if it had seen all of the f64. (NaN
 * stays some NaN.)
 */
static inline float f32_odd_of_f64(double value)
{
	float nearest = (float)value;
	uint32_t bits = as_bits(nearest);
	uint32_t outwards =
		fabs((double)nearest) < fabs(value) ? 1 : UINT32_MAX;
	bool is_odd = (bits & 1) || (double)nearest == value;

	return as_float(is_odd ? bits : bits + outwards);
}

static inline float f32_clean(float value)
{
	return value == value ? value : as_float(0x7fc00000);
}

static inline double f64_clean(double value)
{
	const uint64_t bits = UINT64_C(0x7ff8) << 48;
	double quiet;

	memcpy(&quiet, &bits, sizeof(quiet));
	return value == value ? value : quiet;
}

/* By a power of two with a normal reciprocal a multiplication gives the same
 * bits as a division: both are the rounding of the same number. */
static inline bool has_exact_reciprocal(double divisor)
{
	int exponent;

	return frexp(divisor, &exponent) == 0.5 && exponent > -120 &&
	       exponent < 120;
}

/* How many of `n` elements come next, so that pieces end with a line from the
 * first one on. `index`: the first one's place. */
static inline size_t piece(uintptr_t index, size_t n)
{
	size_t m = PIECE - index % PIECE;

	return n < m ? n : m;
}

/* What `size` bytes from `at` on of all inputs have ahead of them; behind the
 * end it is for nothing, and harmless. */
static inline void fetch(const void *const *in, uint32_t n_in, size_t at,
			 size_t size)
{
	for (uint32_t k = 0; k < n_in; k++) {
		uintptr_t ahead = (uintptr_t)in[k] + at + FETCH_AHEAD;

		for (size_t i = 0; i < size; i += LINE)
			__builtin_prefetch((const void *)(ahead + i));
	}
}

/* --- sums ---------------------------------------------------------------- */

/*
 * Elements [at, at + n) of all inputs but the last two, if there are more, into
 * `sum`; gives how many inputs. Two in one pass, so that the sum goes through
 * the cache half as often. `term(x)` is what is added for an element; it may
 * use the factor `c`.
 */
#define HEAD(name, in_type, acc_type, term)                                    \
	static uint32_t name(acc_type *restrict sum, const void *const *in,    \
			     uint32_t n_in, size_t at, size_t n, acc_type c)   \
	{                                                                      \
		const in_type *a = (const in_type *)in[0] + at;                \
		const in_type *b = (const in_type *)in[n_in > 1] + at;         \
		uint32_t k = n_in % 2 ? 1 : 2;                                 \
                                                                               \
		(void)c;                                                       \
		if (n_in <= 2)                                                 \
			return 0;                                              \
		for (size_t i = 0; k == 1 && i < n; i++)                       \
			sum[i] = term(a[i]);                                   \
		for (size_t i = 0; k == 2 && i < n; i++)                       \
			sum[i] = term(a[i]) + term(b[i]);                      \
		for (; k + 2 < n_in; k += 2) {                                 \
			a = (const in_type *)in[k] + at;                       \
			b = (const in_type *)in[k + 1] + at;                   \
			for (size_t i = 0; i < n; i++)                         \
				sum[i] = sum[i] + term(a[i]) + term(b[i]);     \
		}                                                              \
		return k;                                                      \
	}

/* The last two inputs, and the way out: `finish(x)`. */
#define LAST(finish, term)                                                     \
	do {                                                                   \
		for (size_t i = 0; n_in == 1 && i < m; i++)                    \
			out[i] = finish(term(a[i]));                           \
		for (size_t i = 0; n_in == 2 && i < m; i++)                    \
			out[i] = finish(term(a[i]) + term(b[i]));              \
		for (size_t i = 0; n_in > 2 && i < m; i++)                     \
			out[i] = finish(sum[i] + term(a[i]) + term(b[i]));     \
	} while (0)

/* --- floats -------------------------------------------------------------- */

#define FOLD_FLOAT(name, head, in_type, acc_type, term, out_type, result)      \
	static void name(void *to, const void *const *in, uint32_t n_in,       \
			 size_t n, double factor, double divisor,              \
			 bool is_streamed)                                     \
	{                                                                      \
		acc_type sum[PIECE];                                           \
		_Alignas(64) out_type block[PIECE];                            \
		const acc_type c = (acc_type)factor, d = (acc_type)divisor;    \
		const acc_type reciprocal = 1 / d;                             \
		const bool is_exact = has_exact_reciprocal((double)d);         \
                                                                               \
		for (size_t at = 0, m; at < n; at += m) {                      \
			out_type *place = (out_type *)to + at;                 \
                                                                               \
			m = piece((uintptr_t)place / sizeof(*place), n - at);  \
			fetch(in, n_in, at * sizeof(in_type),                  \
			      m * sizeof(in_type));                            \
			uint32_t k = head(sum, in, n_in, at, m, c);            \
			const in_type *a = (const in_type *)in[k] + at;        \
			const in_type *b = (const in_type *)in[n_in - 1] + at; \
			out_type *restrict out = is_streamed ? block : place;  \
                                                                               \
			if (is_exact)                                          \
				LAST(result##_TIMES, term);                    \
			else                                                   \
				LAST(result##_OVER, term);                     \
			if (is_streamed)                                       \
				stream(place, block, m * sizeof(*block));      \
		}                                                              \
	}

#define TERM_F16(x)  (f32_of_f16(x) * c)
#define TERM_BF16(x) (f32_of_bf16(x) * c)
#define TERM_SAME(x) ((x)*c)

HEAD(head_f16, uint16_t, float, TERM_F16)
HEAD(head_bf16, uint16_t, float, TERM_BF16)
HEAD(head_f32, float, float, TERM_SAME)
HEAD(head_f64, double, double, TERM_SAME)

#define F16_TIMES(x)      f16_of_f32((x)*reciprocal)
#define F16_OVER(x)       f16_of_f32((x) / d)
#define BF16_TIMES(x)     bf16_of_f32((x)*reciprocal)
#define BF16_OVER(x)      bf16_of_f32((x) / d)
#define F32_TIMES(x)      f32_clean((x)*reciprocal)
#define F32_OVER(x)       f32_clean((x) / d)
#define F64_TIMES(x)      f64_clean((x)*reciprocal)
#define F64_OVER(x)       f64_clean((x) / d)
#define F64_F16_TIMES(x)  f16_of_f32(f32_odd_of_f64((x)*reciprocal))
#define F64_F16_OVER(x)   f16_of_f32(f32_odd_of_f64((x) / d))
#define F64_BF16_TIMES(x) bf16_of_f32(f32_odd_of_f64((x)*reciprocal))
#define F64_BF16_OVER(x)  bf16_of_f32(f32_odd_of_f64((x) / d))
#define F64_F32_TIMES(x)  f32_clean((float)((x)*reciprocal))
#define F64_F32_OVER(x)   f32_clean((float)((x) / d))

/* From one dtype with an f32 accumulator to all. */
#define FOLD_SMALL(name, in_type, term)                                        \
	FOLD_FLOAT(name##_f16, head_##name, in_type, float, term, uint16_t,    \
		   F16)                                                        \
	FOLD_FLOAT(name##_bf16, head_##name, in_type, float, term, uint16_t,   \
		   BF16)                                                       \
	FOLD_FLOAT(name##_f32, head_##name, in_type, float, term, float, F32)  \
	FOLD_FLOAT(name##_f64, head_##name, in_type, float, term, double, F64)

FOLD_SMALL(f16, uint16_t, TERM_F16)
FOLD_SMALL(bf16, uint16_t, TERM_BF16)
FOLD_SMALL(f32, float, TERM_SAME)
FOLD_FLOAT(f64_f16, head_f64, double, double, TERM_SAME, uint16_t, F64_F16)
FOLD_FLOAT(f64_bf16, head_f64, double, double, TERM_SAME, uint16_t, F64_BF16)
FOLD_FLOAT(f64_f32, head_f64, double, double, TERM_SAME, float, F64_F32)
FOLD_FLOAT(f64_f64, head_f64, double, double, TERM_SAME, double, F64)

/* --- integers ------------------------------------------------------------ */

/* Sums wrap, so they are made without a sign; divided is with it. */
#define FOLD_INTEGER(name, in_type, wide_type, out_type)                       \
	HEAD(head_##name, in_type, uint64_t, TERM_##wide_type)                 \
	static void name(void *to, const void *const *in, uint32_t n_in,       \
			 size_t n, double factor, double divisor,              \
			 bool is_streamed)                                     \
	{                                                                      \
		uint64_t sum[PIECE];                                           \
		const wide_type d = (wide_type)divisor;                        \
                                                                               \
		(void)factor;                                                  \
		(void)is_streamed;                                             \
		for (size_t at = 0, m; at < n; at += m) {                      \
			m = piece(at, n - at);                                 \
			uint32_t k = head_##name(sum, in, n_in, at, m, 1);     \
			const in_type *a = (const in_type *)in[k] + at;        \
			const in_type *b = (const in_type *)in[n_in - 1] + at; \
			out_type *restrict out = (out_type *)to + at;          \
                                                                               \
			if (d == 1)                                            \
				LAST((out_type), TERM_##wide_type);            \
			else                                                   \
				LAST((out_type)OVER_##wide_type,               \
				     TERM_##wide_type);                        \
		}                                                              \
	}

#define TERM_int64_t(x)  ((uint64_t)(int64_t)(x))
#define TERM_uint64_t(x) ((uint64_t)(x))
#define OVER_int64_t(x)  ((int64_t)(x) / d)
#define OVER_uint64_t(x) ((x) / d)

#define FOLD_NARROW(letter, bits, type, wide_type)                             \
	FOLD_INTEGER(letter##bits##_##letter##bits, type, wide_type, type)     \
	FOLD_INTEGER(letter##bits##_##letter##64, type, wide_type, wide_type)  \
	FOLD_INTEGER(letter##64_##letter##bits, wide_type, wide_type, type)

FOLD_NARROW(i, 8, int8_t, int64_t)
FOLD_NARROW(i, 16, int16_t, int64_t)
FOLD_NARROW(i, 32, int32_t, int64_t)
FOLD_INTEGER(i64_i64, int64_t, int64_t, int64_t)
FOLD_NARROW(u, 8, uint8_t, uint64_t)
FOLD_NARROW(u, 16, uint16_t, uint64_t)
FOLD_NARROW(u, 32, uint32_t, uint64_t)
FOLD_INTEGER(u64_u64, uint64_t, uint64_t, uint64_t)

/* --- table --------------------------------------------------------------- */

#define FLOATS(name)                                                           \
	{                                                                      \
		[DTYPE_F16] = name##_f16, [DTYPE_BF16] = name##_bf16,          \
		[DTYPE_F32] = name##_f32, [DTYPE_F64] = name##_f64             \
	}

const struct kernels KERNELS = {
	.name = LEVEL,
	.fold =
		{
			[DTYPE_F16] = FLOATS(f16),
			[DTYPE_BF16] = FLOATS(bf16),
			[DTYPE_F32] = FLOATS(f32),
			[DTYPE_F64] = FLOATS(f64),
			[DTYPE_I8] = {[DTYPE_I8] = i8_i8, [DTYPE_I64] = i8_i64},
			[DTYPE_I16] =
				{[DTYPE_I16] = i16_i16, [DTYPE_I64] = i16_i64},
			[DTYPE_I32] =
				{[DTYPE_I32] = i32_i32, [DTYPE_I64] = i32_i64},
			[DTYPE_I64] = {[DTYPE_I8] = i64_i8,
				       [DTYPE_I16] = i64_i16,
				       [DTYPE_I32] = i64_i32,
				       [DTYPE_I64] = i64_i64},
			[DTYPE_U8] = {[DTYPE_U8] = u8_u8, [DTYPE_U64] = u8_u64},
			[DTYPE_U16] =
				{[DTYPE_U16] = u16_u16, [DTYPE_U64] = u16_u64},
			[DTYPE_U32] =
				{[DTYPE_U32] = u32_u32, [DTYPE_U64] = u32_u64},
			[DTYPE_U64] = {[DTYPE_U8] = u64_u8,
				       [DTYPE_U16] = u64_u16,
				       [DTYPE_U32] = u64_u32,
				       [DTYPE_U64] = u64_u64},
		},
};
