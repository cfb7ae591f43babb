/*
 * Tests whole parameters and gradients of a rank's groups.
 */
#include "tests/lib/check.h"
#include "tests/unit/client/rank/rank_world.h"
#include <errno.h>
#include <string.h>

TestSuite(rank_group, .init = world_open);

Test(rank_group, whole_parameters_exist_from_the_wait_to_the_reshard)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct tensor_place place = place_of(FULL, 136);

	cr_expect(eq(int, fsdp_param(group, 0, &param), -EINVAL));
	answer_place(&place);
	cr_assert(zero(int, fsdp_wait(&work, 250)));
	cr_expect(eq(int, world.asked.wait.timeout_ms, 250));
	cr_expect(eq(u64, world.asked.wait.group, 9));
	cr_assert(zero(int, fsdp_param(group, 1, &param)));
	cr_expect(eq(ptr, (void *)param.data, world.memory[FULL] + 64));
	cr_expect(eq(u64, param.numel, 4));
	cr_assert(zero(int, fsdp_param(group, 0, &param)));
	cr_expect(eq(u32, param.dtype, FSDP_BF16));
	cr_expect(eq(i64, param.shape[0], 3));
	cr_expect(not(world.is_writable[FULL]));
	world.n_asked = 0;
	cr_expect(zero(int, fsdp_wait(&work, -1)));
	cr_expect(zero(int, world.n_asked));
	cr_expect(eq(int, world.holds[FULL], 1));
	cr_assert(zero(int, fsdp_reshard(group, 0)));
	cr_expect(zero(int, world.holds[FULL]));
	cr_expect(eq(int, fsdp_param(group, 0, &param), -EINVAL));
	cr_expect(eq(int, fsdp_reshard(group, 0), -EINVAL));
	cr_expect(zero(int, fsdp_wait(&work, -1)));
	fsdp_comm_leave(comm);
}

Test(rank_group, the_wait_for_a_refused_unshard_returns_the_refusal)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work = unshard(group), again = unshard(group);
	struct tensor_place place = place_of(FULL, 136);

	cr_expect(eq(int, world.n_one_way, 1)); /* the same work */
	cr_expect(eq(u64, again.sequence, work.sequence));
	cr_expect(eq(u64, world.sent_one_way.unshard.group, 9));
	refuse_one_way(&world.one_way);
	world.code = -EINVAL;
	world.n_asked = 0;
	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	cr_expect(eq(str, (char *)fsdp_error(), "rank 0 unshards another"));
	cr_expect(eq(int, world.n_asked, 1));
	cr_expect(zero(u64, world.asked.wait.sequence));
	/* The work is not open any more, so no request is sent for it. */
	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	cr_expect(eq(int, fsdp_reshard(group, 0), -EINVAL));
	cr_expect(eq(int, world.n_asked, 1));
	world.code = 0;
	answer_place(&place);
	again = unshard(group);
	cr_expect(zero(int, fsdp_wait(&again, -1)));
	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	fsdp_comm_leave(comm);
}

/* The broker has received both requests before the rank gets a reply to the
 * first. */
Test(rank_group, a_refusal_is_not_reported_for_the_next_unshard)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct one_way first = world.one_way;
	struct tensor_place place = place_of(FULL, 136);

	cr_assert(zero(int, fsdp_reshard(group, 0)));
	work = unshard(group);
	refuse_one_way(&first);
	world.code = -ETIMEDOUT;
	cr_expect(eq(int, fsdp_wait(&work, 0), -ETIMEDOUT));
	world.code = 0;
	answer_place(&place);
	cr_expect(zero(int, fsdp_wait(&work, -1)));
	fsdp_comm_leave(comm);
}

/* The broker could not record one more reply, so the client sends the unshard
 * again. The wait may arrive before it. */
Test(rank_group, a_wait_that_arrives_before_its_unshard_is_repeated)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct tensor_place place = place_of(FULL, 136);

	world.code = -EINVAL;
	world.n_refusals = 3;
	world.n_asked = 0;
	answer_place(&place);
	cr_expect(zero(int, fsdp_wait(&work, -1)));
	cr_expect(eq(int, world.n_asked, 4));
	fsdp_comm_leave(comm);
}

Test(rank_group, a_one_way_request_has_no_reply_handler_after_leaving)
{
	struct fsdp_comm *comm = join(4);

	unshard(new_group(comm, 4, 0));
	fsdp_comm_leave(comm);
	cr_expect(zero(ptr, (void *)(uintptr_t)world.one_way.refused));
}

