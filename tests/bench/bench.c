#include "bench.h"
#include "fsdp.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* See repeats_next(). */
#define KNOWN       0.05
#define MAX_REPEATS 4
/* time limit for each of the `n_min` pairs */
#define REPEAT_NS UINT64_C(200000000)

void die(const char *format, ...)
{
	va_list args;

	fputs("fsdp-bench: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

void must(int r, const char *what)
{
	if (r < 0)
		die("%s: %s (%s)", what, fsdp_error(), strerror(-r));
}

int sys(int r, const char *what)
{
	if (r < 0)
		die("%s: %s", what, strerror(errno));
	return r;
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

uint64_t cpu_ns(void)
{
	return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

void sleep_us(unsigned us)
{
	struct timespec t = {.tv_sec = us / 1000000,
			     .tv_nsec = us % 1000000 * 1000l};

	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sys(sched_setaffinity(0, sizeof(set), &set), "pin to a CPU");
}

void unpin(const struct bench *bench)
{
	sys(sched_setaffinity(0, sizeof(bench->cpus), &bench->cpus), "unpin");
}

const char *bench_beside(const char *program, char *ret)
{
	size_t max = PATH_MAX - strlen(program) - 1;
	ssize_t n = readlink("/proc/self/exe", ret, max);

	ret[sys((int)n, "read /proc/self/exe")] = 0;
	strcpy(strrchr(ret, '/') + 1, program);
	return ret;
}

void samples_add(struct samples *samples, double value)
{
	if (samples->n == samples->n_max) {
		samples->n_max = samples->n_max ? samples->n_max * 2 : 256;
		samples->values = reallocarray(samples->values, samples->n_max,
					       sizeof(*samples->values));
		if (!samples->values)
			die("out of memory for samples");
	}
	samples->values[samples->n++] = value;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double samples_quantile(struct samples *samples, double q)
{
	size_t n = samples->n;
	size_t at;

	if (n == 0)
		return NAN;
	qsort(samples->values, n, sizeof(*samples->values), compare);
	at = (size_t)ceil(q * (double)n);
	return samples->values[at ? at - 1 : 0];
}

void samples_deinit(struct samples *samples)
{
	free(samples->values);
	*samples = SAMPLES_NULL;
}

struct spread samples_spread(struct samples *samples)
{
	return (struct spread){
		.low = samples_quantile(samples, 0.25),
		.median = samples_quantile(samples, 0.5),
		.high = samples_quantile(samples, 0.75),
	};
}

struct repeats repeats_begin(const struct bench *bench, unsigned n_min)
{
	return (struct repeats){
		.n_min = n_min, .is_quick = bench->is_quick, .start = now_ns()};
}

/* The width of the notch in a box plot: medians that are this far apart are
 * likely to differ (McGill, Tukey, Larsen: Variations of box plots, 1978). */
static bool is_known(struct samples *ratios)
{
	struct spread spread = samples_spread(ratios);
	double notch =
		1.57 * (spread.high - spread.low) / sqrt((double)ratios->n);

	return ratios->n == 0 || notch <= KNOWN * spread.median;
}

bool repeats_next(struct repeats *repeats, struct samples *const *lists,
		  size_t n_lists)
{
	unsigned n = repeats->n++;
	bool is_done = true;

	if (n < repeats->n_min)
		return true;
	if (repeats->is_quick || n >= MAX_REPEATS * repeats->n_min ||
	    now_ns() - repeats->start > repeats->n_min * REPEAT_NS)
		return false;
	for (size_t i = 0; i < n_lists; i++)
		is_done = is_done && is_known(lists[i]);
	return !is_done;
}

bool pairs_next(struct pairs *pairs, struct repeats *repeats)
{
	struct samples *ratios = &pairs->ratios;

	return repeats_next(repeats, &ratios, 1);
}

void pairs_close(struct pairs *pairs)
{
	double floor = samples_quantile(&pairs->floor, 0.5);
	double ours = samples_quantile(&pairs->ours, 0.5);

	samples_add(&pairs->floors, floor);
	samples_add(&pairs->blocks, ours);
	samples_add(&pairs->ratios, ours / floor);
	for (size_t i = 0; i < pairs->ours.n; i++)
		samples_add(&pairs->all, pairs->ours.values[i]);
	pairs->floor.n = 0;
	pairs->ours.n = 0;
}

void pairs_result(struct pairs *pairs, double unit, struct result *ret)
{
	struct spread ratio = samples_spread(&pairs->ratios);

	*ret = (struct result){
		.median = samples_quantile(&pairs->all, 0.5) / unit,
		.p99 = samples_quantile(&pairs->all, 0.99) / unit,
		.floor = samples_quantile(&pairs->floors, 0.5) / unit,
		.ratio = ratio.median,
		.ratio_low = ratio.low,
		.ratio_high = ratio.high,
		.min = samples_quantile(&pairs->blocks, 0) / unit,
		.floor_min = samples_quantile(&pairs->floors, 0) / unit,
		.n = pairs->all.n,
	};
}

void pairs_deinit(struct pairs *pairs)
{
	samples_deinit(&pairs->floor);
	samples_deinit(&pairs->ours);
	samples_deinit(&pairs->floors);
	samples_deinit(&pairs->blocks);
	samples_deinit(&pairs->ratios);
	samples_deinit(&pairs->all);
}

void absolute_result(struct samples *samples, double value, double limit,
		     struct result *ret)
{
	*ret = (struct result){
		.median = samples_quantile(samples, 0.5),
		.p99 = samples_quantile(samples, 0.99),
		.floor = limit,
		.ratio = value / limit,
		.n = samples->n,
	};
}

void print_number(const char *key, double value)
{
	if (isfinite(value))
		printf(", \"%s\": %.6g", key, value);
	else
		printf(", \"%s\": null", key);
}

struct fsdp_client *client_open(const char *socket)
{
	struct fsdp_connect_options options = {.path = socket};
	struct fsdp_client *client;

	must(fsdp_connect(&options, &client), "connect");
	return client;
}

void name_format(char *ret, const char *prefix, size_t i)
{
	snprintf(ret, NAME_SIZE, "%.40s/%08zu", prefix, i);
}

static void publish_batch(struct fsdp_client *client, const char *prefix,
			  size_t first, size_t n, size_t size)
{
	struct fsdp_spec specs[FSDP_MAX_BATCH];
	struct fsdp_tensor *tensors[FSDP_MAX_BATCH];
	struct fsdp_publication publications[FSDP_MAX_BATCH] = {0};
	char names[FSDP_MAX_BATCH][NAME_SIZE];

	for (size_t i = 0; i < n; i++) {
		name_format(names[i], prefix, first + i);
		specs[i] = (struct fsdp_spec){.dtype = FSDP_U8,
					      .n_dims = 1,
					      .shape = {(int64_t)size}};
	}
	must(fsdp_alloc(client, specs, n, NULL, 10000, tensors), "alloc");
	for (size_t i = 0; i < n; i++) {
		publications[i].tensor = tensors[i];
		publications[i].name = names[i];
	}
	must(fsdp_publish(client, publications, n), "publish");
	for (size_t i = 0; i < n; i++)
		fsdp_free(tensors[i]);
}

void publish_many(struct fsdp_client *client, const char *prefix, size_t n,
		  size_t size)
{
	for (size_t i = 0; i < n; i += FSDP_MAX_BATCH) {
		size_t left = n - i;

		publish_batch(client, prefix, i,
			      left < FSDP_MAX_BATCH ? left : FSDP_MAX_BATCH,
			      size);
	}
}
