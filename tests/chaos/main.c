/*
 * chaos: kills, stops and starves a broker, its worker and its clients under
 * load, at random moments that follow from one seed, and checks that nothing is
 * lost.
 *
 * At the end all names must have their contents, and the bytes that fsdpd
 * accounts for must be those that are used. After the names were removed, the
 * broker must have the descriptors and mappings that it had at the start.
 */
#include "tests/chaos/storm.h"
#include <string.h>

#define CONFIG                                                                 \
	"[memory]\nmemory_max = 96M\nchunk_min = 2M\nchunk_max = 8M\n"         \
	"warm_ms = 20\n[quota]\nprefix_grace_ms = 0\n"
#define OPS_BETWEEN 60 /* on average */

static const struct {
	trouble_fn *fn;
	unsigned int weight;
} troubles[] = {
	{kill_client, 60}, {kill_rank, 6},         {kill_worker, 6},
	{kill_broker, 6},  {stop_client, 6},       {stop_rank, 3},
	{stop_worker, 3},  {stop_broker, 3},       {fail_calls, 12},
	{fill_pool, 2},    {limit_descriptors, 2}, {limit_memory, 5},
	{jump_clocks, 4},
};

static void make_trouble(struct storm *storm)
{
	unsigned int sum = 0, at;
	size_t i = 0;

	for (i = 0; i < sizeof(troubles) / sizeof(troubles[0]); i++)
		sum += troubles[i].weight;
	at = draw(&storm->chance, sum);
	for (i = 0; at >= troubles[i].weight; i++)
		at -= troubles[i].weight;
	troubles[i].fn(storm);
}

static unsigned int count_kills(const struct tally *tally)
{
	return tally->clients + tally->ranks + tally->workers + tally->brokers +
	       tally->out_of_memory;
}

/* --- before and after ---------------------------------------------------- */

/* Check that names, bytes and chunks agree with each other and with the
 * kernel. */
static void check_books(struct storm *storm)
{
	struct fsdp_client *client = chaos_connect(&storm->chaos);
	struct figures now;

	must(audit(client, soak_check_entry));
	figures_read(client, &now);
	for (int i = 0;
	     now.chunk_bytes != inventory_chunk_bytes(storm->chaos.daemon.pid);
	     i++) {
		must(i < 10000);
		nap_ms(1);
		figures_read(client, &now);
	}
	fsdp_close(client);
}

static void remove_names(struct storm *storm)
{
	struct fsdp_client *client = chaos_connect(&storm->chaos);
	const struct figures empty = {.sessions = 1};

	remove_all(client, "soak/");
	must(figures_await(client, &empty));
	fsdp_close(client);
}

/* List what a broker has that was restarted once, has worked, and has no
 * tensors left. */
static void take_stock(struct storm *storm, struct inventory *ret)
{
	daemon_kill_broker(&storm->chaos.daemon);
	storm_begin(storm);
	storm_await(storm, 500);
	storm_end(storm);
	remove_names(storm);
	inventory_settle(&storm->chaos.daemon, ret);
	storm->broker_rest_ms = 0;
	(void)broker_may_die(storm);
}

static void report(const struct storm *storm, uint64_t seed, uint64_t ms)
{
	const struct tally *t = &storm->tally;

	printf("chaos: seed %llu: %llu operations, %llu refused, in %.1f s\n"
	       "killed: %u clients, %u ranks, %u workers, %u brokers, and %u "
	       "brokers by the kernel for want of memory\n"
	       "%u stops, %u failing calls, %u full pools, %u times without "
	       "descriptors, %u at the cgroup's limit, %u jumps of a clock\n"
	       "%u sessions were lost; %llu steps of training\n",
	       (unsigned long long)seed,
	       (unsigned long long)atomic_load(&storm->soak->n_ops),
	       (unsigned long long)atomic_load(&storm->soak->n_refused),
	       (double)ms / 1000, t->clients, t->ranks, t->workers, t->brokers,
	       t->out_of_memory, t->stops, t->failures, t->hoards, t->limits,
	       t->cgroups, t->jumps, t->lost,
	       (unsigned long long)atomic_load(&storm->training->max_step));
}

static void run(uint64_t seed, unsigned int n_kills)
{
	struct storm storm = {
		.chance = {seed << 1 | 1},
		.soak = shared_memory(sizeof(struct soak)),
		.training = shared_memory(sizeof(struct exact_board))};
	struct inventory before = {.n = 0};
	uint64_t start = clock_ms();

	clock_prepare(&storm);
	chaos_start(&storm.chaos, CONFIG);
	if (!cgroup_open(&storm))
		puts("skipped: the limit of a cgroup; no memory cgroup can be "
		     "made here");
	if (!storm.clock)
		puts("skipped: jumps of clocks; they need a build without "
		     "sanitizers");
	storm.soak->socket = daemon_socket(&storm.chaos.daemon);
	storm.soak->is_harsh = true;
	take_stock(&storm, &before);
	storm_begin(&storm);
	while (count_kills(&storm.tally) < n_kills) {
		storm_await(&storm, draw(&storm.chance, 2 * OPS_BETWEEN));
		make_trouble(&storm);
	}
	storm_end(&storm);
	check_books(&storm);
	remove_names(&storm);
	must(inventory_await(&storm.chaos.daemon, &before));
	inventory_drop(&before);
	report(&storm, seed, clock_ms() - start);
	chaos_stop(&storm.chaos);
	cgroup_close();
	clock_finish(&storm);
}

int main(int argc, char **argv)
{
	struct course course = {choose_seed("FSDP_CHAOS_SEED"), 200};

	course_choose(argc, argv, "kills", &course);
	/* There is a worker to kill if it does the work of the ranks. */
	if (course.seed % 2)
		setenv("FSDP_TEST_EXECUTOR", "worker", 1);
	run(course.seed, course.n);
	return 0;
}
