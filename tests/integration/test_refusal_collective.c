/*
 * Bad input for collectives, one kind after the other: each is refused with
 * its code and a sentence that names the thing, nothing has changed, and what
 * the ranks do next goes well.
 */
#include "proto/error.h"
#include "tests/lib/daemon.h"
#include "tests/lib/wire.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMM "test/job"
#define NONE 999999 /* no communicator, and no group */

static struct daemon daemon_;
static struct wire *me, *peer; /* ranks 0 and 1 of COMM */
static struct wire *other;     /* looks on, and is of "test/solo" alone */
static uint64_t comm, solo;
static uint64_t first, second, frozen; /* groups of COMM, as registered */
static uint64_t elsewhere;             /* of "test/solo" */
static uint64_t step;                  /* last committed */
static uint64_t n_unshards, n_reductions;

static void must(struct wire *wire, int r)
{
	cr_assert(zero(int, r), "%s", wire_sentence(wire));
}

static void ask(struct wire *wire, struct request request)
{
	must(wire, wire_call(wire, &request));
}

/* --- requests --------------------------------------------------------------
 */

static struct request join_of(const char *name, uint32_t n_ranks, uint32_t rank)
{
	return (struct request){
		.kind = MESSAGE_COMM_JOIN,
		.comm_join = {.name = name,
			      .access = {.gid = GID_DEFAULT},
			      .n_ranks = n_ranks,
			      .rank = rank,
			      .n_shards = n_ranks,
			      .timeout_ms = 60000,
			      .ttl_ms = 60000,
			      .n_inputs = 2},
	};
}

static struct request leave_of(uint64_t id)
{
	return (struct request){.kind = MESSAGE_COMM_LEAVE,
				.comm_leave = {.comm = id}};
}

static struct request remove_of(const char *name)
{
	return (struct request){.kind = MESSAGE_COMM_REMOVE,
				.comm_remove = {.name = name}};
}

static struct request unshard_of(uint64_t group)
{
	return (struct request){.kind = MESSAGE_UNSHARD,
				.unshard = {.group = group}};
}

static struct request reshard_of(uint64_t group, uint32_t n_mesh)
{
	return (struct request){.kind = MESSAGE_RESHARD,
				.reshard = {.group = group, .n_mesh = n_mesh}};
}

static struct request input_of(uint64_t group)
{
	return (struct request){.kind = MESSAGE_INPUT,
				.input = {.group = group}};
}

static struct request reduce_of(uint64_t group, const struct slot_ref *input)
{
	return (struct request){.kind = MESSAGE_REDUCE,
				.reduce = {.group = group, .input = *input}};
}

static struct request divided_by(uint64_t group, const struct slot_ref *input,
				 double factor)
{
	struct request request = reduce_of(group, input);

	request.reduce.has_factor = true;
	request.reduce.factor = factor;
	return request;
}

static struct request commit_of(uint64_t id, uint64_t at)
{
	return (struct request){.kind = MESSAGE_COMMIT,
				.commit = {.comm = id, .step = at}};
}

/* It does not wait. */
static struct request wait_of(uint64_t id, uint64_t group, enum work_kind kind,
			      uint64_t sequence)
{
	return (struct request){.kind = MESSAGE_WAIT,
				.wait = {.comm = id,
					 .group = group,
					 .kind = kind,
					 .sequence = sequence}};
}

static struct group_param vector(const char *name, uint32_t dtype, int64_t size)
{
	struct group_param param = {
		.name = name,
		.type = {.dtype = dtype, .n_dims = 1, .shape = {size}},
	};

	tensor_type_contiguous(&param.type);
	return param;
}

static struct group_param matrix(const char *name, int64_t n, int64_t m)
{
	struct group_param param = vector(name, DTYPE_F32, n);

	param.type.n_dims = 2;
	param.type.shape[1] = m;
	tensor_type_contiguous(&param.type);
	return param;
}

static struct request group_of(uint64_t id, const char *name,
			       struct group_param *params, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_GROUP,
		.group = {.comm = id,
			  .name = name,
			  .n_params = n,
			  .params = params},
	};
}

/* --- the stage --------------------------------------------------------------
 */

/* By both ranks; the first hears when the second has asked. */
static void both(struct request mine, struct request theirs)
{
	wire_send(me, &mine);
	ask(peer, theirs);
	cr_assert(eq(int, wire_receive(me), FRAME_OK));
	must(me, me->frame.code);
}

