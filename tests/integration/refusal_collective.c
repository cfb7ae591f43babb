#include "tests/integration/refusal_collective.h"

struct wire *me, *peer, *other;
uint64_t comm, solo, first, second, frozen, elsewhere;
uint64_t step, n_unshards, n_reductions;

void ask(struct wire *wire, struct request request)
{
	wire_must(wire, wire_call(wire, &request));
}

struct request join_of(const char *name, uint32_t n_ranks, uint32_t rank)
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

struct request leave_of(uint64_t id)
{
	return (struct request){.kind = MESSAGE_COMM_LEAVE,
				.comm_leave = {.comm = id}};
}

struct request remove_of(const char *name)
{
	return (struct request){.kind = MESSAGE_COMM_REMOVE,
				.comm_remove = {.name = name}};
}

struct request unshard_of(uint64_t group)
{
	return (struct request){.kind = MESSAGE_UNSHARD,
				.unshard = {.group = group}};
}

struct request reshard_of(uint64_t group, uint32_t n_mesh)
{
	return (struct request){.kind = MESSAGE_RESHARD,
				.reshard = {.group = group, .n_mesh = n_mesh}};
}

struct request input_of(uint64_t group)
{
	return (struct request){.kind = MESSAGE_INPUT,
				.input = {.group = group}};
}

struct request reduce_of(uint64_t group, const struct slot_ref *input)
{
	return (struct request){.kind = MESSAGE_REDUCE,
				.reduce = {.group = group, .input = *input}};
}

struct request divided_by(uint64_t group, const struct slot_ref *input,
			  double factor)
{
	struct request request = reduce_of(group, input);

	request.reduce.has_factor = true;
	request.reduce.factor = factor;
	return request;
}

struct request commit_of(uint64_t id, uint64_t at)
{
	return (struct request){.kind = MESSAGE_COMMIT,
				.commit = {.comm = id, .step = at}};
}

struct request wait_of(uint64_t id, uint64_t group, enum work_kind kind,
		       uint64_t sequence)
{
	return (struct request){.kind = MESSAGE_WAIT,
				.wait = {.comm = id,
					 .group = group,
					 .kind = kind,
					 .sequence = sequence}};
}

struct group_param vector(const char *name, uint32_t dtype, int64_t size)
{
	struct group_param param = {
		.name = name,
		.type = {.dtype = dtype, .n_dims = 1, .shape = {size}},
	};

	tensor_type_contiguous(&param.type);
	return param;
}

struct group_param matrix(const char *name, int64_t n, int64_t m)
{
	struct group_param param = vector(name, DTYPE_F32, n);

	param.type.n_dims = 2;
	param.type.shape[1] = m;
	tensor_type_contiguous(&param.type);
	return param;
}

struct request group_of(uint64_t id, const char *name,
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

void both(struct request mine, struct request theirs)
{
	wire_send(me, &mine);
	ask(peer, theirs);
	cr_assert(eq(int, wire_receive(me), FRAME_OK));
	wire_must(me, me->frame.code);
}

uint64_t register_both(const char *name, struct group_param *params, uint32_t n)
{
	const struct request request = group_of(comm, name, params, n);

	both(request, request);
	return me->reply.group.group;
}

void wait_both(uint64_t group, enum work_kind kind, uint64_t sequence)
{
	struct request request = wait_of(comm, group, kind, sequence);

	request.wait.timeout_ms = -1;
	both(request, request);
}

struct slot_ref take_input(struct wire *wire, uint64_t group)
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

	wire_must(wire, wire_release(wire, full));
	ask(wire, request);
}

static void gather_both(uint64_t group)
{
	const struct request request = unshard_of(group);
	/* both are offsets in the same host memory */
	struct slot_ref mine, theirs;

	both(request, request);
	cr_assert(eq(u64, me->reply.work.sequence, ++n_unshards));
	cr_assert(eq(u64, peer->reply.work.sequence, n_unshards));
	wait_both(group, WORK_UNSHARD, n_unshards);
	mine = me->reply.places.places[0].ref;
	theirs = peer->reply.places.places[0].ref;
	drop(me, group, &mine);
	drop(peer, group, &theirs);
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
	wire_must(me, wire_release(me, &mine));
	wire_must(peer, wire_release(peer, &theirs));
}

void check_good_round(void)
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

void refusal_setup(void)
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
	/* Otherwise the loading of the driver could end while values are
	 * compared. */
	wire_wait_status(other, "driver_loading", 0);
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

void refusal_teardown(void)
{
	wire_close(me);
	wire_close(peer);
	wire_close(other);
	daemon_stop(&daemon_);
}

/* --- checks -------------------------------------------------------------- */

/* Names of status values that every request changes, or that change without a
 * request. */
static const char *const passing[] = {
	"uptime_ms",       "rss",       "requests",
	"refused",         "free_warm", "doorbell_rings",
	"limbo_collected", "closing",
};

static bool is_passing(const char *name)
{
	for (size_t i = 0; i < sizeof(passing) / sizeof(*passing); i++) {
		if (!strcmp(name, passing[i]))
			return true;
	}
	/* These values are times of the event loop. */
	return !strncmp(name, "loop_", strlen("loop_"));
}

void read_figures(struct figures *ret)
{
	const struct status_reply *status = &other->reply.status;

	/* The request tells the broker that earlier replies were read, and so
	 * ends their records. */
	(void)wire_status(me, "slots");
	(void)wire_status(peer, "slots");
	(void)wire_status(other, "slots");
	cr_assert(le(u32, status->n_values, N_VALUES));
	ret->n = status->n_values;
	for (uint32_t i = 0; i < ret->n; i++) {
		snprintf(ret->names[i], sizeof(ret->names[i]), "%s",
			 status->values[i].name);
		ret->values[i] = status->values[i].value;
	}
}

void check_unchanged(const struct figures *before, const char *what)
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

void check_answer(struct wire *wire, const char *what, int code,
		  const char *says)
{
	cr_assert(eq(int, wire->frame.code, code), "%s: %s", what,
		  wire_sentence(wire));
	cr_assert(ne(ptr, strstr(wire_sentence(wire), says), NULL),
		  "%s: \"%s\" does not say \"%s\"", what, wire_sentence(wire),
		  says);
}

void refuse(struct wire *wire, const char *what, struct request request,
	    int code, const char *says)
{
	struct figures before;

	read_figures(&before);
	(void)wire_call(wire, &request);
	check_answer(wire, what, code, says);
	check_unchanged(&before, what);
}

void check_refusals(struct wire *wire, const struct refusal *all, size_t n)
{
	for (size_t i = 0; i < n; i++)
		refuse(wire, all[i].what, all[i].request, all[i].code,
		       all[i].says);
}
