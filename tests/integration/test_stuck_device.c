/*
 * Tests closing while a device does not finish. The wait has a limit, and
 * memory that the device may still use stays mapped.
 */
#include "client/fsdp_channel.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include "tests/lib/impatient.h"
#include "tests/lib/stage.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define LIMIT_MS 50
/* This also limits how long NCCL may take to begin. */
#define COMM_LIMIT_MS 5000

static struct fsdp_tensor *tensor;
static CUstream stream;

TestSuite(stuck_device, .init = stage_open, .fini = stage_close,
	  .timeout = 300);

/* Connect with a short limit of waits for devices. */
static void connect_briefly(void)
{
	cr_assert(zero(int, fsdp_close(stage.client)));
	stage.client = connect_impatiently(stage.shared->socket, LIMIT_MS);
}

Test(stuck_device, closing_has_a_time_limit_and_keeps_memory_in_use)
{
	uint8_t seen[STAGE_SIZE];

	connect_briefly();
	tensor = alloc();
	stream = stream_make(gpu_nth(0));
	stream_hold(stream, &stage.shared->gate);
	stream_fill(stream, tensor, 21);
	cr_assert(zero(int, publish_on(tensor, "t/own", stream)), "%s",
		  fsdp_error());
	cr_expect(eq(int, fsdp_close(stage.client), -ETIMEDOUT));
	cr_expect(
		ne(ptr, strstr(fsdp_error(), "until this process ends"), NULL),
		"%s", fsdp_error());

	open_client();
	cr_expect(eq(int, get_on("t/own", NULL, 0, &tensor), -ETIMEDOUT),
		  "its session lives");
	open_gate();
	cr_assert(stream_finish(stream), "its memory is mapped");
	cr_assert(zero(int, get_on("t/own", NULL, -1, &tensor)), "%s",
		  fsdp_error());
	cr_assert(zero(int, fsdp_copy_out(seen, tensor, 0, STAGE_SIZE)));
	cr_expect(is_filled(seen, STAGE_SIZE, 21));
	fsdp_free(tensor);
	remove_name("t/own");
	cr_expect(eq(u64, n_slots(), 1), "held to the end");
}

/* The thread of the descriptor, which is closed with it, may be in a call. */
Test(stuck_device, closing_ends_the_descriptor_of_a_channel)
{
	const struct fsdp_channel_options options = {.capacity = 64};
	struct fsdp_channel *channel;
	int fd;

	connect_briefly();
	must(fsdp_channel_open(stage.client, "data", &options, FSDP_PRODUCER,
			       &channel) == 0);
	fd = fsdp_channel_fd(channel);
	cr_assert(ge(int, fd, 0), "%s", fsdp_error());
	tensor = alloc();
	stream = stream_make(gpu_nth(0));
	stream_hold(stream, &stage.shared->gate);
	must(publish_on(tensor, "t/own", stream) == 0);
	cr_expect(eq(int, fsdp_close(stage.client), -ETIMEDOUT));
	cr_expect(eq(int, fcntl(fd, F_GETFD), -1));
	open_gate();
	cr_expect(stream_finish(stream));
	open_client();
}

Test(stuck_device, closing_waits_for_a_stream_that_only_waits)
{
	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	connect_briefly();
	stream = stream_make(gpu_nth(0));
	cr_assert(zero(int, get_on("t/a", stream, 0, &tensor)), "%s",
		  fsdp_error());
	cr_expect(eq(int, fsdp_close(stage.client), -ETIMEDOUT));
	open_gate();
	cr_expect(stream_finish(stream));
	open_client();
}

static struct fsdp_comm *alone_comm;
static struct fsdp_group *alone;

/* Join, commit and take an input. */
static void join_alone(void)
{
	const struct fsdp_device gpu = gpu_name(0);
	const struct fsdp_comm_options options = {.device = &gpu,
						  .timeout_ms = COMM_LIMIT_MS};
	const struct fsdp_param_spec weight = {.name = "weight",
					       .spec = {FSDP_F32, 1, {64}}};
	struct fsdp_work work;

	must(fsdp_comm_join(stage.client, "test", 1, 0, &options,
			    &alone_comm) == 0);
	must(fsdp_group_register(alone_comm, "l0", &weight, 1, NULL, &alone) ==
	     0);
	must(fsdp_commit(alone_comm, 1, &work) == 0);
	must(fsdp_wait(&work, -1) == 0);
	must(fsdp_input(alone, -1) == 0);
}

static int reduce_on(CUstream on)
{
	const struct fsdp_reduce_options options = {.stream = on};
	struct fsdp_work work;

	return fsdp_reduce(alone, &options, &work);
}

/* Start a reduction whose gradients are never written. */
static struct fsdp_comm *join_and_get_stuck(void)
{
	join_alone();
	stream = stream_make(gpu_nth(0));
	stream_hold(stream, &stage.shared->gate);
	must(reduce_on(stream) == 0);
	return alone_comm;
}

