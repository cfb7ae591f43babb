/* Tests the engine without a real worker; tests/fakes/worker.c replaces it. */
#include "broker/comm/comm_worker.h"
#include "broker/engine/engine_impl.h"
#include "broker/tensor/storage.h"
#include "tests/unit/broker/broker_fixture.h"
#include <signal.h>
#include <sys/wait.h>

static struct engine *engine;
static struct engine_plan *plan;

static void set_up(void)
{
	struct plan_entry entries[2] = {0};
	struct plan made = {.n_entries = 2, .entries = entries};
	struct error err = ERROR_NULL;

	broker = broker_make();
	engine = &broker->engine;
	setenv("FSDP_WORKER", FAKE_WORKER_PATH, 1);
	engine_init(engine);
	must(engine_add_plan(engine, &made, &plan, &err), &err);
}

TestSuite(engine, .init = set_up, .timeout = 300);

static uint32_t make_slot(uint64_t size)
{
	struct storage_request request = {
		.access = {.uid = 1000, .gid = 1000, .mode = 0600},
		.uid = 1000,
		.size = size,
	};
	struct error err = ERROR_NULL;
	uint32_t slot;
	int r;

	while ((r = storage_make(&broker->store, &request, &slot, &err)) ==
	       POOL_WAIT)
		loop_step(&broker->base.loop.uv);
	must(r, &err);
	return slot;
}

static void free_slot(uint32_t slot)
{
	cr_assert(slot_unpin(&broker->store, slot));
	catalog_commit(&broker->store.catalog);
}

/* The callbacks store their arguments here. */
struct seen {
	uint32_t n;
	struct job_done last;
	uint32_t slot; /* of the job */
	bool was_kept; /* when the callback came */
	bool was_gone; /* the worker's process */
	pid_t pid;
};

static bool is_gone(pid_t pid)
{
	return kill(pid, 0) < 0 && errno == ESRCH;
}

static void on_done(void *data, const struct job_done *done)
{
	struct seen *seen = data;

	seen->n++;
	seen->last = *done;
	seen->was_kept =
		catalog_slot(&broker->store.catalog, seen->slot)->n_pins > 0;
	seen->was_gone = is_gone(seen->pid);
}

static int submit(uint32_t shards, uint32_t full, struct seen *seen,
		  struct error *err)
{
	struct engine_slots slots = {.shards = shards, .full = full};
	struct job job = {.kind = JOB_GATHER};
	int r;

	seen->slot = full;
	r = engine_submit(engine, &job, plan, &slots, on_done, seen, err);
	seen->pid = engine->pid;
	return r;
}

static void wait_for(const struct seen *seen, uint32_t n)
{
	while (seen->n < n)
		loop_step(&broker->base.loop.uv);
}

static void as(const char *how)
{
	setenv("FAKE_WORKER", how, 1);
}

Test(engine, one_worker_does_jobs_in_their_order)
{
	uint32_t shards = make_slot(100), full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("good");
	for (int i = 0; i < 200; i++)
		must(submit(shards, full, &seen, &err), &err);
	cr_assert(zero(u32, seen.n), "nothing is called from a submit");
	wait_for(&seen, 200);
	cr_expect(zero(int, seen.last.code));
	cr_expect(eq(u64, seen.last.number, 200));
	cr_expect(eq(u64, seen.last.n_bytes, 1), "one chunk, sent once");
	cr_expect(eq(u64, engine->n_gathers, 200));
	cr_expect(eq(u64, engine->n_starts, 1));
	cr_expect(zero(u32, engine->n_jobs));
	cr_expect(eq(str, engine->cpu, "fake"));
	free_slot(full);
	free_slot(shards);
	assert_empty(broker, 1000);
	engine_stop(engine);
	cr_expect(is_gone(seen.pid));
}

Test(engine, the_error_message_of_a_failed_job_is_returned)
{
	uint32_t shards = make_slot(100), full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("refuse");
	must(submit(shards, full, &seen, &err), &err);
	wait_for(&seen, 1);
	cr_expect(eq(int, seen.last.code, -ERANGE));
	cr_expect(eq(str, seen.last.sentence, "I would rather not"));
	cr_expect(eq(u64, engine->n_failed, 1));
	engine_stop(engine);
}