static uint64_t register_both(const char *name, struct group_param *params,
			      uint32_t n)
{
	const struct request request = group_of(comm, name, params, n);

	both(request, request);
	return me->reply.group.group;
}

static void wait_both(uint64_t group, enum work_kind kind, uint64_t sequence)
{
	struct request request = wait_of(comm, group, kind, sequence);

	request.wait.timeout_ms = -1;
	both(request, request);
}

static struct slot_ref take_input(struct wire *wire, uint64_t group)
{
	struct request request = input_of(group);

	request.input.timeout_ms = -1;
	ask(wire, request);
	return wire->reply.places.places[0].ref;
}

static void commit_both(void)
{
	const struct request request = commit_of(comm, step + 1);

	ask(me, request);
	ask(peer, request);
	wait_both(0, WORK_COMMIT, ++step);
}

static void drop(struct wire *wire, uint64_t group, const struct slot_ref *full)
{
	const struct request request = reshard_of(group, 0);

	must(wire, wire_release(wire, full, 1));
	ask(wire, request);
}

static void gather_both(uint64_t group)
{
	const struct request request = unshard_of(group);
	struct slot_ref full;

	both(request, request);
	cr_assert(eq(u64, me->reply.work.sequence, ++n_unshards));
	cr_assert(eq(u64, peer->reply.work.sequence, n_unshards));
	wait_both(group, WORK_UNSHARD, n_unshards);
	full = me->reply.places.places[0].ref;
	drop(me, group, &full);
	drop(peer, group, &full);
}

static void reduce_both(uint64_t group)
{
	struct slot_ref mine = take_input(me, group);
	struct slot_ref theirs = take_input(peer, group);
	const struct request my_request = reduce_of(group, &mine);
	const struct request their_request = reduce_of(group, &theirs);

	both(my_request, their_request);
	cr_assert(eq(u64, me->reply.work.sequence, ++n_reductions));
	wait_both(group, WORK_REDUCE, n_reductions);
	must(me, wire_release(me, &mine, 1));
	must(peer, wire_release(peer, &theirs, 1));
}

/* What was refused is not in the way of a step. */
static void check_good_round(void)
{
	gather_both(first);
	reduce_both(first);
	commit_both();
}

static void join_all(void)
{
	struct request mine = join_of(COMM, 2, 0), theirs = join_of(COMM, 2, 1);
	const struct request alone = join_of("test/solo", 1, 0);

	both(mine, theirs);
	comm = me->reply.comm.comm;
	ask(other, alone);
	solo = other->reply.comm.comm;
}

static void setup(void)
{
	struct group_param params[] = {matrix("weight", 6, 4),
				       vector("bias", DTYPE_F32, 7)};
	struct request request;

	daemon_start_with(&daemon_,
			  &(struct daemon_options){
				  .config = "[memory]\nchunk_min = 4M\n"});
	me = wire_open(daemon_socket(&daemon_));
	peer = wire_open(daemon_socket(&daemon_));
	other = wire_open(daemon_socket(&daemon_));
	step = n_unshards = n_reductions = 0;
	join_all();
	first = register_both("first", params, 2);
	second = register_both("second", params, 1);
	params[0].is_frozen = params[1].is_frozen = true;
	frozen = register_both("frozen", params, 2);
	request = group_of(solo, "alone", params, 1);
	ask(other, request);
	elsewhere = other->reply.group.group;
	commit_both();
}

static void teardown(void)
{
	wire_close(me);
	wire_close(peer);
	wire_close(other);
	daemon_stop(&daemon_);
}

TestSuite(refusal_collective, .init = setup, .fini = teardown, .timeout = 60);

/* --- checking ---------------------------------------------------------------
 */

/* All but what a request counts by being one. */
static const char *const passing[] = {
	"uptime_ms",       "rss",       "requests",
	"refused",         "free_warm", "doorbell_rings",
	"limbo_collected",
};

static bool is_passing(const char *name)
{
	for (size_t i = 0; i < sizeof(passing) / sizeof(*passing); i++) {
		if (!strcmp(name, passing[i]))
			return true;
	}
	return false;
}

struct figures {
	uint32_t n;
	char names[96][32];
	uint64_t values[96];
};

