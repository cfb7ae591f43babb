/*
 * Starts the load, keeps it running, and ends it.
 */
#include "tests/chaos/storm.h"
#include "tests/lib/patience.h"
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

static void start_client(struct storm *storm, int i)
{
	struct soak_life life = {
		.soak = storm->soak,
		.seed = (uint64_t)draw(&storm->chance, UINT32_MAX) << 32 | 1,
		.first_number = ++storm->n_born << 32};

	storm->clients[i] = child_start(soak_client, &life);
}

struct rank_life {
	struct exact_board *board;
	uint32_t rank;
};

static void live(void *data)
{
	const struct rank_life *life = data;

	exact_train(life->board, life->rank);
}

static void start_rank(struct storm *storm, int i)
{
	struct rank_life life = {storm->training, (uint32_t)i};

	storm->ranks[i] = child_start(live, &life);
	atomic_store(&storm->training->ranks[i].pid, storm->ranks[i]);
}

/* Returns whether the process has ended by itself, which it may do only if it
 * lost its session. */
static bool has_ended(struct storm *storm, pid_t pid, int lost)
{
	int status;

	if (pid > 0 && waitpid(pid, &status, WNOHANG) != pid)
		return false;
	if (pid > 0) {
		if (!WIFEXITED(status) || WEXITSTATUS(status) != lost)
			fprintf(stderr, "process %d: wait status %#x\n",
				(int)pid, (unsigned int)status);
		must(WIFEXITED(status) && WEXITSTATUS(status) == lost);
		storm->tally.lost++;
	}
	return true;
}

void storm_revive(struct storm *storm)
{
	for (int i = 0; i < STORM_CLIENTS; i++) {
		if (has_ended(storm, storm->clients[i], SOAK_LOST))
			start_client(storm, i);
	}
	for (int i = 0; i < STORM_RANKS; i++) {
		if (has_ended(storm, storm->ranks[i], EXACT_LOST))
			start_rank(storm, i);
	}
}

void storm_await(struct storm *storm, uint64_t n)
{
	uint64_t end = atomic_load(&storm->soak->n_ops) + n;
	uint64_t give_up = clock_ms() + PATIENCE_MS;

	while (atomic_load(&storm->soak->n_ops) < end) {
		must(clock_ms() < give_up);
		storm_revive(storm);
		nap_ms(1);
	}
}

void storm_begin(struct storm *storm)
{
	struct exact_board *training = storm->training;

	memset(training, 0, sizeof(*training));
	*training = (struct exact_board){.socket = storm->soak->socket,
					 .comm = "storm",
					 .world = STORM_RANKS,
					 .n_shards = STORM_RANKS,
					 .is_harsh = true};
	atomic_store(&training->last_step, UINT64_MAX);
	atomic_store(&storm->soak->must_end, 0);
	/* Names that were removed begin with version 1 again. */
	memset(storm->soak->seen, 0, sizeof(storm->soak->seen));
	storm_revive(storm);
}

/* --- the end ------------------------------------------------------------- */

/* Let the ranks agree on a last step. A rank that lost its session joins
 * again. */
static void end_training(struct storm *storm)
{
	uint64_t give_up = clock_ms() + PATIENCE_MS;
	int n_left = STORM_RANKS;

	atomic_store(&storm->training->last_step,
		     atomic_load(&storm->training->max_step) + 3);
	while (n_left > 0) {
		n_left = 0;
		for (int i = 0; i < STORM_RANKS; i++) {
			int status;

			if (storm->ranks[i] == 0)
				continue;
			n_left++;
			if (waitpid(storm->ranks[i], &status, WNOHANG) == 0)
				continue;
			storm->ranks[i] = 0;
			if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
				continue;
			must(WIFEXITED(status) &&
			     WEXITSTATUS(status) == EXACT_LOST);
			start_rank(storm, i);
		}
		must(clock_ms() < give_up);
		nap_ms(1);
	}
}

static void end_clients(struct storm *storm)
{
	atomic_store(&storm->soak->must_end, 1);
	for (int i = 0; i < STORM_CLIENTS; i++) {
		int r = child_wait(storm->clients[i]);

		must(r == 0 || r == -SOAK_LOST);
		storm->clients[i] = 0;
	}
}

static void remove_comm(struct fsdp_client *client)
{
	int r = -EBUSY;

	for (int i = 0; r == -EBUSY && i < PATIENCE_MS; i++) {
		r = fsdp_comm_remove(client, "storm");
		if (r == -EBUSY)
			nap_ms(1);
	}
	must(r == 0 || r == -ENOENT);
}

void storm_end(struct storm *storm)
{
	struct fsdp_client *client;

	end_training(storm);
	end_clients(storm);
	plan_drop(storm->chaos.plan);
	plan_drop(storm->chaos.failures);
	client = chaos_connect(&storm->chaos);
	remove_comm(client);
	soak_await_deadlines(client);
	fsdp_close(client);
}
