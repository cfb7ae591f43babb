#include "copy.h"
#include "bench.h"
#include <string.h>

void copy_plain(void *to, const void *from, size_t size)
{
	memcpy(to, from, size);
}

#ifdef __x86_64__
#include <emmintrin.h>

void copy_streaming(void *to, const void *from, size_t size)
{
	const __m128i *source = from;
	__m128i *target = to;

	for (size_t i = 0; i < size / sizeof(*source); i += 4)
		for (size_t j = i; j < i + 4; j++)
			_mm_stream_si128(target + j,
					 _mm_load_si128(source + j));
	_mm_sfence();
}
#else
void copy_streaming(void *to, const void *from, size_t size)
{
	memcpy(to, from, size);
}
#endif

copy_fn *copy_choose(void *to, const void *from, size_t size)
{
	copy_fn *copies[2] = {copy_plain, copy_streaming};
	double best[2];

	for (int i = 0; i < 2; i++) {
		struct samples samples = SAMPLES_NULL;

		for (int j = 0; j < 9; j++) {
			uint64_t start = now_ns();

			copies[i](to, from, size);
			samples_add(&samples, (double)(now_ns() - start));
		}
		best[i] = samples_quantile(&samples, 0.5);
		samples_deinit(&samples);
	}
	return copies[best[1] < best[0]];
}
