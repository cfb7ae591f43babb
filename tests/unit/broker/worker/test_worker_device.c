/*
 * Tests fsdp-worker as the executor of ranks on devices, over its link: NCCL
 * and kernels for several ranks, failures, and what the worker releases.
 */
#include "shm/timeline.h"
#include "tests/unit/broker/worker/worker_device_fixture.h"
#include <dirent.h>
#include <signal.h>

TestSuite(worker_device, .init = devices_open, .timeout = 300);

/* --- all ranks of one worker --------------------------------------------- */

Test(worker_device, ranks_of_one_process_gather_and_reduce)
{
	struct node node;

	world_open(3, 1);
	node_start(&node, 0, 3);
	node_open(&node);
	for (uint32_t i = 0; i < 3; i++) {
		put_shards(i);
		put_input(i, (float)(i + 1));
	}
	node_begin(&node, JOB_DEVICE_GATHER, 2);
	expect_done(&node, 2);
	node_begin(&node, JOB_DEVICE_REDUCE, 3);
	expect_done(&node, 3);
	for (uint32_t i = 0; i < 3; i++) {
		expect_whole(i);
		expect_grads(i, 2);
	}
	node_stop(&node);
	world_close();
}

/* The worker needs a hardware queue for each of its streams, whatever the
 * driver's default is. */
Test(worker_device, the_worker_requests_the_maximum_number_of_hardware_queues)
{
	struct node node;

	setenv("FAKECUDA_QUEUES", "8", 1);
	unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
	world_open(2, 1);
	node_start(&node, 0, 2);
	node_open(&node);
	cr_expect(eq(long, gpu_count(node.pid, "queues"), 32));
	cr_expect(eq(long, gpu_count(getpid(), "queues"), 8));
	node_stop(&node);
	world_close();
}

/* The sums of one microbatch are kept until those of the next are added. */
Test(worker_device, partial_sums_are_kept_for_the_all_reduce)
{
	struct node node;
	struct job_device job;

	world_open(2, 2);
	node_start(&node, 0, 4);
	node_open(&node);
	for (uint32_t i = 0; i < 4; i++)
		put_input(i, (float)(4 * i));
	job = device_job(&node, JOB_DEVICE_REDUCE, 2);
	job.flags = JOB_PARTIAL_OUT;
	node_send(&node, &job);
	expect_done(&node, 2);
	job.number = 3;
	job.flags = JOB_PARTIAL_IN;
	node_send(&node, &job);
	expect_done(&node, 3);
	for (uint32_t i = 0; i < 4; i++)
		expect_grads(i, 12);
	node_stop(&node);
	world_close();
}

Test(worker_device, many_jobs_may_run_at_a_time)
{
	struct node node;

	world_open(2, 1);
	node_start(&node, 0, 2);
	node_open(&node);
	for (uint32_t i = 0; i < 2; i++)
		put_input(i, 1);
	for (uint64_t i = 0; i < 20; i++) {
		struct job_device job =
			device_job(&node, JOB_DEVICE_REDUCE, 2 + i);

		job.flags = i ? JOB_ACCUMULATE : 0;
		node_send(&node, &job);
	}
	for (uint64_t i = 0; i < 20; i++)
		cr_assert(zero(i32, receive_done_of(node.fd).code));
	expect_grads(0, 20);
	expect_grads(1, 20);
	node_stop(&node);
	world_close();
}

Test(worker_device, the_driver_is_loaded_with_the_first_communicator)
{
	struct node node;

	world_open(2, 1);
	node_start(&node, 0, 2);
	node_forget(&node);
	cr_expect(eq(long, gpu_count(node.pid, "contexts"), -1));
	node_open(&node);
	cr_expect(eq(long, gpu_count(node.pid, "contexts"), 2));
	node_stop(&node);
	world_close();
}

Test(worker_device, a_communicator_can_be_opened_after_one_was_forgotten)
{
	struct node node;

	world_open(2, 1);
	node_start(&node, 0, 2);
	for (int i = 0; i < 3; i++) {
		node_open(&node);
		node_begin(&node, JOB_DEVICE_GATHER, 2);
		expect_done(&node, 2);
		node_forget(&node);
		node_begin(&node, JOB_DEVICE_GATHER, 3);
		expect_failed(&node, 3, -ECANCELED, "there is no communicator");
	}
	node_stop(&node);
	world_close();
}

