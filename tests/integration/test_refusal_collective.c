/*
 * Tests bad input about communicators and groups.
 */
#include "tests/integration/refusal_collective.h"
#include "tests/lib/leaks.h"
#include "tests/lib/memory.h"
#include <math.h>
#include <stdlib.h>

CHECKED_SUITE(refusal_collective, refusal_setup, refusal_teardown,
	      .timeout = 300);

/* --- joining and leaving ------------------------------------------------- */

Test(refusal_collective, of_inconsistent_joins)
{
	const bool may_be_many = are_on_devices();
	struct refusal all[] = {
		{"no ranks", join_of("test/x", 0, 0), -EINVAL,
		 may_be_many ? "1 to 4096 ranks, not 0"
			     : "1 to 64 ranks, not 0"},
		{"many ranks", join_of("test/x", may_be_many ? 4097 : 65, 0),
		 -EINVAL, may_be_many ? "not 4097" : "not 65"},
		{"a rank too high", join_of("test/x", 2, 2), -EINVAL,
		 "no rank 2 among 2"},
		{"uneven shards", join_of("test/x", 4, 0), -EINVAL,
		 "replicas of 3 shards"},
		{"more shards than ranks", join_of("test/x", 4, 0), -EINVAL,
		 "replicas of 8 shards"},
		{"a limiter that is none", join_of("test/x", 2, 0), -EINVAL,
		 "no limiter 2"},
		{"no inputs", join_of("test/x", 2, 0), -EINVAL,
		 "at least one gradient input"},
		{"no time", join_of("test/x", 2, 0), -EINVAL, "time-out"},
		{"negative time", join_of("test/x", 2, 0), -EINVAL, "time-out"},
		{"no time to live", join_of("test/x", 2, 0), -EINVAL,
		 "time to live"},
		{"a long life", join_of("test/x", 2, 0), -EINVAL,
		 "time to live"},
		{"a wild limit", join_of("test/x", 2, 0), -EOVERFLOW, "2^62"},
		{"a strange mode", join_of("test/x", 2, 0), -EINVAL, "0444"},
		{"no name", join_of("", 2, 0), -EINVAL, "name"},
		{"a bundle's name", join_of("test/x/", 2, 0), -EINVAL,
		 "test/x/"},
		{"what waiters wait for", join_of("//comm/1", 2, 0), -EINVAL,
		 "//comm/1"},
	};

	all[3].request.comm_join.n_shards = 3;
	all[4].request.comm_join.n_shards = 8;
	all[5].request.comm_join.limiter = 2;
	all[6].request.comm_join.n_inputs = 0;
	all[7].request.comm_join.timeout_ms = 0;
	all[8].request.comm_join.timeout_ms = -1;
	all[9].request.comm_join.ttl_ms = 0;
	all[10].request.comm_join.ttl_ms = UINT64_MAX;
	all[11].request.comm_join.limit_bytes = UINT64_MAX;
	all[12].request.comm_join.access.mode = 0444;
	CHECK(other, all);
	check_good_round();
}

/* One of these sessions joins under a rank that is taken. */
Test(refusal_collective, of_a_rank_that_has_joined_already)
{
	struct wire *late = wire_open(daemon_socket(&daemon_));
	const struct refusal again[] = {
		{"a rank that is there", join_of(COMM, 2, 1), -EEXIST,
		 "rank 1 of communicator 'test/job' was joined by"},
		{"another number of ranks", join_of(COMM, 3, 2), -EINVAL,
		 "a number of ranks of 2, not 3"},
		{"what one is in", remove_of(COMM), -EBUSY,
		 "remove it when all ranks have left"},
		{"what is not there", remove_of("test/none"), -ENOENT,
		 "test/none"},
	};
	const struct refusal twice[] = {
		{"the other rank", join_of("test/new", 2, 1), -EEXIST,
		 "this connection is rank 0"},
		{"a commit before all are there", commit_of(comm + 100, 1),
		 -ECONNABORTED, "is not running here"},
	};
	struct request request = join_of("test/new", 2, 0);

	CHECK(late, again);
	wire_send(late, &request);
	wire_wait_status(other, "waiters", 1);
	CHECK(late, twice);
	request.comm_join.rank = 1;
	ask(other, request);
	cr_assert(eq(int, wire_receive(late), FRAME_OK));
	wire_must(late, late->frame.code);
	cr_assert(eq(u64, late->reply.comm.comm, other->reply.comm.comm));
	wire_close(late);
	check_good_round();
}

