/*
 * Kills the broker, ranks and fsdp-worker while ranks train: at every failpoint
 * that the broker passes for collectives, at every failpoint that a rank
 * passes, before each call of a rank, and at random moments.
 *
 * The ranks do not notice the death of a broker, unless the executor works on
 * devices or is fsdp-worker. After any other death, the other processes are
 * told which process died and why, and all of them join again. The training
 * ends with the same values as an undisturbed one. When the communicator is
 * removed, nothing of it remains (tests/lib/drill.h).
 */
#include "tests/lib/chance.h"
#include "tests/lib/check.h"
#include "tests/lib/drill.h"
#include "tests/lib/memory.h"
#include "tests/lib/patience.h"
#include "tests/lib/ranks.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* This many passages of one failpoint are tried. */
#define MAX_PASSAGES (are_on_devices() ? 1 : 3)

/* --- undisturbed --------------------------------------------------------- */

TestSuite(chaos_collective, .init = drill_open, .fini = drill_close,
	  .timeout = 300);

Test(chaos_collective, undisturbed_training_ends_with_correct_values)
{
	static const uint32_t worlds[][2] = {{1, 1}, {2, 2}, {3, 3},
					     {4, 4}, {4, 2}, {2, 1}};

	for (size_t i = 0; i < sizeof(worlds) / sizeof(*worlds); i++) {
		struct training training = {
			.world = worlds[i][0],
			.n_shards = worlds[i][1],
			.last_step = 4,
		};

		drill_train(&training);
		for (uint32_t rank = 0; rank < training.world; rank++)
			cr_assert(not(drill_has_failed_once(&training, rank)));
	}
}

/* --- the broker ---------------------------------------------------------- */

/* Returns whether collectives pass the failpoint, or whether it is passed when
 * the memory that they keep changes. */
static bool is_of_collectives(const char *name)
{
	static const char *const prefixes[] = {
		"comm.",          "group.",         "gather.",
		"reduce.",        "engine.",        "storage.",
		"adopt.",         "verb.comm_",     "verb.group",
		"verb.unshard",   "verb.reshard",   "verb.input",
		"verb.reduce",    "verb.commit",    "verb.wait",
		"catalog.commit", "session.ended",  "slot.freed",
		"pool.stored",    "pool.forgotten", "fdstore.put",
		"board.stored",
	};

	for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++) {
		if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
			return true;
	}
	return false;
}

/* Returns whether fsdp-worker is the executor on host memory. By default the
 * ranks are. */
static bool has_engine(void)
{
	return getenv("FSDP_TEST_EXECUTOR") && !are_on_devices();
}

/* Choose the first passage (k = 0), the last one (1), or one between (2).
 * Returns 0 if there is no such passage. */
static unsigned int pick_passage(const struct passage *it, unsigned int k)
{
	if (k == 0)
		return 1;
	if (k == 1)
		return it->n > 1 ? it->n : 0;
	return it->n > 2 ? 1 + it->n / 2 : 0;
}

struct toll {
	/* n_told counts the ranks of all runs */
	unsigned int n_tried, n_deaths, n_told;
};

/* Each run has a new broker, because a supervisor gives up after several
 * deaths. */
static void die_by_plan(const struct training *it, const char *plan,
			struct toll *toll)
{
	struct training training = *it;
	uint64_t epoch;
	bool is_done;

	fprintf(stderr, "broker killed: %s", plan);
	drill_close();
	drill_open();
	epoch = status_value(drill_watcher, "epoch");
	plan_write(drill_chaos.plan, plan);
	drill_train(&training);
	is_done = plan_is_done(drill_chaos.plan);
	plan_drop(drill_chaos.plan);
	toll->n_tried++;
	toll->n_deaths += is_done;
	toll->n_told += drill_check_broker_death(&training);
	cr_assert(eq(uint, training.n_dead, 0));
	if (!is_done)
		fprintf(stderr, "not reached\n");
	else
		cr_assert(gt(u64, status_value(drill_watcher, "epoch"), epoch));
}

static void learn_points(const struct training *it, struct passages *ret)
{
	struct training training = *it;

	passages_forget(drill_chaos.points);
	drill_train(&training);
	passages_read(drill_chaos.points, ret);
}

/* The deaths at all failpoints are divided into parts. Each part is a test of
 * its own, so that new failpoints do not make a single test too long. */
