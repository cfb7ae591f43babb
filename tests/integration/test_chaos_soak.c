/*
 * Lets many clients make random calls on the same names, while clients and the
 * broker are killed. At the end the broker's counters must be exact.
 * tests/chaos does the same with all other kinds of failures.
 *
 * The test counts operations, not time, and draws from one seed, which is
 * printed; FSDP_SOAK_SEED repeats it.
 */
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/memory.h"
#include "tests/lib/soak.h"
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define N_CLIENTS   4
#define DURATION_MS (are_on_devices() ? 8000 : 14000)
/* The supervisor gives up at the fifth death within 10 s. */
#define BROKER_PAUSE_MS 2600
#define OPS_PER_KILL    150
/* At least this many are killed, however slow the machine is. */
#define CLIENTS_KILLED 10
#define BROKERS_KILLED 3

static struct soak *soak;
static struct chaos chaos;

/* --- killing ------------------------------------------------------------- */

struct crew {
	struct chance chance;
	pid_t pids[N_CLIENTS];
	uint64_t n_born;
	unsigned int n_killed, n_broker_deaths;
};

static void start_client(struct crew *crew, int i)
{
	struct soak_life life = {
		.soak = soak,
		.seed = (uint64_t)draw(&crew->chance, UINT32_MAX) << 32 | 1,
		.first_number = ++crew->n_born << 32};

	crew->pids[i] = child_start(soak_client, &life);
}

static void kill_client(struct crew *crew)
{
	int i = (int)draw(&crew->chance, N_CLIENTS);

	cr_assert(eq(int, child_kill(crew->pids[i]), SIGKILL),
		  "a client ended by itself");
	crew->n_killed++;
	start_client(crew, i);
}

/* In builds with failpoints the broker dies at one of these, otherwise at a
 * random moment. */
static void kill_broker(struct crew *crew)
{
	static const char *const points[] = {
		"catalog.commit",
		"catalog.committed",
		"verb.publish.done",
		"verb.publish.committed",
		"verb.get.done",
		"verb.get.committed",
		"publish.replaced",
		"bundle.flipped",
		"verb.redeem.done",
		"verb.release.committed",
		"slot.freed",
		"peer.send",
		"verb.bundle_commit.done",
		"session.rung",
	};
	uint32_t i = draw(&crew->chance, sizeof(points) / sizeof(points[0]));

	crew->n_broker_deaths++;
	if (chaos_has_points())
		plan_death(chaos.plan, points[i], 1 + draw(&crew->chance, 3));
	else
		daemon_kill_broker(&chaos.daemon);
}

static void await_ops(uint64_t n)
{
	uint64_t end = atomic_load(&soak->n_ops) + n;
	uint64_t give_up = clock_ms() + 120000;

	while (atomic_load(&soak->n_ops) < end) {
		cr_assert(lt(u64, clock_ms(), give_up), "clients hang");
		nap_ms(1);
	}
}

static void rage(struct crew *crew)
{
	uint64_t start = clock_ms(), last = start;

	while (clock_ms() - start < DURATION_MS ||
	       crew->n_killed < CLIENTS_KILLED ||
	       crew->n_broker_deaths < BROKERS_KILLED) {
		await_ops(OPS_PER_KILL + draw(&crew->chance, OPS_PER_KILL));
		kill_client(crew);
		if (clock_ms() - last < BROKER_PAUSE_MS)
			continue;
		kill_broker(crew);
		last = clock_ms();
	}
}

static void end_all(const struct crew *crew)
{
	atomic_store(&soak->must_end, 1);
	for (int i = 0; i < N_CLIENTS; i++)
		cr_assert(eq(int, child_wait(crew->pids[i]), 0));
}

Test(soak, leaves_consistent_accounts, .timeout = 300)
{
	uint64_t seed = choose_seed("FSDP_SOAK_SEED");
	struct crew crew = {.chance = {seed << 1 | 1}};
	struct fsdp_client *watcher;
	struct figures now;

	fprintf(stderr, "FSDP_SOAK_SEED=%llu\n", (unsigned long long)seed);
	soak = shared_memory(sizeof(*soak));
	chaos_start(&chaos, NULL);
	soak->socket = daemon_socket(&chaos.daemon);
	for (int i = 0; i < N_CLIENTS; i++)
		start_client(&crew, i);
	rage(&crew);
	end_all(&crew);
	plan_drop(chaos.plan);
	watcher = chaos_connect(&chaos);
	soak_await_deadlines(watcher);
	figures_read(watcher, &now);
	cr_assert(audit(watcher, soak_check_entry));
	fprintf(stderr, "%llu operations, %u clients and %u brokers killed\n",
		(unsigned long long)atomic_load(&soak->n_ops), crew.n_killed,
		crew.n_broker_deaths);
	/* The death that was planned last may not have happened. */
	cr_assert(ge(u64, now.epoch, BROKERS_KILLED));
	fsdp_close(watcher);
	chaos_stop(&chaos);
}
