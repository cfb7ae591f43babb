/*
 * Tests bad input about the work of collectives: unshards, reductions and
 * commits.
 */
#include "tests/integration/refusal_collective.h"
#include "tests/lib/leaks.h"
#include "tests/lib/memory.h"
#include <math.h>

CHECKED_SUITE(refusal_collective, refusal_setup, refusal_teardown,
	      .timeout = 300);

/* --- unsharding ---------------------------------------------------------- */

Test(refusal_collective, of_unshards_and_reshards)
{
	struct group_param param = vector("w", DTYPE_F32, 4);
	const struct request begin = unshard_of(first);
	const struct refusal closed[] = {
		{"a reshard of what is not whole", reshard_of(first, 0),
		 -EINVAL, "has not unsharded 'first'"},
		{"a mesh of all", reshard_of(first, 4097), -EINVAL,
		 "a mesh cannot have 4097 ranks"},
		{"a wait for what was not begun",
		 wait_of(comm, first, WORK_UNSHARD, 1), -EINVAL,
		 "has no unshard 1 of 'first'"},
	};
	const struct refusal open[] = {
		{"a commit", commit_of(comm, step + 1), -EBUSY,
		 "has 'first' unsharded; reshard it"},
		{"a mesh that does not divide", reshard_of(first, 3), -EINVAL,
		 "reshard 'first': a mesh of 3 ranks"},
		{"a wait for a later one",
		 wait_of(comm, first, WORK_UNSHARD, 2), -EINVAL,
		 "has no unshard 2"},
		{"a wait in another communicator",
		 wait_of(solo, first, WORK_UNSHARD, 1), -ECONNABORTED,
		 "not running here"},
	};
	const struct refusal behind[] = {
		{"another order", unshard_of(second), -EINVAL,
		 "the ranks' next one is 'first'"},
		{"a commit", commit_of(comm, step + 1), -EINVAL,
		 "next step is to unshard 'first'"},
	};

	CHECK(me, closed);
	ask(me, begin);
	CHECK(me, open);
	CHECK(peer, behind);
	ask(peer, begin);
	wait_both(first, WORK_UNSHARD, ++n_unshards);
	ask(me, reshard_of(first, 2));
	refuse(peer, "another mesh", reshard_of(first, 0), -EINVAL,
	       "reshards 'first' to a mesh of 0 ranks, but");
	ask(peer, reshard_of(first, 2));
	CHECK(me, closed);
	ask(other, group_of(solo, "fresh", &param, 1));
	refuse(other, "what was never committed",
	       unshard_of(other->reply.group.group), -ENODATA,
	       "write the shards and commit");
	check_good_round();
}

/* Join a communicator whose rank gathers, and commit. Returns its group. */
static uint64_t gather_directly(void)
{
	struct group_param param = vector("w", DTYPE_F32, 4);
	struct request join = join_of("test/direct", 1, 0), request;
	uint64_t group;

	join.comm_join.direct = COMM_DIRECT_ALL;
	ask(other, join);
	request = group_of(other->reply.comm.comm, "w", &param, 1);
	request.group.param_dtype = DTYPE_BF16; /* not gathered in place */
	ask(other, request);
	group = other->reply.group.group;
	ask(other, commit_of(request.group.comm, 1));
	return group;
}

Test(refusal_collective, of_unshards_of_ranks_that_gather_themselves)
{
	uint64_t group;

	host_memory_only("on devices no rank gathers without the broker");
	group = gather_directly();
	refuse(other, "a gather by the worker", unshard_of(group), -EINVAL,
	       "the ranks of communicator 'test/direct' gather themselves");
	check_good_round();
}

Test(refusal_collective, of_buffers_that_a_gather_cannot_have)
{
	struct request request = {.kind = MESSAGE_GATHER_BUFFER,
				  .gather_buffer.buffer = 5000};

	host_memory_only("on devices no rank gathers without the broker");
	request.gather_buffer.group = gather_directly();
	refuse(other, "a buffer too many", request, -EINVAL,
	       "group 'w' has no buffer 5000 to gather into");
	cr_expect(eq(int, wire_call(other, &request), -EINVAL));
	cr_expect(strstr(wire_sentence(other), "memory") == NULL, "%s",
		  wire_sentence(other));
	check_good_round();
}

