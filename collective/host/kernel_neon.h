/*
 * Conversions of small floats by instructions of Armv8.2 with bf16, for
 * kernel_body.h.
 *
 * FCVT and BFCVTN round as our code does (to nearest even, with subnormals)
 * while FPCR is 0, as it is in every thread of fsdp-worker. But they keep the
 * sign and the payload of NaN, so NaN is replaced afterwards; setting FPCR.DN
 * instead would change it for the whole thread. Conversions to f32 are exact,
 * and a NaN in between does not affect the result. Values that do not fill a
 * vector, and f64, use the code for all CPUs.
 */
#pragma once
#include <arm_neon.h>

static inline float f32_of_f16(uint16_t half)
{
	__fp16 value;

	memcpy(&value, &half, sizeof(value));
	return (float)value;
}

/* Returns all ones for each value that is not NaN. */
static inline uint16x8_t is_number(float32x4_t low, float32x4_t high)
{
	return vcombine_u16(vmovn_u32(vceqq_f32(low, low)),
			    vmovn_u32(vceqq_f32(high, high)));
}

static inline void narrow_F16(uint16_t *to, const float *from, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		float32x4_t low = vld1q_f32(from + i);
		float32x4_t high = vld1q_f32(from + i + 4);
		float16x8_t both = vcvt_high_f16_f32(vcvt_f16_f32(low), high);

		vst1q_u16(to + i, vbslq_u16(is_number(low, high),
					    vreinterpretq_u16_f16(both),
					    vdupq_n_u16(0x7e00)));
	}
	for (; i < n; i++)
		to[i] = f16_of_f32(from[i]);
}

static inline void narrow_BF16(uint16_t *to, const float *from, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		float32x4_t low = vld1q_f32(from + i);
		float32x4_t high = vld1q_f32(from + i + 4);
		bfloat16x8_t both =
			vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high);

		vst1q_u16(to + i, vbslq_u16(is_number(low, high),
					    vreinterpretq_u16_bf16(both),
					    vdupq_n_u16(0x7fc0)));
	}
	for (; i < n; i++)
		to[i] = bf16_of_f32(from[i]);
}