struct part {
	unsigned int i, n;
};

/* A part may have this many more failpoints than its share that are passed at
 * the beginning or the end of a run. */
#define FEW 4

/* A failpoint's name decides to which part it belongs, since the order and
 * number of passages differ from run to run. */
static bool is_of_part(const char *name, const struct part *part)
{
	unsigned int sum = 0;

	while (*name)
		sum += (unsigned char)*name++;
	return sum % part->n == part->i;
}

static void broker_dies_everywhere(const struct training *training,
				   unsigned int max_passages,
				   const struct part *part)
{
	struct toll toll = {0, 0, 0};
	struct passages passages;
	unsigned int n, n_plans = 0;
	char plan[96];

	drill_need_points();
	learn_points(training, &passages);
	for (size_t i = 0; i < passages.n; i++) {
		const struct passage *it = &passages.list[i];

		for (unsigned int k = 0; k < max_passages; k++) {
			n = pick_passage(it, k);
			if (n == 0 || !is_of_collectives(it->name))
				continue;
			n_plans++;
			if (!is_of_part(it->name, part))
				continue;
			snprintf(plan, sizeof(plan), "%s %u\n", it->name, n);
			die_by_plan(training, plan, &toll);
		}
	}
	fprintf(stderr, "%u deaths of %u\n", toll.n_deaths, toll.n_tried);
	/* If ranks are the executor, there are no failpoints of an engine. */
	cr_assert(ge(uint, n_plans, has_engine() ? 40 : 25));
	/* The number of passages differs from run to run, so some deaths do not
	 * happen. */
	cr_assert(ge(uint, toll.n_deaths * 2 + FEW, toll.n_tried));
	/* Ranks that have not joined yet, or have finished, are not told. */
	cr_assert(runs_go_on() ||
		  (toll.n_told + FEW) * 3 >= toll.n_deaths * training->world);
}

