#include "bandwidth.h"
#include "bench.h"
#include "copy.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define N_ARRAYS 3

typedef void triad_fn(float *to, const float *a, const float *b, size_t n);

struct bandwidth {
	float *arrays[N_ARRAYS];
	uint32_t n_ranks;
	/* of this process */
	uint32_t rank;
	copy_fn *copy;
	triad_fn *triad;
};

/* Compiled with -O3, so that it is vectorised. */
static void triad_plain(float *restrict to, const float *restrict a,
			const float *restrict b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = a[i] + 3 * b[i];
}

#ifdef __x86_64__
#include <emmintrin.h>

static void triad_streaming(float *to, const float *a, const float *b, size_t n)
{
	__m128 three = _mm_set1_ps(3);

	for (size_t i = 0; i < n; i += 4)
		_mm_stream_ps(
			to + i,
			_mm_add_ps(_mm_load_ps(a + i),
				   _mm_mul_ps(three, _mm_load_ps(b + i))));
	_mm_sfence();
}
#else
static void triad_streaming(float *to, const float *a, const float *b, size_t n)
{
	triad_plain(to, a, b, n);
}
#endif

struct bandwidth *bandwidth_new(uint32_t n_ranks)
{
	struct bandwidth *bandwidth = calloc(1, sizeof(*bandwidth));

	if (!bandwidth)
		die("out of memory");
	bandwidth->n_ranks = n_ranks;
	for (int i = 0; i < N_ARRAYS; i++) {
		void *memory = mmap(NULL, BANDWIDTH_MAX, PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_ANONYMOUS, -1, 0);

		if (memory == MAP_FAILED)
			die("map %zu bytes: %m", (size_t)BANDWIDTH_MAX);
		/* As the broker's chunks are. */
		madvise(memory, BANDWIDTH_MAX, MADV_HUGEPAGE);
		memset(memory, 0, BANDWIDTH_MAX);
		bandwidth->arrays[i] = memory;
	}
	return bandwidth;
}

void bandwidth_free(struct bandwidth *bandwidth)
{
	for (int i = 0; i < N_ARRAYS; i++)
		munmap(bandwidth->arrays[i], BANDWIDTH_MAX);
	free(bandwidth);
}

static uint64_t n_arrays(uint32_t kind)
{
	return kind == BANDWIDTH_COPY ? 2 : 3;
}

struct stage_order bandwidth_order(enum bandwidth_kind kind, uint64_t moved,
				   double *ret_scale)
{
	uint64_t size = moved / n_arrays(kind);

	if (size > BANDWIDTH_MAX)
		size = BANDWIDTH_MAX;
	/* So that all ranks' parts are whole cache lines. */
	size = (size + 4095) & ~UINT64_C(4095);
	*ret_scale = (double)moved / (double)(size * n_arrays(kind));
	return (struct stage_order){.variant = kind, .size = size};
}

/* This rank's part of the array: bytes, whole lines. */
static size_t part(const struct bandwidth *bandwidth,
		   const struct stage_order *order, uint64_t *ret_start)
{
	uint64_t lines = order->size / 64;
	uint64_t begin = lines * bandwidth->rank / bandwidth->n_ranks;
	uint64_t end = lines * (bandwidth->rank + 1) / bandwidth->n_ranks;

	*ret_start = begin * 64;
	return (end - begin) * 64;
}

static void iterate(void *data, const struct stage_order *order)
{
	struct bandwidth *bandwidth = data;
	uint64_t start;
	size_t size = part(bandwidth, order, &start);
	size_t i = start / sizeof(float);

	if (order->variant == BANDWIDTH_COPY)
		bandwidth->copy(bandwidth->arrays[0] + i,
				bandwidth->arrays[1] + i, size);
	else
		bandwidth->triad(
			bandwidth->arrays[0] + i, bandwidth->arrays[1] + i,
			bandwidth->arrays[2] + i, size / sizeof(float));
}

static triad_fn *triad_choose(struct bandwidth *bandwidth,
			      const struct stage_order *order)
{
	triad_fn *triads[2] = {triad_plain, triad_streaming};
	double best[2];

	for (int i = 0; i < 2; i++) {
		struct samples samples = SAMPLES_NULL;

		bandwidth->triad = triads[i];
		for (int j = 0; j < 9; j++) {
			uint64_t start = now_ns();

			iterate(bandwidth, order);
			samples_add(&samples, (double)(now_ns() - start));
		}
		best[i] = samples_quantile(&samples, 0.5);
		samples_deinit(&samples);
	}
	return triads[best[1] < best[0]];
}

static void prepare(void *data, const struct stage_order *order)
{
	struct bandwidth *bandwidth = data;
	uint64_t start;
	size_t size = part(bandwidth, order, &start);
	size_t i = start / sizeof(float);

	if (order->variant == BANDWIDTH_COPY)
		bandwidth->copy = copy_choose(bandwidth->arrays[0] + i,
					      bandwidth->arrays[1] + i, size);
	else
		bandwidth->triad = triad_choose(bandwidth, order);
}

static void release(void *data)
{
	(void)data;
}

void bandwidth_serve(struct stage *stage, uint32_t rank, void *data)
{
	static const struct stage_acts acts = {prepare, iterate, release};
	struct bandwidth *bandwidth = data;

	bandwidth->rank = rank;
	stage_serve(stage, rank, &acts, bandwidth);
}
