/*
 * Tests communicators on devices with fsdp-worker as the executor: where
 * contexts and NCCL are, what is refused, and what remains when a process dies.
 *
 * Suites that run once more by worker (test_gather.c, test_reduce.c, ...) test
 * the results of gathers and reductions.
 */
#include "cuda/context.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/device.h"
#include "tests/lib/executor.h"
#include "tests/lib/gpu.h"
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

TestSuite(executor, .init = executor_set_up, .fini = executor_tear_down,
	  .timeout = 300);

/* --- where it is --------------------------------------------------------- */

static bool has_mapped(pid_t pid, const char *library)
{
	char path[64], line[512];
	bool is_found = false;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	file = fopen(path, "re");
	cr_assert(file != NULL);
	while (!is_found && fgets(line, sizeof(line), file))
		is_found = strstr(line, library);
	fclose(file);
	return is_found;
}

Test(executor, only_the_worker_loads_nccl)
{
	pid_t worker;

	executor_start_crew();
	executor_must_train();
	worker = worker_await(&executor_daemon);
	cr_expect(eq(long, gpu_count(worker, "contexts"), 2));
	cr_expect(has_mapped(worker, "libnccl"));
	cr_expect(not(
		has_mapped(daemon_broker_pid(&executor_daemon), "libnccl")));
	for (uint32_t i = 0; i < 2; i++)
		cr_expect(not(
			has_mapped(executor_ranks.actors[i].pid, "libnccl")));
}

/* Run a step without reading or writing a value, so that the rank needs no
 * addresses. */
static int train_blindly(void)
{
	struct trainer *it = trainer();
	struct fsdp_work work;
	int r = fsdp_commit(it->comm, 1, &work);

	if (r == 0)
		r = fsdp_wait(&work, -1);
	if (r == 0)
		r = trainer_unshard(0);
	if (r == 0)
		r = fsdp_reshard(it->groups[0], 0);
	if (r == 0)
		r = fsdp_input(it->groups[0], -1);
	if (r == 0)
		r = fsdp_reduce(it->groups[0], NULL, &work);
	if (r == 0)
		r = fsdp_wait(&work, -1);
	it->step = 1;
	return rank_note(r);
}

Test(executor, a_rank_that_uses_no_address_has_no_context)
{
	executor_start(2, 1);
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_join)));
	cr_assert(zero(int, ranks_run(&executor_ranks, train_blindly)));
	cr_expect(eq(u64, status_value(executor_client, "gathers"), 1));
	cr_expect(eq(u64, status_value(executor_client, "reductions"), 1));
	for (uint32_t i = 0; i < 2; i++)
		cr_expect(
			le(long,
			   gpu_count(executor_ranks.actors[i].pid, "contexts"),
			   0));
	/* A process that uses its memory has a context from then on. */
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_commit)));
	cr_expect(eq(long, gpu_count(executor_ranks.actors[0].pid, "contexts"),
		     1));
	executor_must_train();
}

/* On the second rank, let the driver fail to import memory. */
static int join_half_blind(void)
{
	if (rank_self())
		setenv("FAKECUDA_FAIL", "MemImportFromShareableHandle:1+:2", 1);
	return trainer_join();
}

static int look(void)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};

	return rank_note(fsdp_shard(trainer()->groups[0], 0, &shard));
}

Test(executor, a_rank_that_cannot_map_its_memory_fails_the_run_of_all_ranks)
{
	executor_start(2, 1);
	cr_assert(zero(int, ranks_run(&executor_ranks, join_half_blind)));
	cr_assert(zero(int, ranks_run(&executor_ranks, train_blindly)));
	cr_assert(zero(int, rank_run(&executor_ranks, 0, look)));
	cr_assert(lt(int, rank_run(&executor_ranks, 1, look), 0));
	cr_expect(lt(int, rank_run(&executor_ranks, 1, look), 0),
		  "it stays so");
	cr_expect(eq(int, rank_run(&executor_ranks, 0, executor_unshard),
		     -ECONNABORTED));
	executor_expect_says(0, "rank 1 ");
}

Test(executor, frozen_parameters_keep_their_values)
{
	executor_start(2, 2);
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_join)));
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_commit)));
	executor_must_train();
	executor_must_train();
}