#define BROKER_DIES(points_of, part_, n_parts, max_passages, ...)              \
	Test(chaos_collective,                                                 \
	     the_broker_dies_at_every_failpoint_of_##points_of##_##part_)      \
	{                                                                      \
		static const struct training training = __VA_ARGS__;           \
		static const struct part part = {(part_)-1, n_parts};          \
                                                                               \
		broker_dies_everywhere(&training, max_passages, &part);        \
	}

BROKER_DIES(two_ranks, 1, 5, MAX_PASSAGES, {2, 2, 3, {0}, 0, 0})
BROKER_DIES(two_ranks, 2, 5, MAX_PASSAGES, {2, 2, 3, {0}, 0, 0})
BROKER_DIES(two_ranks, 3, 5, MAX_PASSAGES, {2, 2, 3, {0}, 0, 0})
BROKER_DIES(two_ranks, 4, 5, MAX_PASSAGES, {2, 2, 3, {0}, 0, 0})
BROKER_DIES(two_ranks, 5, 5, MAX_PASSAGES, {2, 2, 3, {0}, 0, 0})
BROKER_DIES(two_meshes, 1, 3, 1, {4, 2, 2, {0}, 0, 0})
BROKER_DIES(two_meshes, 2, 3, 1, {4, 2, 2, {0}, 0, 0})
BROKER_DIES(two_meshes, 3, 3, 1, {4, 2, 2, {0}, 0, 0})

static bool is_of_engine(const char *plan)
{
	return strstr(plan, "gather.") || strstr(plan, "adopt.worker") ||
	       strstr(plan, "engine.");
}

/* Each plan kills a broker and then the next one, for example while that one
 * ends the worker of the previous broker. */
Test(chaos_collective, the_next_broker_dies_as_well)
{
	static const struct training two = {2, 2, 3, {0}, 0, 0};
	static const char *const plans[] = {
		"gather.submitted 2\nadopt.worker 1\n",
		"verb.input.committed 2\nadopt.worker 1\nadopt.slots 1\n",
		"comm.flipped 2\ncatalog.undo 1\n",
		"comm.committed 2\nadopt.end 1\nverb.commit.done 1\n",
		"group.stored 2\nverb.group.done 1\n",
		"gather.done 3\nverb.comm_join.committed 1\nengine.started 1\n",
		"storage.made 2\nstorage.made 2\nstorage.made 5\n",
	};

	drill_need_points();
	for (size_t i = 0; i < sizeof(plans) / sizeof(*plans); i++) {
		struct training training = two;

		if (!has_engine() && is_of_engine(plans[i]))
			continue;
		fprintf(stderr, "brokers killed: %s", plans[i]);
		drill_close();
		drill_open();
		plan_write(drill_chaos.plan, plans[i]);
		drill_train(&training);
		cr_assert(plan_is_done(drill_chaos.plan));
		/* If runs do not go on, a rank may be told of each of the
		 * deaths. */
		if (runs_go_on())
			(void)drill_check_broker_death(&training);
	}
}

/* --- before each call of a rank ------------------------------------------ */

static unsigned int count_calls(const struct training *it)
{
	struct training training = *it;

	drill_train(&training);
	return atomic_load(&drill->board.ranks[0].n_calls);
}

/* Returns whether a process died. */
static bool die_by_order(const struct training *it, const struct order *order,
			 struct training *ret)
{
	*ret = *it;
	drill->order = *order;
	drill_train(ret);
	drill->order = (struct order){NOBODY, 0, 0};
	return atomic_load(&drill->dead) != 0;
}

Test(chaos_collective, the_broker_dies_before_a_rank_s_calls)
{
	static const struct training two = {2, 2, 3, {0}, 0, 0};
	unsigned int n = count_calls(&two), n_told = 0;
	struct training training;

	for (unsigned int i = 0; i < n; i += 1 + n / 24) {
		struct order order = {BROKER, 0, i};

		drill_close();
		drill_open();
		cr_assert(die_by_order(&two, &order, &training));
		n_told += drill_check_broker_death(&training);
	}
	/* Ranks that have not joined yet, or have finished, are not told. Their
	 * number depends on the speed of the machine. */
	cr_assert(ge(uint, n_told, runs_go_on() ? 0 : 2 * 12));
}

Test(chaos_collective, a_rank_dies_before_its_calls)
{
	static const struct training four = {4, 2, 3, {0}, 0, 0};
	unsigned int n = count_calls(&four), n_told = 0;
	struct training training;

	for (unsigned int i = 0; i < n; i += 1 + n / 24) {
		struct order order = {RANK, i % 4, i};

		cr_assert(die_by_order(&four, &order, &training));
		cr_assert(eq(uint, training.n_dead, 1));
		n_told += drill_check_rank_death(&training, order.rank);
	}
	cr_assert(ge(uint, n_told, 3 * (are_on_devices() ? 12 : 16)));
}

/* --- ranks --------------------------------------------------------------- */

static void learn_rank_points(const struct training *it, struct passages *ret)
{
	struct training training = *it;

	snprintf(drill->points, sizeof(drill->points), "%s/passed",
		 drill_chaos.dir);
	drill_train(&training);
	passages_read(drill->points, ret);
	(void)unlink(drill->points);
	drill->points[0] = '\0';
}

/* Returns whether a rank passes the failpoint in a collective. */
static bool is_of_rank(const char *name)
{
	static const char *const prefixes[] = {
		"client.",  "board.",       "bell.",       "pieces.",
		"gathers.", "host_gather.", "host_reduce."};
	size_t i = 0, n = sizeof(prefixes) / sizeof(*prefixes);

	while (i < n && strncmp(name, prefixes[i], strlen(prefixes[i])) != 0)
		i++;
	return i < n;
}

static void rank_dies_at(const struct training *it, const char *point,
			 unsigned int n, struct toll *toll)
{
	struct training training = *it;

	fprintf(stderr, "rank killed at passage %u of %s\n", n, point);
	plan_death(drill->plan, point, n);
	drill->is_planned = true;
	drill_train(&training);
	toll->n_tried++;
	/* On devices, the timing decides how often a rank checks the others. On
	 * host memory it decides which rank works, which one sleeps, and which
	 * memory it needs and asks for. */
	cr_assert(plan_is_done(drill->plan) || are_on_devices() ||
		  strncmp(point, "client.", 7) != 0 ||
		  strncmp(point, "client.gather_buffer.", 21) == 0 ||
		  strncmp(point, "client.comm_place.", 18) == 0);
	if (!plan_is_done(drill->plan)) {
		plan_drop(drill->plan);
		drill->is_planned = false;
		return;
	}
	cr_assert(eq(uint, training.n_dead, 1));
	toll->n_deaths++;
	toll->n_told += drill_check_rank_death(&training, 0);
}

static void rank_dies_everywhere(const struct training *training,
				 const struct part *part)
{
	struct toll toll = {0, 0, 0};
	struct passages passages;
	unsigned int n, n_plans = 0;

	drill_need_points();
	learn_rank_points(training, &passages);
	for (size_t i = 0; i < passages.n; i++) {
		const struct passage *it = &passages.list[i];

		for (unsigned int k = 0; k < MAX_PASSAGES; k++) {
			n = pick_passage(it, k);
			if (n == 0 || !is_of_rank(it->name))
				continue;
			n_plans++;
			if (is_of_part(it->name, part))
				rank_dies_at(training, it->name, n, &toll);
		}
	}
	fprintf(stderr, "%u deaths of %u, told %u times; %u in all parts\n",
		toll.n_deaths, toll.n_tried, toll.n_told, n_plans);
	cr_assert(ge(uint, toll.n_deaths * 2 + FEW, toll.n_tried));
	cr_assert(ge(uint, n_plans, are_on_devices() ? 16 : 36));
	/* Ranks that have not joined yet, or have finished, are not told. */
	cr_assert(ge(uint, (toll.n_told + FEW) * 4,
		     toll.n_deaths * (training->world - 1)));
}

#define RANK_DIES(points_of, part_, n_parts, ...)                              \
	Test(chaos_collective,                                                 \
	     a_rank_dies_at_every_failpoint_of_##points_of##_##part_)          \
	{                                                                      \
		static const struct training training = __VA_ARGS__;           \
		static const struct part part = {(part_)-1, n_parts};          \
                                                                               \
		rank_dies_everywhere(&training, &part);                        \
	}

RANK_DIES(one_mesh, 1, 3, {3, 3, 3, {0}, 0, 0})
RANK_DIES(one_mesh, 2, 3, {3, 3, 3, {0}, 0, 0})
RANK_DIES(one_mesh, 3, 3, {3, 3, 3, {0}, 0, 0})
RANK_DIES(two_meshes, 1, 3, {4, 2, 2, {0}, 0, 0})
RANK_DIES(two_meshes, 2, 3, {4, 2, 2, {0}, 0, 0})
RANK_DIES(two_meshes, 3, 3, {4, 2, 2, {0}, 0, 0})

/* --- the worker ---------------------------------------------------------- */

Test(chaos_collective, the_worker_dies_before_a_rank_s_calls)
{
	static const struct training four = {4, 2, 3, {0}, 0, 0};
	unsigned int n, n_deaths = 0;
	struct training training;

	host_memory_only("on devices the ranks do the work");
	setenv("FSDP_TEST_EXECUTOR", "worker", 1);
	n = count_calls(&four);
	for (unsigned int i = 0; i < n; i += 1 + n / 32) {
		struct order order = {WORKER, i % 4, i};

		n_deaths += die_by_order(&four, &order, &training);
		(void)drill_check_worker_death(&training);
		cr_assert(eq(uint, training.n_dead, 0));
	}
	cr_assert(ge(uint, n_deaths, 24));
}

Test(chaos_collective, the_worker_dies_while_it_has_jobs)
{
	static const struct training two = {2, 2, 3, {0}, 0, 0};
	unsigned int n, n_told = 0;
	struct training training;

	host_memory_only("on devices the ranks do the work");
	setenv("FSDP_TEST_EXECUTOR", "worker", 1);
	n = count_calls(&two);
	for (unsigned int i = 0; i < n; i += 1 + n / 32) {
		struct order order = {STOPPED_WORKER, i % 2, i};
		unsigned int n_now;

		if (!die_by_order(&two, &order, &training))
			continue;
		n_now = drill_check_worker_death(&training);
		/* Either both ranks failed and joined again, or both had
		 * finished. */
		cr_assert(n_now == 0 || n_now == two.world);
		n_told += n_now;
	}
	cr_assert(ge(uint, n_told, 2 * 20));
}

/* --- all of it ----------------------------------------------------------- */

#define SOAK_MS (are_on_devices() ? 12000 : 20000)
/* The supervisor gives up at the fifth death within 10 s, and a planned death
 * may be delayed until the next one is planned. */
#define BROKER_PAUSE_MS 3600

struct rage {
	struct chance chance;
	uint64_t broker_ms; /* time at which a death was last caused */
	unsigned int n_brokers, n_workers;
};

static void kill_broker(struct rage *rage)
{
	static const char *const points[] = {
		"comm.committing",      "comm.committed",
		"gather.submitted",     "gather.done",
		"reduce.submitted",     "reduce.done",
		"verb.commit.done",     "verb.commit.committed",
		"verb.wait.done",       "verb.wait.committed",
		"verb.input.done",      "verb.input.committed",
		"verb.reduce.done",     "verb.reduce.committed",
		"verb.unshard.done",    "verb.reshard.committed",
		"storage.made",         "slot.freed",
		"verb.group.committed", "verb.comm_join.done",
		"engine.started",       "peer.send",
	};
	uint32_t i = draw(&rage->chance, sizeof(points) / sizeof(*points));

	rage->n_brokers++;
	rage->broker_ms = clock_ms();
	if (chaos_has_points() && draw(&rage->chance, 4))
		plan_death(drill_chaos.plan, points[i],
			   1 + draw(&rage->chance, 4));
	else
		daemon_kill_broker(&drill_chaos.daemon);
}

static void kill_one(struct rage *rage, struct training *training)
{
	pid_t pid;

	if (clock_ms() - rage->broker_ms > BROKER_PAUSE_MS) {
		kill_broker(rage);
		return;
	}
	if (draw(&rage->chance, 3)) {
		pid = training->pids[draw(&rage->chance, training->world)];
		must(kill(pid, SIGKILL) == 0);
		return;
	}
	pid = worker_pid(&drill_chaos.daemon);
	if (pid == 0)
		return;
	must(kill(pid, SIGKILL) == 0 || errno == ESRCH);
	rage->n_workers++;
}

/* Wait until the training reaches this step. Ranks that have died are started
 * again meanwhile. */
static void await_step(struct training *training, uint64_t step)
{
	uint64_t give_up = clock_ms() + PATIENCE_MS;

	while (atomic_load(&drill->board.max_step) < step) {
		(void)drill_take_ends(training);
		if (clock_ms() > give_up) {
			drill_show(training);
			drill_kill(training);
			cr_assert(false, "ranks hang");
		}
		nap_ms(1);
	}
}

static void check_sentences(const struct training *training)
{
	for (uint32_t i = 0; i < training->world; i++) {
		const struct exact_rank *rank = &drill->board.ranks[i];
		bool is_known = drill_is_told(rank, "has died") ||
				drill_is_told_of_broker(rank) ||
				drill_is_told(rank, "fsdp-worker (pid ");

		if (!is_known)
			drill_show(training);
		cr_assert(is_known);
	}
}

/* Returns whether enough processes were killed, also on a slow machine. */
static bool is_enough(const struct rage *rage, const struct training *training)
{
	return training->n_dead >= 10 &&
	       rage->n_workers >= (has_engine() ? 3 : 0) &&
	       rage->n_brokers >= SOAK_MS / 6000;
}

Test(chaos_collective, soak)
{
	uint64_t seed = choose_seed("FSDP_SOAK_SEED"), start = clock_ms();
	struct training training = {4, 2, UINT64_MAX, {0}, 0, 0};
	struct rage rage = {.chance = {seed << 1 | 1}};
	uint64_t step;

	fprintf(stderr, "FSDP_SOAK_SEED=%llu\n", (unsigned long long)seed);
	rage.broker_ms = start;
	drill_start(&training);
	while (clock_ms() - start < SOAK_MS || !is_enough(&rage, &training)) {
		step = atomic_load(&drill->board.max_step);
		/* Sometimes no step is awaited, so that the next broker dies at
		 * once. */
		if (draw(&rage.chance, 4))
			step += 1 + draw(&rage.chance, 3);
		await_step(&training, step);
		nap_ms(draw(&rage.chance, 8));
		kill_one(&rage, &training);
		drill_check_workers();
	}
	/* A planned death of the broker may come while the ranks end. */
	atomic_store(&drill->board.last_step,
		     atomic_load(&drill->board.max_step) + 3);
	drill_finish(&training);
	plan_drop(drill_chaos.plan);
	drill_remove_comm();
	drill_audit();
	check_sentences(&training);
	fprintf(stderr,
		"%llu steps; killed: %u ranks, %u workers, %u brokers\n",
		(unsigned long long)atomic_load(&drill->board.max_step),
		training.n_dead, rage.n_workers, rage.n_brokers);
}