/* The memory of the device is free when the job is done, the worker has
 * forgotten the chunk, and the last descriptor is closed. */
Test(worker_device, a_forgotten_chunk_is_unmapped)
{
	struct job_chunk chunk = {.kind = JOB_FORGET_CHUNK, .chunk = 1};
	struct job_plan plan = {.kind = JOB_FORGET_PLAN, .plan = PLAN};
	struct node node;

	world_open(1, 1);
	node_start(&node, 0, 1);
	node_open(&node);
	node_begin(&node, JOB_DEVICE_GATHER, 2);
	expect_done(&node, 2);
	send_with_fd(node.fd, &plan, sizeof(plan), -1);
	send_with_fd(node.fd, &chunk, sizeof(chunk), -1);
	node_begin(&node, JOB_DEVICE_GATHER, 3);
	expect_failed(&node, 3, -ENOENT, "there is no plan 1");
	cr_expect(eq(long, gpu_count(node.pid, "MemUnmap"), 1));
	node_stop(&node);
	world_close();
}

/* --- several workers: nodes ---------------------------------------------- */

static void nodes_start(struct node nodes[2])
{
	world_open(2, 1);
	for (uint32_t i = 0; i < 2; i++)
		node_start(&nodes[i], i, 1);
}

static void nodes_open(struct node nodes[2], uint32_t timeout_ms)
{
	nodes_start(nodes);
	for (uint32_t i = 0; i < 2; i++) {
		struct job_comm job = comm_message(&nodes[i], 1);

		job.timeout_ms = timeout_ms;
		node_send_comm(&nodes[i], &job);
	}
	for (uint32_t i = 0; i < 2; i++)
		expect_done(&nodes[i], 1);
}

static void nodes_stop(struct node nodes[2])
{
	for (uint32_t i = 0; i < 2; i++)
		node_stop(&nodes[i]);
	world_close();
}

static void send_compare(const struct node *node, uint64_t number,
			 uint64_t value)
{
	const struct job_compare job = {.kind = JOB_COMPARE,
					.number = number,
					.comm = COMM,
					.value = value,
					.what = "the step to commit"};

	send_with_fd(node->fd, &job, sizeof(job), -1);
}

Test(worker_device, workers_of_two_nodes_gather_together)
{
	struct node nodes[2];

	nodes_open(nodes, TIMEOUT_MS);
	for (uint32_t i = 0; i < 2; i++) {
		put_shards(i);
		node_begin(&nodes[i], JOB_DEVICE_GATHER, 2);
	}
	for (uint32_t i = 0; i < 2; i++) {
		expect_done(&nodes[i], 2);
		expect_whole(i);
	}
	nodes_stop(nodes);
}

/* A difference between nodes does not make the communicator fail. */
Test(worker_device, ranks_of_two_nodes_are_told_that_their_calls_differ)
{
	struct node nodes[2];

	nodes_open(nodes, TIMEOUT_MS);
	for (uint32_t i = 0; i < 2; i++)
		send_compare(&nodes[i], 2, 7 + i);
	expect_failed(&nodes[0], 2, -EINVAL,
		      "the step to commit differs: it is 7 on rank 0 and 8 on "
		      "rank 1");
	expect_failed(&nodes[1], 2, -EINVAL, "it is 8 on rank 1");
	for (uint32_t i = 0; i < 2; i++)
		send_compare(&nodes[i], 3, 8);
	for (uint32_t i = 0; i < 2; i++)
		expect_done(&nodes[i], 3);
	nodes_stop(nodes);
}

Test(worker_device, a_gather_that_other_ranks_do_not_join_times_out)
{
	struct node nodes[2];

	nodes_open(nodes, 300);
	node_begin(&nodes[0], JOB_DEVICE_GATHER, 2);
	expect_failed(&nodes[0], 2, -ETIMEDOUT, "300 ms");
	/* Until the communicator is forgotten, every further job gets the same
	 * reply. */
	node_begin(&nodes[0], JOB_DEVICE_GATHER, 3);
	expect_failed(&nodes[0], 3, -ETIMEDOUT, "300 ms");
	nodes_stop(nodes);
}