static void read_figures(struct figures *ret)
{
	const struct status_reply *status = &other->reply.status;

	/* Answers that were read are forgotten. */
	(void)wire_status(me, "slots");
	(void)wire_status(peer, "slots");
	(void)wire_status(other, "slots");
	cr_assert(le(u32, status->n_values, 96));
	ret->n = status->n_values;
	for (uint32_t i = 0; i < ret->n; i++) {
		snprintf(ret->names[i], sizeof(ret->names[i]), "%s",
			 status->values[i].name);
		ret->values[i] = status->values[i].value;
	}
}

static void check_unchanged(const struct figures *before, const char *what)
{
	struct figures after;

	read_figures(&after);
	for (uint32_t i = 0; i < before->n; i++) {
		if (is_passing(before->names[i]))
			continue;
		cr_assert(eq(u64, after.values[i], before->values[i]),
			  "%s changed %s", what, before->names[i]);
	}
}

/* What is refused, to whom, and how. */
struct refusal {
	const char *what;
	struct request request;
	int code;
	const char *says;
};

static void check_answer(struct wire *wire, const char *what, int code,
			 const char *says)
{
	cr_assert(eq(int, wire->frame.code, code), "%s: %s", what,
		  wire_sentence(wire));
	cr_assert(ne(ptr, strstr(wire_sentence(wire), says), NULL),
		  "%s: \"%s\" does not say \"%s\"", what, wire_sentence(wire),
		  says);
}

static void refuse(struct wire *wire, const char *what, struct request request,
		   int code, const char *says)
{
	struct figures before;

	read_figures(&before);
	(void)wire_call(wire, &request);
	check_answer(wire, what, code, says);
	check_unchanged(&before, what);
}

static void check_refusals(struct wire *wire, const struct refusal *all,
			   size_t n)
{
	for (size_t i = 0; i < n; i++)
		refuse(wire, all[i].what, all[i].request, all[i].code,
		       all[i].says);
}

#define CHECK(wire, all) check_refusals(wire, all, sizeof(all) / sizeof(*(all)))

/* --- joining and leaving ----------------------------------------------------
 */

Test(refusal_collective, of_joins_that_make_no_sense)
{
	struct refusal all[] = {
		{"no ranks", join_of("test/x", 0, 0), -EINVAL,
		 "1 to 64 ranks, not 0"},
		{"many ranks", join_of("test/x", 65, 0), -EINVAL, "not 65"},
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

/* Two users of one collective: of one rank, and one of two. */
Test(refusal_collective, of_a_rank_that_is_there_already)
{
	struct wire *late = wire_open(daemon_socket(&daemon_));
	const struct refusal again[] = {
		{"a rank that is there", join_of(COMM, 2, 1), -EEXIST,
		 "rank 1 of communicator 'test/job' is process"},
		{"another number of ranks", join_of(COMM, 3, 2), -EINVAL,
		 "a number of ranks of 2, not 3"},
		{"what one is in", remove_of(COMM), -EBUSY,
		 "it can be removed when all have left"},
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
	must(late, late->frame.code);
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

/* Ids are numbers that anybody can guess. */
Test(refusal_collective, of_what_another_session_is_in)
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
		 "group 999999 is of no communicator that runs"},
		{"no communicator", commit_of(0, 1), -EINVAL,
		 "which communicator"},
		{"no group", unshard_of(0), -EINVAL, "which group"},
	};
	const struct request reduce = reduce_of(first, &input);
	struct slot_ref theirs;

	CHECK(other, all);
	theirs = take_input(peer, first);
	both(reduce, reduce_of(first, &theirs));
	wait_both(first, WORK_REDUCE, ++n_reductions);
	check_good_round();
}

/* --- registering ------------------------------------------------------------
 */

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
		{"many caps", capped(&param, caps, NULL), -E2BIG, "17 and 0"},
		{"a layout", capped(&param, NULL, NULL), -EINVAL,
		 "no layout 2"},
		{"a param dtype", capped(&param, NULL, NULL), -EINVAL,
		 "param dtype: there is no dtype 999"},
		{"a reduce dtype", capped(&param, NULL, NULL), -EINVAL,
		 "reduce dtype: there is no dtype 999"},
		{"a cast to integers", capped(&param, NULL, NULL), -EINVAL,
		 "f32 is not cast to the param dtype i32"},
		{"a sum in 8 bits", capped(&param, NULL, NULL), -EINVAL,
		 "f32 is not cast to the reduce dtype f8_e4m3"},
		{"a name that is none", group_of(solo, "", &whole, 1), -EINVAL,
		 "name"},
	};

	all[4].request.group.n_gather_caps = 17;
	all[5].request.group.layout = 2;
	all[6].request.group.param_dtype = 999;
	all[7].request.group.reduce_dtype = 999;
	all[8].request.group.param_dtype = DTYPE_I32;
	all[9].request.group.reduce_dtype = DTYPE_F8_E4M3;
	CHECK(other, all);
	check_good_round();
}