/* --- streams ------------------------------------------------------------- */

#define BYTE 1 /* 0x01010101 is a float */

static void fill(CUstream stream, void *data, size_t size)
{
	const struct device *device = gpu_nth(rank_self());

	must(context_enter(device, NULL) == 0);
	must(cu.MemsetD8Async((CUdeviceptr)(uintptr_t)data, BYTE, size,
			      stream) == CUDA_SUCCESS);
	context_leave();
}

static int expect_filled(const void *data, uint64_t n)
{
	float copy[32];

	must(n <= sizeof(copy) / sizeof(*copy));
	must(fsdp_group_get(trainer()->groups[0], copy, data,
			    n * sizeof(*copy)) == 0);
	return is_filled(copy, n * sizeof(*copy), BYTE) ? 0 : -EBADMSG;
}

static int commit_by_stream(CUstream stream)
{
	struct trainer *it = trainer();
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_work work;
	int r;

	for (size_t i = 0; i < 2; i++) {
		must(fsdp_shard(it->groups[0], i, &shard) == 0);
		fill(stream, shard.next, shard.numel * sizeof(float));
	}
	r = fsdp_commit_on(it->comm, 1, stream, &work);
	return r < 0 ? r : fsdp_wait(&work, -1);
}

static int unshard_by_stream(CUstream stream)
{
	struct trainer *it = trainer();
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_work work;
	int r = fsdp_unshard(it->groups[0], &work);

	if (r == 0)
		r = fsdp_wait_on(&work, stream, -1);
	for (size_t i = 0; i < 2 && r == 0; i++) {
		must(fsdp_param(it->groups[0], i, &param) == 0);
		r = expect_filled(param.data, param.numel);
	}
	return r < 0 ? r : fsdp_reshard_on(it->groups[0], 0, stream);
}

static int reduce_by_stream(CUstream stream)
{
	const struct fsdp_reduce_options options = {.stream = stream};
	struct trainer *it = trainer();
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_work work;
	int r = fsdp_input(it->groups[0], -1);

	for (size_t i = 0; i < 2 && r == 0; i++)
		fill(stream, fsdp_input_data(it->groups[0], i),
		     (size_t)(i ? 5 : 6 * 4) * sizeof(float));
	if (r == 0)
		r = fsdp_reduce(it->groups[0], &options, &work);
	if (r == 0)
		r = fsdp_wait_on(&work, stream, -1);
	for (size_t i = 0; i < 2 && r == 0; i++) {
		must(fsdp_shard(it->groups[0], i, &shard) == 0);
		r = expect_filled(shard.grad, shard.numel);
	}
	return r;
}

static int train_by_stream(void)
{
	CUstream stream = stream_make(gpu_nth(rank_self()));
	int r = commit_by_stream(stream);

	if (r == 0)
		r = unshard_by_stream(stream);
	return rank_note(r < 0 ? r : reduce_by_stream(stream));
}

/* --- a stream that is held ----------------------------------------------- */

static sem_t *gates; /* in shared memory, one for each rank */