Test(worker_device, forgetting_ends_a_gather_that_waits)
{
	struct node nodes[2];

	nodes_open(nodes, TIMEOUT_MS);
	node_begin(&nodes[0], JOB_DEVICE_GATHER, 2);
	node_begin(&nodes[0], JOB_DEVICE_REDUCE, 3);
	await_calls(&nodes[0], "LaunchKernel", 1);
	node_forget(&nodes[0]);
	for (int i = 0; i < 2; i++)
		cr_expect(
			eq(i32, receive_done_of(nodes[0].fd).code, -ECANCELED));
	nodes_stop(nodes);
}

Test(worker_device, forgetting_ends_an_opening_that_waits)
{
	struct node nodes[2];
	struct job_comm job;

	nodes_start(nodes);
	job = comm_message(&nodes[0], 1);
	node_send_comm(&nodes[0], &job);
	await_calls(&nodes[0], "StreamCreateWithPriority", 2);
	node_forget(&nodes[0]);
	expect_failed(&nodes[0], 1, -ECANCELED, "'run' has ended");
	nodes_stop(nodes);
}

Test(worker_device, closing_the_link_ends_a_gather_that_waits)
{
	struct node nodes[2];

	nodes_open(nodes, TIMEOUT_MS);
	node_begin(&nodes[0], JOB_DEVICE_GATHER, 2);
	await_calls(&nodes[0], "LaunchKernel", 1);
	nodes_stop(nodes);
}

Test(worker_device, the_death_of_a_worker_ends_the_gather_of_the_others)
{
	struct node nodes[2];
	struct job_done done;

	nodes_open(nodes, TIMEOUT_MS);
	node_begin(&nodes[0], JOB_DEVICE_GATHER, 2);
	kill(nodes[1].pid, SIGKILL);
	done = receive_done_of(nodes[0].fd);
	cr_expect(lt(i32, done.code, 0));
	cr_expect(eq(int, node_end(&nodes[1]), W_EXITCODE(0, SIGKILL)));
	node_stop(&nodes[0]);
	world_close();
}

/* A call that cannot be ended would keep the worker's memory in use, so the
 * worker exits. */
Test(worker_device, a_worker_that_cannot_abort_its_communicator_exits)
{
	struct node nodes[2];

	setenv("FAKENCCL_FAIL", "CommAbort:1:hang", 1);
	nodes_open(nodes, TIMEOUT_MS);
	node_begin(&nodes[0], JOB_DEVICE_GATHER, 2);
	node_forget(&nodes[0]);
	expect_failed(&nodes[0], 2, -ETIMEDOUT, "NCCL has not released GPU-");
	cr_expect(eq(int, node_end(&nodes[0]), W_EXITCODE(EXIT_FAILURE, 0)));
	kill(nodes[1].pid, SIGKILL);
	cr_expect(eq(int, node_end(&nodes[1]), W_EXITCODE(0, SIGKILL)));
	world_close();
}

/* --- what is refused ----------------------------------------------------- */

static void expect_no_comm(const struct node *node, const struct job_comm *job,
			   const char *text)
{
	node_send_comm(node, job);
	expect_failed(node, job->number, -EINVAL, text);
}

Test(worker_device, an_invalid_communicator_is_refused)
{
	struct job_comm good, job;
	struct node node;

	world_open(2, 1);
	node_start(&node, 0, 2);
	job = good = comm_message(&node, 7);
	job.members[1].device = job.members[0].device;
	expect_no_comm(&node, &job, "FSDP_EXECUTOR_RANK");
	job = good;
	job.members[1].rank = 0;
	expect_no_comm(&node, &job, "rank 0 is in the list twice");
	job = good;
	job.members[1].rank = 2;
	expect_no_comm(&node, &job, "rank 2 of 2");
	job = good;
	job.members[0].device = (struct device_uuid){{0}};
	expect_no_comm(&node, &job, "not on a device");
	job = good;
	job.n_shards = 0;
	expect_no_comm(&node, &job, "a communicator cannot have");
	job = good;
	job.n_local = PLAN_MAX_RANKS + 1;
	expect_no_comm(&node, &job, "a communicator cannot have");
	job = good;
	job.n_world = 4;
	expect_no_comm(&node, &job, "the NCCL id for");
	node_open(&node);
	node_send_comm(&node, &good);
	expect_failed(&node, 7, -EEXIST, "exists already");
	node_stop(&node);
	world_close();
}

