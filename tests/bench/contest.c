#include "contest.h"
#include "fsdp.h"
#include <assert.h>
#include <math.h>
#include <string.h>

/* A round has as many small collectives as fit into about this time. */
#define ROUND_NS       4000000
#define MAX_ITERATIONS 512
/* Any rank may take any piece of a gather, so it takes a while until each of
 * them has touched all pages of all groups. */
#define N_FIRST 24
/* If one iteration takes longer than this, it does not matter that a rank
 * begins a little later, and there is no warm-up. */
#define COLD_NS 20000000

/* One party of a run. */
struct runner {
	struct party *party;
	struct stage_order order;
	double scale; /* by which its times are multiplied */
	double last;
	struct samples times, ratios; /* ratios of ours to it */
};

static_assert((int)TRIAD - COPY == BANDWIDTH_TRIAD &&
		      (int)CAST - COPY == BANDWIDTH_CAST,
	      "the order of bandwidths");

void contest_open(struct contest *contest, const struct bench *bench,
		  const struct daemon *daemon,
		  const struct contest_options *options)
{
	enum placement placement = options->placement;
	uint32_t n_ranks = options->n_ranks;

	*contest = (struct contest){.bench = bench, .n_ranks = n_ranks};
	contest->options.socket = daemon->socket;
	contest->options.n_ranks = n_ranks;
	contest->options.executor = FSDP_EXECUTOR_RANK;
	contest->worker_options = contest->options;
	contest->worker_options.executor = FSDP_EXECUTOR_WORKER;
	contest->bandwidth = bandwidth_new(n_ranks);
	party_start(&contest->memory, bench, "bandwidth", n_ranks,
		    placement == ANYWHERE ? APART : placement, bandwidth_serve,
		    contest->bandwidth);
	party_start(&contest->ours, bench, "ranks", n_ranks, placement,
		    rank_serve, &contest->options);
	if (options->has_worker)
		party_start(&contest->rivals[0], bench, "worker", n_ranks,
			    placement, rank_serve, &contest->worker_options);
	for (int i = 0; i < N_MPIS && options->has_mpi; i++)
		party_start_mpi(&contest->rivals[OPEN_MPI - WORKER + i], bench,
				&mpis[i], n_ranks, placement);
	contest->client = client_open(daemon->socket);
}

void contest_close(struct contest *contest)
{
	fsdp_close(contest->client);
	for (int i = 0; i < N_RIVALS; i++)
		party_stop(&contest->rivals[i]);
	party_stop(&contest->ours);
	party_stop(&contest->memory);
	bandwidth_free(contest->bandwidth);
}

static bool runner_order(struct runner *runner, uint32_t verb)
{
	runner->order.verb = verb;
	if (runner->party && !party_order(runner->party, &runner->order))
		runner->party = NULL;
	return runner->party;
}

static void runner_run(struct runner *runner)
{
	runner->last = NAN;
	if (runner_order(runner, STAGE_RUN))
		runner->last = stage_time(runner->party->stage) * runner->scale;
}

/* Find out how many iterations a round needs. */
static void runner_prepare(struct runner *runner)
{
	double n;

	if (!runner_order(runner, STAGE_PREPARE))
		return;
	runner->order.n_iterations = 1;
	runner->order.n_warm = N_FIRST;
	runner_run(runner);
	if (!runner->party)
		return;
	n = ROUND_NS / (runner->last / runner->scale);
	runner->order.n_iterations = n < 1                ? 1
				     : n > MAX_ITERATIONS ? MAX_ITERATIONS
							  : (uint32_t)n;
	runner->order.n_warm = runner->last < COLD_NS;
}

static bool is_cast_gather(const struct variant *variant)
{
	return variant->collective == ALL_GATHER &&
	       variant->stored != variant->whole;
}

static void runners_init(struct runner *runners, struct contest *contest,
			 const struct variant *variant, uint64_t size)
{
	uint64_t moved = variant_moved(variant, contest->n_ranks, size);
	struct stage_order order = {.collective = variant->collective,
				    .variant = (uint32_t)(variant - variants),
				    .number = contest->n_prepared++,
				    .size = size};
	int n_rivals = variant->has_mpi ? N_RIVALS : OPEN_MPI - WORKER;

	memset(runners, 0, N_CONTENDERS * sizeof(*runners));
	runners[OURS] = (struct runner){
		.party = &contest->ours, .order = order, .scale = 1};
	for (int i = 0; i < N_BANDWIDTHS && moved; i++) {
		struct runner *runner = &runners[COPY + i];

		if (i == BANDWIDTH_CAST && !is_cast_gather(variant))
			continue;
		runner->party = &contest->memory;
		runner->order = bandwidth_order((enum bandwidth_kind)i,
						variant->collective, moved,
						&runner->scale);
	}
	for (int i = 0; i < n_rivals; i++) {
		struct runner *runner = &runners[WORKER + i];

		*runner = (struct runner){.party = &contest->rivals[i],
					  .order = order,
					  .scale = 1};
		/* Each communicator has a name of its own. */
		runner->order.number = contest->n_prepared++;
	}
}

