/*
 * Tests the records that a rank keeps (client/rank/comm.c and
 * client/rank/group.c), with memory of the test and a broker whose replies the
 * test chooses.
 */
#include "tests/lib/check.h"
#include "tests/unit/client/rank/rank_world.h"
#include <errno.h>
#include <string.h>

TestSuite(rank, .init = world_open);

/* --- joining and registering --------------------------------------------- */

Test(rank, omitted_options_of_a_join_get_their_defaults)
{
	struct fsdp_comm_options options = {.n_shards = 1};
	struct fsdp_comm *comm = join(3);

	cr_expect(eq(u64, fsdp_comm_step(comm), 3));
	cr_expect(eq(u32, world.asked.comm_join.n_shards, 2));
	cr_expect(eq(int, world.asked.comm_join.timeout_ms, 60000));
	cr_expect(eq(u64, world.asked.comm_join.ttl_ms, 600000));
	cr_expect(eq(u32, world.asked.comm_join.n_inputs, 1));
	cr_expect(eq(u32, world.asked.comm_join.access.gid, GID_DEFAULT));
	fsdp_comm_leave(comm);
	cr_assert(zero(int,
		       fsdp_comm_join(&client, "job", 2, 1, &options, &comm)));
	cr_expect(eq(u32, world.asked.comm_join.n_shards, 1));
	cr_expect(eq(u32, world.asked.comm_join.access.gid, GID_DEFAULT));
	fsdp_comm_leave(comm);
	options.access = (struct fsdp_access){.gid = 7, .mode = 0660};
	cr_assert(zero(int,
		       fsdp_comm_join(&client, "job", 2, 1, &options, &comm)));
	cr_expect(eq(u32, world.asked.comm_join.access.gid, 7));
	fsdp_comm_leave(comm);
}

Test(rank, a_shard_is_the_part_of_the_parameter_of_this_rank)
{
	struct fsdp_comm *comm = join(0);
	struct fsdp_group *group = new_group(comm, 0, 0);
	struct fsdp_shard shard = shard_of(group, 0);

	cr_expect(eq(u32, shard.dtype, FSDP_F32));
	cr_expect(eq(u32, shard.n_dims, 2));
	cr_expect(eq(i64, shard.shape[0], 1));
	cr_expect(eq(i64, shard.shape[1], 2));
	cr_expect(eq(i64, shard.start, 2));
	cr_expect(eq(u64, shard.numel, 2));
	cr_expect(zero(ptr, (void *)shard.current));
	cr_expect(eq(ptr, shard.next, world.memory[SHARDS_1] + 16));
	cr_expect(zero(ptr, shard.grad), "nothing was reduced");
	cr_expect(world.is_writable[SHARDS_0] && world.is_writable[GRADS]);
	cr_expect(zero(ptr, shard_of(group, 1).grad));
	/* A 0-d parameter is divided like one with one element. */
	shard = shard_of(group, 2);
	cr_expect(eq(u32, shard.n_dims, 1));
	cr_expect(eq(i64, shard.shape[0], 0));
	cr_expect(eq(i64, shard.start, 1));
	cr_expect(zero(u64, shard.numel));
	cr_expect(eq(int, fsdp_shard(group, 3, &shard), -EINVAL));
	fsdp_comm_leave(comm);
}

Test(rank, registering_zeroes_the_padding_of_uncommitted_shards)
{
	static const uint8_t zeros[8];
	struct fsdp_comm *comm = join(0);
	uint8_t(*memory)[SLOT_SIZE] = world.memory;

	new_group(comm, 0, 0);
	/* These bytes are after the row that this rank has. */
	for (int slot = SHARDS_0; slot <= SHARDS_1; slot++) {
		cr_expect(eq(u8, memory[slot][23], 0xee));
		cr_expect(zero(int, memcmp(memory[slot] + 24, zeros, 8)));
		cr_expect(eq(u8, memory[slot][32], 0xee));
		/* the 0-d parameter's chunk is all padding here */
		cr_expect(zero(int, memcmp(memory[slot] + 200, zeros, 8)));
		cr_expect(eq(u8, memory[slot][208], 0xee));
	}
	world_open();
	/* Other ranks may read what is committed, so it is not changed. */
	new_group(comm, 4, 1);
	cr_expect(zero(int, memcmp(memory[SHARDS_0] + 24, zeros, 8)));
	cr_expect(eq(u8, memory[SHARDS_1][24], 0xee));
	fsdp_comm_leave(comm);
}