static void expect_refused(const struct node *node,
			   const struct job_device *job, const char *text)
{
	struct job_done done;

	node_send(node, job);
	done = receive_done_of(node->fd);
	cr_assert(lt(i32, done.code, 0), "done, but not refused for: %s", text);
	cr_assert(strstr(done.sentence, text) != NULL, "\"%s\" has no \"%s\"",
		  done.sentence, text);
}

Test(worker_device, an_invalid_job_is_refused_and_the_next_job_is_done)
{
	struct job_device gather, reduce, job;
	struct node node;

	world_open(2, 1);
	node_start(&node, 0, 2);
	node_open(&node);
	job = gather = device_job(&node, JOB_DEVICE_GATHER, 2);
	reduce = device_job(&node, JOB_DEVICE_REDUCE, 3);
	job.plan = 9;
	expect_refused(&node, &job, "there is no plan 9");
	job = gather;
	job.ranks[1].gather.full.chunk = 1;
	expect_refused(&node, &job, "rank 1: the parameters are not on");
	job = gather;
	job.ranks[1].gather.full.chunk = 9;
	expect_refused(&node, &job, "there is no chunk 9");
	job = gather;
	job.ranks[0].gather.full.offset = 64;
	expect_refused(&node, &job, "overlap");
	job = gather;
	job.ranks[0].gather.full.size = world.plan.full_size;
	expect_refused(&node, &job, "need");
	job = reduce;
	job.ranks[0].reduce.grads.offset = CHUNK_SIZE - 64;
	expect_refused(&node, &job, "beyond the end");
	job = reduce;
	job.flags = JOB_PARTIAL_IN;
	expect_refused(&node, &job, "replicas");
	node_send(&node, &gather);
	expect_done(&node, 2);
	node_stop(&node);
	world_close();
}

/* Jobs of the host do not use plans and chunks of devices, and vice versa. */
Test(worker_device, jobs_of_the_host_and_of_devices_are_not_mixed)
{
	struct job_plan plan;
	struct job_device job;
	struct job host = {.kind = JOB_GATHER, .number = 2, .plan = PLAN};
	struct node node;

	world_open(2, 1);
	node_start(&node, 0, 2);
	node_open(&node);
	send_with_fd(node.fd, &host, sizeof(host), -1);
	expect_failed(&node, 2, -EINVAL, "for devices");
	plan = plan_message(2);
	plan.is_per_rank = false;
	send_plan_with(node.fd, &plan, world.plan.entries);
	job = device_job(&node, JOB_DEVICE_GATHER, 3);
	job.plan = host.plan = 2;
	expect_refused(&node, &job,
		       "plan 2 does not belong to communicator 'run'");
	host.shards = range_of(0, AT_SHARDS);
	send_with_fd(node.fd, &host, sizeof(host), -1);
	expect_failed(&node, 2, -EINVAL, "the shards are on a device");
	node_stop(&node);
	world_close();
}

static void expect_no_plan(const struct node *node, const struct job_plan *plan,
			   const struct plan_entry *entries)
{
	struct job_device job = device_job(node, JOB_DEVICE_GATHER, 2);

	send_plan_with(node->fd, plan, entries);
	job.plan = plan->plan;
	expect_refused(node, &job, "there is no plan");
}

Test(worker_device, a_plan_with_invalid_buckets_is_refused)
{
	struct plan_entry entries[2];
	struct job_plan plan;
	struct node node;

	world_open(2, 1);
	node_start(&node, 0, 2);
	node_open(&node);
	plan = plan_message(2);
	memcpy(entries, world.plan.entries, sizeof(entries));
	entries[1].gather_bucket = 7;
	expect_no_plan(&node, &plan, entries);
	memcpy(entries, world.plan.entries, sizeof(entries));
	plan.n_reduce_buckets++;
	expect_no_plan(&node, &plan, entries);
	plan = plan_message(2);
	entries[0].shard_stride -= PLAN_ALIGN;
	expect_no_plan(&node, &plan, entries);
	plan.layout = 2;
	expect_no_plan(&node, &plan, world.plan.entries);
	node_stop(&node);
	world_close();
}