/* --- reducing ------------------------------------------------------------ */

Test(refusal_collective, of_inputs)
{
	struct slot_ref mine = take_input(me, first), loose, theirs, gone;
	struct tensor_place place;

	wire_must(me, wire_alloc(me, 4096, NULL, -1, &place));
	loose = place.ref;
	wire_must(me, wire_alloc(me, 64, NULL, -1, &place));
	gone = place.ref;
	wire_must(me, wire_release(me, &gone));
	theirs = take_input(peer, first);
	refuse(me, "a second one", input_of(first), -EBUSY,
	       "has an input of 'first' already; reduce it first");
	refuse(me, "one of a frozen group", input_of(frozen), -EINVAL,
	       "all of its parameters are frozen");
	refuse(me, "a strange time-out",
	       (struct request){.kind = MESSAGE_INPUT,
				.input = {.group = second, .timeout_ms = -2}},
	       -EINVAL, "-2 ms");
	refuse(me, "other memory", reduce_of(first, &loose), -EINVAL,
	       "is not its input of 'first'");
	refuse(me, "another rank's input", reduce_of(first, &theirs), -EINVAL,
	       "not its input");
	refuse(me, "another group's input", reduce_of(second, &mine), -EINVAL,
	       "not its input of 'second'");
	refuse(me, "what is gone", reduce_of(first, &gone), -ESTALE,
	       "has no tensor of generation");
	refuse(me, "a later generation",
	       reduce_of(first,
			 &(struct slot_ref){mine.slot, mine.generation + 1}),
	       -ESTALE, "generation");
	refuse(me, "a wild slot",
	       reduce_of(first, &(struct slot_ref){UINT32_MAX, 1}), -ESTALE,
	       "4294967295");
	refuse(me, "nothing", reduce_of(first, &(struct slot_ref){0, 0}),
	       -EINVAL, "is not a tensor");
	(void)take_input(me, second);
	both(reduce_of(first, &mine), reduce_of(first, &theirs));
	wait_both(first, WORK_REDUCE, ++n_reductions);
	refuse(me, "one input twice", reduce_of(first, &mine), -EINVAL,
	       "reduce it once");
	check_good_round();
}

Test(refusal_collective, of_more_inputs_than_a_rank_may_have)
{
	struct group_param params[] = {vector("w", DTYPE_F32, 4)};
	uint64_t third = register_both("third", params, 1);
	struct slot_ref mine = take_input(me, first);

	(void)take_input(me, second);
	refuse(me, "a third one", input_of(third), -EBUSY,
	       "has 2 inputs that it has not reduced");
	ask(me, reduce_of(first, &mine));
	refuse(me, "one that is handed in counts still", input_of(third),
	       -ETIMEDOUT, "all inputs that rank 0");
	refuse(me, "a commit of what is not reduced", commit_of(comm, step + 1),
	       -EBUSY, "wait for them before the commit");
	refuse(me, "a wait", wait_of(comm, first, WORK_REDUCE, 1), -ETIMEDOUT,
	       "has not handed in its gradients");
	mine = take_input(peer, first);
	ask(peer, reduce_of(first, &mine));
	wait_both(first, WORK_REDUCE, ++n_reductions);
	check_good_round();
}