/* A group of one parameter. */
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
			   twins[] = {vector("w", DTYPE_F32, 4),
				      vector("w", DTYPE_F32, 5)};
	const struct refusal all[] = {
		{"a boolean", one_of(&boolean), -EINVAL,
		 "parameter \"mask\": its gradient (freeze it instead?): bool "
		 "cannot be reduced"},
		{"8 bits", one_of(&tiny), -EINVAL, "f8_e5m2 cannot be reduced"},
		{"complex", one_of(&imaginary), -EINVAL,
		 "c64 cannot be reduced"},
		{"a wild dtype", one_of(&wild), -EINVAL, "dtype 999"},
		{"no name", one_of(&nameless), -EINVAL, "parameter 0"},
		{"a negative size", one_of(&negative), -EINVAL,
		 "has the size -1"},
		{"over 2^62 bytes", one_of(&huge), -EOVERFLOW, "2^62"},
		{"more than there is", one_of(&large), -EDQUOT,
		 "more than the whole quota"},
		{"a dimension that is not there", one_of(&no_dim), -EINVAL,
		 "no dimension 1 to cut"},
		{"a dimension below", one_of(&below), -EINVAL,
		 "no dimension -2 to cut"},
		{"twins", group_of(solo, "bad", twins, 2), -EINVAL,
		 "two parameters are named \"w\""},
		{"none", group_of(solo, "bad", twins, 0), -EINVAL,
		 "no parameters"},
		{"a group that is there", group_of(solo, "alone", twins, 1),
		 -EEXIST, "has registered group 'alone' already"},
	};

	no_dim.shard_dim = 1;
	below.shard_dim = -2;
	CHECK(other, all);
	check_good_round();
}

/* One of two ranks asks for something else: both hear it. */
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
		       "asks for what cannot be", "cannot share evenly");
	theirs = group_of(comm, "fourth", plain, 2);
	check_mismatch("a name", &mine, &theirs, -EINVAL, "in the same order",
		       "registers group 'fourth', but");
	check_good_round();
	(void)register_both("third", plain, 2);
	check_good_round();
}

/* --- unsharding -------------------------------------------------------------
 */

Test(refusal_collective, of_unshards_and_reshards)
{
	struct group_param param = vector("w", DTYPE_F32, 4);
	const struct request begin = unshard_of(first);
	const struct refusal closed[] = {
		{"a reshard of what is not whole", reshard_of(first, 0),
		 -EINVAL, "has not unsharded 'first'"},
		{"a mesh of all", reshard_of(first, 4097), -EINVAL,
		 "a mesh of 4097 ranks"},
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
	       "reshards 'first' to a mesh of 0, but");
	ask(peer, reshard_of(first, 2));
	CHECK(me, closed);
	ask(other, group_of(solo, "fresh", &param, 1));
	refuse(other, "what was never committed",
	       unshard_of(other->reply.group.group), -ENODATA,
	       "write the shards and commit");
	check_good_round();
}

/* --- reducing ---------------------------------------------------------------
 */

Test(refusal_collective, of_inputs)
{
	struct slot_ref mine = take_input(me, first), loose, theirs, gone;
	struct tensor_place place;

	must(me, wire_alloc(me, 4096, NULL, -1, &place));
	loose = place.ref;
	must(me, wire_alloc(me, 64, NULL, -1, &place));
	gone = place.ref;
	must(me, wire_release(me, &gone, 1));
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
	       "hands in memory that is not its input of 'first'");
	refuse(me, "another rank's input", reduce_of(first, &theirs), -EINVAL,
	       "not its input");
	refuse(me, "another group's input", reduce_of(second, &mine), -EINVAL,
	       "not its input of 'second'");
	refuse(me, "what is gone", reduce_of(first, &gone), -ESTALE,
	       "no tensor in slot");
	refuse(me, "a later generation",
	       reduce_of(first,
			 &(struct slot_ref){mine.slot, mine.generation + 1}),
	       -ESTALE, "generation");
	refuse(me, "a wild slot",
	       reduce_of(first, &(struct slot_ref){UINT32_MAX, 1}), -ESTALE,
	       "4294967295");
	refuse(me, "nothing", reduce_of(first, &(struct slot_ref){0, 0}),
	       -EINVAL, "is no tensor");
	(void)take_input(me, second);
	both(reduce_of(first, &mine), reduce_of(first, &theirs));
	wait_both(first, WORK_REDUCE, ++n_reductions);
	refuse(me, "one input twice", reduce_of(first, &mine), -EINVAL,
	       "hand it in once");
	check_good_round();
}

