/* This header replaces that of the toolkit. It defines the part that our
 * kernels use. */
#pragma once
#include "tests/lib/device_code/device.h"

struct __nv_bfloat16 {
	uint16_t bits;
};

static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x)
{
	return x.bits;
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
	return {device_small_of(x, 7, -126)};
}
