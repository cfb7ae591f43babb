#include "tests/lib/crew.h"
#include "shm/board.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/patience.h"
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#define CONFIG "[memory]\nchunk_min = 4M\nchunk_max = 4M\n"
#define LITTLE                                                                 \
	"[memory]\nchunk_min = 16M\nchunk_max = 16M\nmemory_max = %" PRIu64

struct ranks ranks;
static uint64_t live_before; /* bytes_live before any rank joined */

static const char *live(void)
{
	return are_on_devices() ? "device_bytes_live" : "bytes_live";
}

static void start_broker(const struct daemon_options *options)
{
	daemon_start_with(&daemon_, options);
	client = connect_to(&daemon_, 0);
	live_before = status_value(client, live());
}

void crew_setup(void)
{
	start_broker(&(struct daemon_options){.config = CONFIG});
}

void crew_setup_supervised(void)
{
	start_broker(&(struct daemon_options){.is_supervised = true,
					      .config = CONFIG});
}

/* The file with the failpoint at which a rank is held. */
static const char *plan_of(uint32_t rank)
{
	static char path[64];

	(void)snprintf(path, sizeof(path), "%s/plan_%u", daemon_.dir, rank);
	return path;
}

static void drop_plans(void)
{
	for (uint32_t rank = 0; rank < ranks.n; rank++)
		plan_drop(plan_of(rank));
}

void crew_teardown(void)
{
	ranks_stop(&ranks);
	drop_plans();
	client_teardown();
}

void crew_use_little_memory(uint32_t n_ranks)
{
	uint64_t board = runs_go_on() ? board_memory(n_ranks) : 0;
	char config[128];

	(void)snprintf(config, sizeof(config), LITTLE,
		       (UINT64_C(16) << 20) + board);
	crew_teardown();
	start_broker(&(struct daemon_options){.config = config});
}

/* --- starting ranks ------------------------------------------------------ */

static void start_ranks(uint32_t n, const struct crew *crew)
{
	struct crew copy = *crew;

	copy.daemon = &daemon_;
	copy.comm = "test";
	crew_set(&copy);
	ranks_start(&ranks, n);
}

void crew_start(uint32_t n, const struct crew *crew)
{
	start_ranks(n, crew);
	cr_assert(zero(int, ranks_run(&ranks, trainer_join_patiently)));
}

static int become_mortal(void)
{
	return setenv("FSDP_STOP_PLAN", plan_of(rank_self()), 1);
}

void crew_start_mortal(uint32_t n, const struct crew *crew)
{
	start_ranks(n, crew);
	cr_assert(zero(int, ranks_run(&ranks, become_mortal)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_join_patiently)));
}

/* Returns how many of the other ranks are held. */
static uint32_t begin_and_hold(const struct death *death, actor_fn *fn)
{
	uint32_t last = ranks.n - 1, n_held = 0;

	plan_death(plan_of(last), death->point, death->n);
	for (uint32_t rank = 0; death->held_at && rank < last; rank++)
		plan_death(plan_of(rank), death->held_at, 1);
	ranks_begin(&ranks, fn);
	ranks_await_still(&ranks, ranks.n);
	cr_assert(death->held_at || plan_is_done(plan_of(last)), "%s",
		  death->point);
	for (uint32_t rank = 0; death->held_at && rank < last; rank++)
		n_held += plan_is_done(plan_of(rank));
	drop_plans();
	return n_held;
}

/* The ranks that were held continue when the session of the dead rank has
 * ended. */
static void kill_last(uint32_t rank)
{
	uint64_t n_sessions = status_value(client, "sessions");

	must(kill(ranks.actors[rank].pid, SIGKILL) == 0);
	cr_assert(eq(int, actor_end(&ranks.actors[rank]), -ECHILD));
	actor_kill(&ranks.actors[rank]);
	cr_assert(status_await(client, "sessions", n_sessions - 1));
	for (uint32_t i = 0; i < rank; i++)
		must(kill(ranks.actors[i].pid, SIGCONT) == 0);
}

uint32_t expect_death_is_told(const struct death *death, actor_fn *fn)
{
	uint32_t last = ranks.n - 1, n_held;
	char name[32];

	(void)snprintf(name, sizeof(name), "rank %u (pid ", last);
	n_held = begin_and_hold(death, fn);
	kill_last(last);
	for (uint32_t rank = 0; rank < last; rank++) {
		cr_assert(
			eq(int, actor_end(&ranks.actors[rank]), -ECONNABORTED),
			"%s", death->point);
		assert_says(rank, name);
		assert_says(rank, "died");
	}
	ranks_stop(&ranks);
	return n_held;
}

int crew_leave_comm(void)
{
	return fsdp_comm_leave(trainer()->comm);
}

void *crew_board(size_t *ret_size)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long begin, end;
	char line[512];
	void *board = NULL;

	must(maps);
	while (!board && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "memfd:fsdp-board") &&
		    sscanf(line, "%lx-%lx", &begin, &end) == 2) {
			board = (void *)begin;
			*ret_size = end - begin;
		}
	}
	(void)fclose(maps);
	must(board);
	return board;
}

/* --- what ranks and broker have ------------------------------------------ */

const char *sentence(uint32_t rank)
{
	return ranks.notes[rank].sentence;
}

static int note_comm(const struct fsdp_comm_entry *entry, void *data)
{
	*(struct fsdp_comm_entry *)data = *entry;
	return 1;
}

struct fsdp_comm_entry comm_entry(void)
{
	struct fsdp_comm_entry entry = {0};

	cr_assert(eq(int, fsdp_comms(client, note_comm, &entry), 1), "%s",
		  fsdp_error());
	return entry;
}

void expect_memory_back(void)
{
	uint64_t kept;

	cr_assert(eq(int, ranks_run(&ranks, trainer_leave), 0));
	for (int i = 0; i < PATIENCE_MS && comm_entry().state != FSDP_COMM_KEPT;
	     i++)
		nap_ms(1);
	cr_assert(eq(int, comm_entry().state, FSDP_COMM_KEPT));
	kept = comm_entry().n_bytes;
	/* On devices blocks are larger than requested. */
	if (!are_on_devices())
		cr_assert(status_await(client, live(), live_before + kept));
	cr_assert(eq(int, fsdp_comm_remove(client, "test"), 0), "%s",
		  fsdp_error());
	cr_assert(status_await(client, live(), live_before));
}

pid_t freeze_worker(void)
{
	pid_t worker = worker_await(&daemon_);

	must(kill(worker, SIGSTOP) == 0);
	return worker;
}

int check0(void)
{
	return trainer_sees_whole(0) ? 0 : -EIO;
}

#define LAYER_FN(name, layer, call)                                            \
	int name##layer(void)                                                  \
	{                                                                      \
		return call(layer);                                            \
	}

LAYER_FN(unshard, 0, trainer_unshard)
LAYER_FN(unshard, 1, trainer_unshard)
LAYER_FN(unshard, 2, trainer_unshard)
LAYER_FN(reshard, 0, trainer_reshard)
LAYER_FN(reshard, 1, trainer_reshard)
LAYER_FN(reshard, 2, trainer_reshard)
LAYER_FN(reshard, 3, trainer_reshard)
LAYER_FN(begin, 0, trainer_begin)
LAYER_FN(begin, 1, trainer_begin)
LAYER_FN(begin, 2, trainer_begin)
LAYER_FN(begin, 3, trainer_begin)
LAYER_FN(await, 0, trainer_await)
LAYER_FN(await, 1, trainer_await)
LAYER_FN(await, 2, trainer_await)
LAYER_FN(await, 3, trainer_await)
