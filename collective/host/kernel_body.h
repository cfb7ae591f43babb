/*
 * The kernels themselves, in plain C. Each kernel_<level>.c includes this file
 * after it has defined KERNELS, the name of its table, and LEVEL, the name of
 * its level.
 *
 * Small floats are converted by integer operations on their bits, without a
 * branch, so that the loops vectorise for all CPUs. Hardware conversions are
 * not used, because they treat NaN and subnormals in different ways. A level
 * that defines KERNEL_NARROW is an exception: it has its own f32_of_f16(),
 * narrow_F16() and narrow_BF16().
 */
#include "collective/host/kernel.h"
#include "collective/host/kernel_stream.h"
#include <math.h>
#include <string.h>

/* Elements of a piece. The values between two steps of a piece stay in the
 * first-level cache, and the CPU looks far enough ahead to load the next piece
 * meanwhile. */
#define PIECE 128

/* How many bytes ahead inputs are prefetched. The hardware prefetcher begins
 * anew with every page of every input, which costs a sixth of the bandwidth. */
#define FETCH_AHEAD 1024

/* Main memory is read at several places in turn, since the hardware prefetches
 * ahead within each page that is being read, but not far. With one input, four
 * places add up to 50 % to the bandwidth. With two or four inputs, eight places
 * take 1.3 times as long as four. */
#define MAX_PLACES 4
#define MAX_WAYS   4
#define COPY_WAYS  4
#define COPY_TURN  1024 /* bytes */

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

#ifndef KERNEL_NARROW
/* The exponent biases differ by 112. If the exponent is all ones (infinity,
 * NaN), it must be all ones in f32, too. Subnormals count units of 2^-24. */
static inline float f32_of_f16(uint16_t half)
{
	uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
	uint32_t normal = magnitude + 0x38000000 +
			  (magnitude >= 0x0f800000 ? 0x38000000 : 0);
	uint32_t small = as_bits((float)(half & 0x3ff) * 0x1p-24f);
	uint32_t bits = magnitude < 0x00800000 ? small : normal;

	return as_float(bits | (uint32_t)(half & 0x8000) << 16);
}
#endif

