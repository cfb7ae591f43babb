/*
 * The bytes of an input as a source of choices. After its end all choices are
 * 0, which is always the most ordinary one.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct input {
	const uint8_t *at, *end;
};

static inline uint8_t input_byte(struct input *input)
{
	return input->at < input->end ? *input->at++ : 0;
}

/* Returns 0 to n - 1. */
static inline uint32_t input_below(struct input *input, uint32_t n)
{
	return input_byte(input) % n;
}

/* Returns a number that code may be wrong about. */
static inline uint64_t input_odd(struct input *input)
{
	uint8_t byte = input_byte(input);

	switch (byte >> 6) {
	case 0:
		return byte;
	case 1:
		return UINT64_C(1) << (byte & 63);
	case 2:
		return (UINT64_C(1) << (byte & 63)) - 1;
	default:
		return UINT64_MAX - (byte & 63);
	}
}