static void make_gates(void)
{
	gates = mmap(NULL, RANKS_MAX * sizeof(*gates), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert(gates != MAP_FAILED);
	for (size_t i = 0; i < RANKS_MAX; i++)
		sem_init(&gates[i], 1, 0);
}

static sem_t *own_gate(void)
{
	return &gates[rank_self()];
}

#define WEIGHT_SIZE (6 * 4 * sizeof(float))

/* Memory of whole parameters that the stream still reads is not written,
 * although they were resharded and memory of that size is requested. */
static int reshard_what_is_read(void)
{
	const struct device *device = gpu_nth(rank_self());
	CUstream stream = stream_make(device), second = stream_make(device);
	struct fsdp_group *group = trainer()->groups[0];
	struct fsdp_param param = {.struct_size = sizeof(param)};
	float whole[6 * 4], *seen = pinned_memory(WEIGHT_SIZE);
	int r = trainer_unshard(0);

	must(r == 0 && fsdp_param(group, 0, &param) == 0);
	must(fsdp_group_get(group, whole, param.data, WEIGHT_SIZE) == 0);
	stream_hold(stream, own_gate());
	must(context_enter(device, NULL) == 0);
	must(cu.MemcpyDtoHAsync(seen, (CUdeviceptr)(uintptr_t)param.data,
				WEIGHT_SIZE, stream) == CUDA_SUCCESS);
	context_leave();
	r = fsdp_reshard_on(group, 0, stream);
	must(r == 0 && !stream_is_done(stream));
	must(fsdp_input(group, -1) == 0);
	fill(second, fsdp_input_data(group, 0), WEIGHT_SIZE);
	must(stream_finish(second));
	sem_post(own_gate());
	must(stream_finish(stream));
	return memcmp(seen, whole, WEIGHT_SIZE) ? -EBADMSG : 0;
}

Test(executor, a_reshard_waits_for_a_stream_that_reads)
{
	need_fake("a stream is held");
	make_gates();
	executor_start_crew();
	cr_assert(zero(int, ranks_run(&executor_ranks, reshard_what_is_read)));
}

/* Hand in gradients before the stream has written them. */
static int reduce_what_is_written(void)
{
	const struct device *device = gpu_nth(rank_self());
	CUstream stream = stream_make(device);
	const struct fsdp_reduce_options options = {.stream = stream};
	struct fsdp_group *group = trainer()->groups[0];
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_work work;

	must(fsdp_input(group, -1) == 0);
	stream_hold(stream, own_gate());
	for (size_t i = 0; i < 2; i++)
		fill(stream, fsdp_input_data(group, i),
		     (size_t)(i ? 5 : 6 * 4) * sizeof(float));
	must(fsdp_reduce(group, &options, &work) == 0);
	must(fsdp_wait(&work, 20) == -ETIMEDOUT && !stream_is_done(stream));
	sem_post(own_gate());
	if (fsdp_wait(&work, -1) < 0)
		return rank_note(-EIO);
	must(fsdp_shard(group, 0, &shard) == 0);
	return expect_filled(shard.grad, shard.numel);
}

Test(executor, a_reduction_waits_for_its_streams_on_the_device)
{
	need_fake("a stream is held");
	make_gates();
	executor_start_crew();
	cr_assert(
		zero(int, ranks_run(&executor_ranks, reduce_what_is_written)));
	/* Gradients that are already written need no gate. */
	executor_must_train();
}

/* Fill an input by a stream, which rank 0 holds, and hand it in. */
static int begin_reduction(CUstream stream, struct fsdp_work *ret)
{
	const struct fsdp_reduce_options options = {.stream = stream};
	struct fsdp_group *group = trainer()->groups[0];

	must(fsdp_input(group, -1) == 0);
	for (size_t i = 0; i < 2; i++)
		must(fsdp_input_data(group, i));
	if (rank_self() == 0)
		stream_hold(stream, own_gate());
	for (size_t i = 0; i < 2; i++)
		fill(stream, fsdp_input_data(group, i),
		     (size_t)(i ? 5 : 6 * 4) * sizeof(float));
	return rank_note(fsdp_reduce(group, &options, ret));
}

static int reduce_and_leave(void)
{
	CUstream stream = stream_make(gpu_nth(rank_self()));
	struct fsdp_work work;
	int r = begin_reduction(stream, &work);

	must(r == 0 && fsdp_comm_leave(trainer()->comm) == 0);
	trainer()->comm = NULL;
	return stream_is_done(stream) ? -EBADMSG : 0;
}

static int reduce_after_leave(void)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	CUstream stream = stream_make(gpu_nth(rank_self()));
	struct fsdp_work work;
	int r = begin_reduction(stream, &work);

	must(r == 0 && stream_finish(stream));
	must(fsdp_wait(&work, 20) == -ETIMEDOUT);
	sem_post(&gates[0]);
	r = rank_note(fsdp_wait(&work, -1));
	must(r == 0 && fsdp_shard(trainer()->groups[0], 0, &shard) == 0);
	return expect_filled(shard.grad, shard.numel);
}

Test(executor, a_reduction_waits_for_the_stream_of_a_rank_that_left)
{
	need_fake("a stream is held");
	make_gates();
	executor_start_crew();
	cr_assert(zero(int, rank_run(&executor_ranks, 0, reduce_and_leave)));
	cr_assert(zero(int, rank_run(&executor_ranks, 1, reduce_after_leave)));
}

