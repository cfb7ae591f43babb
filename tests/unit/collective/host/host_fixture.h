/*
 * Helpers for the tests of the worker's arithmetic: single numbers by the
 * definitions of the formats, random groups, and memory.
 *
 * The helpers share no code with the worker's kernels. Floats of any dtype are
 * kept as doubles, which can hold all their values.
 */
#pragma once
#include "collective/host/layout.h"
#include "proto/error.h"
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- random numbers ------------------------------------------------------ */

struct dice {
	uint64_t state;
};

static inline uint64_t dice_next(struct dice *dice)
{
	uint64_t z = dice->state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* Returns a number from 0 to n - 1. */
static inline uint32_t dice_throw(struct dice *dice, uint32_t n)
{
	return (uint32_t)(dice_next(dice) % n);
}

/* --- numbers ------------------------------------------------------------- */

/* Returns a float as double, or an integer as 64 bits. */
union number {
	double f;
	uint64_t i;
};

static inline bool is_float(uint32_t dtype)
{
	return dtype >= DTYPE_F16;
}

static inline bool is_reducible(uint32_t dtype)
{
	return dtype >= DTYPE_U8 && dtype <= DTYPE_F64;
}

static inline bool is_signed(uint32_t dtype)
{
	return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 ||
	       dtype == DTYPE_I64;
}

/* Round to a binary float with that many bits of mantissa, in units of its last
 * place. `min_exponent` is that of its normal numbers. */
static inline double round_small(double x, int n_mantissa, int min_exponent,
				 double max)
{
	int exponent;
	double unit, rounded;

	if (isnan(x) || isinf(x) || x == 0)
		return x;
	exponent = ilogb(x);
	if (exponent < min_exponent)
		exponent = min_exponent;
	unit = ldexp(1, exponent - n_mantissa);
	rounded = nearbyint(x / unit) * unit;
	return fabs(rounded) > max ? copysign(INFINITY, x) : rounded;
}

#define MAX_F16  65504.0
#define MAX_BF16 0x1.fep127

static inline double round_float(uint32_t dtype, double x)
{
	switch (dtype) {
	case DTYPE_F16:
		return round_small(x, 10, -14, MAX_F16);
	case DTYPE_BF16:
		return round_small(x, 7, -126, MAX_BF16);
	case DTYPE_F32:
		return (double)(float)x;
	default:
		return x;
	}
}

/* Returns the bits of a value that the 16-bit format can hold exactly. A NaN
 * becomes the quiet NaN. */
static inline uint16_t small_bits(double x, int n_mantissa, int min_exponent)
{
	unsigned int infinity = ((1u << (15 - n_mantissa)) - 1) << n_mantissa;
	unsigned int sign = signbit(x) ? 0x8000 : 0;
	int exponent;

	if (isnan(x))
		return (uint16_t)(infinity | 1u << (n_mantissa - 1));
	if (isinf(x))
		return (uint16_t)(sign | infinity);
	exponent = x == 0 ? min_exponent : ilogb(x);
	if (exponent < min_exponent)
		exponent = min_exponent;
	/* Adding the leading 1 of a normal number increases the exponent by
	 * 1. */
	return (uint16_t)(sign +
			  ((unsigned int)(exponent - min_exponent)
			   << n_mantissa) +
			  (unsigned int)ldexp(fabs(x), n_mantissa - exponent));
}

static inline double small_value(uint16_t bits, int n_mantissa, int bias)
{
	unsigned int all = (1u << (15 - n_mantissa)) - 1;
	unsigned int exponent = bits >> n_mantissa & all;
	unsigned int mantissa = bits & ((1u << n_mantissa) - 1);
	double sign = bits & 0x8000 ? -1 : 1;

	if (exponent == all)
		return mantissa ? NAN : sign * INFINITY;
	if (exponent == 0)
		return sign * ldexp(mantissa, 1 - bias - n_mantissa);
	return sign * ldexp((1u << n_mantissa) + mantissa,
			    (int)exponent - bias - n_mantissa);
}

static inline union number number_load(uint32_t dtype, const void *from)
{
	union number x = {.i = 0};
	uint32_t size = dtype_size(dtype);
	float single;

	memcpy(&x, from, size);
	if (dtype == DTYPE_F16)
		x.f = small_value((uint16_t)x.i, 10, 15);
	else if (dtype == DTYPE_BF16)
		x.f = small_value((uint16_t)x.i, 7, 127);
	else if (dtype == DTYPE_F32) {
		memcpy(&single, &x, sizeof(single));
		x.f = (double)single;
	} else if (is_signed(dtype) && size < 8 && x.i >> (8 * size - 1))
		x.i |= ~UINT64_C(0) << 8 * size;
	return x;
}

/* Store a number that the dtype can hold, or an integer, which is cut off. */
static inline void number_store(uint32_t dtype, void *to, union number x)
{
	const uint32_t quiet_f32 = 0x7fc00000;
	const uint64_t quiet_f64 = UINT64_C(0x7ff8) << 48;
	float single = (float)x.f;

	if (dtype == DTYPE_F16)
		x.i = small_bits(x.f, 10, -14);
	else if (dtype == DTYPE_BF16)
		x.i = small_bits(x.f, 7, -126);
	else if (dtype == DTYPE_F32 && !isnan(x.f))
		memcpy(&x, &single, sizeof(single));
	else if (dtype == DTYPE_F32)
		x.i = quiet_f32;
	else if (dtype == DTYPE_F64 && isnan(x.f))
		x.i = quiet_f64;
	memcpy(to, &x, dtype_size(dtype));
}

/* --- groups -------------------------------------------------------------- */

#define MAX_PARAMS 5

struct group {
	struct plan_param params[MAX_PARAMS];
	uint32_t n_params;
	struct plan plan;
	struct layout *layout;
};

static inline void group_make_layout(struct group *group)
{
	struct error err = ERROR_NULL;

	if (layout_new(&group->plan, &group->layout, &err) == 0)
		return;
	fprintf(stderr, "layout: %s\n", err.msg);
	abort();
}

static const char *const group_names[MAX_PARAMS] = {"a", "b", "c", "d", "e"};

/* Draw a parameter that can be divided over `n_shards` shards. */
static inline void group_throw_param(struct dice *dice, uint32_t n_shards,
				     const uint32_t *dtypes, uint32_t n_dtypes,
				     struct plan_param *param)
{
	struct tensor_type *type = &param->type;

	type->dtype = dtypes[dice_throw(dice, n_dtypes)];
	type->n_dims = dice_throw(dice, 4);
	for (uint32_t i = 0; i < type->n_dims; i++)
		type->shape[i] = dice_throw(dice, 12);
	if (type->n_dims > 1 && dice_throw(dice, 3) == 0) {
		param->shard_dim =
			1 + (int32_t)dice_throw(dice, type->n_dims - 1);
		type->shape[param->shard_dim] =
			n_shards * (1 + dice_throw(dice, 4));
	} else if (type->n_dims == 1 && dice_throw(dice, 4) == 0) {
		type->shape[0] = 1000 + dice_throw(dice, 2000);
	}
	tensor_type_contiguous(type);
}

/* `policy` gives the dtypes; the layout is random. If `n_params` is 0, the
 * number is random, too. */
static inline void group_throw(struct dice *dice, uint32_t n_shards,
			       uint32_t n_replicas, const uint32_t *dtypes,
			       uint32_t n_dtypes, struct plan_policy policy,
			       struct group *group)
{
	struct error err = ERROR_NULL;

	*group = (struct group){.n_params = 1 + dice_throw(dice, MAX_PARAMS)};
	policy.layout = dice_throw(dice, 2) ? PLAN_FLAT : PLAN_IN_PLACE;
	for (uint32_t i = 0; i < group->n_params; i++) {
		group->params[i].name = group_names[i];
		group_throw_param(dice, n_shards, dtypes, n_dtypes,
				  &group->params[i]);
		group->params[i].is_frozen =
			dice_throw(dice, 5) == 0 ||
			!is_reducible(group->params[i].type.dtype);
	}
	if (plan_make(group->params, group->n_params, &policy, n_shards,
		      n_replicas, &group->plan, &err) < 0) {
		fprintf(stderr, "plan: %s\n", err.msg);
		abort();
	}
	group_make_layout(group);
}

static inline void group_deinit(struct group *group)
{
	layout_free(group->layout);
	plan_deinit(&group->plan);
}

/* Returns the place of element `i` of the whole parameter in the chunks, in
 * elements of its shard. It is computed from the indices, one dimension after
 * another. */
static inline uint64_t group_find(const struct shard *shard, uint64_t i,
				  uint32_t *ret_rank)
{
	uint64_t size = (uint64_t)shard->size, chunk = (uint64_t)shard->chunk;
	uint64_t column = i % shard->row_numel;
	uint64_t step = i / shard->row_numel % size;
	uint64_t row = i / shard->row_numel / size;

	*ret_rank = (uint32_t)(step / chunk);
	return (row * chunk + step % chunk) * shard->row_numel + column;
}

/* --- memory -------------------------------------------------------------- */

#define CANARY      0xa5
#define CANARY_SIZE 256

/* Allocate `size` bytes at the begin of a cache line, with canaries on both
 * sides. */
static inline uint8_t *memory_new(uint64_t size)
{
	uint64_t whole = (size + 63) / 64 * 64 + 2 * CANARY_SIZE;
	uint8_t *memory = aligned_alloc(64, whole);

	if (!memory)
		abort();
	memset(memory, CANARY, whole);
	return memory + CANARY_SIZE;
}

/* Frees it. Returns whether the canaries are unchanged. */
static inline bool memory_free(uint8_t *memory, uint64_t size)
{
	bool is_whole = true;

	for (uint64_t i = 0; i < CANARY_SIZE; i++) {
		if (memory[size + i] != CANARY ||
		    (memory - CANARY_SIZE)[i] != CANARY)
			is_whole = false;
	}
	free(memory - CANARY_SIZE);
	return is_whole;
}

/* Draw numbers that need rounding but stay in the range of f16. */
static inline void memory_fill(struct dice *dice, uint32_t dtype, void *to,
			       uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		union number x = {.i = dice_next(dice)};

		if (is_float(dtype)) {
			x.f = ldexp((double)(int64_t)x.i,
				    -60 - (int)dice_throw(dice, 8));
			x.f = round_float(dtype, x.f);
		}
		number_store(dtype, (uint8_t *)to + i * dtype_size(dtype), x);
	}
}
