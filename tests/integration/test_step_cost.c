/*
 * Measures what a training step with streams costs the thread that makes it:
 * requests to the broker, calls of the driver and of NCCL, and calls that block
 * until a device has finished. The test prints a table, of which docs/device.md
 * has a copy.
 *
 * The executable defines sendmsg() and nanosleep(), which the dynamic linker
 * prefers to libc's when libfsdp calls them.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/device.h"
#include "tests/lib/gpu.h"
#include "tests/lib/trainer.h"
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#define N_STEPS 4 /* counted steps; things that stay open are opened before */
#define N_WARM  2

static const struct fsdp_param_spec PARAMS[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {64, 32}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {64}}},
};
static const struct layer LAYERS[] = {
	{.name = "l0", .params = PARAMS, .n = 2},
	{.name = "l1", .params = PARAMS, .n = 2},
	{.name = "l2", .params = PARAMS, .n = 2},
};
#define N_LAYERS 3

/* --- counting ------------------------------------------------------------ */

enum call {
	UNSHARD,
	WAIT,
	RESHARD,
	INPUT,
	REDUCE,
	COMMIT,
	COMMIT_WAIT,
	N_CALLS,
};

static const char *const call_names[N_CALLS] = {
	"unshard", "wait",   "reshard",       "input",
	"reduce",  "commit", "commit's wait",
};

struct cost {
	long requests, driver, nccl, syncs, naps;
};

static struct cost (*costs)[N_CALLS]; /* in shared memory, by rank */
static long n_sent, n_naps;           /* of the main thread */

static bool is_main(void)
{
	return getpid() == gettid();
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	n_sent += is_main();
	return syscall(SYS_sendmsg, fd, message, flags);
}

int nanosleep(const struct timespec *time, struct timespec *ret_left)
{
	n_naps += is_main();
	return (int)syscall(SYS_nanosleep, time, ret_left);
}

/* Returns whether the call blocks its thread until a device has finished. */
static bool is_sync(const char *name)
{
	return strcmp(name, "StreamSynchronize") == 0 ||
	       strcmp(name, "EventSynchronize") == 0 ||
	       strcmp(name, "CtxSynchronize") == 0;
}

/* Returns whether the call only polls, so that its count depends on timing, or
 * only surrounds other calls. */
static bool is_uncounted(const char *name)
{
	return strstr(name, "Query") || strstr(name, "Ctx") ||
	       strcmp(name, "contexts") == 0 ||
	       strcmp(name, "mps_clients") == 0 ||
	       strcmp(name, "pinned_copies_in") == 0;
}

/* Returns the calls of a process so far. */
static struct cost count(pid_t pid)
{
	struct cost cost = {.requests = n_sent, .naps = n_naps};
	char path[64], line[128], name[64];
	FILE *file;
	long n;

	(void)snprintf(path, sizeof(path), "%s/calls.%d",
		       getenv("FAKECUDA_DIR"), (int)pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%63s %ld", name, &n) != 2)
			continue;
		if (is_sync(name))
			cost.syncs += n;
		else if (strcmp(name, "nccl_calls") == 0)
			cost.nccl += n;
		else if (!is_uncounted(name))
			cost.driver += n;
	}
	if (file)
		(void)fclose(file);
	return cost;
}

static void add(struct cost *to, const struct cost *cost, long sign)
{
	to->requests += sign * cost->requests;
	to->driver += sign * cost->driver;
	to->nccl += sign * cost->nccl;
	to->syncs += sign * cost->syncs;
	to->naps += sign * cost->naps;
}

/* Evaluate the expression, and add its cost. */
#define COUNTED(call_, expression_)                                            \
	__extension__({                                                        \
		struct cost before_ = count(getpid()), after_;                 \
		int r_ = (expression_);                                        \
                                                                               \
		after_ = count(getpid());                                      \
		add(&costs[rank_self()][call_], &before_, -1);                 \
		add(&costs[rank_self()][call_], &after_, 1);                   \
		r_;                                                            \
	})

/* --- a rank -------------------------------------------------------------- */

static CUstream stream;

static int make_whole(size_t layer)
{
	struct fsdp_group *group = trainer()->groups[layer];
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_work work;
	int r = COUNTED(UNSHARD, fsdp_unshard(group, &work));

	if (r == 0)
		r = COUNTED(WAIT, fsdp_wait_on(&work, stream, -1));
	return r < 0 ? r : fsdp_param(group, 0, &param);
}

static int forward(size_t layer)
{
	int r = make_whole(layer);

	return r < 0 ? r
		     : COUNTED(RESHARD,
			       fsdp_reshard_on(trainer()->groups[layer], 0,
					       stream));
}

static int backward(size_t layer, struct fsdp_work *ret)
{
	const struct fsdp_reduce_options options = {.stream = stream};
	struct fsdp_group *group = trainer()->groups[layer];
	int r = make_whole(layer);

	if (r == 0)
		r = COUNTED(INPUT, fsdp_input(group, -1));
	must(r < 0 || fsdp_input_data(group, 0));
	if (r == 0)
		r = COUNTED(REDUCE, fsdp_reduce(group, &options, ret));
	return r < 0 ? r : COUNTED(RESHARD, fsdp_reshard_on(group, 0, stream));
}

