/*
 * fsdp-bench: measures every number that the design promises, with its floor.
 * Rows run one after another, each in a process of its own with its own broker
 * in a directory of its own. A row that cannot be measured is reported and does
 * not prevent the others from running.
 *
 * The exit status is 0 if all rows were measured (met or not), 1 if one was
 * not, 2 for wrong usage, 77 for a table of devices on a machine without
 * devices.
 */
#include "bench.h"
#include "gpu.h"
#include "hostile.h"
#include "party.h"
#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A row or table that hangs is ended after this time. */
#define ROW_SECONDS   120
#define TABLE_SECONDS 3600

struct row {
	const char *name;
	const char *unit;
	double budget;
	row_fn *run;
	const char *what;
};

/* Names, budgets and order are those of the design's table. */
static const struct row rows[] = {
	{"hot_acquire_release", "ns", 3, hot_acquire_release,
	 "a known tensor by handle, no system call"},
	{"hot_get_by_name", "ns", 5, hot_get_by_name, "the same by name"},
	{"rpc_ping", "us", 1.3, rpc_ping, "one request: ping"},
	{"rpc_get", "us", 1.3, rpc_get, "one request: a new name"},
	{"rpc_publish", "us", 1.3, rpc_publish, "one request: replace"},
	{"rpc_release", "us", 1.3, rpc_release, "one request: free"},
	{"rpc_alloc_warm", "us", 1.3, rpc_alloc_warm, "one request: 64 KiB"},
	{"rpc_get_100", "us", 2, rpc_get_100, "100 tensors in one get"},
	{"publish_to_waiter", "us", 1.3, publish_to_waiter,
	 "publish until a sleeping waiter has it"},
	{"publish_to_waiter_one_wake", "us", 1.1, publish_to_waiter_one_wake,
	 "the same; floor: that of channel_one_way"},
	{"channel_one_way", "us", 1, channel_one_way,
	 "an item to a sleeping consumer; floor: a socket"},
	{"channel_64KiB", "us", 1, channel_64kib,
	 "an item, not touched; floor: a token and a credit on a socket"},
	{"channel_64KiB_filled", "us", 1.2, channel_64kib_filled,
	 "an item, filled; floor: memset"},
	{"channel_1MiB", "us", 1, channel_1mib,
	 "an item, filled; floor: as many bytes through a pipe"},
	{"channel_wakes", "per item", 1, channel_wakes,
	 "sleeps of a consumer, items seldom"},
	{"channel_wakes_busy", "per item", 1, channel_wakes_busy,
	 "the same, items as fast as they go; limit 0.05"},
	{"handover_1MiB", "us", 1.3, handover_1mib,
	 "alloc, fill, publish, consume, release"},
	{"handover_64MiB", "us", 1.1, handover_64mib, "the same"},
	{"handover_steady_faults", "per hand-over", 0, handover_steady_faults,
	 "page faults"},
	{"handover_steady_mmaps", "per hand-over", 0, handover_steady_mmaps,
	 "mmaps"},
	{"handover_steady_fds", "per hand-over", 0, handover_steady_fds,
	 "new descriptors"},
	{"death_reclaim_1000", "us", 1, death_reclaim_1000,
	 "p99, from a client's death to reuse of 1,000 slots"},
	{"idle_wakeups", "in 10 s", 0, idle_wakeups, "broker, idle"},
	{"model_attach_1000", "us", 10, model_attach_1000,
	 "a bundle of 1,000 in a new process"},
	{"local_all_gather_64MiB", "us", 1.25, local_all_gather_64mib,
	 "the worse of copy and cast, 2 and 4 ranks; floor: copy as much"},
	{"local_reduce_scatter_64MiB", "us", 1.25, local_reduce_scatter_64mib,
	 "the worse of f32 and cast, 2 and 4 ranks; floor: triad"},
	{"direct_unshard_in_place", "ns", 5, direct_unshard_in_place,
	 "an unshard that moves nothing; floor: acquire and release"},
	{"direct_death", "us", 3, direct_death,
	 "from a rank's kill until another is told; floor: its pidfd"},
	{"direct_death_p99", "ms", 1, direct_death_p99,
	 "our quantiles less the pidfd's; the value is that of the p99"},
	{"direct_death_1GiB", "us", 0.5, direct_death_1gib,
	 "the same of a rank with memory of its own; 256 MiB if quick"},
	{"direct_reduce_1KiB", "us", 0.6, direct_reduce_1kib,
	 "reduce-scatter, the worse of 2 and 4 ranks; floor: fsdp-worker's"},
	{"direct_reduce_64KiB", "us", 0.6, direct_reduce_64kib, "the same"},
	{"direct_reduce_1MiB", "us", 0.6, direct_reduce_1mib, "the same"},
	{"direct_reduce_4MiB", "us", 1.05, direct_reduce_4mib, "the same"},
	{"direct_reduce_64MiB", "us", 1.05, direct_reduce_64mib, "the same"},
	{"direct_gather_64KiB", "us", 15, direct_gather_64kib,
	 "all-gather, flat, the worse of 2 and 4 ranks; floor: memcpy by as "
	 "many"},
	{"direct_gather_1MiB", "us", 3, direct_gather_1mib, "the same"},
	{"direct_gather_4MiB", "us", 2, direct_gather_4mib, "the same"},
	{"direct_gather_64MiB", "us", 1.35, direct_gather_64mib, "the same"},
	{"direct_gather_cast_64KiB", "us", 5, direct_gather_cast_64kib,
	 "the same, f32 to bf16; floor: the kernel by as many"},
	{"direct_gather_cast_1MiB", "us", 2, direct_gather_cast_1mib,
	 "the same"},
	{"direct_gather_cast_4MiB", "us", 2, direct_gather_cast_4mib,
	 "the same"},
	{"direct_gather_cast_64MiB", "us", 1.25, direct_gather_cast_64mib,
	 "the same"},
	{"worker_gather_4MiB", "us", 1.05, worker_gather_4mib,
	 "all-gather, flat, the worse of 2 and 4 ranks; floor: fsdp-worker's"},
	{"worker_gather_64MiB", "us", 1.05, worker_gather_64mib, "the same"},
	{"worker_all_reduce_4MiB", "us", 1.05, worker_all_reduce_4mib,
	 "all-reduce, the same"},
	{"worker_all_reduce_64MiB", "us", 1.05, worker_all_reduce_64mib,
	 "the same"},
	{"mpi_gather_64KiB", "us", 1, mpi_gather_64kib,
	 "all-gather, flat, ranks apart, the worse of 2 and 4; floor: the "
	 "better MPI"},
	{"mpi_reduce_64KiB", "us", 1, mpi_reduce_64kib,
	 "reduce-scatter, the same"},
	{"mpi_gather_1KiB", "us", 1.5, mpi_gather_1kib, "all-gather, the same"},
	{"mpi_reduce_1KiB", "us", 1.5, mpi_reduce_1kib,
	 "reduce-scatter, the same"},
	{"mpi_reduce_1KiB_crowded", "us", 1, mpi_reduce_1kib_crowded,
	 "the same, all ranks on one CPU"},
	{"tensor_all_reduce_1KiB", "us", 8, tensor_all_reduce_1kib,
	 "of the ranks' own memory, the worse of 2 and 4; floor: a barrier"},
	{"tensor_all_reduce_1MiB", "us", 6, tensor_all_reduce_1mib,
	 "the same; floor: memcpy of the tensor, by as many"},
	{"tensor_all_reduce_64MiB", "us", 5, tensor_all_reduce_64mib,
	 "the same"},
	{"tensor_broadcast_1MiB", "us", 5, tensor_broadcast, "the same"},
	{"tensor_reduce_1MiB", "us", 5, tensor_reduce, "the same"},
	{"tensor_all_gather_1MiB", "us", 5, tensor_all_gather, "the same"},
	{"tensor_gather_1MiB", "us", 5, tensor_gather, "the same"},
	{"tensor_scatter_1MiB", "us", 5, tensor_scatter, "the same"},
	{"tensor_reduce_scatter_1MiB", "us", 5, tensor_reduce_scatter,
	 "the same"},
	{"tensor_all_to_all_1MiB", "us", 5, tensor_all_to_all, "the same"},
	{"tensor_send_1MiB", "us", 8, tensor_send,
	 "the same, each to the next rank"},
	{"load_1GiB", "ms", 1.1, load_1gib,
	 "fsdpctl load of four files; floor: as many plain readers"},
	{"plan_65536", "ms", 2, plan_65536,
	 "plan a graph of 65,536 nodes; floor: 16 times that of 4,096"},
	{"meter_request", "ns", 1, meter_request_ns,
	 "measure a request in the broker; the best block"},
	{"sandbox_ping", "us", 1.1, sandbox_ping,
	 "a ping in the sandbox; floor: without"},
	{"broker_rss_per_100k", "MiB", 1, broker_rss_per_100k,
	 "broker memory per 100,000 tensors"},
	{"restart_10k", "ms", 1, restart_10k,
	 "kill -9 until 10,000 tensors are served"},
	{"scale_ls", "ms", 1, scale_ls,
	 "fsdpctl ls of 1,000,000 tensors, beside 4,000 sessions"},
	{"scale_status", "ms", 1, scale_status, "fsdpctl status there"},
	{"scale_who", "ms", 1, scale_who, "fsdpctl who of one of them"},
	{"scale_top", "ms", 1, scale_top, "a page of fsdpctl top there"},
	{"scale_top_tensors", "ms", 1, scale_top_tensors,
	 "a page of its view of tensors"},
	{"scale_metrics", "ms", 1, scale_metrics, "fsdpctl metrics there"},
	{"scale_bytes_per_tensor", "bytes", 1, scale_bytes_per_tensor,
	 "broker memory there, for each tensor"},
	{"scale_restart", "ms", 1, scale_restart,
	 "kill -9 until one of them is served"},
	{"scale_restart_idle", "ms", 10, scale_restart_idle,
	 "kill -9 until a new client has one of as many, without sessions; "
	 "floor: read the broker's memory in a new process"},
	{"alloc_churn_growth", "MiB", 1, alloc_churn_growth,
	 "growth of the broker by 64 KiB at full rate for ten minutes"},
};
#define N_ROWS (sizeof(rows) / sizeof(*rows))