/* Rounding may carry into the exponent, up to infinity. */
static inline uint16_t bf16_of_f32(float value)
{
	uint32_t bits = as_bits(value);
	uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

/*
 * Results below 2^-14 are subnormal, which means multiples of 2^-24. This is
 * the unit in the last place of 0.5, so adding 0.5 rounds them. Values from
 * 65520 on become infinite.
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

#ifdef KERNEL_NARROW
#include KERNEL_NARROW
#endif

/*
 * Converts f64 to f32. Inexact results become the neighbour with an odd
 * mantissa ("round to odd"), so a second rounding to fewer bits gives the same
 * as one rounding of the f64. (NaN stays a NaN.)
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

/* Multiplying by the reciprocal of a power of two gives the same bits as
 * dividing, if the reciprocal is normal: both round the same number. */
static inline bool has_exact_reciprocal(double divisor)
{
	int exponent;

	return frexp(divisor, &exponent) == 0.5 && exponent > -120 &&
	       exponent < 120;
}

/* Returns how many of `n` elements come next, so that each piece ends at the
 * end of a cache line. `index` is the first element's address in elements. */
static inline size_t piece(uintptr_t index, size_t n)
{
	size_t m = PIECE - index % PIECE;

	return n < m ? n : m;
}

/* Prefetches the bytes that follow `size` bytes from `at` on of all inputs by
 * FETCH_AHEAD. After the end this is useless but harmless. */
static inline void fetch(const void *const *in, uint32_t n_in, size_t at,
			 size_t size)
{
	for (uint32_t k = 0; k < n_in; k++) {
		uintptr_t ahead = (uintptr_t)in[k] + at + FETCH_AHEAD;

		for (size_t i = 0; i < size; i += LINE)
			__builtin_prefetch((const void *)(ahead + i));
	}
}

/* --- copies -------------------------------------------------------------- */

/* The lines to be written are prefetched, too: if other CPUs have read them, no
 * near cache has them. gcc would replace memcpy() of a whole piece by `rep
 * movs`, which takes two to three times as long. */
static inline void copy_cached(uint8_t *to, const uint8_t *from, size_t size)
{
	size_t at = 0;

	for (; at + LINE <= size; at += LINE) {
		__builtin_prefetch(from + at + FETCH_AHEAD);
		__builtin_prefetch(to + at + FETCH_AHEAD, 1);
		memcpy(to + at, from + at, LINE);
	}
	memcpy(to + at, from + at, size - at);
}

static void copy_streamed(uint8_t *to, const uint8_t *from, size_t size)
{
	const size_t way = size / COPY_WAYS / COPY_TURN * COPY_TURN;
	const void *in = from;

	for (size_t at = 0; at < way; at += COPY_TURN)
		for (size_t i = at; i < COPY_WAYS * way; i += way) {
			fetch(&in, 1, i, COPY_TURN);
			stream(to + i, from + i, COPY_TURN);
		}
	stream(to + COPY_WAYS * way, from + COPY_WAYS * way,
	       size - COPY_WAYS * way);
}

static void copy(void *to, const void *from, size_t size, bool is_streamed)
{
	if (CAN_STREAM && is_streamed)
		copy_streamed(to, from, size);
	else
		copy_cached(to, from, size);
}

/* --- sums ---------------------------------------------------------------- */

/* The destinations of results, and their sources. */
struct outputs {
	void *const *out;
	uint32_t n;
	bool is_streamed;
};

struct inputs {
	const void *const *in;
	uint32_t n;
};

static inline void put(const struct outputs *to, size_t at, const void *block,
		       size_t size)
{
	for (uint32_t i = 0; i < to->n; i++) {
		uint8_t *place = (uint8_t *)to->out[i] + at;

		if (to->is_streamed)
			stream(place, block, size);
		else
			copy_cached(place, block, size);
	}
}

static inline uint32_t count_ways(const struct outputs *to,
				  const struct inputs *from)
{
	uint32_t n = MAX_PLACES / from->n;

	if (!to->is_streamed || n == 0)
		return 1;
	return n < MAX_WAYS ? n : MAX_WAYS;
}

/* gcc drops `restrict` if it clones a function for arguments that it knows, and
 * then does not vectorise the clone. */
#ifdef __clang__
#define AS_IT_IS __attribute__((noinline))
#else
#define AS_IT_IS __attribute__((noinline, noclone))
#endif

/*
 * Adds the elements [at, at + n) of all inputs but the last two to `sum`, and
 * returns the number of these inputs. It adds two inputs in one pass, so that
 * the sum goes through the cache half as often. `term(x)` is what an element
 * adds; it may use the factor `c`.
 */
#define HEAD(name, in_type, acc_type, term)                                    \
	static AS_IT_IS uint32_t name(acc_type *restrict sum,                  \
				      const void *const *in, uint32_t n_in,    \
				      size_t at, size_t n, acc_type c)         \
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

/* Adds the last two inputs, and applies `finish(x)` to the result. */
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

/* Folds the elements [at, at + m), which are at most a piece. If the result has
 * several destinations, or is streamed, it is computed in a block first. */
#define FOLD_PIECE(name, head, in_type, acc_type, term, out_type, result)      \
	static AS_IT_IS void name##_piece(                                     \
		const struct outputs *to, const struct inputs *from,           \
		size_t at, size_t m, acc_type c, acc_type d, bool is_exact)    \
	{                                                                      \
		acc_type sum[PIECE];                                           \
		_Alignas(LINE) out_type block[PIECE];                          \
		const void *const *in = from->in;                              \
		const uint32_t n_in = from->n;                                 \
		const acc_type reciprocal = 1 / d;                             \
		const bool is_direct = to->n == 1 && !to->is_streamed;         \
		out_type *restrict out =                                       \
			is_direct ? (out_type *)to->out[0] + at : block;       \
                                                                               \
		fetch(in, n_in, at * sizeof(in_type), m * sizeof(in_type));    \
		uint32_t k = head(sum, in, n_in, at, m, c);                    \
		const in_type *a = (const in_type *)in[k] + at;                \
		const in_type *b = (const in_type *)in[n_in - 1] + at;         \
                                                                               \
		if (is_exact)                                                  \
			LAST(result##_TIMES, term);                            \
		else                                                           \
			LAST(result##_OVER, term);                             \
		if (!is_direct)                                                \
			put(to, at * sizeof(*block), block,                    \
			    m * sizeof(*block));                               \
	}

/* Folds piece by piece: first up to the end of the first line, then at several
 * places in turn, and last the rest. */
#define FOLD_PIECES(name, acc_type, out_type)                                  \
	static void name(void *const *out, uint32_t n_out,                     \
			 const void *const *in, uint32_t n_in, size_t n,       \
			 double factor, double divisor, bool is_streamed)      \
	{                                                                      \
		const struct outputs to = {out, n_out,                         \
					   CAN_STREAM && is_streamed};         \
		const struct inputs from = {in, n_in};                         \
		const acc_type c = (acc_type)factor, d = (acc_type)divisor;    \
		const bool is_exact = has_exact_reciprocal((double)d);         \
		const uint32_t n_ways = count_ways(&to, &from);                \
		size_t at = piece((uintptr_t)out[0] / sizeof(out_type), n);    \
		const size_t way = (n - at) / n_ways / PIECE * PIECE;          \
		const size_t end = at + way;                                   \
                                                                               \
		name##_piece(&to, &from, 0, at, c, d, is_exact);               \
		for (; at < end; at += PIECE)                                  \
			for (uint32_t i = 0; i < n_ways; i++)                  \
				name##_piece(&to, &from, at + i * way, PIECE,  \
					     c, d, is_exact);                  \
		at += (n_ways - 1) * way;                                      \
		for (size_t m; at < n; at += m) {                              \
			m = n - at < PIECE ? n - at : PIECE;                   \
			name##_piece(&to, &from, at, m, c, d, is_exact);       \
		}                                                              \
	}

#define FOLD_FLOAT(name, head, in_type, acc_type, term, out_type, result)      \
	FOLD_PIECE(name, head, in_type, acc_type, term, out_type, result)      \
	FOLD_PIECES(name, acc_type, out_type)

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

#ifdef KERNEL_NARROW
/* Folds f32 to 16 bits by instructions that the compiler does not select: a
 * piece is computed as f32, and narrowed as a whole. */
#define FOLD_16(name, head, in_type, term, result)                             \
	static AS_IT_IS void name##_piece(                                     \
		const struct outputs *to, const struct inputs *from,           \
		size_t at, size_t m, float c, float d, bool is_exact)          \
	{                                                                      \
		float sum[PIECE], wide[PIECE];                                 \
		_Alignas(LINE) uint16_t block[PIECE];                          \
		const void *const *in = from->in;                              \
		const uint32_t n_in = from->n;                                 \
		const float reciprocal = 1 / d;                                \
		float *restrict out = wide;                                    \
                                                                               \
		fetch(in, n_in, at * sizeof(in_type), m * sizeof(in_type));    \
		uint32_t k = head(sum, in, n_in, at, m, c);                    \
		const in_type *a = (const in_type *)in[k] + at;                \
		const in_type *b = (const in_type *)in[n_in - 1] + at;         \
                                                                               \
		if (is_exact)                                                  \
			LAST(WIDE_TIMES, term);                                \
		else                                                           \
			LAST(WIDE_OVER, term);                                 \
		if (to->n == 1) {                                              \
			narrow_##result((uint16_t *)to->out[0] + at, wide, m); \
			return;                                                \
		}                                                              \
		narrow_##result(block, wide, m);                               \
		put(to, at * sizeof(*block), block, m * sizeof(*block));       \
	}                                                                      \
	FOLD_PIECES(name, float, uint16_t)
