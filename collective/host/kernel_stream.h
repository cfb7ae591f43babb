/*
 * These stores go past the caches, one line at a time. The four quarters of a
 * line fill a write-combining buffer of the CPU, which is then written without
 * reading the line first.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LINE 64

#ifdef __x86_64__
#include <emmintrin.h>

#define CAN_STREAM true

/* `to` must be the beginning of a line. */
static inline void stream_lines(uint8_t *to, const uint8_t *from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		__m128i *out = (__m128i *)(to + i * LINE);
		const __m128i *in = (const __m128i *)(from + i * LINE);
		__m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
		__m128i c = _mm_loadu_si128(in + 2);
		__m128i d = _mm_loadu_si128(in + 3);

		_mm_stream_si128(out, a);
		_mm_stream_si128(out + 1, b);
		_mm_stream_si128(out + 2, c);
		_mm_stream_si128(out + 3, d);
	}
}

static inline void stream_flush(void)
{
	_mm_sfence();
}

/* Copies to any address with any size. The parts of lines at both ends are
 * copied by normal stores. */
static inline void stream(void *to, const void *from, size_t size)
{
	size_t head = -(uintptr_t)to % LINE, n;

	if (size < head + LINE) {
		memcpy(to, from, size);
		return;
	}
	n = (size - head) / LINE;
	if (head > 0)
		memcpy(to, from, head);
	stream_lines((uint8_t *)to + head, (const uint8_t *)from + head, n);
	head += n * LINE;
	if (head < size)
		memcpy((uint8_t *)to + head, (const uint8_t *)from + head,
		       size - head);
}
#else
#define CAN_STREAM false

static inline void stream_flush(void)
{
}

/* This is never called, since CAN_STREAM is false. */
static inline void stream(void *to, const void *from, size_t size)
{
	memcpy(to, from, size);
}
#endif