/* Each table prints its own measurements, and has no selection of rows. */
static const struct row tables[] = {
	{"collectives", "us", INFINITY, collectives,
	 "collectives of 2 and 4 ranks, beside bandwidth and MPI"},
	{"gpu", "us", INFINITY, gpu, "tensors and collectives on devices"},
	{"hostile", "us", INFINITY, hostile,
	 "an innocent client's ping while others attack the broker"},
	{"rehearsal", "us", INFINITY, rehearsal,
	 "each of these attacks once, small and not measured"},
};
#define N_TABLES  (sizeof(tables) / sizeof(*tables))
#define NO_DEVICE 77 /* exit status without devices */

static const char usage[] =
	"Usage: fsdp-bench [--quick] [--json] [--list] [ROW...]\n"
	"       fsdp-bench collectives [--quick] [--json]\n"
	"       fsdp-bench gpu [--quick] [--json] [SECTION...]\n"
	"       fsdp-bench hostile [--quick] [--json] [ATTACK...]\n"
	"       fsdp-bench rehearsal [ATTACK...]\n"
	"\n"
	"Measures what fsdpd promises, next to what the bare machine needs.\n"
	"\n"
	"  --quick  fewer repetitions: all rows within a minute\n"
	"  --json   one JSON object per row and line\n"
	"  --list   names of all rows\n"
	"\n"
	"The table of collectives has 2 and 4 ranks, each on a CPU of its own "
	"or all on\n"
	"one, 1 KiB to 64 MiB, and beside them fsdp-worker and, where they are "
	"installed,\n"
	"Open MPI and MPICH. The table of GPUs has PyTorch beside it, where it "
	"is\n"
	"installed; without a GPU the exit status is 77.\n"
	"Sections: attach_1000, import_and_map, publish_to_consume, kernels,\n"
	"collectives, gemm, torch; without a name: all.\n"
	"\n"
	"The hostile table has the ping of an innocent client while others "
	"attack the\n"
	"broker. Attacks: seal, evict, close_memfd, close_linger, bundle_get,\n"
	"bundle_first_get, bundle_commit, deadlines, keeper; without a name: "
	"all.\n"
	"A rehearsal makes each once, small, and measures nothing.\n"
	"\n"
	"fsdpd is taken from the directory of fsdp-bench, else from PATH.\n";