/* --- runs that end while a stream writes --------------------------------- */

static CUstream held; /* the stream of rank 0 */

static int begin_reduction_held(void)
{
	struct fsdp_work work;

	held = stream_make(gpu_nth(rank_self()));
	return begin_reduction(held, &work);
}

static int begin_commit_held(void)
{
	struct fsdp_work work;

	held = stream_make(gpu_nth(rank_self()));
	stream_hold(held, own_gate());
	return rank_note(fsdp_commit_on(trainer()->comm, 2, held, &work));
}

static int leave_while_held(void)
{
	int r = rank_note(fsdp_comm_leave(trainer()->comm));

	trainer()->comm = NULL;
	must(!stream_is_done(held));
	return r;
}

static int let_go(void)
{
	sem_post(own_gate());
	return stream_finish(held) ? 0 : -EIO;
}

/* Let the run end after rank 0 has begun `work`. */
static void end_run_after(actor_fn *work, const char *executor)
{
	need_fake("a stream is held");
	setenv("FSDP_TEST_EXECUTOR", executor, 1);
	make_gates();
	executor_timeout_ms = 5000;
	executor_start_crew();
	executor_timeout_ms = 0;
	cr_assert(zero(int, rank_run(&executor_ranks, 0, work)));
	actor_kill(&executor_ranks.actors[1]);
	cr_assert(status_await(executor_client, "comms_failed", 1));
}

Test(executor, gradients_that_a_stream_writes_outlive_the_run)
{
	end_run_after(begin_reduction_held, "worker");
	cr_assert(zero(int, rank_run(&executor_ranks, 0, leave_while_held)));
	cr_assert(status_await(executor_client, "slots_limbo", 1));
	cr_assert(zero(int, rank_run(&executor_ranks, 0, let_go)));
	cr_assert(status_await(executor_client, "slots_limbo", 0));
}

/* The rank leaves, but the memory stays until the connection is closed. */
static void expect_late_leave(void)
{
	cr_assert(eq(int, rank_run(&executor_ranks, 0, leave_while_held),
		     -ETIMEDOUT));
	cr_expect(ne(u64, status_value(executor_client, "slots_limbo"), 0));
	cr_assert(zero(int, rank_run(&executor_ranks, 0, let_go)));
	cr_assert(zero(int, rank_run(&executor_ranks, 0, trainer_leave)));
	cr_assert(status_await(executor_client, "slots_limbo", 0));
}

Test(executor, a_rank_leaves_after_the_stream_that_writes_its_gradients)
{
	end_run_after(begin_reduction_held, "rank");
	expect_late_leave();
}

Test(executor, a_rank_leaves_after_the_stream_of_its_commit)
{
	end_run_after(begin_commit_held, "worker");
	expect_late_leave();
}

Test(executor, a_rank_that_does_the_work_leaves_after_the_stream_of_its_commit)
{
	end_run_after(begin_commit_held, "rank");
	expect_late_leave();
}

static int reduce_without_end(void)
{
	CUstream stream = stream_make(gpu_nth(rank_self()));
	const struct fsdp_reduce_options options = {.stream = stream};
	struct fsdp_work work;
	int r;

	must(fsdp_input(trainer()->groups[0], -1) == 0);
	must(fsdp_input_data(trainer()->groups[0], 0));
	stream_hold(stream, own_gate());
	r = fsdp_reduce(trainer()->groups[0], &options, &work);
	if (r == 0)
		r = fsdp_wait(&work, -1);
	sem_post(own_gate());
	return rank_note(r);
}

Test(executor, a_stream_that_does_not_end_fails_only_its_communicator)
{
	pid_t worker;

	need_fake("a stream is held");
	make_gates();
	executor_timeout_ms = 5000;
	executor_start_crew();
	worker = worker_await(&executor_daemon);
	ranks_begin(&executor_ranks, reduce_without_end);
	ranks_end(&executor_ranks);
	executor_expect_all_told("has waited for 5000 ms in a reduction");
	executor_timeout_ms = 0;
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_join_anew)));
	executor_must_train();
	cr_expect(eq(int, worker_await(&executor_daemon), worker));
}

