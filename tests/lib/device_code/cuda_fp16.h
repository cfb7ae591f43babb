/* This header replaces that of the toolkit. It defines the part that our
 * kernels use. */
#pragma once
#include "tests/lib/device_code/device.h"

struct __half {
	uint16_t bits;
};

static inline __half __ushort_as_half(uint16_t bits)
{
	return {bits};
}

static inline uint16_t __half_as_ushort(__half x)
{
	return x.bits;
}

static inline float __half2float(__half x)
{
	return device_small_to(x.bits, 10, -14);
}

static inline __half __float2half_rn(float x)
{
	return {device_small_of(x, 10, -14)};
}
