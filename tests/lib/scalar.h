/*
 * Arithmetic on elements of any dtype, one at a time, slow and obvious. Tests
 * compare the broker's arithmetic with it. It shares no code with the broker.
 *
 * Every float of up to 64 bits is a double. It is rounded to fewer bits by
 * scaling and nearbyint(), to nearest even.
 */
#pragma once
#include "client/fsdp.h"
#include <stdbool.h>
#include <stdint.h>

bool scalar_is_float(enum fsdp_dtype dtype);   /* f16, bf16, f32, f64 */
bool scalar_is_integer(enum fsdp_dtype dtype); /* any integer dtype but bool */
bool scalar_is_signed(enum fsdp_dtype dtype);

/* Returns the element's bits, beginning with the lowest. For elements of 16
 * bytes it returns the first eight bytes. */
uint64_t scalar_load(enum fsdp_dtype dtype, const void *data, uint64_t i);
void scalar_store(enum fsdp_dtype dtype, void *data, uint64_t i, uint64_t bits);

/* --- floats -------------------------------------------------------------- */

double scalar_decode(enum fsdp_dtype dtype, uint64_t bits);
/* Rounds the value once, to nearest even. */
uint64_t scalar_encode(enum fsdp_dtype dtype, double value);
double scalar_round(enum fsdp_dtype dtype, double value);

/* Returns the dtype in which sums of that dtype are computed: f32 for up to 32
 * bits, else f64. Each operation rounds to it. */
enum fsdp_dtype scalar_accumulator(enum fsdp_dtype dtype);
double scalar_add(enum fsdp_dtype accumulator, double a, double b);
double scalar_multiply(enum fsdp_dtype accumulator, double a, double b);
double scalar_divide(enum fsdp_dtype accumulator, double a, double b);

/* Returns half a unit of the last place of 1. */
double scalar_epsilon(enum fsdp_dtype dtype);
/* Returns the least number above 0. */
double scalar_least(enum fsdp_dtype dtype);

/* Returns whether the bits are the same, or both are NaN. */
bool scalar_is_same(enum fsdp_dtype dtype, uint64_t a, uint64_t b);

/* --- integers ------------------------------------------------------------ */

/* Extends the element to 64 bits, with its sign if it has one, or truncates it
 * to its size. */
uint64_t scalar_widen(enum fsdp_dtype dtype, uint64_t bits);
uint64_t scalar_narrow(enum fsdp_dtype dtype, uint64_t wide);
/* Converts the value by rounding towards zero. */
uint64_t scalar_divide_integer(enum fsdp_dtype dtype, uint64_t wide, double by);
