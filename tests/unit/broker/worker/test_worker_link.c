/* Tests the program fsdp-worker over its link: its jobs, refusals, and end. */
#include "tests/unit/broker/worker/worker_process.h"
#include "tests/unit/collective/host/host_fixture.h"

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_SIZE (UINT64_C(2) << 20)
#define AT_SHARDS  0
#define AT_FULL    (UINT64_C(64) << 10)
#define AT_GRADS   (UINT64_C(128) << 10)
#define AT_INPUTS  (UINT64_C(192) << 10) /* and each following 64 KiB */

struct worker {
	pid_t pid;
	int fd;
	int chunk_fd;
	uint8_t *memory; /* the chunk */
	struct group group;
};

/* --- the broker's side --------------------------------------------------- */

/* Returns the status of the worker's process (waitpid()). */
static int await_end(const struct worker *worker)
{
	int status;

	cr_assert(eq(int, waitpid(worker->pid, &status, 0), worker->pid));
	return status;
}

static void drop(struct worker *worker)
{
	close(worker->fd);
	munmap(worker->memory, CHUNK_SIZE);
	close(worker->chunk_fd);
	group_deinit(&worker->group);
}

/* It ends by itself when the link is closed. */
static void stop(struct worker *worker)
{
	shutdown(worker->fd, SHUT_RDWR);
	cr_assert(zero(int, await_end(worker)));
	drop(worker);
}

static void send_chunk(const struct worker *worker, uint32_t kind, uint32_t id)
{
	const struct job_chunk chunk = {kind, id, CHUNK_SIZE, {{0}}};

	send_with_fd(worker->fd, &chunk, sizeof(chunk),
		     kind == JOB_CHUNK ? worker->chunk_fd : -1);
}

static void send_plan(const struct worker *worker, uint64_t number,
		      const struct plan_entry *entries)
{
	const struct plan *plan = &worker->group.plan;
	const struct job_plan message = {
		.kind = JOB_PLAN,
		.n_entries = plan->n_entries,
		.plan = number,
		.n_shards = plan->n_shards,
		.n_replicas = plan->n_replicas,
		.shards_size = plan->shards_size,
		.full_size = plan->full_size,
		.input_size = plan->input_size,
		.grads_size = plan->grads_size,
		.partial_size = plan->partial_size,
	};

	send_plan_with(worker->fd, &message, entries);
}

/* Start a worker that knows chunk 1 and plan 1: w, 5 x 3 of f32, over two
 * shards. */
static void start_threads(struct worker *worker, uint32_t n_threads)
{
	const struct plan_policy policy = {.layout = PLAN_FLAT};
	void *memory;

	*worker = (struct worker){.group = {.n_params = 1}};
	worker->group.params[0] = (struct plan_param){
		.name = "w",
		.type = {DTYPE_F32, 2, {5, 3}, {3, 1}},
	};
	cr_assert(zero(int, plan_make(worker->group.params, 1, &policy, 2, 1,
				      &worker->group.plan, NULL)));
	group_make_layout(&worker->group);
	cr_assert(zero(int, memfd_create_sealed("chunk", CHUNK_SIZE,
						MEMFD_SEAL_CLOSED,
						&worker->chunk_fd, NULL)));
	cr_assert(zero(int, memfd_map(worker->chunk_fd, CHUNK_SIZE, true,
				      &memory, NULL)));
	worker->memory = memory;
	worker->fd = worker_start(n_threads, &worker->pid);
	send_chunk(worker, JOB_CHUNK, 1);
	send_plan(worker, 1, worker->group.plan.entries);
}

static void start_ready(struct worker *worker)
{
	start_threads(worker, 2);
}

static struct job_range range(uint64_t offset)
{
	return (struct job_range){.chunk = 1, .offset = offset, .size = 65536};
}

static struct job make_job(uint32_t kind, uint64_t number)
{
	struct job job = {
		.kind = kind,
		.number = number,
		.plan = 1,
		.shards = range(AT_SHARDS),
		.full = range(AT_FULL),
		.grads = range(AT_GRADS),
	};