Test(refusal_collective, of_more_inputs_than_a_rank_may_have)
{
	struct group_param params[] = {vector("w", DTYPE_F32, 4)};
	uint64_t third = register_both("third", params, 1);
	struct slot_ref mine = take_input(me, first);

	(void)take_input(me, second);
	refuse(me, "a third one", input_of(third), -EBUSY,
	       "fills 2 inputs, as many as it may have");
	ask(me, reduce_of(first, &mine));
	refuse(me, "one that is handed in counts still", input_of(third),
	       -ETIMEDOUT, "the inputs that rank 0");
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
		 "reduce 'first': a divide factor of 0"},
		{"minus 0", divided_by(first, &mine, -0.0), -EINVAL, "above 0"},
		{"NaN", divided_by(first, &mine, NAN), -EINVAL,
		 "a divide factor of nan"},
		{"-1", divided_by(first, &mine, -1), -EINVAL, "factor of -1"},
		{"infinity", divided_by(first, &mine, INFINITY), -EINVAL,
		 "factor of inf"},
		{"too small", divided_by(first, &mine, 1e-300), -EINVAL,
		 "out of the range"},
		{"too large", divided_by(first, &mine, 1e300), -EINVAL,
		 "out of the range"},
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

/* --- committing -------------------------------------------------------------
 */

Test(refusal_collective, of_commits_of_the_wrong_step)
{
	refuse(me, "none", commit_of(comm, 0), -EINVAL, "step 0");
	refuse(me, "the last", commit_of(comm, step), -EINVAL,
	       "step 1 is not above the last one");
	refuse(me, "a wait for what was not begun",
	       wait_of(comm, 0, WORK_COMMIT, step + 1), -EINVAL,
	       "has not committed step 2");
	refuse(me, "a wait for no work", wait_of(comm, 0, 4, 1), -EINVAL,
	       "no work of kind 4");
	refuse(me, "a commit of a group", wait_of(comm, first, WORK_COMMIT, 1),
	       -EINVAL, "commits alone are of no group");
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
	       "has committed step 2, but not all others");
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

/* --- looking ----------------------------------------------------------------
 */

static struct request plan_of(const char *name, const char *group)
{
	return (struct request){.kind = MESSAGE_GROUP_PLAN,
				.group_plan = {.comm = name, .group = group}};
}

Test(refusal_collective, of_looking_at_what_is_not_there)
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
	/* Cursors are the client's to make up: then there is nothing more. */
	for (uint64_t cursor = UINT64_MAX; cursor; cursor >>= 3) {
		const struct request all[] = {
			{.kind = MESSAGE_COMMS, .comms = {.cursor = cursor}},
			{.kind = MESSAGE_GROUPS,
			 .groups = {.comm = "", .cursor = cursor}},
			{.kind = MESSAGE_GROUP_PLAN,
			 .group_plan = {COMM, "first", cursor}},
		};

		for (size_t i = 0; i < 3; i++)
			must(other, wire_call(other, &all[i]));
	}
	check_good_round();
}

/* --- frames -----------------------------------------------------------------
 */

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

/* A number that comes again is answered from the record, and not done again. */
Test(refusal_collective, is_not_for_numbers_that_come_again)
{
	const struct request input = input_of(first);
	const struct request unshard = unshard_of(first);
	uint64_t number = me->number + 1;
	struct slot_ref slot;

	send_as(me, &input, number);
	must(me, me->frame.code);
	slot = me->reply.places.places[0].ref;
	for (int i = 0; i < 3; i++) {
		send_as(me, &input, number);
		must(me, me->frame.code);
		cr_assert(eq(u32, me->reply.places.places[0].ref.slot,
			     slot.slot));
	}
	/* Under that number it was something else. */
	send_as(me, &unshard, number);
	check_answer(me, "another kind", -EPROTO, "of another kind");
	me->number = number;
	ask(me, reduce_of(first, &slot));
	slot = take_input(peer, first);
	ask(peer, reduce_of(first, &slot));
	wait_both(first, WORK_REDUCE, ++n_reductions);
	check_good_round();
}
