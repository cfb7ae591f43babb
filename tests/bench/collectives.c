/*
 * Rows local_*, and the table of `fsdp-bench collectives`.
 *
 * Sizes are those of the whole parameters, in the dtype in which a rank sees
 * them: its tensors after an all-gather and before a reduction. With these
 * sizes and nccl-tests' formulas, where n is the number of ranks,
 *
 *   algbw = size / time
 *   busbw = algbw * (n - 1) / n, for an all-reduce 2 * (n - 1) / n
 *
 * *Moved* bytes are those read and written. One copy serves all ranks, so an
 * all-gather moves the same number for any number of ranks, and 0 where the
 * shards lie in place.
 */
#include "contest.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static const uint32_t worlds[] = {2, 4};
#define N_WORLDS (sizeof(worlds) / sizeof(*worlds))

/* --- rows ---------------------------------------------------------------- */

/* Keep the worst result of the variants. */
static void run_variants(struct contest *contest, enum collective collective,
			 const char *const *names, enum contender floor,
			 struct result *ret)
{
	unsigned n_pairs =
		contest->bench->is_quick ? 9 : contest->bench->n_pairs;
	struct score score;

	for (; *names; names++) {
		contest_run(contest, variant_find(collective, *names), 64 * MIB,
			    n_pairs, &score);
		score_keep_worse(&score, floor, ret);
	}
}

static void run_row(const struct bench *bench, enum collective collective,
		    const char *const *names, enum contender floor,
		    struct result *ret)
{
	struct contest contest;
	struct daemon daemon;

	*ret = (struct result){0};
	daemon_start(&daemon, bench,
		     &(struct daemon_options){.is_unpinned = true});
	for (size_t i = 0; i < N_WORLDS; i++) {
		contest_open(&contest, bench, &daemon,
			     &(struct contest_options){.n_ranks = worlds[i]});
		run_variants(&contest, collective, names, floor, ret);
		contest_close(&contest);
	}
	daemon_stop(&daemon);
}

void local_all_gather_64mib(const struct bench *bench, struct result *ret)
{
	static const char *const names[] = {"f32 flat", "f32 to bf16", NULL};

	run_row(bench, ALL_GATHER, names, COPY, ret);
}

void local_reduce_scatter_64mib(const struct bench *bench, struct result *ret)
{
	static const char *const names[] = {"f32", "bf16 to f32", NULL};

	run_row(bench, REDUCE_SCATTER, names, TRIAD, ret);
}

/* --- the table ----------------------------------------------------------- */

static const char *const titles[N_COLLECTIVES] = {
	"all-gather", "reduce-scatter", "all-reduce"};
static const char *const keys[N_COLLECTIVES] = {"all_gather", "reduce_scatter",
						"all_reduce"};

static const char *const rivals[N_RIVALS] = {"worker", "Open MPI", "MPICH"};

/* JSON keys, and values of "placement" */
static const char *const contenders[N_CONTENDERS] = {
	[COPY] = "copy",     [TRIAD] = "triad",      [CAST] = "cast",
	[WORKER] = "worker", [OPEN_MPI] = "openmpi", [MPICH] = "mpich"};
static const char *const placements[] = {
	[APART] = "apart", [CROWDED] = "crowded"};

static const uint64_t sizes[] = {MIB / 1024, MIB / 64, MIB / 16, MIB / 4, MIB,
				 4 * MIB,    16 * MIB, 64 * MIB, 0};
static const uint64_t quick_sizes[] = {MIB / 1024, MIB / 16, 4 * MIB, 64 * MIB,
				       0};

static double bus_factor(enum collective collective, uint32_t n_ranks)
{
	double n = n_ranks;

	return (collective == ALL_REDUCE ? 2 : 1) * (n - 1) / n;
}

static void print_size(uint64_t size)
{
	if (size < MIB)
		printf("%5u KiB", (unsigned)(size / 1024));
	else
		printf("%5u MiB", (unsigned)(size / MIB));
}

/* Print "-" if there is no number. */
static void print_cell(int width, int digits, double value)
{
	if (isfinite(value))
		printf(" %*.*f", width, digits, value);
	else
		printf(" %*s", width, "-");
}

static void print_title(enum collective collective,
			const struct contest_options *options)
{
	printf("\n%s, %u ranks %s\n", titles[collective], options->n_ranks,
	       options->placement == APART ? "apart" : "on one CPU");
	printf("  %-13s %9s %10s %8s %6s %6s %6s %6s %6s %6s", "variant",
	       "size", "us", "moved", "GB/s", "algbw", "busbw", "/copy",
	       "/triad", "/cast");
	for (int i = 0; i < N_RIVALS; i++)
		printf(" %10s %6s %6s %6s", rivals[i], "/ours", "from", "to");
	printf("\n");
}

static void print_score(const struct variant *variant, uint32_t n_ranks,
			uint64_t size, const struct score *score)
{
	double moved = (double)variant_moved(variant, n_ranks, size);
	double algbw = (double)size / score->of[OURS].median;

	printf("  %-13s ", variant->name);
	print_size(size);
	print_cell(10, 2, score->of[OURS].median / 1000);
	print_cell(8, 2, moved / (double)MIB);
	print_cell(6, 2, moved > 0 ? moved / score->of[OURS].median : NAN);
	print_cell(6, 2, algbw);
	print_cell(6, 2, algbw * bus_factor(variant->collective, n_ranks));
	for (int i = COPY; i < WORKER; i++)
		print_cell(6, 2, score->of[i].ratio.median);
	for (int i = WORKER; i < N_CONTENDERS; i++) {
		print_cell(10, 1, score->of[i].median / 1000);
		print_cell(6, 2, 1 / score->of[i].ratio.median);
		print_cell(6, 2, 1 / score->of[i].ratio.high);
		print_cell(6, 2, 1 / score->of[i].ratio.low);
	}
	printf("\n");
	fflush(stdout);
}