	for (uint64_t i = 0; i < 2; i++)
		job.inputs[i] = range(AT_INPUTS + i * 65536);
	return job;
}

static void send_job(const struct worker *worker, const struct job *job)
{
	send_with_fd(worker->fd, job, sizeof(*job), -1);
}

static struct job_done receive_done(const struct worker *worker)
{
	return receive_done_of(worker->fd);
}

static void expect_done(const struct worker *worker, uint64_t number)
{
	struct job_done done = receive_done(worker);

	cr_assert(eq(u64, done.number, number));
	cr_assert(eq(i32, done.code, 0), "%s", done.sentence);
}

/* Expect a refusal with these words in its sentence. */
static void expect_refusal(const struct worker *worker, const struct job *job,
			   const char *text)
{
	struct job_done done;

	send_job(worker, job);
	done = receive_done(worker);
	cr_assert(eq(u64, done.number, job->number));
	cr_assert(lt(i32, done.code, 0), "done, but not refused for: %s", text);
	cr_assert(strstr(done.sentence, text) != NULL, "\"%s\" has no \"%s\"",
		  done.sentence, text);
}

/* Fill all shards with 1, 2, 3, ... in the order of the whole parameter. */
static void fill_shards(const struct worker *worker)
{
	const struct plan_entry *entry = &worker->group.plan.entries[0];

	for (uint64_t i = 0; i < 15; i++) {
		uint32_t rank;
		uint64_t at = group_find(&entry->shard, i, &rank);
		float value = (float)i + 1;

		memcpy(worker->memory + AT_SHARDS + entry->shard_offset +
			       rank * entry->shard_stride + at * sizeof(value),
		       &value, sizeof(value));
	}
}

/* --- tests --------------------------------------------------------------- */

Test(worker_link, the_worker_gathers_and_reduces_in_the_memory_it_received,
     .timeout = 300)
{
	struct worker worker;
	struct job job = make_job(JOB_GATHER, 41);
	const float *full, *grads, *input;
	uint64_t stride;
	struct job_done done;

	start_ready(&worker);
	stride = worker.group.plan.entries[0].grad_stride / sizeof(float);
	full = (const float *)(worker.memory + AT_FULL);
	grads = (const float *)(worker.memory + AT_GRADS);
	fill_shards(&worker);
	memset(worker.memory + AT_FULL, CANARY, 128);
	send_job(&worker, &job);
	done = receive_done(&worker);
	cr_assert(eq(u64, done.number, 41));
	cr_assert(eq(u64, done.n_bytes, 15 * 8));
	for (int i = 0; i < 32; i++)
		cr_assert(eq(flt, full[i], i < 15 ? (float)i + 1 : 0));

	/* Check the mean of x and 3x. */
	for (int k = 0; k < 2; k++) {
		float *to = (float *)(worker.memory + AT_INPUTS + k * 65536);

		for (int i = 0; i < 15; i++)
			to[i] = (k ? 3.0f : 1.0f) * full[i];
	}
	job = make_job(JOB_REDUCE, 42);
	send_job(&worker, &job);
	expect_done(&worker, 42);
	input = full;
	for (uint64_t i = 0; i < 18; i++)
		cr_assert(eq(flt, grads[i / 9 * stride + i % 9],
			     i < 15 ? 2 * input[i] : 0));
	stop(&worker);
}