/* Each of these entries replaces the group's first entry. */
static const struct group_entry bad_entries[] = {
	{DTYPE_BF16, DTYPE_BF16, 0, 2, 16, 0, 0, 16}, /* divided differently */
	{DTYPE_BF16, DTYPE_BF16, 1, 2, 16, 0, 0, 16}, /* by another dimension */
	{DTYPE_BF16, DTYPE_BF16, 2, 1, 16, 0, 0, 16}, /* by a missing one */
	{DTYPE_BF16, DTYPE_BF16, 0, 1, 248, 0, 0, 16}, /* padding is outside */
	/* the gradient is outside, too */
	{DTYPE_BF16, DTYPE_BF16, 0, 1, 16, 0, 0, 252},
	{DTYPE_BF16, 0, 0, 1, 16, 0, 0, 16}, /* the dtype has no gradients */
	{DTYPE_BF16, DTYPE_C128, 0, 1, 16, 0, UINT64_MAX - 64, 16},
	{DTYPE_BF16, DTYPE_BF16, 0, 1, 16, UINT64_MAX, 0, 16},
	{DTYPE_BF16, DTYPE_BF16, 0, 1, 16, 0, UINT64_MAX, 16},
};
#define N_BAD (sizeof(bad_entries) / sizeof(*bad_entries))

Test(rank, an_invalid_group_reply_is_refused_and_its_holds_are_released)
{
	struct fsdp_comm *comm = join(0);
	struct group_entry good = entries[0];
	struct fsdp_group *group;

	for (size_t i = 0; i < N_BAD; i++) {
		entries[0] = bad_entries[i];
		world.received = group_reply(0, 0);
		cr_expect(eq(int,
			     fsdp_group_register(comm, "layer", specs, 3, NULL,
						 &group),
			     -EPROTO),
			  "%zu", i);
		cr_expect(zero(int, world.holds[SHARDS_0]));
		cr_expect(zero(int, world.holds[GRADS]));
	}
	entries[0] = good;
	world.received = group_reply(0, 0);
	world.received.group.n_entries = 2;
	cr_expect(eq(int,
		     fsdp_group_register(comm, "layer", specs, 3, NULL, &group),
		     -EPROTO));
	world.received = group_reply(0, 0);
	/* a place is missing, because a parameter is trainable */
	world.received.group.n_places = 2;
	world.holds[GRADS]--;
	cr_expect(eq(int,
		     fsdp_group_register(comm, "layer", specs, 3, NULL, &group),
		     -EPROTO));
	cr_expect(zero(ptr, comm->groups));
	fsdp_comm_leave(comm);
}

Test(rank, a_policy_is_sent_unchanged)
{
	struct fsdp_comm *comm = join(0);
	struct fsdp_policy policy = {.param_dtype = FSDP_BF16,
				     .input_dtype = FSDP_F64,
				     .reduce_dtype = FSDP_F32,
				     .layout = FSDP_LAYOUT_FLAT,
				     .reduce_cap_mb = 25,
				     .stays_unsharded = true};
	struct fsdp_group *group;

	world.received = group_reply(0, 0);
	cr_assert(zero(int, fsdp_group_register(comm, "layer", specs, 3,
						&policy, &group)));
	cr_expect(eq(u64, world.asked.group.comm, 5));
	cr_expect(eq(u32, world.asked.group.param_dtype, DTYPE_BF16));
	cr_expect(eq(u32, world.asked.group.input_dtype, DTYPE_F64));
	cr_expect(eq(u32, world.asked.group.reduce_dtype, DTYPE_F32));
	cr_expect(eq(u32, world.asked.group.layout, 1));
	cr_expect(world.asked.group.stays_unsharded);
	cr_expect(zero(u32, world.asked.group.n_gather_caps));
	cr_expect(eq(u32, world.asked.group.n_reduce_caps, 1));
	cr_expect(eq(int,
		     fsdp_group_register(comm, "many", specs,
					 FSDP_MAX_PARAMS + 1, NULL, &group),
		     -E2BIG));
	fsdp_comm_leave(comm);
}