Test(stuck_device,
     leaving_has_the_time_out_of_the_communicator_and_keeps_memory)
{
	struct fsdp_comm *comm = join_and_get_stuck();
	uint64_t n = n_slots();

	cr_expect(eq(int, fsdp_comm_leave(comm), -ETIMEDOUT));
	cr_expect(ne(ptr, strstr(fsdp_error(), "'test' was left"), NULL), "%s",
		  fsdp_error());
	must(fsdp_comm_remove(stage.client, "test") == 0);
	cr_expect(eq(u64, n_slots(), n), "held, though nobody has it");
	open_gate();
	cr_assert(stream_finish(stream));
	cr_expect(zero(int, fsdp_close(stage.client)), "%s", fsdp_error());
	open_client();
	cr_expect(await_slots(0));
}

Test(stuck_device, a_commit_that_was_too_late_can_be_repeated)
{
	struct fsdp_comm *comm = join_and_get_stuck();
	struct fsdp_work work;

	cr_expect(eq(int, fsdp_commit(comm, 2, &work), -ETIMEDOUT));
	open_gate();
	cr_assert(stream_finish(stream));
	cr_assert(zero(int, fsdp_commit(comm, 2, &work)), "%s", fsdp_error());
	cr_expect(zero(int, fsdp_wait(&work, -1)), "%s", fsdp_error());
	fsdp_comm_leave(comm);
}

/* The broker has planned the reduction, and other ranks would wait for it. The
 * commit of join_alone() records two events before it. */
Test(stuck_device, a_planned_reduction_that_cannot_begin_ends_the_run)
{
	need_fake("it cannot record an event");
	setenv("FAKECUDA_FAIL", "EventRecord:3:2", 1);
	join_alone();
	stream = stream_make(gpu_nth(0));
	cr_expect(eq(int, reduce_on(stream), -ECONNABORTED));
	cr_expect(ne(ptr, strstr(fsdp_error(), "cannot record an event"), NULL),
		  "%s", fsdp_error());
	cr_expect(eq(int, fsdp_input(alone, 0), -ECONNABORTED));
	fsdp_comm_leave(alone_comm);
}

/* --- two ranks, of which one dies ---------------------------------------- */

static struct fsdp_comm *pair_comm;
static struct fsdp_group *pair;

static void join_pair(uint32_t rank)
{
	const struct fsdp_device gpu = gpu_name((int)rank);
	const struct fsdp_comm_options options = {.device = &gpu};
	const struct fsdp_param_spec weight = {.name = "weight",
					       .spec = {FSDP_F32, 1, {64}}};
	struct fsdp_work work;

	must(fsdp_comm_join(stage.client, "test", 2, rank, &options,
			    &pair_comm) == 0);
	must(fsdp_group_register(pair_comm, "l0", &weight, 1, NULL, &pair) ==
	     0);
	must(fsdp_commit(pair_comm, 1, &work) == 0);
	must(fsdp_wait(&work, -1) == 0);
	must(fsdp_input(pair, -1) == 0);
}

static int join_as_second(void)
{
	struct fsdp_work work;

	open_client();
	join_pair(1);
	return fsdp_reduce(pair, NULL, &work);
}

/* The gradients of this rank are never written, so its part of the reduction
 * never begins. Telling NCCL to abort does not end it. */
static struct fsdp_work reduce_with_one_who_dies(void)
{
	struct fsdp_reduce_options options;
	struct fsdp_work work;

	actor_begin(&stage.producer, join_as_second);
	join_pair(0);
	cr_assert(zero(int, actor_end(&stage.producer)));
	stream = stream_make(gpu_nth(0));
	stream_hold(stream, &stage.shared->gate);
	options = (struct fsdp_reduce_options){.stream = stream};
	cr_assert(zero(int, fsdp_reduce(pair, &options, &work)), "%s",
		  fsdp_error());
	actor_kill(&stage.producer);
	return work;
}

Test(stuck_device, a_death_is_reported_even_if_nccl_cannot_end)
{
	struct fsdp_work work = reduce_with_one_who_dies();

	cr_expect(eq(int, fsdp_wait(&work, -1), -ECONNABORTED));
	cr_expect(ne(ptr, strstr(fsdp_error(), "NCCL has not released GPU-"),
		     NULL),
		  "%s", fsdp_error());
	cr_expect(eq(int, fsdp_comm_leave(pair_comm), -ETIMEDOUT));
	cr_expect(ne(ptr, strstr(fsdp_error(), "'test' was left"), NULL), "%s",
		  fsdp_error());
	open_gate();
	cr_expect(stream_finish(stream));
	cr_expect(zero(int, fsdp_close(stage.client)), "%s", fsdp_error());
	open_client();
}

Test(stuck_device, closing_has_a_time_limit_even_if_nccl_cannot_end)
{
	(void)reduce_with_one_who_dies();
	cr_expect(eq(int, fsdp_close(stage.client), -ETIMEDOUT));
	cr_expect(ne(ptr, strstr(fsdp_error(), "NCCL has not released GPU-"),
		     NULL),
		  "%s", fsdp_error());
	open_gate();
	cr_expect(stream_finish(stream));
	open_client();
}

Test(stuck_device, closing_stops_communicators_that_were_not_left)
{
	(void)join_and_get_stuck();
	cr_expect(eq(int, fsdp_close(stage.client), -ETIMEDOUT));
	cr_expect(ne(ptr, strstr(fsdp_error(), "collectives on GPU-"), NULL),
		  "%s", fsdp_error());
	open_gate();
	cr_expect(stream_finish(stream));
	open_client();
}
