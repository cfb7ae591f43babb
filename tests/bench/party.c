#include "party.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_SIZE 240
#define LOOK_MS   200    /* interval of checks that the ranks are alive */
#define ORDER_MS  120000 /* longer than any order takes */

const struct mpi mpis[N_MPIS] = {
	{"Open MPI", "openmpi_ratio", "mpirun.openmpi", "fsdp-bench-openmpi"},
	{"MPICH", "mpich_ratio", "mpirun.mpich", "fsdp-bench-mpich"},
};

/* Returns the `i`th of the CPUs that the benchmark may use. Numbers after the
 * last one begin with the first CPU again. */
static int nth_cpu(const struct bench *bench, uint32_t i)
{
	int n = CPU_COUNT(&bench->cpus);
	int left = (int)i % n;

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &bench->cpus) && left-- == 0)
			return cpu;
	return 0;
}

static void party_init(struct party *party, const struct bench *bench,
		       const char *name, uint32_t n_ranks,
		       enum placement placement, char *path, size_t path_size)
{
	static unsigned n_stages;
	int r;

	*party = (struct party){.name = name};
	snprintf(path, path_size, "%s/stage-%u", bench->dir, n_stages++);
	r = stage_create(path, n_ranks, &party->stage);
	if (r < 0)
		die("make %s: %s", path, strerror(-r));
	for (uint32_t i = 0; i < n_ranks && placement != ANYWHERE; i++)
		party->stage->cpus[i] =
			nth_cpu(bench, placement == APART ? i : 0);
}

static void party_await(struct party *party);

void party_start(struct party *party, const struct bench *bench,
		 const char *name, uint32_t n_ranks, enum placement placement,
		 party_fn *fn, void *data)
{
	char path[PATH_SIZE];

	party_init(party, bench, name, n_ranks, placement, path, sizeof(path));
	for (uint32_t i = 0; i < n_ranks; i++) {
		party->pids[i] = sys(fork(), "fork");
		if (party->pids[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			unpin(bench);
			fn(party->stage, i, data);
			_exit(0);
		}
		party->n_pids++;
	}
	party_await(party);
}

/* --- MPI ----------------------------------------------------------------- */

/*
 * Neither library binds its ranks; they move to their CPUs as ours do. With
 * more ranks than CPUs, ranks that wait must let others run. Open MPI yields if
 * it is told that it is oversubscribed, and MPICH after the given number of
 * polls.
 */
static void __attribute__((noreturn))
exec_mpi(const struct bench *bench, const struct mpi *mpi, uint32_t n_ranks,
	 bool is_crowded, const char *stage, const char *log)
{
	const char *args[24];
	size_t n = 0;
	char count[16], peer[PATH_MAX];
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	unpin(bench);
	fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd >= 0) {
		dup2(fd, STDOUT_FILENO);
		dup2(fd, STDERR_FILENO);
	}
	snprintf(count, sizeof(count), "%u", n_ranks);
	args[n++] = mpi->run;
	if (mpi == &mpis[0]) {
		setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
		setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
		args[n++] = "--bind-to";
		args[n++] = "none";
		args[n++] = "--oversubscribe";
		args[n++] = "--mca";
		args[n++] = "mpi_yield_when_idle";
		args[n++] = is_crowded ? "1" : "0";
	} else if (is_crowded) {
		setenv("MPIR_CVAR_POLLS_BEFORE_YIELD", "1", 1);
	}
	args[n++] = "-n";
	args[n++] = count;
	args[n++] = bench_beside(mpi->peer, peer);
	args[n++] = stage;
	args[n] = NULL;
	execvp(mpi->run, (char *const *)args);
	fprintf(stderr, "run %s: %s\n", mpi->run, strerror(errno));
	_exit(127);
}

/* Returns whether there is such a program in PATH. */
static bool is_installed(const char *program)
{
	char *path = strdup(getenv("PATH") ? getenv("PATH") : "");
	bool is_found = false;
	char *rest = path;
	char *dir;

	while (path && !is_found && (dir = strsep(&rest, ":"))) {
		char name[512];

		snprintf(name, sizeof(name), "%s/%s", dir, program);
		is_found = access(name, X_OK) == 0;
	}
	free(path);
	return is_found;
}

void party_start_mpi(struct party *party, const struct bench *bench,
		     const struct mpi *mpi, uint32_t n_ranks,
		     enum placement placement)
{
	bool is_crowded = placement == CROWDED ||
			  n_ranks > (uint32_t)CPU_COUNT(&bench->cpus);
	char path[PATH_SIZE], peer[PATH_MAX];

	*party = (struct party){.name = mpi->name};
	if (access(bench_beside(mpi->peer, peer), X_OK) < 0 ||
	    !is_installed(mpi->run))
		return;
	party_init(party, bench, mpi->name, n_ranks, placement, path,
		   sizeof(path));
	party->may_fail = true;
	snprintf(party->log, sizeof(party->log), "%s.log", path);
	party->pids[0] = sys(fork(), "fork");
	if (party->pids[0] == 0)
		exec_mpi(bench, mpi, n_ranks, is_crowded, path, party->log);
	party->n_pids = 1;
	party_await(party);
}

/* --- orders -------------------------------------------------------------- */

static void show_log(const char *path)
{
	char line[512];
	FILE *file = fopen(path, "r");

	if (!file)
		return;
	while (fgets(line, sizeof(line), file))
		fprintf(stderr, "    %s", line);
	fclose(file);
}

static bool is_alive(struct party *party)
{
	for (uint32_t i = 0; i < party->n_pids; i++) {
		if (waitpid(party->pids[i], NULL, WNOHANG) == 0)
			continue;
		party->pids[i] = party->pids[--party->n_pids];
		return false;
	}
	return true;
}

static void party_fail(struct party *party, const char *why)
{
	if (!party->may_fail)
		die("%s: %s", party->name, why);
	fprintf(stderr, "fsdp-bench: %s: %s; going on without it\n",
		party->name, why);
	show_log(party->log);
	for (uint32_t i = 0; i < party->n_pids; i++) {
		kill(party->pids[i], SIGTERM);
		waitpid(party->pids[i], NULL, 0);
	}
	stage_close(party->stage);
	party->stage = NULL;
}

static void party_await(struct party *party)
{
	uint64_t end = now_ns() + ORDER_MS * 1000000ull;

	while (!stage_wait(party->stage, LOOK_MS)) {
		if (!is_alive(party)) {
			party_fail(party, "a process has ended");
			return;
		}
		if (now_ns() > end) {
			party_fail(party, "does not end");
			return;
		}
	}
}

bool party_order(struct party *party, const struct stage_order *order)
{
	if (!party->stage)
		return false;
	stage_give(party->stage, order);
	party_await(party);
	return party->stage;
}

void party_stop(struct party *party)
{
	if (!party->stage)
		return;
	stage_give(party->stage, &(struct stage_order){.verb = STAGE_QUIT});
	for (uint32_t i = 0; i < party->n_pids; i++)
		sys(waitpid(party->pids[i], NULL, 0), "wait for a process");
	stage_close(party->stage);
	party->stage = NULL;
}