Test(engine, memory_of_a_job_is_kept_until_the_worker_has_exited)
{
	uint32_t shards = make_slot(100), full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("crash");
	must(submit(shards, full, &seen, &err), &err);
	cr_expect(not(slot_unpin(&broker->store, full)), "the job pins it");
	wait_for(&seen, 1);
	cr_expect(eq(int, seen.last.code, -EIO));
	cr_expect(strstr(seen.last.sentence, "was killed") != NULL, "%s",
		  seen.last.sentence);
	cr_expect(seen.was_kept);
	cr_expect(seen.was_gone);
	cr_expect(eq(int, slot_state(&broker->store, full), SLOT_FREE));
	engine_stop(engine);
}

Test(engine, after_the_worker_has_died_the_next_job_starts_another)
{
	uint32_t shards = make_slot(100), full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("crash");
	must(submit(shards, full, &seen, &err), &err);
	wait_for(&seen, 1);
	as("good");
	must(submit(shards, full, &seen, &err), &err);
	wait_for(&seen, 2);
	cr_expect(zero(int, seen.last.code));
	cr_expect(eq(u64, engine->n_starts, 2));
	engine_stop(engine);
}

Test(engine, a_job_is_refused_if_the_program_is_missing)
{
	uint32_t shards = make_slot(100), full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	setenv("FSDP_WORKER", "/nowhere/fsdp-worker", 1);
	cr_assert(eq(int, submit(shards, full, &seen, &err), -ENOENT));
	cr_expect(strstr(err.msg, "/nowhere/fsdp-worker") != NULL, "%s",
		  err.msg);
	free_slot(full);
	engine_stop(engine);
	cr_expect(zero(u32, seen.n));
}

Test(engine, a_worker_of_another_version_is_started_five_times)
{
	uint32_t shards = make_slot(100), full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("old");
	must(submit(shards, full, &seen, &err), &err);
	wait_for(&seen, 1);
	cr_expect(eq(int, seen.last.code, -EAGAIN));
	cr_expect(eq(u64, engine->n_starts, 5));
	cr_assert(eq(int, engine_want(engine, &err), -EAGAIN));
	cr_expect(strstr(err.msg, "version 0.0.1") != NULL, "%s", err.msg);
	engine->died_ms = 0;
	as("good");
	must(submit(shards, full, &seen, &err), &err);
	wait_for(&seen, 2);
	cr_expect(zero(int, seen.last.code), "later it is tried again");
	engine_stop(engine);
}

Test(engine, a_worker_that_reports_an_unknown_job_is_killed)
{
	uint32_t shards = make_slot(100), full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("stray");
	must(submit(shards, full, &seen, &err), &err);
	wait_for(&seen, 1);
	cr_expect(eq(int, seen.last.code, -EIO));
	cr_expect(strstr(seen.last.sentence, "job 1001") != NULL, "%s",
		  seen.last.sentence);
	cr_expect(seen.was_gone);
	engine_stop(engine);
}

Test(engine, a_worker_that_does_not_read_does_not_block_the_broker)
{
	uint32_t shards = make_slot(100), full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("deaf");
	for (int i = 0; i < 1000; i++)
		must(submit(shards, full, &seen, &err), &err);
	while (!engine->is_ready || !engine->unsent)
		loop_step(&broker->base.loop.uv);
	cr_assert(zero(u32, seen.n));
	cr_assert(engine->unsent != engine->first, "some were sent");
	engine_stop(engine);
	cr_expect(eq(u32, seen.n, 1000));
	cr_expect(eq(int, seen.last.code, -ECANCELED));
	cr_expect(seen.was_gone);
	cr_expect(eq(int, engine_want(engine, &err), -ESHUTDOWN));
	uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
}

/* Act as if the time limit of the watch had passed. */
static void let_watch_pass(void)
{
	struct deadline watch =
		broker->base.deadlines.heap[engine->watch_position];

	deadlines_remove(&broker->base.deadlines, &engine->watch_position);
	watch.fn(watch.data, watch.index);
}

/* The next jobs have a plan of their own, which no worker knows. */
static void change_plan(void)
{
	struct plan_entry entry = {0};
	const struct plan made = {.n_entries = 1, .entries = &entry};
	struct error err = ERROR_NULL;

	must(engine_add_plan(engine, &made, &plan, &err), &err);
}