Test(refusal_collective, of_everything_after_leaving)
{
	struct slot_ref some = {1, 1};
	const struct request leave = leave_of(solo);
	struct group_param param = vector("w", DTYPE_F32, 4);
	const struct refusal all[] = {
		{"leave", leave, -ECONNABORTED, "is not running here"},
		{"group", group_of(solo, "g", &param, 1), -ECONNABORTED,
		 "join it again"},
		{"unshard", unshard_of(elsewhere), -ECONNABORTED,
		 "register again"},
		{"reshard", reshard_of(elsewhere, 0), -ECONNABORTED,
		 "register again"},
		{"input", input_of(elsewhere), -ECONNABORTED, "register again"},
		{"reduce", reduce_of(elsewhere, &some), -ECONNABORTED,
		 "register again"},
		{"commit", commit_of(solo, 1), -ECONNABORTED, "join it again"},
		{"wait for an unshard",
		 wait_of(solo, elsewhere, WORK_UNSHARD, 1), -ECONNABORTED,
		 "join it again"},
		{"wait for a commit", wait_of(solo, 0, WORK_COMMIT, 1),
		 -ECONNABORTED, "join it again"},
	};

	ask(other, leave);
	wire_wait_status(other, "comms_running", 1);
	CHECK(other, all);
	check_good_round();
}

/* Any client can guess an id. */
Test(refusal_collective, of_communicators_of_another_session)
{
	struct group_param param = vector("w", DTYPE_F32, 4);
	struct slot_ref input = take_input(me, first);
	const struct refusal all[] = {
		{"leave", leave_of(comm), -ECONNABORTED, "not running here"},
		{"group", group_of(comm, "g", &param, 1), -ECONNABORTED,
		 "not running here"},
		{"unshard", unshard_of(first), -ECONNABORTED,
		 "not running here"},
		{"reshard", reshard_of(first, 0), -ECONNABORTED,
		 "not running here"},
		{"input", input_of(first), -ECONNABORTED, "not running here"},
		{"reduce", reduce_of(first, &input), -ECONNABORTED,
		 "not running here"},
		{"commit", commit_of(comm, step + 1), -ECONNABORTED,
		 "not running here"},
		{"wait", wait_of(comm, first, WORK_UNSHARD, 1), -ECONNABORTED,
		 "not running here"},
		{"wait in one's own", wait_of(solo, first, WORK_UNSHARD, 1),
		 -ECONNABORTED, "not running here"},
		{"an unknown one", commit_of(NONE, 1), -ECONNABORTED,
		 "communicator 999999 is not running"},
		{"an unknown group", unshard_of(NONE), -ECONNABORTED,
		 "group 999999 belongs to no running communicator"},
		{"no communicator", commit_of(0, 1), -EINVAL,
		 "number of its communicator is"},
		{"no group", unshard_of(0), -EINVAL, "number of its group is"},
	};
	const struct request reduce = reduce_of(first, &input);
	struct slot_ref theirs;

	CHECK(other, all);
	theirs = take_input(peer, first);
	both(reduce, reduce_of(first, &theirs));
	wait_both(first, WORK_REDUCE, ++n_reductions);
	check_good_round();
}

/* --- registering --------------------------------------------------------- */

static struct request capped(struct group_param *param, double *gather_cap,
			     double *reduce_cap)
{
	struct request request = group_of(solo, "bad", param, 1);

	request.group.n_gather_caps = gather_cap != NULL;
	request.group.gather_caps_mb = gather_cap;
	request.group.n_reduce_caps = reduce_cap != NULL;
	request.group.reduce_caps_mb = reduce_cap;
	return request;
}

Test(refusal_collective, of_caps_and_policies)
{
	struct group_param param = vector("w", DTYPE_F32, 4);
	struct group_param whole = vector("w", DTYPE_I32, 4);
	double nan_cap = NAN, negative = -1, infinite = INFINITY;
	double caps[17] = {0};
	struct refusal all[] = {
		{"a cap of NaN", capped(&param, &nan_cap, NULL), -EINVAL,
		 "a cap of NaN MiB"},
		{"a negative cap", capped(&param, &negative, NULL), -EINVAL,
		 "a cap of -1 MiB"},
		{"an infinite cap", capped(&param, NULL, &infinite), -EINVAL,
		 "a cap of inf MiB"},
		{"a negative cap of reductions",
		 capped(&param, NULL, &negative), -EINVAL, "reduce bucket 0"},
		{"many caps", capped(&param, caps, NULL), -E2BIG,
		 "17 caps of gathers"},
		{"a layout", capped(&param, NULL, NULL), -EINVAL,
		 "no layout 2"},
		{"a param dtype", capped(&param, NULL, NULL), -EINVAL,
		 "param dtype: there is no dtype 999"},
		{"a reduce dtype", capped(&param, NULL, NULL), -EINVAL,
		 "reduce dtype: there is no dtype 999"},
		{"a cast to integers", capped(&param, NULL, NULL), -EINVAL,
		 "f32 cannot be cast to the param dtype i32"},
		{"a sum in 8 bits", capped(&param, NULL, NULL), -EINVAL,
		 "f32 cannot be cast to the reduce dtype f8_e4m3"},
		{"a name that is none", group_of(solo, "", &whole, 1), -EINVAL,
		 "name"},
		{"an input dtype", capped(&param, NULL, NULL), -EINVAL,
		 "input dtype: there is no dtype 999"},
		{"inputs of integers", capped(&param, NULL, NULL), -EINVAL,
		 "f32 cannot be cast to the input dtype i64"},
	};

	all[4].request.group.n_gather_caps = 17;
	all[5].request.group.layout = 2;
	all[6].request.group.param_dtype = 999;
	all[7].request.group.reduce_dtype = 999;
	all[8].request.group.param_dtype = DTYPE_I32;
	all[9].request.group.reduce_dtype = DTYPE_F8_E4M3;
	all[11].request.group.input_dtype = 999;
	all[12].request.group.input_dtype = DTYPE_I64;
	CHECK(other, all);
	check_good_round();
}

