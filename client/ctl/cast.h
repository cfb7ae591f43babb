/*
 * Small floats to f32, exactly: f32 has every value that f16, bf16 and the
 * two 8-bit formats have, so nothing is rounded.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Does cast_to_f32() know this dtype? */
bool cast_is_known(uint32_t dtype);

/* `n` elements of a known dtype; `src` needs no alignment. */
void cast_to_f32(uint32_t dtype, const void *src, float *dst, size_t n);