Test(worker_link, an_invalid_job_is_refused_and_the_next_job_is_done,
     .timeout = 300)
{
	const struct job gather = make_job(JOB_GATHER, 7);
	const struct job reduce = make_job(JOB_REDUCE, 8);
	struct worker worker;
	struct job job;

	start_ready(&worker);
	job = gather;
	job.plan = 2;
	expect_refusal(&worker, &job, "there is no plan 2");
	job = gather;
	job.full.chunk = 9;
	expect_refusal(&worker, &job, "there is no chunk 9");
	job = gather;
	job.full.offset = CHUNK_SIZE - 64;
	expect_refusal(&worker, &job, "beyond the end");
	job.full.offset = UINT64_MAX - 63;
	expect_refusal(&worker, &job, "beyond the end");
	job = gather;
	job.full.size = 64 - 1;
	expect_refusal(&worker, &job, "need");
	job = gather;
	job.shards.offset = 4;
	expect_refusal(&worker, &job, "multiple of 64");
	job = gather;
	job.full.offset = AT_SHARDS + 64;
	expect_refusal(&worker, &job, "overlap");
	job = reduce;
	job.inputs[1].offset = AT_GRADS;
	expect_refusal(&worker, &job, "overlap the input of rank 1");
	job = reduce;
	job.inputs[1].size = 0;
	expect_refusal(&worker, &job, "rank 1");
	job = reduce;
	job.has_factor = 1;
	job.factor = NAN;
	expect_refusal(&worker, &job, "factor");
	job = reduce;
	job.flags = JOB_PARTIAL_IN;
	expect_refusal(&worker, &job, "partial");
	send_job(&worker, &gather);
	expect_done(&worker, 7);
	stop(&worker);
}

Test(worker_link, jobs_with_forgotten_chunks_and_plans_are_refused,
     .timeout = 300)
{
	const struct job gather = make_job(JOB_GATHER, 1);
	struct job_plan plan = {.kind = JOB_FORGET_PLAN, .plan = 1};
	struct worker worker;

	start_ready(&worker);
	/* Let the worker forget the chunk while a job may still use it. */
	send_job(&worker, &gather);
	send_chunk(&worker, JOB_FORGET_CHUNK, 1);
	expect_done(&worker, 1);
	expect_refusal(&worker, &gather, "there is no chunk 1");
	send_chunk(&worker, JOB_CHUNK, 1);
	send_job(&worker, &gather);
	expect_done(&worker, 1);
	send_with_fd(worker.fd, &plan, sizeof(plan), -1);
	expect_refusal(&worker, &gather, "there is no plan 1");
	stop(&worker);
}

Test(worker_link, a_plan_with_an_invalid_stride_is_refused, .timeout = 300)
{
	struct job gather = make_job(JOB_GATHER, 1);
	struct plan_entry entry;
	struct worker worker;

	start_ready(&worker);
	entry = worker.group.plan.entries[0];
	entry.shard_stride = UINT64_MAX - 3;
	send_plan(&worker, 2, &entry);
	gather.plan = 2;
	expect_refusal(&worker, &gather, "there is no plan 2");
	stop(&worker);
}

Test(worker_link, each_of_two_streams_keeps_its_order, .timeout = 300)
{
	uint64_t last[2] = {0, 0};
	struct worker worker;

	start_ready(&worker);
	for (uint64_t i = 1; i <= 50; i++) {
		struct job job = make_job(i % 3 ? JOB_GATHER : JOB_REDUCE, i);

		job.stream = i % 2;
		job.full.offset += i % 2 * 512 * 1024;
		job.grads.offset += i % 2 * 512 * 1024;
		send_job(&worker, &job);
	}
	for (int i = 0; i < 50; i++) {
		struct job_done done = receive_done(&worker);

		cr_assert(eq(i32, done.code, 0));
		cr_assert(gt(u64, done.number, last[done.number % 2]));
		last[done.number % 2] = done.number;
	}
	stop(&worker);
}

/* The only thread is the one that also reads from the link. */
Test(worker_link, a_single_thread_does_all_jobs, .timeout = 300)
{
	struct worker worker;
	struct job job;

	start_threads(&worker, 1);
	for (uint64_t i = 0; i < 20; i++) {
		job = make_job(i % 2 ? JOB_GATHER : JOB_REDUCE, i);
		job.stream = i % 3 == 0;
		send_job(&worker, &job);
	}
	for (uint64_t i = 0; i < 20; i++)
		cr_assert(zero(i32, receive_done(&worker).code));
	stop(&worker);
}