static void print_of(const char *contender, const char *what, double value)
{
	char key[32];

	snprintf(key, sizeof(key), "%s_%s", contender, what);
	print_number(key, value);
}

static void print_json(const struct variant *variant,
		       const struct contest_options *options, uint64_t size,
		       const struct score *score)
{
	uint32_t n_ranks = options->n_ranks;
	double algbw = (double)size / score->of[OURS].median;

	printf("{\"name\": \"%s\", \"variant\": \"%s\", \"ranks\": %u, "
	       "\"placement\": \"%s\", \"size\": %llu, \"moved\": %llu, "
	       "\"unit\": \"us\", \"n\": %zu",
	       keys[variant->collective], variant->name, n_ranks,
	       placements[options->placement], (unsigned long long)size,
	       (unsigned long long)variant_moved(variant, n_ranks, size),
	       score->n);
	print_number("median", score->of[OURS].median / 1000);
	print_number("min", score->of[OURS].min / 1000);
	print_number("p99", score->p99 / 1000);
	print_number("algbw", algbw);
	print_number("busbw", algbw * bus_factor(variant->collective, n_ranks));
	for (int i = COPY; i < N_CONTENDERS; i++) {
		struct spread ratio = score->of[i].ratio;

		/* The ratio of a rival is its time divided by ours. */
		if (i >= WORKER)
			ratio = (struct spread){.low = 1 / ratio.high,
						.median = 1 / ratio.median,
						.high = 1 / ratio.low};
		print_number(contenders[i], score->of[i].median / 1000);
		print_of(contenders[i], "min", score->of[i].min / 1000);
		print_of(contenders[i], "ratio", ratio.median);
		print_of(contenders[i], "ratio_low", ratio.low);
		print_of(contenders[i], "ratio_high", ratio.high);
	}
	printf("}\n");
	fflush(stdout);
}

/* Returns whether this machine has memory for the broker, with both executors,
 * and for all MPI ranks. */
static bool is_fitting(const struct variant *variant, uint32_t n_ranks,
		       uint64_t size)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
	uint64_t free = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;
	uint64_t ours = 2 * variant_memory(variant, n_ranks, size);
	uint64_t theirs = variant->has_mpi ? 2 * n_ranks * size * N_MPIS : 0;

	/* Give half of the machine's memory to the broker. */
	return ours < total / 2 / 8 * 7 && ours + theirs < free;
}

static void run_one(struct contest *contest, const struct variant *variant,
		    const struct contest_options *options, uint64_t size)
{
	struct score score;

	if (!is_fitting(variant, contest->n_ranks, size)) {
		fprintf(stderr,
			"fsdp-bench: %s of %llu MiB, %s, %u ranks: left out, "
			"there is too little memory\n",
			titles[variant->collective],
			(unsigned long long)(size / MIB), variant->name,
			contest->n_ranks);
		return;
	}
	contest_run(contest, variant, size, contest->bench->is_quick ? 7 : 11,
		    &score);
	if (contest->bench->is_json)
		print_json(variant, options, size, &score);
	else
		print_score(variant, contest->n_ranks, size, &score);
}

static void run_world(const struct bench *bench, const struct daemon *daemon,
		      const struct contest_options *options)
{
	const uint64_t *first = bench->is_quick ? quick_sizes : sizes;
	int last = -1;
	struct contest contest;

	contest_open(&contest, bench, daemon, options);
	for (size_t i = 0; i < N_VARIANTS; i++) {
		const struct variant *variant = &variants[i];

		if (bench->is_quick && !variant->is_quick)
			continue;
		if (!bench->is_json && (int)variant->collective != last)
			print_title(variant->collective, options);
		last = (int)variant->collective;
		for (const uint64_t *size = first; *size; size++)
			run_one(&contest, variant, options, *size);
	}
	contest_close(&contest);
}

static const char head[] =
	"Sizes are of the whole parameters as a rank sees them; MiB moved are "
	"read and\n"
	"written once for all ranks (in place: nothing). algbw and busbw in "
	"GB/s as in\n"
	"nccl-tests. /copy, /triad, /cast: times what moving as many bytes "
	"takes by as\n"
	"many processes. worker: the same by fsdp-worker; MPI: the f32 "
	"collective (sum);\n"
	"in us and times ours, with quartiles. \"-\": not there, or it has no "
	"such thing "
	"(bf16, casts).\n"
	"apart: each rank on a CPU of its own, as far as there are enough. "
	"All in turns in\n"
	"one run.\n";

void collectives(const struct bench *bench, struct result *ret)
{
	struct daemon daemon;

	if (!bench->is_json)
		fputs(head, stdout);
	daemon_start(&daemon, bench,
		     &(struct daemon_options){.is_unpinned = true});
	for (size_t i = 0; i < N_WORLDS; i++)
		for (int j = APART; j <= CROWDED; j++)
			run_world(bench, &daemon,
				  &(struct contest_options){
					  .n_ranks = worlds[i],
					  .placement = (enum placement)j,
					  .has_worker = true,
					  .has_mpi = true});
	daemon_stop(&daemon);
	*ret = (struct result){0};
}