Test(refusal_collective, of_divide_factors)
{
	struct slot_ref mine = take_input(me, first);
	struct slot_ref theirs = take_input(peer, first);
	struct refusal all[] = {
		{"0", divided_by(first, &mine, 0), -EINVAL,
		 "reduce 'first': the divide factor is 0"},
		{"minus 0", divided_by(first, &mine, -0.0), -EINVAL,
		 "greater than 0"},
		{"NaN", divided_by(first, &mine, NAN), -EINVAL,
		 "the divide factor is nan"},
		{"-1", divided_by(first, &mine, -1), -EINVAL, "factor is -1"},
		{"infinity", divided_by(first, &mine, INFINITY), -EINVAL,
		 "factor is inf"},
		{"too small", divided_by(first, &mine, 1e-300), -EINVAL,
		 "too small or too large"},
		{"too large", divided_by(first, &mine, 1e300), -EINVAL,
		 "too small or too large"},
		{"flags", reduce_of(first, &mine), -EINVAL, "flags 0x8"},
	};
	struct refusal others[] = {
		{"another factor", divided_by(first, &theirs, 3), -EINVAL,
		 "they differ in the divide factor"},
		{"no factor", reduce_of(first, &theirs), -EINVAL,
		 "they differ in the divide factor"},
		{"NaN where others have begun", divided_by(first, &theirs, NAN),
		 -EINVAL, "they differ in the divide factor"},
		{"other flags", divided_by(first, &theirs, 2), -EINVAL,
		 "they differ in whether to accumulate"},
	};
	struct request mine_at_last = divided_by(first, &mine, 2);
	struct request theirs_at_last = divided_by(first, &theirs, 2);

	all[7].request.reduce.flags = 8;
	others[3].request.reduce.flags = REDUCE_ACCUMULATE;
	CHECK(me, all);
	ask(me, mine_at_last);
	CHECK(peer, others);
	ask(peer, theirs_at_last);
	wait_both(first, WORK_REDUCE, ++n_reductions);
	check_good_round();
}

Test(refusal_collective, of_gradients_in_another_order)
{
	struct slot_ref mine = take_input(me, first);
	struct slot_ref theirs = take_input(peer, second), right;

	ask(me, reduce_of(first, &mine));
	refuse(peer, "another group", reduce_of(second, &theirs), -EINVAL,
	       "next reduction is of 'first', which");
	refuse(peer, "a commit", commit_of(comm, step + 1), -EINVAL,
	       "next step is to reduce 'first'");
	refuse(peer, "a wait for what is another's",
	       wait_of(comm, first, WORK_REDUCE, 1), -EINVAL,
	       "has begun no reduction 1 of 'first'");
	right = take_input(peer, first);
	ask(peer, reduce_of(first, &right));
	wait_both(first, WORK_REDUCE, ++n_reductions);
	check_good_round();
}

/* --- committing ---------------------------------------------------------- */

Test(refusal_collective, of_commits_of_the_wrong_step)
{
	refuse(me, "none", commit_of(comm, 0), -EINVAL, "step 0");
	refuse(me, "the last", commit_of(comm, step), -EINVAL,
	       "step 1 must be greater than the last");
	refuse(me, "a wait for what was not begun",
	       wait_of(comm, 0, WORK_COMMIT, step + 1), -EINVAL,
	       "has not committed step 2");
	refuse(me, "a wait for no work", wait_of(comm, 0, 4, 1), -EINVAL,
	       "no work of kind 4");
	refuse(me, "a commit of a group", wait_of(comm, first, WORK_COMMIT, 1),
	       -EINVAL, "only commits are without a group");
	refuse(me, "an unshard of none", wait_of(comm, 0, WORK_UNSHARD, 1),
	       -EINVAL, "is no work");
	refuse(me, "number 0", wait_of(comm, first, WORK_REDUCE, 0), -EINVAL,
	       "is no work");
	ask(me, commit_of(comm, step + 1));
	refuse(peer, "another step", commit_of(comm, step + 2), -EINVAL,
	       "other ranks commit step 2, not 3");
	refuse(peer, "an unshard", unshard_of(first), -EINVAL,
	       "other ranks commit step 2 next");
	refuse(me, "again", commit_of(comm, step + 1), -EBUSY,
	       "has committed step 2, but not all other ranks");
	refuse(me, "an unshard behind it", unshard_of(first), -EBUSY,
	       "wait for the commit first");
	refuse(me, "an input behind it", input_of(first), -EBUSY,
	       "wait for the commit first");
	refuse(me, "a wait", wait_of(comm, 0, WORK_COMMIT, step + 1),
	       -ETIMEDOUT, "rank 1 (pid");
	ask(peer, commit_of(comm, ++step));
	wait_both(0, WORK_COMMIT, step);
	check_good_round();
}
