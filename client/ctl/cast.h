/*
 * Converts small floats to f32. The conversion is exact, because f32 has every
 * value of f16, bf16 and the two 8-bit formats.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns whether cast_to_f32() can convert this dtype. */
bool cast_is_known(uint32_t dtype);

/* Converts `n` elements of such a dtype; `src` needs no alignment. */
void cast_to_f32(uint32_t dtype, const void *src, float *dst, size_t n);