/* The commit returns at once, and no other rank sees it before the stream has
 * reached it. */
static int commit_what_is_written(void)
{
	struct trainer *it = trainer();
	CUstream stream = stream_make(gpu_nth(rank_self()));
	struct fsdp_work work;
	int r;

	stream_hold(stream, own_gate());
	r = fsdp_commit_on(it->comm, it->step + 1, stream, &work);
	must(r == 0 && !stream_is_done(stream));
	must(fsdp_wait(&work, 20) == -ETIMEDOUT);
	must(fsdp_comm_step(it->comm) == it->step);
	must(fsdp_reshard(it->groups[0], 0) == -EINVAL);
	sem_post(own_gate());
	return rank_note(fsdp_wait(&work, -1));
}

Test(executor, a_commit_waits_for_its_stream_in_the_wait)
{
	need_fake("a stream is held");
	make_gates();
	executor_start_crew();
	cr_assert(
		zero(int, ranks_run(&executor_ranks, commit_what_is_written)));
}

Test(executor, a_commit_of_the_ranks_waits_for_its_stream_in_the_wait)
{
	need_fake("a stream is held");
	setenv("FSDP_TEST_EXECUTOR", "rank", 1);
	make_gates();
	executor_start_crew();
	cr_assert(
		zero(int, ranks_run(&executor_ranks, commit_what_is_written)));
}

static int reshard_by_another_s_stream(void)
{
	CUstream stream = stream_make(gpu_nth(!rank_self()));

	return rank_note(fsdp_reshard_on(trainer()->groups[0], 0, stream));
}

Test(executor, collectives_wait_for_streams_that_write)
{
	setenv("FAKECUDA_DELAY_US", "20000", 1);
	executor_start(2, 1);
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_join)));
	cr_assert(zero(int, ranks_run(&executor_ranks, train_by_stream)));
}

Test(executor, a_stream_of_another_device_is_refused)
{
	executor_start_crew();
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_unshard)));
	cr_assert(eq(int,
		     rank_run(&executor_ranks, 0, reshard_by_another_s_stream),
		     -EINVAL));
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_reshard)));
}

/* --- the list ------------------------------------------------------------ */
Test(executor, the_executor_is_shown)
{
	executor_start_crew();
	cr_assert(zero(int,
		       fsdp_comms(executor_client, executor_note_comm, NULL)));
	cr_expect(executor_seen.is_on_devices);
	cr_expect(eq(int, executor_seen.executor, FSDP_EXECUTOR_WORKER));
	cr_expect(eq(u32, executor_seen.n_local, 2));
}

/* --- refusals ------------------------------------------------------------ */

/* The second rank requests the other executor. */
static int join_mixed(void)
{
	setenv("FSDP_TEST_EXECUTOR", rank_self() ? "rank" : "worker", 1);
	return trainer_join();
}

static int join_by_worker(void)
{
	setenv("FSDP_TEST_EXECUTOR", "worker", 1);
	return trainer_join();
}

static bool is_joining(void)
{
	executor_seen.n_joined = 0;
	cr_assert(zero(int,
		       fsdp_comms(executor_client, executor_note_comm, NULL)));
	return executor_seen.n_joined == 1;
}

Test(executor, all_ranks_must_choose_the_same_executor)
{
	executor_start(2, 1);
	actor_begin(&executor_ranks.actors[0], join_mixed);
	while (!is_joining())
		nap_ms(1);
	cr_assert(eq(int, rank_run(&executor_ranks, 1, join_mixed), -EINVAL));
	executor_expect_says(1, "fsdp-worker as executor, not the ranks");
	cr_assert(zero(int, rank_run(&executor_ranks, 1, join_by_worker)));
	cr_assert(zero(int, actor_end(&executor_ranks.actors[0])));
}

Test(executor, the_executor_can_be_chosen_for_host_memory)
{
	const struct fsdp_comm_options options = {.executor =
							  FSDP_EXECUTOR_WORKER};
	struct fsdp_comm *comm;

	executor_start(1, 0);
	cr_assert(zero(int, fsdp_comm_join(executor_client, "host", 1, 0,
					   &options, &comm)));
	cr_expect(zero(int, fsdp_comm_leave(comm)));
}