/* Returns a request for a group of one parameter. */
static struct request one_of(struct group_param *param)
{
	return group_of(solo, "bad", param, 1);
}

Test(refusal_collective, of_parameters)
{
	struct group_param boolean = vector("mask", DTYPE_BOOL, 4),
			   tiny = vector("tiny", DTYPE_F8_E5M2, 4),
			   imaginary = vector("c", DTYPE_C64, 4),
			   wild = vector("wild", 999, 4),
			   nameless = vector("", DTYPE_F32, 4),
			   negative = vector("neg", DTYPE_F32, -1),
			   huge = vector("huge", DTYPE_F64, INT64_C(1) << 60),
			   large = vector("large", DTYPE_U8, INT64_C(1) << 50),
			   no_dim = vector("w", DTYPE_F32, 4),
			   below = vector("w", DTYPE_F32, 4),
			   duplicates[] = {vector("w", DTYPE_F32, 4),
					   vector("w", DTYPE_F32, 5)};
	const struct refusal all[] = {
		{"a boolean", one_of(&boolean), -EINVAL,
		 "parameter \"mask\": its gradient (freeze the "
		 "parameter if it has none): cannot reduce bool"},
		{"8 bits", one_of(&tiny), -EINVAL, "cannot reduce f8_e5m2"},
		{"complex", one_of(&imaginary), -EINVAL, "cannot reduce c64"},
		{"a wild dtype", one_of(&wild), -EINVAL, "dtype 999"},
		{"no name", one_of(&nameless), -EINVAL, "params[0]"},
		{"a negative size", one_of(&negative), -EINVAL,
		 "has the size -1"},
		{"over 2^62 bytes", one_of(&huge), -EOVERFLOW, "2^62"},
		/* A user may have all memory of devices. */
		{"more than there is", one_of(&large),
		 are_on_devices() ? -ENOMEM : -EDQUOT,
		 are_on_devices() ? "can never fit"
				  : "more than the whole quota"},
		{"a dimension that is not there", one_of(&no_dim), -EINVAL,
		 "no dimension 1 to shard"},
		{"a dimension below", one_of(&below), -EINVAL,
		 "no dimension -2 to shard"},
		{"duplicates", group_of(solo, "bad", duplicates, 2), -EINVAL,
		 "two parameters are named \"w\""},
		{"none", group_of(solo, "bad", duplicates, 0), -EINVAL,
		 "no parameters"},
		{"a group that is there",
		 group_of(solo, "alone", duplicates, 1), -EEXIST,
		 "has registered group 'alone' already"},
	};

	no_dim.shard_dim = 1;
	below.shard_dim = -2;
	CHECK(other, all);
	check_good_round();
}

/* Let one of two ranks request something else. Both are told. */
static void check_mismatch(const char *what, const struct request *mine,
			   const struct request *theirs, int code,
			   const char *my_words, const char *their_words)
{
	struct figures before;

	read_figures(&before);
	wire_send(me, mine);
	(void)wire_call(peer, theirs);
	check_answer(peer, what, code, their_words);
	cr_assert(eq(int, wire_receive(me), FRAME_OK));
	check_answer(me, what, code, my_words);
	check_unchanged(&before, what);
}