/* --- committing ---------------------------------------------------------- */

Test(rank, a_commit_swaps_the_shards_after_the_wait_for_it)
{
	struct fsdp_comm *comm = join(0);
	struct fsdp_group *group = new_group(comm, 0, 0);
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_work work, other;

	world.received.work.sequence = 3;
	cr_assert(zero(int, fsdp_commit(comm, 3, &work)));
	/* Until the wait is done, the rank does not know which version is the
	 * current one. */
	cr_expect(eq(int, fsdp_shard(group, 0, &shard), -EBUSY));
	cr_expect(eq(int, fsdp_commit(comm, 4, &other), -EBUSY));
	cr_expect(eq(int, fsdp_unshard(group, &other), -EBUSY));
	cr_expect(eq(int, fsdp_input(group, 0), -EBUSY));
	world.code = -ETIMEDOUT;
	cr_expect(eq(int, fsdp_wait(&work, 0), -ETIMEDOUT));
	cr_expect(eq(int, fsdp_shard(group, 0, &shard), -EBUSY));
	world.code = 0;
	world.received.places = (struct places_reply){0};
	cr_expect(zero(int, fsdp_wait(&work, -1)));
	cr_expect(eq(u64, fsdp_comm_step(comm), 3));
	shard = shard_of(group, 0);
	cr_expect(eq(ptr, (void *)shard.current, world.memory[SHARDS_1] + 16));
	cr_expect(eq(ptr, shard.next, world.memory[SHARDS_0] + 16));
	/* Waiting for finished work sends no request. */
	world.n_asked = 0;
	cr_expect(zero(int, fsdp_wait(&work, 0)));
	cr_expect(zero(int, world.n_asked));
	cr_expect(eq(ptr, shard_of(group, 0).next, shard.next));
	fsdp_comm_leave(comm);
}

Test(rank, a_commit_keeps_frozen_parameters)
{
	struct fsdp_comm *comm = join(0);
	struct fsdp_group *group = new_group(comm, 0, 0);

	/* The first values of a frozen parameter are written like all
	 * others. */
	memset(shard_of(group, 1).next, 0x11, 8);
	commit_step(comm, 1);
	cr_expect(eq(u8, world.memory[SHARDS_1][128], 0x11));
	cr_expect(eq(u8, world.memory[SHARDS_0][128], 0xee));
	/* Later commits copy the parameter. They replace what the rank has
	 * written there. */
	commit_step(comm, 2);
	cr_expect(eq(u8, world.memory[SHARDS_0][128], 0x11));
	cr_expect(eq(u8, world.memory[SHARDS_0][135], 0x11));
	cr_expect(eq(u8, world.memory[SHARDS_0][136], 0xee));
	memset(shard_of(group, 1).next, 0x22, 8);
	commit_step(comm, 3);
	cr_expect(eq(u8, *(const uint8_t *)shard_of(group, 1).current, 0x11));
	/* Values of a trainable parameter are not replaced. */
	memset(shard_of(group, 0).next, 0x33, 8);
	commit_step(comm, 4);
	cr_expect(eq(u8, *(const uint8_t *)shard_of(group, 0).current, 0x33));
	fsdp_comm_leave(comm);
}

Test(rank, a_null_handle_is_refused)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_group *group;
	struct fsdp_work work;

	cr_expect(eq(int, fsdp_shard(NULL, 0, &shard), -EINVAL));
	cr_expect(eq(int, fsdp_param(NULL, 0, &param), -EINVAL));
	cr_expect(eq(int, fsdp_unshard(NULL, &work), -EINVAL));
	cr_expect(eq(int, fsdp_reshard(NULL, 0), -EINVAL));
	cr_expect(eq(int, fsdp_input(NULL, 0), -EINVAL));
	cr_expect(zero(ptr, fsdp_input_data(NULL, 0)));
	cr_expect(eq(int, fsdp_reduce(NULL, NULL, &work), -EINVAL));
	cr_expect(eq(int, fsdp_wait(NULL, 0), -EINVAL));
	cr_expect(eq(int, fsdp_commit(NULL, 1, &work), -EINVAL));
	cr_expect(zero(u64, fsdp_comm_step(NULL)));
	cr_expect(eq(int, fsdp_group_register(NULL, "l", NULL, 0, NULL, &group),
		     -EINVAL));
}

