#include "tests/lib/drill.h"
#include "tests/lib/chance.h"
#include "tests/lib/check.h"
#include "tests/lib/memory.h"
#include "tests/lib/patience.h"
#include "tests/lib/ranks.h"
#include "tests/lib/workers.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COMM "exact"
/* The broker returns memory to the kernel when it is not needed any more. A
 * user whose charges for communicators are not returned is soon refused. */
#define COLD                                                                   \
	"[memory]\nchunk_min = 2M\nwarm_ms = 20\n[quota]\nquota_groups = 64\n"

struct drill *drill;
struct chaos drill_chaos;
struct fsdp_client *drill_watcher;
static struct figures before;

static void follow_order(uint32_t rank, uint32_t n)
{
	const struct order *order = &drill->order;
	pid_t pid = 0;

	if (order->victim == NOBODY || order->rank != rank ||
	    order->n_calls != n)
		return;
	if (order->victim == RANK)
		pid = getpid();
	else if (order->victim == BROKER)
		pid = daemon_broker_pid(&drill_chaos.daemon);
	else
		pid = worker_pid(&drill_chaos.daemon);
	atomic_store(&drill->dead, pid);
	if (pid == 0)
		return;
	if (order->victim == STOPPED_WORKER) {
		must(kill(pid, SIGSTOP) == 0);
		atomic_store(&drill->stopped, pid);
		return;
	}
	must(kill(pid, SIGKILL) == 0);
}

/* --- workers ------------------------------------------------------------- */

/* Returns whether there is a worker that is not a child of the serving
 * broker. */
static bool has_orphan(void)
{
	uint64_t pid = status_value(drill_watcher, "pid");
	struct workers count = workers_count(drill_chaos.plan);
	pid_t worker = worker_pid(&drill_chaos.daemon);

	cr_assert(le(uint, count.n_with_chunks, 1));
	return count.n > (worker != 0) &&
	       status_value(drill_watcher, "pid") == pid;
}

/*
 * There must never be two workers that can write, whichever process has died,
 * and the worker of a dead broker must have ended before the next broker
 * serves. Only a worker that was not in the fd store yet, and so has received
 * no chunks, may end later, by itself.
 */
void drill_check_workers(void)
{
	for (int i = 0; has_orphan(); i++) {
		cr_assert(lt(int, i, PATIENCE_MS),
			  "a worker outlived its broker");
		nap_ms(1);
	}
}

/* The rank's order has stopped the worker. Kills it while it has jobs, or
 * without jobs if it gets none. */
static void end_stopped(void)
{
	pid_t pid = atomic_load(&drill->stopped);

	if (pid == 0)
		return;
	for (int i = 0; i < 20 && !status_value(drill_watcher, "jobs_running");
	     i++)
		nap_ms(1);
	must(kill(pid, SIGKILL) == 0 || errno == ESRCH);
	atomic_store(&drill->stopped, 0);
}

/* --- a training ---------------------------------------------------------- */

static void live(void *data)
{
	uint32_t rank = *(uint32_t *)data;

	if (drill->is_planned && rank == 0)
		setenv("FSDP_KILL_PLAN", drill->plan, 1);
	else if (drill->points[0] && rank == 0)
		setenv("FSDP_POINTS_LOG", drill->points, 1);
	exact_train(&drill->board, rank);
}

static void start_rank(struct training *training, uint32_t rank)
{
	training->pids[rank] = child_start(live, &rank);
	atomic_store(&drill->board.ranks[rank].pid, training->pids[rank]);
}

void drill_start(struct training *training)
{
	struct exact_board *board = &drill->board;

	memset(board, 0, sizeof(*board));
	board->socket = daemon_socket(&drill_chaos.daemon);
	board->comm = COMM;
	board->world = training->world;
	board->n_shards = training->n_shards;
	board->on_call = follow_order;
	atomic_store(&board->last_step, training->last_step);
	atomic_store(&drill->dead, 0);
	atomic_store(&drill->stopped, 0);
	for (uint32_t rank = 0; rank < training->world; rank++)
		start_rank(training, rank);
}

void drill_show(const struct training *training)
{
	for (uint32_t i = 0; i < training->world; i++) {
		const struct exact_rank *rank = &drill->board.ranks[i];

		fprintf(stderr,
			"rank %u (pid %d): %s, call %u, %u failures: %s\n", i,
			(int)training->pids[i], atomic_load(&rank->doing),
			atomic_load(&rank->n_calls),
			atomic_load(&rank->n_failures), rank->sentence);
	}
}

void drill_kill(struct training *training)
{
	for (uint32_t i = 0; i < training->world; i++) {
		if (training->pids[i])
			child_kill(training->pids[i]);
		training->pids[i] = 0;
	}
}

/* Each rank that was killed is started again. */
static void take_end(struct training *training, uint32_t rank, int status)
{
	pid_t pid = training->pids[rank];

	training->pids[rank] = 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return;
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
		drill_show(training);
		drill_kill(training);
		cr_assert(false, "rank %u ended with wait status %#x", rank,
			  status);
	}
	if (!training->n_dead++)
		training->first_victim = pid;
	/* The rank's plan and order have been carried out. */
	drill->is_planned = false;
	start_rank(training, rank);
}

/* Returns how many ranks still run. */
uint32_t drill_take_ends(struct training *training)
{
	uint32_t n = 0;
	int status;

	for (uint32_t rank = 0; rank < training->world; rank++) {
		if (training->pids[rank] &&
		    waitpid(training->pids[rank], &status, WNOHANG) > 0)
			take_end(training, rank, status);
		n += training->pids[rank] != 0;
	}
	return n;
}