Test(refusal_collective, of_plans_that_differ_between_ranks)
{
	struct group_param plain[] = {matrix("w", 6, 4),
				      vector("b", DTYPE_F32, 7)};
	struct group_param wide[] = {matrix("w", 6, 5), plain[1]};
	struct group_param bf16[] = {plain[0], vector("b", DTYPE_BF16, 7)};
	struct group_param odd[] = {matrix("w", 6, 5), plain[1]};
	struct group_param swapped[] = {plain[1], plain[0]};
	const struct request mine = group_of(comm, "third", plain, 2);
	struct request theirs = group_of(comm, "third", wide, 2);
	double cap = 1;

	check_mismatch("a shape", &mine, &theirs, -EINVAL,
		       "parameter \"w\" has the shape",
		       "parameter \"w\" has the shape");
	theirs.group.params = bf16;
	check_mismatch("a dtype", &mine, &theirs, -EINVAL,
		       "parameter \"b\" has the dtype",
		       "parameter \"b\" has the dtype");
	theirs.group.params = swapped;
	check_mismatch("the order", &mine, &theirs, -EINVAL, "parameter 0 is",
		       "parameter 0 is");
	theirs.group.params = plain;
	theirs.group.n_params = 1;
	check_mismatch("the number", &mine, &theirs, -EINVAL, "parameter 1",
		       "parameter 1");
	theirs.group.n_params = 2;
	theirs.group.gather_caps_mb = &cap;
	theirs.group.n_gather_caps = 1;
	check_mismatch("a cap", &mine, &theirs, -EINVAL, "cap", "cap");
	odd[0].shard_dim = 1;
	theirs = group_of(comm, "third", odd, 2);
	check_mismatch("what cannot be cut", &mine, &theirs, -EINVAL,
		       "gave an invalid description", "cannot share evenly");
	theirs = group_of(comm, "fourth", plain, 2);
	check_mismatch("a name", &mine, &theirs, -EINVAL, "in the same order",
		       "registers group 'fourth', but");
	check_good_round();
	(void)register_both("third", plain, 2);
	check_good_round();
}

/* --- looking ------------------------------------------------------------- */

static struct request plan_of(const char *name, const char *group)
{
	return (struct request){.kind = MESSAGE_GROUP_PLAN,
				.group_plan = {.comm = name, .group = group}};
}

Test(refusal_collective, of_queries_for_unknown_communicators_and_groups)
{
	refuse(other, "groups of none",
	       (struct request){.kind = MESSAGE_GROUPS,
				.groups = {.comm = "test/none"}},
	       -ENOENT, "no communicator 'test/none'");
	refuse(other, "a plan of none", plan_of("test/none", "x"), -ENOENT,
	       "no communicator 'test/none'");
	refuse(other, "a plan of no group", plan_of(COMM, "x"), -ENOENT,
	       "has no group 'x'");
	refuse(other, "a plan without a name", plan_of(COMM, ""), -EINVAL,
	       "group");
	/* A client may send any cursor. A wrong one gives an empty page. */
	for (uint64_t cursor = UINT64_MAX; cursor; cursor >>= 3) {
		const struct request all[] = {
			{.kind = MESSAGE_COMMS, .comms = {.cursor = cursor}},
			{.kind = MESSAGE_GROUPS,
			 .groups = {.comm = "", .cursor = cursor}},
			{.kind = MESSAGE_GROUP_PLAN,
			 .group_plan = {COMM, "first", cursor}},
		};

		for (size_t i = 0; i < 3; i++)
			wire_must(other, wire_call(other, &all[i]));
	}
	check_good_round();
}

/* --- frames -------------------------------------------------------------- */

static void send_as(struct wire *wire, const struct request *request,
		    uint64_t number)
{
	uint8_t *body;
	size_t size;

	cr_assert(zero(int, request_encode(request, &body, &size, NULL)));
	wire_send_body(wire, request->kind, number, body, size, NULL, 0);
	free(body);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
}

/* A request whose number was used before is answered from the record, and not
 * done again. */
Test(refusal_collective, is_not_for_repeated_request_numbers)
{
	const struct request input = input_of(first);
	const struct request unshard = unshard_of(first);
	uint64_t number = me->number + 1;
	struct slot_ref slot;

	send_as(me, &input, number);
	wire_must(me, me->frame.code);
	slot = me->reply.places.places[0].ref;
	for (int i = 0; i < 3; i++) {
		send_as(me, &input, number);
		wire_must(me, me->frame.code);
		cr_assert(eq(u32, me->reply.places.places[0].ref.slot,
			     slot.slot));
	}
	/* This number was used for another request. */
	send_as(me, &unshard, number);
	check_answer(me, "another kind", -EPROTO, "of another kind");
	me->number = number;
	ask(me, reduce_of(first, &slot));
	slot = take_input(peer, first);
	ask(peer, reduce_of(first, &slot));
	wait_both(first, WORK_REDUCE, ++n_reductions);
	check_good_round();
}