Test(rank, a_wait_for_no_work_is_refused)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_work work = {0};

	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	work = (struct fsdp_work){.comm = comm, .kind = WORK_UNSHARD};
	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	work.kind = 4;
	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	fsdp_comm_leave(comm);
}

/* --- the end ------------------------------------------------------------- */

Test(rank, a_failure_is_remembered_with_its_message)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work;
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};

	work = unshard(group);
	world.code = -ECONNABORTED;
	cr_expect(eq(int, fsdp_wait(&work, -1), -ECONNABORTED));
	world.code = 0;
	world.n_asked = world.n_one_way = 0;
	cr_expect(eq(int, fsdp_unshard(group, &work), -ECONNABORTED));
	cr_expect(zero(int, world.n_one_way));
	cr_expect(eq(int, fsdp_input(group, 0), -ECONNABORTED));
	cr_expect(eq(int, fsdp_commit(comm, 5, &work), -ECONNABORTED));
	cr_expect(eq(int, fsdp_param(group, 0, &param), -ECONNABORTED));
	cr_expect(eq(int, fsdp_shard(group, 0, &shard), -ECONNABORTED));
	cr_expect(eq(str, (char *)fsdp_error(), "rank 1 has died"));
	cr_expect(zero(int, world.n_asked));
	/* The broker keeps a failed run until all survivors have left, so the
	 * rank tells it. */
	fsdp_comm_leave(comm);
	cr_expect(eq(int, world.n_commands, 1));
	cr_expect(eq(u64, world.asked.comm_leave.comm, 5));
}

Test(rank, a_communicator_fails_if_the_broker_does_not_come_back)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work;

	world.code = -ENOENT;
	work = unshard(group);
	cr_expect(eq(int, fsdp_wait(&work, -1), -ENOENT));
	world.is_down = true;
	cr_expect(eq(int, fsdp_wait(&work, -1), -ECONNABORTED));
	world.code = 0;
	world.is_down = false;
	cr_expect(eq(int, fsdp_unshard(group, &work), -ECONNABORTED));
	fsdp_comm_leave(comm);
}

Test(rank, leaving_releases_all_holds)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct tensor_place full = place_of(FULL, 136);
	struct tensor_place input = place_of(INPUT, 72);

	answer_place(&full);
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	answer_place(&input);
	cr_assert(zero(int, fsdp_input(group, -1)));
	fsdp_comm_leave(comm);
	for (int slot = 0; slot < N_SLOTS; slot++)
		cr_expect(zero(int, world.holds[slot]), "%d", slot);
	cr_expect(zero(ptr, client.comms));
	fsdp_comm_leave(NULL);
}

/* A wait would last until the broker returns, and a new broker may not know
 * this client. */
Test(rank, leaving_sends_no_request_while_the_broker_is_away)
{
	struct fsdp_comm *comm = join(4);

	world.is_down = true;
	fsdp_comm_leave(comm);
	cr_expect(zero(int, world.n_commands));
}

Test(rank, closing_the_client_frees_communicators_and_groups)
{
	struct fsdp_comm *first = join(4), *second = join(4);

	new_group(first, 4, 0);
	new_group(second, 4, 0);
	client.comm_hooks->free_all(&client);
	cr_expect(zero(ptr, client.comms));
	/* Their handles end with the connection. */
	cr_expect(eq(int, world.holds[GRADS], 2));
}

Test(rank, a_forked_child_is_refused)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = new_group(comm, 4, 0);
	struct fsdp_work work = {0};

	guard_word = 0;
	cr_expect(eq(int, fsdp_unshard(group, &work), -ECHILD));
	cr_expect(eq(int, fsdp_wait(&work, 0), -EINVAL));
	cr_expect(eq(int, fsdp_comm_remove(&client, "job"), -ECHILD));
	fsdp_comm_leave(comm); /* does not change the parent's */
	cr_expect(eq(ptr, client.comms, comm));
	guard_word = 1;
	fsdp_comm_leave(comm);
}