Test(rank_group, a_refused_mesh_leaves_the_group_unsharded)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct tensor_place place = place_of(FULL, 136);
	struct fsdp_param param = {.struct_size = sizeof(param)};

	answer_place(&place);
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	world.code = -EINVAL;
	cr_expect(eq(int, fsdp_reshard(group, 3), -EINVAL));
	cr_expect(zero(int, fsdp_param(group, 0, &param)));
	world.code = 0;
	cr_expect(zero(int, fsdp_reshard(group, 1)));
	cr_expect(eq(u32, world.asked.reshard.n_mesh, 1));
	cr_expect(zero(int, world.holds[FULL]));
	fsdp_comm_leave(comm);
}

/* This keeps every pointer within the mapping. */
Test(rank_group, whole_parameters_that_are_too_small_are_refused)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct tensor_place place = place_of(FULL, 135);

	answer_place(&place);
	cr_expect(eq(int, fsdp_wait(&work, -1), -EPROTO));
	cr_expect(zero(int, world.holds[FULL]));
	world.received.places = (struct places_reply){0};
	cr_expect(eq(int, fsdp_wait(&work, -1), -EPROTO));
	fsdp_comm_leave(comm);
}

Test(rank_group, an_input_belongs_to_the_rank_until_it_is_reduced)
{
	struct fsdp_reduce_options options = {
		.accumulates = true, .has_factor = true, .factor = 3};
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct tensor_place place = place_of(INPUT, 72);
	struct fsdp_work work;

	cr_expect(eq(int, fsdp_reduce(group, NULL, &work), -EINVAL));
	cr_expect(zero(ptr, fsdp_input_data(group, 0)));
	answer_place(&place);
	cr_assert(zero(int, fsdp_input(group, -1)));
	cr_expect(world.is_writable[INPUT]);
	cr_expect(eq(ptr, fsdp_input_data(group, 0), world.memory[INPUT]));
	cr_expect(eq(ptr, fsdp_input_data(group, 2), world.memory[INPUT] + 64));
	cr_expect(zero(ptr, fsdp_input_data(group, 1))); /* frozen */
	cr_expect(zero(ptr, fsdp_input_data(group, 3)));
	cr_expect(eq(int, fsdp_input(group, -1), -EBUSY));
	world.received.work.sequence = 2;
	cr_assert(zero(int, fsdp_reduce(group, &options, &work)));
	cr_expect(eq(u32, world.asked.reduce.input.slot, INPUT));
	cr_expect(eq(u64, world.asked.reduce.input.generation, 7));
	cr_expect(eq(u32, world.asked.reduce.flags, REDUCE_ACCUMULATE));
	cr_expect(eq(dbl, world.asked.reduce.factor, 3));
	cr_expect(zero(ptr, fsdp_input_data(group, 0)));
	world.received.places = (struct places_reply){0};
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	cr_expect(zero(int, world.holds[INPUT]));
	cr_expect(eq(u32, world.asked.wait.kind, WORK_REDUCE));
	world.n_asked = 0;
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	cr_expect(zero(int, world.n_asked));
	fsdp_comm_leave(comm);
}

static void reduce(struct fsdp_group *group, uint64_t sequence,
		   bool no_all_reduce, struct fsdp_work *ret)
{
	struct fsdp_reduce_options options = {.no_all_reduce = no_all_reduce};
	struct tensor_place place = place_of(INPUT, 72);

	answer_place(&place);
	cr_assert(zero(int, fsdp_input(group, -1)));
	world.received = (struct reply){.work = {.sequence = sequence}};
	cr_assert(zero(int, fsdp_reduce(group, &options, ret)));
}

Test(rank_group, gradients_are_visible_after_the_wait_for_the_reduction)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work;

	reduce(group, 1, false, &work);
	cr_expect(zero(ptr, shard_of(group, 0).grad), "not waited for");
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	cr_expect(eq(ptr, shard_of(group, 0).grad, world.memory[GRADS] + 16));
	cr_expect(zero(ptr, shard_of(group, 1).grad), "frozen");
	fsdp_comm_leave(comm);
}

Test(rank_group, sums_that_wait_for_an_all_reduce_are_not_shown_as_gradients)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work;

	comm->n_replicas = 2;
	reduce(group, 1, true, &work);
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	cr_expect(zero(ptr, shard_of(group, 0).grad));
	reduce(group, 2, false, &work);
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	cr_expect(eq(ptr, shard_of(group, 0).grad, world.memory[GRADS] + 16));
	fsdp_comm_leave(comm);
}