#define WIDE_TIMES(x) ((x)*reciprocal)
#define WIDE_OVER(x)  ((x) / d)
#else
#define FOLD_16(name, head, in_type, term, result)                             \
	FOLD_FLOAT(name, head, in_type, float, term, uint16_t, result)
#endif

/* Defines the folds of a dtype with an f32 accumulator to all float dtypes. */
#define FOLD_SMALL(name, in_type, term)                                        \
	FOLD_16(name##_f16, head_##name, in_type, term, F16)                   \
	FOLD_16(name##_bf16, head_##name, in_type, term, BF16)                 \
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

/* The sums are unsigned, since they wrap; the division is signed. */
#define FOLD_INTEGER(name, in_type, wide_type, out_type)                       \
	HEAD(head_##name, in_type, uint64_t, TERM_##wide_type)                 \
	static void name(void *const *outs, uint32_t n_out,                    \
			 const void *const *in, uint32_t n_in, size_t n,       \
			 double factor, double divisor, bool is_streamed)      \
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
			out_type *restrict out = (out_type *)outs[0] + at;     \
                                                                               \
			if (d == 1)                                            \
				LAST((out_type), TERM_##wide_type);            \
			else                                                   \
				LAST((out_type)OVER_##wide_type,               \
				     TERM_##wide_type);                        \
			for (uint32_t i = 1; i < n_out; i++)                   \
				copy_cached(                                   \
					(uint8_t *)((out_type *)outs[i] + at), \
					(const uint8_t *)out,                  \
					m * sizeof(*out));                     \
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
	.copy = copy,
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