void drill_finish(struct training *training)
{
	uint64_t give_up = clock_ms() + PATIENCE_MS;

	for (int i = 0; drill_take_ends(training) > 0; i++) {
		end_stopped();
		if (i % 16 == 0)
			drill_check_workers();
		if (clock_ms() > give_up) {
			drill_show(training);
			drill_kill(training);
			cr_assert(false, "ranks hang");
		}
		nap_ms(1);
	}
	/* The last rank may have stopped the worker before it ended. */
	end_stopped();
	cr_assert(eq(u64, atomic_load(&drill->board.max_step),
		     atomic_load(&drill->board.last_step)));
}

/* The broker may not have noticed yet that the last rank has ended. */
void drill_remove_comm(void)
{
	int r = -EBUSY;

	for (int i = 0; r == -EBUSY && i < PATIENCE_MS; i++) {
		r = fsdp_comm_remove(drill_watcher, COMM);
		if (r == -EBUSY)
			nap_ms(1);
	}
	cr_assert(eq(int, r, 0), "%s", fsdp_error());
}

void drill_audit(void)
{
	static const char *const names[] = {
		"comms",        "comms_running",     "groups",
		"jobs_running", "gathers_in_flight", "gather_bytes_in_flight",
	};

	cr_assert(figures_await(drill_watcher, &before));
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		cr_assert(status_await(drill_watcher, names[i], 0));
	/* The supervisor also keeps the catalog and the state table. */
	cr_assert(keeps_await(&drill_chaos, before.chunks + 2));
	drill_check_workers();
}

void drill_train(struct training *training)
{
	drill_start(training);
	drill_finish(training);
	drill_remove_comm();
	drill_audit();
}

/* --- before and after ---------------------------------------------------- */

void drill_open(void)
{
	drill = drill ? drill : shared_memory(sizeof(*drill));
	memset(drill, 0, sizeof(*drill));
	chaos_start(&drill_chaos, COLD);
	drill_watcher = chaos_connect(&drill_chaos);
	snprintf(drill->plan, sizeof(drill->plan), "%s/mine", drill_chaos.dir);
	figures_read(drill_watcher, &before);
}

void drill_close(void)
{
	/* A planned death that was not reached must not happen during the
	 * shutdown. */
	plan_drop(drill->plan);
	plan_drop(drill_chaos.plan);
	if (drill->points[0])
		(void)unlink(drill->points);
	fsdp_close(drill_watcher);
	drill_watcher = NULL;
	chaos_stop(&drill_chaos);
	cr_assert(eq(uint, workers_count(drill_chaos.plan).n, 0),
		  "a worker outlived its broker");
}

void drill_need_points(void)
{
	if (!chaos_has_points())
		cr_skip_test("built without FSDP_TEST_POINTS");
}

/* --- what is said -------------------------------------------------------- */

/* On devices NCCL may notice the death before the broker does. */
bool drill_is_told(const struct exact_rank *it, const char *words)
{
	return strstr(it->sentence, words) ||
	       (are_on_devices() && strstr(it->sentence, "NCCL says"));
}

static const char of_broker[] = "the broker was restarted";

/* A rank whose call ends while there is no broker gets exactly this error. */
bool drill_is_told_of_broker(const struct exact_rank *it)
{
	return drill_is_told(it, of_broker) ||
	       drill_is_told(it, "fsdpd has exited");
}

static void expect(const struct training *training, uint32_t rank,
		   const char *words)
{
	const struct exact_rank *it = &drill->board.ranks[rank];

	if (words == of_broker ? drill_is_told_of_broker(it)
			       : drill_is_told(it, words))
		return;
	drill_show(training);
	cr_assert(false, "rank %u was not told \"%s\"", rank, words);
}

/* One death makes a rank fail once at most. */
bool drill_has_failed_once(const struct training *training, uint32_t rank)
{
	const struct exact_rank *it = &drill->board.ranks[rank];
	unsigned int n = atomic_load(&it->n_failures);

	if (n > 1)
		drill_show(training);
	cr_assert(le(uint, n, 1));
	return n == 1;
}

unsigned int drill_check_rank_death(const struct training *training,
				    uint32_t victim)
{
	unsigned int n = 0;
	char words[64];

	snprintf(words, sizeof(words), "rank %u (pid %d, ", victim,
		 (int)training->first_victim);
	for (uint32_t i = 0; i < training->world; i++) {
		if (i == victim || !drill_has_failed_once(training, i))
			continue;
		expect(training, i, words);
		expect(training, i, "of communicator '" COMM "' has died");
		n++;
	}
	return n;
}

unsigned int drill_check_broker_death(const struct training *training)
{
	unsigned int n = 0;

	for (uint32_t i = 0; i < training->world; i++) {
		if (!drill_has_failed_once(training, i))
			continue;
		expect(training, i, of_broker);
		n++;
	}
	if (n > 0 && runs_go_on()) {
		drill_show(training);
		cr_assert(false, "the death of the broker was noticed");
	}
	return n;
}

unsigned int drill_check_worker_death(const struct training *training)
{
	unsigned int n = 0;
	char words[64];

	snprintf(words, sizeof(words),
		 "fsdp-worker (pid %d) was killed: Killed",
		 (int)atomic_load(&drill->dead));
	for (uint32_t i = 0; i < training->world; i++) {
		if (!drill_has_failed_once(training, i))
			continue;
		expect(training, i, words);
		expect(training, i, "of communicator '" COMM "' was ");
		n++;
	}
	return n;
}