Test(executor, without_nccl_joins_fail_with_the_reason)
{
	static const char *const env[] = {"FSDP_LIBNCCL=/nowhere/libnccl.so",
					  NULL};
	pid_t worker;

	executor_start_with(2, 1, env);
	ranks_begin(&executor_ranks, trainer_join);
	ranks_end(&executor_ranks);
	for (uint32_t i = 0; i < 2; i++) {
		cr_expect(lt(int, executor_ranks.notes[i].code, 0));
		executor_expect_says(i, "/nowhere/libnccl.so");
	}
	worker = worker_await(&executor_daemon);
	ranks_begin(&executor_ranks, trainer_join);
	ranks_end(&executor_ranks);
	cr_expect(lt(int, executor_ranks.notes[0].code, 0));
	cr_expect(eq(int, worker_pid(&executor_daemon), worker), "it lives on");
}

Test(executor, the_error_for_two_ranks_on_one_device_names_a_remedy)
{
	setenv("FAKECUDA_DEVICES", "1", 1);
	executor_start(2, 1);
	ranks_begin(&executor_ranks, trainer_join);
	ranks_end(&executor_ranks);
	for (uint32_t i = 0; i < 2; i++) {
		cr_expect(lt(int, executor_ranks.notes[i].code, 0));
		executor_expect_says(i, "FSDP_EXECUTOR_RANK");
	}
}

/* --- deaths -------------------------------------------------------------- */

/* Stop the worker. Until it continues, nothing that ranks begin gets done. */
static pid_t hold_worker(void)
{
	pid_t worker = worker_await(&executor_daemon);

	cr_assert(zero(int, kill(worker, SIGSTOP)));
	return worker;
}

static void kill_worker_during(actor_fn *work)
{
	pid_t worker;

	executor_start_crew();
	worker = hold_worker();
	ranks_begin(&executor_ranks, work);
	cr_assert(status_await(executor_client, "jobs_running", 1));
	cr_assert(zero(int, kill(worker, SIGKILL)));
	ranks_end(&executor_ranks);
	executor_expect_all_told("fsdp-worker");
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_join_anew)));
	executor_must_train();
}

Test(executor, the_worker_dies_in_a_gather)
{
	kill_worker_during(executor_unshard);
}

Test(executor, the_worker_dies_in_a_reduction)
{
	kill_worker_during(executor_reduce);
}

Test(executor, the_death_of_an_idle_worker_fails_its_communicators)
{
	pid_t worker;

	executor_start_crew();
	worker = worker_await(&executor_daemon);
	cr_assert(zero(int, kill(worker, SIGKILL)));
	cr_assert(status_await(executor_client, "comms_failed", 1));
	ranks_begin(&executor_ranks, executor_unshard);
	ranks_end(&executor_ranks);
	executor_expect_all_told("fsdp-worker");
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_join_anew)));
	executor_must_train();
}

static int leave(void)
{
	return trainer_leave();
}

/* Kill rank 1 while the worker has its job. The other rank must be told, and
 * the worker must free the memory and live on. */
static void kill_rank_during(actor_fn *work)
{
	pid_t worker;

	executor_start_crew();
	worker = hold_worker();
	ranks_begin(&executor_ranks, work);
	cr_assert(status_await(executor_client, "jobs_running", 1));
	actor_kill(&executor_ranks.actors[1]);
	ranks_end(&executor_ranks);
	executor_expect_all_told("rank 1 ");
	executor_expect_all_told("died");
	cr_expect(eq(u64, status_value(executor_client, "jobs_running"), 1),
		  "what may still write keeps its memory");
	cr_assert(zero(int, kill(worker, SIGCONT)));
	cr_assert(status_await(executor_client, "jobs_running", 0));
	cr_assert(zero(int, rank_run(&executor_ranks, 0, leave)));
	cr_assert(status_await(executor_client, "comms_running", 0));
	cr_expect(eq(int, worker_pid(&executor_daemon), worker));
}

Test(executor, a_rank_dies_in_a_gather)
{
	kill_rank_during(executor_unshard);
}

Test(executor, a_rank_dies_in_a_reduction)
{
	kill_rank_during(executor_reduce);
}