static int step(void)
{
	struct fsdp_work works[N_LAYERS], commit;
	int r = 0;

	for (size_t i = 0; i < N_LAYERS && r == 0; i++)
		r = forward(i);
	for (size_t i = N_LAYERS; i-- > 0 && r == 0;)
		r = backward(i, &works[i]);
	for (size_t i = N_LAYERS; i-- > 0 && r == 0;)
		r = COUNTED(WAIT, fsdp_wait_on(&works[i], stream, -1));
	if (r == 0)
		r = COUNTED(COMMIT,
			    fsdp_commit_on(trainer()->comm, trainer()->step + 1,
					   stream, &commit));
	if (r == 0)
		r = COUNTED(COMMIT_WAIT, fsdp_wait(&commit, -1));
	trainer()->step += r == 0;
	return rank_note(r);
}

static int begin(void)
{
	int r = trainer_join();

	if (r == 0)
		r = trainer_commit();
	stream = stream_make(gpu_nth(rank_self()));
	for (int i = 0; i < N_WARM && r == 0; i++)
		r = step();
	memset(costs[rank_self()], 0, sizeof(*costs));
	return r;
}

static int train(void)
{
	int r = 0;

	for (int i = 0; i < N_STEPS && r == 0; i++)
		r = step();
	return r;
}

/* --- tests --------------------------------------------------------------- */

static struct daemon daemon_;
static struct ranks ranks;

static void set_up(void)
{
	need_fake("calls are counted");
	gpu_open();
	setenv("FSDP_TEST_DEVICES", "1", 1);
	setenv("FAKECUDA_COUNT", "1", 1);
	setenv("FAKECUDA_DEVICES", "4", 1);
	costs = mmap(NULL, RANKS_MAX * sizeof(*costs), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(costs != MAP_FAILED);
}

static void tear_down(void)
{
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
	gpu_close();
}

TestSuite(step_cost, .init = set_up, .fini = tear_down, .timeout = 300);

static void print(const char *form, const char *what, const struct cost *cost)
{
	printf("%-10s %-14s %8.1f %8.1f %8.1f %8.1f %8.1f\n", form, what,
	       (double)cost->requests / N_STEPS, (double)cost->driver / N_STEPS,
	       (double)cost->nccl / N_STEPS, (double)cost->syncs / N_STEPS,
	       (double)cost->naps / N_STEPS);
}

static void print_all(const char *form, const struct cost *worker)
{
	struct cost sum = {0};

	printf("%-10s %-14s %8s %8s %8s %8s %8s\n", "a step", "in", "requests",
	       "driver", "NCCL", "syncs", "naps");
	for (int i = 0; i < N_CALLS; i++) {
		print(form, call_names[i], &costs[0][i]);
		add(&sum, &costs[0][i], 1);
	}
	print(form, "all", &sum);
	if (worker)
		print(form, "the worker", worker);
}

/* Check that no call waits until a device has finished. The last one of the
 * step may sleep. */
static void expect_no_sync(void)
{
	for (uint32_t rank = 0; rank < ranks.n; rank++) {
		for (int i = 0; i < N_CALLS; i++)
			cr_expect(zero(long, costs[rank][i].syncs), "%s",
				  call_names[i]);
		cr_expect(zero(long, costs[rank][RESHARD].naps));
		cr_expect(zero(long, costs[rank][COMMIT].naps));
	}
}

static void measure(const char *form, uint32_t n_ranks, uint32_t n_shards)
{
	struct cost before, worker = {0};
	pid_t pid = 0;

	daemon_start(&daemon_);
	crew_set(&(struct crew){.daemon = &daemon_,
				.comm = "cost",
				.options = {.n_shards = n_shards},
				.layers = LAYERS,
				.n_layers = N_LAYERS});
	ranks_start(&ranks, n_ranks);
	cr_assert(zero(int, ranks_run(&ranks, begin)));
	if (getenv("FSDP_TEST_EXECUTOR"))
		pid = worker_await(&daemon_);
	before = count(pid);
	cr_assert(zero(int, ranks_run(&ranks, train)));
	worker = count(pid);
	add(&worker, &before, -1);
	print_all(form, pid ? &worker : NULL);
	cr_expect(zero(long, worker.syncs));
	expect_no_sync();
}

Test(step_cost, by_ranks)
{
	measure("rank", 2, 0);
}

Test(step_cost, by_the_worker)
{
	setenv("FSDP_TEST_EXECUTOR", "worker", 1);
	measure("worker", 2, 0);
	for (int i = 0; i < N_CALLS; i++)
		cr_expect(i == COMMIT_WAIT || costs[0][i].naps == 0, "%s",
			  call_names[i]);
}

Test(step_cost, offloaded)
{
	setenv("FSDP_TEST_OFFLOAD", "1", 1);
	measure("offloaded", 2, 0);
}

Test(step_cost, with_replicas)
{
	measure("HSDP", 4, 2);
}
