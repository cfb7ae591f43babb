#include "bandwidth.h"
#include "bench.h"
#include "collective/host/kernel.h"
#include "copy.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define N_ARRAYS 3
/* Passes read this many arrays in turn, as ranks do that gather several
 * groups. */
#define N_TURNS 3

/* Compute `n` elements from one array of floats or from two arrays. */
typedef void move_fn(void *to, const float *a, const float *b, size_t n);

struct bandwidth {
	float *arrays[N_ARRAYS];
	uint32_t n_ranks;
	/* These belong to this process. */
	uint32_t rank, n_iterations;
	move_fn *moves[N_BANDWIDTHS];
};

static void move_plain(void *to, const float *a, const float *b, size_t n)
{
	(void)b;
	copy_plain(to, a, n * sizeof(*a));
}

static void move_streaming(void *to, const float *a, const float *b, size_t n)
{
	(void)b;
	copy_streaming(to, a, n * sizeof(*a));
}

static void cast(void *to, const float *from, size_t n, bool is_streamed)
{
	const void *in = from;

	kernels_best()->fold[DTYPE_F32][DTYPE_BF16](&to, 1, &in, 1, n, 1, 1,
						    is_streamed);
	if (is_streamed)
		kernel_flush();
}

static void cast_plain(void *to, const float *a, const float *b, size_t n)
{
	(void)b;
	cast(to, a, n, false);
}

static void cast_streaming(void *to, const float *a, const float *b, size_t n)
{
	(void)b;
	cast(to, a, n, true);
}

/* Compile it with -O3, so that it is vectorised. */
static void triad_plain(void *to, const float *a, const float *b, size_t n)
{
	const float *restrict left = a, *restrict right = b;
	float *restrict sum = to;

	for (size_t i = 0; i < n; i++)
		sum[i] = left[i] + 3 * right[i];
}

#ifdef __x86_64__
#include <emmintrin.h>

static void triad_streaming(void *to, const float *a, const float *b, size_t n)
{
	__m128 three = _mm_set1_ps(3);
	float *sum = to;

	for (size_t i = 0; i < n; i += 4)
		_mm_stream_ps(
			sum + i,
			_mm_add_ps(_mm_load_ps(a + i),
				   _mm_mul_ps(three, _mm_load_ps(b + i))));
	_mm_sfence();
}
#else
static void triad_streaming(void *to, const float *a, const float *b, size_t n)
{
	triad_plain(to, a, b, n);
}
#endif

/* One row for each kind. `moved` is the number of bytes moved for each byte of
 * the array that is read. */
static const struct {
	double moved;
	move_fn *moves[2];
	size_t size; /* bytes of an element that is written */
} kinds[N_BANDWIDTHS] = {
	{2, {move_plain, move_streaming}, 4},
	{3, {triad_plain, triad_streaming}, 4},
	{1.5, {cast_plain, cast_streaming}, 2},
};

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
		/* Allocate it as the broker allocates its chunks. */
		madvise(memory, BANDWIDTH_MAX, MADV_HUGEPAGE);
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

struct stage_order bandwidth_order(enum bandwidth_kind kind,
				   enum collective collective, uint64_t moved,
				   double *ret_scale)
{
	uint64_t size = (uint64_t)((double)moved / kinds[kind].moved);

	if (size > BANDWIDTH_MAX)
		size = BANDWIDTH_MAX;
	/* This makes every rank's part consist of whole cache lines. */
	size = (size + 4095) & ~UINT64_C(4095);
	*ret_scale = (double)moved / ((double)size * kinds[kind].moved);
	return (struct stage_order){
		.collective = collective, .variant = kind, .size = size};
}

/* Returns the size in bytes of this rank's part of the array. All parts consist
 * of whole cache lines, also in the result of a cast. */
static size_t part(const struct bandwidth *bandwidth,
		   const struct stage_order *order, uint64_t *ret_start)
{
	uint64_t lines = order->size / 128;
	uint64_t begin = lines * bandwidth->rank / bandwidth->n_ranks;
	uint64_t end = lines * (bandwidth->rank + 1) / bandwidth->n_ranks;

	*ret_start = begin * 128;
	return (end - begin) * 128;
}

static void iterate(void *data, const struct stage_order *order)
{
	struct bandwidth *bandwidth = data;
	uint64_t start;
	size_t n = part(bandwidth, order, &start) / sizeof(float);
	size_t i = start / sizeof(float);
	uint64_t turn = bandwidth->n_iterations++ % N_TURNS;
	size_t from = i;

	if (order->collective == ALL_GATHER &&
	    order->size * N_TURNS <= BANDWIDTH_MAX)
		from += turn * order->size / sizeof(float);
	bandwidth->moves[order->variant]((uint8_t *)bandwidth->arrays[0] +
						 i * kinds[order->variant].size,
					 bandwidth->arrays[1] + from,
					 bandwidth->arrays[2] + from, n);
}

/* Try both ways of storing, and choose the quicker one. */
static void prepare(void *data, const struct stage_order *order)
{
	struct bandwidth *bandwidth = data;
	move_fn *const *moves = kinds[order->variant].moves;
	move_fn **chosen = &bandwidth->moves[order->variant];
	double best[2];

	for (int i = 0; i < 2; i++) {
		struct samples samples = SAMPLES_NULL;

		*chosen = moves[i];
		for (int j = 0; j < 9; j++) {
			uint64_t start = now_ns();

			iterate(bandwidth, order);
			samples_add(&samples, (double)(now_ns() - start));
		}
		best[i] = samples_quantile(&samples, 0.5);
		samples_deinit(&samples);
	}
	*chosen = moves[best[1] < best[0]];
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