/* The worker does a job after all, and it is the first one. */
static void expect_first_worker(uint32_t slot, struct seen *seen)
{
	struct error err = ERROR_NULL;
	uint32_t n = seen->n;

	must(submit(slot, slot, seen, &err), &err);
	wait_for(seen, n + 1);
	cr_expect(zero(int, seen->last.code), "%s", seen->last.sentence);
	cr_expect(eq(u64, engine->n_starts, 1));
	free_slot(slot);
	assert_empty(broker, 1000);
	engine_stop(engine);
}

/* Let a job fail because its plan cannot be stored. */
static void lack(int code, uint32_t full, struct seen *seen)
{
	struct error err = ERROR_NULL;
	uint32_t n = seen->n;
	char at[32];

	change_plan();
	snprintf(at, sizeof(at), "memfd.create:*:%d", code);
	setenv("FSDP_FAIL_AT", at, 1);
	must(submit(full, full, seen, &err), &err);
	cr_assert(eq(u32, seen->n, n), "nothing is called from a submit");
	wait_for(seen, n + 1);
	unsetenv("FSDP_FAIL_AT");
	cr_expect(eq(int, seen->last.code, -code));
	cr_expect(strstr(seen->last.sentence, strerror(code)) != NULL, "%s",
		  seen->last.sentence);
}

Test(engine, a_shortage_fails_one_job_and_not_the_worker)
{
	uint32_t full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("good");
	must(submit(full, full, &seen, &err), &err);
	wait_for(&seen, 1);
	lack(EMFILE, full, &seen);
	lack(ENOSPC, full, &seen);
	expect_first_worker(full, &seen);
}

Test(engine, a_shortage_in_the_end_of_a_plan_fails_no_job)
{
	struct engine_plan *other = plan;
	uint32_t full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("good");
	change_plan();
	must(submit(full, full, &seen, &err), &err);
	wait_for(&seen, 1);
	setenv("FSDP_FAIL_AT", "engine.send:1:12", 1); /* 12 is ENOMEM */
	engine_remove_plan(engine, plan);
	unsetenv("FSDP_FAIL_AT");
	plan = other;
	cr_expect(engine->has_stale);
	while (engine->has_stale)
		loop_step(&broker->base.loop.uv);
	expect_first_worker(full, &seen);
}

Test(engine, a_worker_that_sends_nothing_is_killed_after_a_time_out)
{
	uint32_t shards = make_slot(100), full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("mute");
	must(submit(shards, full, &seen, &err), &err);
	while (engine->unsent)
		loop_step(&broker->base.loop.uv);
	for (int i = 0; i < 5; i++)
		let_watch_pass();
	wait_for(&seen, 1);
	cr_expect(eq(int, seen.last.code, -EIO));
	cr_expect(strstr(seen.last.sentence, "sent nothing") != NULL, "%s",
		  seen.last.sentence);
	engine_stop(engine);
}

Test(engine, an_idle_worker_has_no_time_out)
{
	struct error err = ERROR_NULL;

	as("good");
	must(engine_want(engine, &err), &err);
	while (!engine->is_ready)
		loop_step(&broker->base.loop.uv);
	let_watch_pass();
	cr_expect(zero(u32, engine->watch_position), "an idle broker sleeps");
	cr_expect(engine->worker != NULL);
	engine_stop(engine);
}

Test(engine, the_worker_forgets_removed_plans_and_chunks)
{
	struct plan_entry entry = {0};
	struct plan made = {.n_entries = 1, .entries = &entry};
	uint32_t shards = make_slot(2 << 20), full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("good");
	must(submit(shards, full, &seen, &err), &err);
	engine_remove_plan(engine, plan); /* while the job needs it */
	must(engine_add_plan(engine, &made, &plan, &err), &err);
	wait_for(&seen, 1);
	broker->base.config.warm_ms = 0;
	free_slot(shards);
	free_slot(full);
	while (broker->store.pools.n_chunks > 0)
		loop_step(&broker->base.loop.uv);
	broker->base.config.warm_ms = 3600 * 1000;
	full = make_slot(200);
	must(submit(full, full, &seen, &err), &err);
	wait_for(&seen, 2);
	cr_expect(zero(int, seen.last.code), "%s", seen.last.sentence);
	cr_expect(eq(u64, seen.last.n_bytes, 1));
	cr_expect(eq(u64, seen.last.ns, 1));
	cr_expect(eq(u64, engine->n_starts, 1));
	engine_stop(engine);
}