static int add_gathered(const char *name, uint64_t value, void *data)
{
	if (strcmp(name, "bytes_gathered") == 0)
		*(uint64_t *)data = value;
	return 0;
}

static uint64_t count_gathered(const struct contest *contest)
{
	uint64_t n = 0;

	must(fsdp_status(contest->client, add_gathered, &n, NULL),
	     "ask for the counters");
	return n;
}

/* Check that the gathers moved all bytes. A gather that moves nothing would
 * make our time look too short. */
static void run_ours(struct contest *contest, struct runner *runner,
		     uint64_t moved)
{
	uint64_t before = count_gathered(contest);
	uint64_t n = runner->order.n_iterations + runner->order.n_warm;
	uint64_t gathered;

	runner_run(runner);
	gathered = count_gathered(contest) - before;
	if (runner->order.collective == ALL_GATHER && gathered != n * moved)
		die("%llu gathers moved %llu bytes instead of %llu each",
		    (unsigned long long)n, (unsigned long long)gathered,
		    (unsigned long long)moved);
}

/* Run a round of each party. */
static void run_pair(struct contest *contest, struct runner *runners,
		     uint64_t moved)
{
	double ours;

	run_ours(contest, &runners[OURS], moved);
	for (int i = OURS + 1; i < N_CONTENDERS; i++)
		runner_run(&runners[i]);
	ours = runners[OURS].last;
	for (int i = 0; i < N_CONTENDERS; i++) {
		if (!runners[i].party)
			continue;
		samples_add(&runners[i].times, runners[i].last);
		samples_add(&runners[i].ratios, ours / runners[i].last);
	}
}

static void score_make(struct runner *runners, struct score *ret)
{
	ret->p99 = samples_quantile(&runners[OURS].times, 0.99);
	ret->n = runners[OURS].times.n;
	for (int i = 0; i < N_CONTENDERS; i++)
		ret->of[i] = (struct standing){
			.median = samples_quantile(&runners[i].times, 0.5),
			.min = samples_quantile(&runners[i].times, 0),
			.ratio = samples_spread(&runners[i].ratios),
		};
}

void contest_run(struct contest *contest, const struct variant *variant,
		 uint64_t size, unsigned n_min, struct score *ret)
{
	struct samples *ratios[N_CONTENDERS];
	struct repeats repeats;
	struct runner runners[N_CONTENDERS];

	runners_init(runners, contest, variant, size);
	for (int i = 0; i < N_CONTENDERS; i++) {
		runner_prepare(&runners[i]);
		ratios[i] = &runners[i].ratios;
	}
	repeats = repeats_begin(contest->bench, n_min);
	while (repeats_next(&repeats, ratios, N_CONTENDERS))
		run_pair(contest, runners,
			 variant_moved(variant, contest->n_ranks, size));
	for (int i = 0; i < N_CONTENDERS; i++)
		runner_order(&runners[i], STAGE_RELEASE);
	score_make(runners, ret);
	for (int i = 0; i < N_CONTENDERS; i++) {
		samples_deinit(&runners[i].times);
		samples_deinit(&runners[i].ratios);
	}
}

static enum contender better_mpi(const struct score *score)
{
	double openmpi = score->of[OPEN_MPI].median;
	double mpich = score->of[MPICH].median;

	if (isnan(openmpi) && isnan(mpich))
		die("neither Open MPI nor MPICH runs here; install one before "
		    "fsdp-bench is built");
	return isnan(mpich) || openmpi < mpich ? OPEN_MPI : MPICH;
}

void score_keep_worse(const struct score *score, enum contender floor,
		      struct result *ret)
{
	const struct standing *bare =
		&score->of[floor == BETTER_MPI ? better_mpi(score) : floor];

	if (bare->ratio.median <= ret->ratio)
		return;
	*ret = (struct result){
		.median = score->of[OURS].median / 1000,
		.p99 = score->p99 / 1000,
		.floor = bare->median / 1000,
		.ratio = bare->ratio.median,
		.ratio_low = bare->ratio.low,
		.ratio_high = bare->ratio.high,
		.min = score->of[OURS].min / 1000,
		.floor_min = bare->min / 1000,
		.n = score->n,
	};
	for (int i = 0; i < N_MPIS; i++)
		ret->mpi[i] = 1 / score->of[OPEN_MPI + i].ratio.median;
}

void contest_row(const struct bench *bench,
		 const struct contest_options *options,
		 const struct variant *variant, uint64_t size,
		 enum contender floor, struct result *ret)
{
	struct contest_options each = *options;
	struct contest contest;
	struct daemon daemon;
	struct score score;

	*ret = (struct result){0};
	daemon_start(&daemon, bench,
		     &(struct daemon_options){.is_unpinned = true});
	for (each.n_ranks = 2; each.n_ranks <= 4; each.n_ranks += 2) {
		contest_open(&contest, bench, &daemon, &each);
		contest_run(&contest, variant, size, bench->n_pairs, &score);
		contest_close(&contest);
		score_keep_worse(&score, floor, ret);
	}
	daemon_stop(&daemon);
}