static const char *find_fsdpd(void)
{
	static char path[PATH_MAX];

	return access(bench_beside("fsdpd", path), X_OK) == 0 ? path : "fsdpd";
}

/* Find the first three CPUs that we may use. */
static void find_cpus(struct bench *bench)
{
	int cpus[3], n = 0;

	sys(sched_getaffinity(0, sizeof(bench->cpus), &bench->cpus),
	    "sched_getaffinity");
	for (int i = 0; i < CPU_SETSIZE && n < 3; i++)
		if (CPU_ISSET(i, &bench->cpus))
			cpus[n++] = i;
	bench->client_cpu = cpus[0];
	bench->server_cpu = n > 1 ? cpus[1] : cpus[0];
	bench->second_cpu = n > 2 ? cpus[2] : cpus[0];
}

static void remove_directory(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;

	if (!dir)
		return;
	while ((entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	rmdir(path);
}

static void __attribute__((noreturn))
run_here(const struct row *row, const struct bench *bench, int result_fd)
{
	struct result result;

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN);
	pin(bench->client_cpu);
	alarm(row >= tables && row < tables + N_TABLES ? TABLE_SECONDS
						       : ROW_SECONDS);
	row->run(bench, &result);
	if (write(result_fd, &result, sizeof(result)) != sizeof(result))
		die("write the result: %m");
	exit(0);
}

/* Run the row in a process group of its own, which is killed afterwards. */
static bool row_run(const struct row *row, struct bench *bench,
		    struct result *ret)
{
	const char *tmp = getenv("TMPDIR");
	char dir[PATH_MAX];
	bool is_measured;
	int ends[2];
	pid_t pid;

	snprintf(dir, sizeof(dir), "%s/fsdp-bench.XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(dir))
		die("make %s: %m", dir);
	bench->dir = dir;
	sys(pipe2(ends, O_CLOEXEC), "pipe2");
	pid = sys(fork(), "fork");
	if (pid == 0)
		run_here(row, bench, ends[1]);
	close(ends[1]);
	is_measured = read(ends[0], ret, sizeof(*ret)) == sizeof(*ret);
	close(ends[0]);
	waitpid(pid, NULL, 0);
	kill(-pid, SIGKILL);
	remove_directory(dir);
	return is_measured;
}

static bool is_met(const struct row *row, const struct result *result)
{
	return result->ratio <= row->budget;
}

static void print_json(const struct row *row, const struct result *result)
{
	printf("{\"name\": \"%s\"", row->name);
	print_number("median", result->median);
	print_number("p99", result->p99);
	printf(", \"unit\": \"%s\", \"n\": %zu", row->unit, result->n);
	print_number("floor", result->floor);
	print_number("ratio", result->ratio);
	if (result->ratio_low > 0) {
		print_number("ratio_low", result->ratio_low);
		print_number("ratio_high", result->ratio_high);
	}
	if (result->min > 0) {
		print_number("min", result->min);
		print_number("floor_min", result->floor_min);
	}
	print_number("budget", row->budget);
	for (int i = 0; i < N_MPIS; i++)
		if (result->mpi[i] > 0)
			print_number(mpis[i].key, result->mpi[i]);
	printf("}\n");
}

static void print_head(const struct bench *bench)
{
	printf("clients on CPU %d, servers on CPU %d, second clients on CPU "
	       "%d; "
	       "%u pairs\n"
	       "floor is what the bare machine needs, or the limit; ratio is "
	       "the median of the pairs' ratios, or value / limit; best is the "
	       "ratio of the least values, spread the quartiles of the "
	       "pairs' ratios; a row may have more pairs until its ratio "
	       "is known\n\n",
	       bench->client_cpu, bench->server_cpu, bench->second_cpu,
	       bench->n_pairs);
	printf("%-26s %9s %9s %9s %-13s %7s %7s %-15s %7s\n", "row", "median",
	       "p99", "floor", "unit", "best", "ratio", "spread", "budget");
}

static void print_line(const struct row *row, const struct result *result)
{
	char spread[32];

	printf("%-26s %9.4g %9.4g %9.4g %-13s", row->name, result->median,
	       result->p99, result->floor, row->unit);
	if (result->min > 0)
		printf(" %7.3g", result->min / result->floor_min);
	else
		printf(" %7s", "-");
	snprintf(spread, sizeof(spread), "%.3g-%.3g", result->ratio_low,
		 result->ratio_high);
	printf(" %7.3g %-15s %7.3g  %-7s  %s", result->ratio,
	       result->ratio_low > 0 ? spread : "-", row->budget,
	       is_met(row, result) ? "met" : "NOT MET", row->what);
	for (int i = 0; i < N_MPIS; i++)
		if (result->mpi[i] > 0)
			printf("; %s: %.3g times ours", mpis[i].name,
			       result->mpi[i]);
	printf("\n");
}

static bool is_wanted(const struct row *row, char **names)
{
	if (!*names)
		return true;
	for (; *names; names++)
		if (strcmp(*names, row->name) == 0)
			return true;
	return false;
}

/* Returns NULL if no row has that name. */
static const struct row *find_row(const struct row *list, size_t n,
				  const char *name)
{
	for (size_t i = 0; name && i < n; i++)
		if (strcmp(list[i].name, name) == 0)
			return &list[i];
	return NULL;
}

/* Returns how many rows could not be measured. */
static unsigned run_rows(struct bench *bench, char **names)
{
	unsigned n_failed = 0, n_met = 0, n = 0;
	struct result result;

	if (!bench->is_json)
		print_head(bench);
	for (size_t i = 0; i < N_ROWS; i++) {
		if (!is_wanted(&rows[i], names))
			continue;
		fflush(stdout);
		n++;
		if (!row_run(&rows[i], bench, &result)) {
			fprintf(stderr, "fsdp-bench: %s was not measured\n",
				rows[i].name);
			n_failed++;
			continue;
		}
		n_met += is_met(&rows[i], &result);
		if (bench->is_json)
			print_json(&rows[i], &result);
		else
			print_line(&rows[i], &result);
	}
	if (!bench->is_json)
		printf("\n%u of %u budgets met, %u rows not measured\n", n_met,
		       n, n_failed);
	return n_failed;
}

static int list_rows(void)
{
	for (size_t i = 0; i < N_ROWS; i++)
		puts(rows[i].name);
	return 0;
}

static bool has_devices(const struct bench *bench)
{
	struct gpu found;

	gpu_find(&found, bench);
	if (found.error < 0)
		fprintf(stderr, "fsdp-bench: gpu: %s\n", found.sentence);
	return found.error >= 0;
}

static const char *find_unknown(const struct row *table, char **names)
{
	if (table->run == hostile || table->run == rehearsal)
		return hostile_find_unknown(names);
	if (table->run == gpu)
		return gpu_find_unknown(names);
	return *names;
}

/* `names` are attacks, or sections of the table of GPUs. NULL ends them. */
static int run_table(const struct row *table, struct bench *bench, char **names)
{
	const char *unknown = find_unknown(table, names);
	struct result result;

	bench->parts = names;
	if (unknown) {
		fprintf(stderr, "fsdp-bench: %s has no \"%s\"; see --help\n",
			table->name, unknown);
		return 2;
	}
	if (table->run == gpu && !has_devices(bench))
		return NO_DEVICE;
	return row_run(table, bench, &result) ? 0 : 1;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"quick", no_argument, NULL, 'q'},
		{"json", no_argument, NULL, 'j'},
		{"list", no_argument, NULL, 'l'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct bench bench = {.n_pairs = 51, .fsdpd = find_fsdpd()};
	const struct row *table;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'q':
			bench.is_quick = true;
			bench.n_pairs = 11;
			break;
		case 'j':
			bench.is_json = true;
			break;
		case 'l':
			return list_rows();
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			fputs("fsdp-bench: see fsdp-bench --help\n", stderr);
			return 2;
		}
	}
	find_cpus(&bench);
	table = find_row(tables, N_TABLES, argv[optind]);
	if (table)
		return run_table(table, &bench, argv + optind + 1);
	for (char **name = argv + optind; *name; name++) {
		if (!find_row(rows, N_ROWS, *name)) {
			fprintf(stderr,
				"fsdp-bench: no row \"%s\"; see --list\n",
				*name);
			return 2;
		}
	}
	return run_rows(&bench, argv + optind) ? 1 : 0;
}