#define N_PLANS 5

Test(engine, plans_are_forgotten_in_any_order)
{
	static const uint32_t order[] = {2, 0, 4, 3};
	struct plan_entry entry = {0};
	struct plan made = {.n_entries = 1, .entries = &entry};
	struct engine_plan *plans[N_PLANS];
	uint32_t full = make_slot(200);
	struct error err = ERROR_NULL;
	struct seen seen = {0};

	as("good");
	for (uint32_t i = 0; i < N_PLANS; i++) {
		must(engine_add_plan(engine, &made, &plans[i], &err), &err);
		plan = plans[i];
		if (i < 4) /* The worker does not get the last one. */
			must(submit(full, full, &seen, &err), &err);
	}
	wait_for(&seen, 4);
	cr_expect(eq(u64, seen.last.ns, 4));
	for (uint32_t i = 0; i < sizeof(order) / sizeof(*order); i++)
		engine_remove_plan(engine, plans[order[i]]);
	plan = plans[1];
	must(submit(full, full, &seen, &err), &err);
	wait_for(&seen, 5);
	cr_expect(eq(u64, seen.last.ns, 1));
	engine_stop(engine);
	free_slot(full);
}

/* --- communicators ------------------------------------------------------- */

#define COMM_MINUTES 3

static void open_comm(struct seen *seen)
{
	const struct job_comm comm = {
		.kind = JOB_COMM,
		.comm = 7,
		.timeout_ms = COMM_MINUTES * 60000,
	};
	struct error err = ERROR_NULL;

	must(engine_open_comm(engine, &comm, on_done, seen, &err), &err);
}

static void run_on_devices(uint32_t kind, const uint32_t *slots,
			   struct seen *seen)
{
	const struct engine_fence fences[2] = {0};
	const struct engine_rank_slots of = {2,     slots, slots, slots,
					     slots, slots, fences};
	const struct job_device job = {.kind = kind, .comm = 7};
	struct error err = ERROR_NULL;

	must(engine_submit_device(engine, &job, plan, &of, on_done, seen, &err),
	     &err);
}

Test(engine, jobs_of_a_communicator_run_after_its_opening)
{
	const struct job_compare compare = {.kind = JOB_COMPARE, .comm = 7};
	uint32_t slots[] = {make_slot(100), make_slot(200)};
	struct error err = ERROR_NULL;
	struct seen seen = {.slot = slots[1]};

	as("good");
	open_comm(&seen);
	run_on_devices(JOB_DEVICE_GATHER, slots, &seen);
	must(engine_compare(engine, &compare, on_done, &seen, &err), &err);
	run_on_devices(JOB_DEVICE_REDUCE, slots, &seen);
	wait_for(&seen, 4);
	cr_expect(zero(int, seen.last.code), "%s", seen.last.sentence);
	cr_expect(eq(u64, engine->n_gathers, 1));
	cr_expect(eq(u64, engine->n_reductions, 1));
	engine_forget_comm(engine, 7);
	cr_expect(engine->comms == NULL);
	free_slot(slots[0]);
	free_slot(slots[1]);
	assert_empty(broker, 1000);
	engine_stop(engine);
}

Test(engine, the_time_out_of_a_worker_includes_that_of_its_communicator)
{
	struct seen seen = {.slot = make_slot(100)};

	as("mute");
	open_comm(&seen);
	while (!engine->is_ready || engine->unsent)
		loop_step(&broker->base.loop.uv);
	for (int i = 1; i < 5 + COMM_MINUTES; i++)
		let_watch_pass();
	cr_assert(engine->worker->cause.code == 0);
	let_watch_pass();
	wait_for(&seen, 1);
	cr_expect(strstr(seen.last.sentence, "sent nothing for 7 minutes") !=
			  NULL,
		  "%s", seen.last.sentence);
	engine_forget_comm(engine, 7);
	engine_stop(engine);
}