/* --- what is missing or broken ------------------------------------------- */

Test(worker_device, without_nccl_a_communicator_is_refused_with_the_reason)
{
	struct job_comm job;
	struct node node;

	world_open(2, 1);
	setenv("FSDP_LIBNCCL", "/nowhere/libnccl.so.2", 1);
	node_start(&node, 0, 2);
	job = comm_message(&node, 1);
	node_send_comm(&node, &job);
	expect_failed(&node, 1, -ENODEV, "NCCL");
	node_stop(&node);
	world_close();
}

Test(worker_device, without_a_driver_a_communicator_is_refused_with_the_reason)
{
	struct job_comm job;
	struct node node;

	world_open(2, 1);
	setenv("FSDP_LIBCUDA", "/nowhere/libcuda.so.1", 1);
	node_start(&node, 0, 2);
	job = comm_message(&node, 1);
	node_send_comm(&node, &job);
	expect_failed(&node, 1, -ENODEV, "libcuda");
	node_stop(&node);
	world_close();
}

/* NCCL fails in one rank, whichever rank calls it first. */
Test(worker_device, a_failure_of_one_rank_fails_the_job_of_all_ranks)
{
	struct node node;

	world_open(2, 1);
	setenv("FAKENCCL_FAIL", "AllGather:1:3", 1);
	node_start(&node, 0, 2);
	node_open(&node);
	node_begin(&node, JOB_DEVICE_GATHER, 2);
	expect_failed(&node, 2, -EIO, "gather");
	node_begin(&node, JOB_DEVICE_GATHER, 3);
	expect_failed(&node, 3, -EIO, "gather");
	node_forget(&node);
	node_open(&node);
	node_begin(&node, JOB_DEVICE_GATHER, 4);
	expect_done(&node, 4);
	node_stop(&node);
	world_close();
}

static size_t count_threads(pid_t pid)
{
	char path[64];
	size_t n = 0;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	tasks = opendir(path);
	cr_assert(tasks != NULL);
	while (readdir(tasks))
		n++;
	closedir(tasks);
	return n;
}

static size_t count_maps(pid_t pid, const char *what)
{
	char path[64], line[512];
	size_t n = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	cr_assert(maps != NULL);
	while (fgets(line, sizeof(line), maps))
		n += strstr(line, what) != NULL;
	fclose(maps);
	return n;
}

static void send_timelines(const struct node *node)
{
	const struct job_timelines message = {.kind = JOB_TIMELINES,
					      .comm = COMM};
	struct timelines timelines;

	cr_assert(zero(int, timelines_create(&timelines, NULL)));
	send_with_fd(node->fd, &message, sizeof(message), timelines.fd);
	timelines_close(&timelines);
}

/* The file comes after the threads of the ranks have ended. */
Test(worker_device, timelines_of_a_failed_communicator_are_unmapped)
{
	const struct timespec moment = {.tv_nsec = 1000000};
	struct node node;
	size_t n_threads;

	world_open(1, 1);
	setenv("FAKENCCL_FAIL", "AllGather:1:3", 1);
	node_start(&node, 0, 1);
	node_begin(&node, JOB_DEVICE_GATHER, 1);
	expect_failed(&node, 1, -ECANCELED, "there is no communicator");
	n_threads = count_threads(node.pid);
	node_open(&node);
	node_begin(&node, JOB_DEVICE_GATHER, 2);
	expect_failed(&node, 2, -EIO, "gather");
	while (count_threads(node.pid) > n_threads)
		nanosleep(&moment, NULL);
	send_timelines(&node);
	node_forget(&node);
	node_open(&node);
	cr_expect(zero(sz, count_maps(node.pid, "fsdp-timelines")));
	node_stop(&node);
	world_close();
}

Test(worker_device, a_device_that_is_lost_ends_the_worker)
{
	struct node node;

	world_open(2, 1);
	setenv("FAKECUDA_FAIL", "LaunchKernel:1:sticky=700", 1);
	node_start(&node, 0, 2);
	node_open(&node);
	node_begin(&node, JOB_DEVICE_GATHER, 2);
	expect_failed(&node, 2, -EIO, "start it again");
	cr_expect(eq(int, node_end(&node), W_EXITCODE(1, 0)));
	world_close();
}