/* Returns whether each thread of the process has the state 'S', so that none of
 * them runs or is ready to run. */
static bool is_asleep(pid_t pid)
{
	char path[64], line[256];
	bool is_asleep = true;
	struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	cr_assert(ne(ptr, dir, NULL));
	while ((entry = readdir(dir))) {
		char name[128] = "";
		FILE *file;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "%s/%.20s/stat", path,
			 entry->d_name);
		file = fopen(name, "r");
		if (!file || !fgets(line, sizeof(line), file) ||
		    !strstr(line, ") S "))
			is_asleep = false;
		if (file)
			fclose(file);
	}
	closedir(dir);
	return is_asleep;
}

/* A thread that looks for tasks now and then sleeps in a lock for a moment. It
 * is not found asleep there many times in a row. */
Test(worker_link, threads_without_jobs_go_to_sleep, .timeout = 300)
{
	const struct timespec moment = {.tv_nsec = 1000000};
	struct worker worker;
	struct job job = make_job(JOB_GATHER, 1);
	int n = 0;

	start_ready(&worker);
	send_job(&worker, &job);
	expect_done(&worker, 1);
	while (n < 20) {
		n = is_asleep(worker.pid) ? n + 1 : 0;
		nanosleep(&moment, NULL);
	}
	job.number = 2;
	send_job(&worker, &job);
	expect_done(&worker, 2);
	stop(&worker);
}

Test(worker_link, the_worker_exits_when_the_link_is_closed, .timeout = 300)
{
	struct worker worker;

	start_ready(&worker);
	for (uint64_t i = 1; i <= 20; i++) {
		const struct job job = make_job(JOB_GATHER, i);

		send_job(&worker, &job);
	}
	stop(&worker);
}

Test(worker_link, an_invalid_message_makes_the_worker_exit_with_a_failure,
     .timeout = 300)
{
	const uint32_t kinds[] = {0, JOB_CHUNK, JOB_DONE, 77};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct worker worker = {0};
		int status;

		worker.fd = worker_start(2, &worker.pid);
		send_with_fd(worker.fd, &kinds[i], sizeof(kinds[i]), -1);
		status = await_end(&worker);
		cr_assert(eq(int, status, W_EXITCODE(1, 0)));
		close(worker.fd);
	}
}

Test(worker_link, the_worker_ignores_interrupts_but_ends_on_termination,
     .timeout = 300)
{
	const struct job job = make_job(JOB_GATHER, 1);
	struct worker worker;
	int status;

	start_ready(&worker);
	kill(worker.pid, SIGINT);
	send_job(&worker, &job);
	expect_done(&worker, 1);
	kill(worker.pid, SIGTERM);
	status = await_end(&worker);
	cr_assert(eq(int, status, W_EXITCODE(0, SIGTERM)));
	drop(&worker);
}

/* This process keeps the link open when the worker's parent ends. */
Test(worker_link, the_worker_dies_with_its_parent, .timeout = 300)
{
	struct job_hello hello;
	int fds[2];
	pid_t parent;

	cr_assert(zero(int, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC,
				       0, fds)));
	parent = fork();
	if (parent == 0) {
		if (fork() == 0)
			exec_worker(fds[1], "--threads", 2);
		pause();
	}
	close(fds[1]);
	cr_assert(
		eq(sz, recv(fds[0], &hello, sizeof(hello), 0), sizeof(hello)));
	kill(parent, SIGKILL);
	waitpid(parent, NULL, 0);
	cr_assert(zero(sz, recv(fds[0], &hello, sizeof(hello), 0)));
	close(fds[0]);
}

Test(worker_link, without_a_link_the_worker_exits_with_status_2, .timeout = 300)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		exec_worker(-1, "--threads", 2);
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_assert(eq(int, status, W_EXITCODE(2, 0)));
}