Test(engine, a_communicator_forgotten_before_it_was_opened_is_closed)
{
	struct seen seen = {.slot = make_slot(100)};

	as("good");
	open_comm(&seen);
	engine_forget_comm(engine, 7);
	cr_assert(engine->comms != NULL, "the worker is to hear of both");
	wait_for(&seen, 1);
	cr_expect(engine->comms == NULL);
	/* The worker has forgotten the number, so it may be used again. */
	open_comm(&seen);
	wait_for(&seen, 2);
	engine_forget_comm(engine, 7);
	engine_stop(engine);
	cr_expect(eq(u64, engine->n_starts, 1));
}

Test(engine, a_communicator_of_a_dead_worker_is_freed_when_forgotten)
{
	struct seen seen = {.slot = make_slot(100)};

	as("crash");
	open_comm(&seen);
	wait_for(&seen, 1);
	cr_expect(eq(int, seen.last.code, -EIO));
	cr_assert(engine->comms != NULL, "until it is forgotten");
	engine_forget_comm(engine, 7);
	cr_expect(engine->comms == NULL);
	engine_stop(engine);
}

static void make_comm(struct comm *comm, uint64_t id)
{
	*comm = (struct comm){
		.comms = &broker->comms,
		.id = id,
		.state = COMM_JOINING,
		.n_world = 1,
		.n_ranks = 1,
		.is_on_devices = true,
		.next = broker->comms.first,
	};
	broker->comms.first = comm;
}

static void open_and_wait(struct comm *comm)
{
	comm_worker_open(comm);
	while (comm->state == COMM_JOINING)
		loop_step(&broker->base.loop.uv);
}

Test(engine, a_communicator_that_opens_while_the_worker_dies_gets_the_next)
{
	static struct comm first, second;

	/* Nothing is deferred, so the communicators are not freed. */
	broker->base.loop.is_stopping = true;
	as("good");
	make_comm(&first, 7);
	make_comm(&second, 8);
	open_and_wait(&first);
	cr_assert(eq(int, (int)first.state, COMM_RUNNING));
	worker_lose(engine->worker, "the test ends it");
	open_and_wait(&second);
	cr_expect(eq(int, (int)first.state, COMM_FAILED));
	cr_expect(strstr(first.failure.msg, "the test ends it") != NULL, "%s",
		  first.failure.msg);
	cr_expect(eq(int, (int)second.state, COMM_RUNNING), "%s",
		  second.failure.msg);
	cr_expect(eq(u64, engine->n_starts, 2));
	comm_worker_forget(&first);
	comm_worker_forget(&second);
	engine_stop(engine);
}

Test(engine, a_process_that_cannot_be_created_is_an_error)
{
	struct error err = ERROR_NULL;

#ifndef FSDP_TEST_POINTS
	cr_skip("needs test points");
#endif
	as("good");
	setenv("FSDP_FAIL_AT", "engine.spawn:1:EAGAIN", 1);
	cr_assert(eq(int, engine_want(engine, &err), -EAGAIN));
	cr_expect(strstr(err.msg, "start ") != NULL, "%s", err.msg);
	must(engine_want(engine, &err), &err);
	engine_stop(engine);
}

Test(engine, the_worker_of_an_earlier_broker_is_killed_first)
{
	struct fdstore_entry entry = {.name = "worker"};
	struct error err = ERROR_NULL;
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		for (;;)
			pause();
	}
	entry.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	cr_assert(ge(int, entry.fd, 0));
	broker->base.fdstore.inherited = &entry;
	broker->base.fdstore.n_inherited = 1;
	must(engine_adopt(engine, &err), &err);
	cr_assert(eq(int, (int)waitpid(pid, &status, WNOHANG), (int)pid));
	cr_expect(eq(int, WTERMSIG(status), SIGKILL));
	cr_expect(eq(int, entry.fd, -1), "taken");
	must(engine_adopt(engine, &err), &err);
}

Test(engine, a_stored_descriptor_that_is_not_a_pidfd_is_ignored)
{
	struct fdstore_entry entry = {.name = "worker", .fd = dup(1)};
	struct error err = ERROR_NULL;

	broker->base.fdstore.inherited = &entry;
	broker->base.fdstore.n_inherited = 1;
	must(engine_adopt(engine, &err), &err);
}
