/*
 * Tests joining, registering, committing and leaving, and what each rank is
 * told if ranks differ or are late.
 *
 * Ranks are processes that do what the test tells them next. All groups are in
 * place, so no worker is needed.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/leaks.h"
#include "tests/lib/patience.h"
#include "tests/lib/trainer.h"
#include "tests/lib/wire_repeat.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Within this time the test reaches the point from which it lets a rank be
 * late. */
#define LATE_MS 5000
#define CONFIG  "[memory]\nchunk_min = 4M\n"

static const struct fsdp_param_spec PLAIN[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {5, 4}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {7}}},
};

static const struct layer LAYERS[] = {
	{.name = "l0", .params = PLAIN, .n = 2},
	{.name = "l1", .params = PLAIN, .n = 1},
};

static struct daemon daemon_;
static struct ranks ranks;
static struct fsdp_client *client; /* of the test */
static struct figures before;

/* One rank does what this struct describes, unlike the others. The struct is in
 * shared memory. */
struct differing {
	uint32_t rank;
	struct fsdp_comm_options options;
	const char *name;
	struct fsdp_param_spec params[3];
	size_t n;
	struct fsdp_policy policy;
};
static struct differing *differing;

static struct fsdp_client *connect_client(void)
{
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_)};
	struct fsdp_client *ret;

	must(fsdp_connect(&options, &ret) == 0);
	return ret;
}

static void setup_with(const char *config)
{
	daemon_start_with(&daemon_, &(struct daemon_options){.config = config});
	client = connect_client();
	figures_read(client, &before);
	differing = shared_memory(sizeof(*differing));
}

static void setup(void)
{
	setup_with(CONFIG);
}

static void setup_without_sandbox(void)
{
	setup_with(CONFIG "[access]\nsandbox = no\n");
}

static void teardown(void)
{
	ranks_stop(&ranks);
	munmap(differing, sizeof(*differing));
	fsdp_close(client);
	daemon_stop(&daemon_);
}

CHECKED_SUITE(comm, setup, teardown, .timeout = 300);
CHECKED_SUITE(comm_death, setup_without_sandbox, teardown, .timeout = 300);

static void start_with(uint32_t n, size_t n_layers, int32_t timeout_ms)
{
	crew_set(&(struct crew){
		.daemon = &daemon_,
		.comm = "team/job",
		.options = {.timeout_ms = timeout_ms},
		.layers = LAYERS,
		.n_layers = n_layers,
	});
	ranks_start(&ranks, n);
}

static void start(uint32_t n, size_t n_layers)
{
	start_with(n, n_layers, 0);
}

/* Check that all ranks have this code and sentence. */
static void assert_all_say(int code, const char *what)
{
	for (uint32_t rank = 0; rank < ranks.n; rank++) {
		if (ranks.actors[rank].pid <= 0)
			continue;
		cr_assert(eq(int, ranks.notes[rank].code, code), "rank %u: %s",
			  rank, ranks.notes[rank].sentence);
		assert_says(rank, what);
	}
}

/* Check that only the test's own session is left. */
static void assert_as_before(void)
{
	before.grants = before.chunks = before.chunk_bytes = FIGURE_ANY;
	cr_assert(figures_await(client, &before));
	cr_assert(status_await(client, "comms", 0));
	cr_assert(status_await(client, "comms_running", 0));
}

static int leave(void)
{
	return trainer_leave();
}

/* --- the list ------------------------------------------------------------ */

static struct fsdp_comm_entry seen;
static char seen_note[600];
static uint32_t n_seen;

static int note_comm(const struct fsdp_comm_entry *entry, void *data)
{
	(void)data;
	cr_assert(eq(str, (char *)entry->name, "team/job"));
	seen = *entry;
	snprintf(seen_note, sizeof(seen_note), "%s", entry->note);
	n_seen++;
	return 0;
}

static uint32_t look(void)
{
	n_seen = 0;
	must(fsdp_comms(client, note_comm, NULL) == 0);
	return n_seen;
}

/* --- joining ------------------------------------------------------------- */

Test(comm, joined_ranks_are_listed_and_leaving_frees_all_memory)
{
	start(3, 0);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(u32, look(), 1));
	cr_assert(eq(int, seen.state, FSDP_COMM_RUNNING));
	cr_assert(eq(u32, seen.n_ranks, 3));
	cr_assert(eq(u32, seen.n_shards, 3));
	cr_assert(eq(u32, seen.n_joined, 3));
	cr_assert(eq(u64, seen.step, 0));
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_as_before();
	cr_assert(eq(u32, look(), 0));
	cr_assert(eq(u64, status_value(client, "comms_failed"), 0));
}

/* Wait until `n` ranks have joined. */
static void await_joined(uint32_t n)
{
	for (int i = 0; i < PATIENCE_MS; i++) {
		if (look() && seen.n_joined == n)
			return;
		nap_ms(1);
	}
	cr_assert(eq(u32, seen.n_joined, n));
}

Test(comm, a_rank_that_has_joined_cannot_be_joined_twice)
{
	struct fsdp_comm *comm;

	host_memory_only("the test joins by itself");
	start(2, 0);
	actor_begin(&ranks.actors[0], trainer_join);
	await_joined(1);
	cr_assert(eq(int, seen.state, FSDP_COMM_JOINING));
	cr_assert(eq(int, fsdp_comm_join(client, "team/job", 2, 0, NULL, &comm),
		     -EEXIST));
	cr_assert(
		ne(ptr, strstr(fsdp_error(), "was joined by process "), NULL));
	actor_begin(&ranks.actors[1], trainer_join);
	ranks_end(&ranks);
	cr_assert(eq(int, ranks.notes[0].code, 0));
	cr_assert(eq(int, ranks.notes[1].code, 0));
}

static void *join_first(void *ret)
{
	must(fsdp_comm_join(client, "team/job", 2, 0, NULL, ret) == 0);
	return NULL;
}

Test(comm, a_connection_can_be_only_one_rank)
{
	struct fsdp_client *other = connect_client();
	struct fsdp_comm *first, *second;
	pthread_t thread;

	must(pthread_create(&thread, NULL, join_first, &first) == 0);
	for (int i = 0;
	     i < PATIENCE_MS && !status_value(other, "comms_running"); i++)
		nap_ms(1);
	cr_assert(eq(int,
		     fsdp_comm_join(client, "team/job", 2, 1, NULL, &second),
		     -EEXIST));
	cr_assert(ne(ptr, strstr(fsdp_error(), "is rank 0"), NULL));
	cr_assert(eq(int,
		     fsdp_comm_join(other, "team/job", 2, 1, NULL, &second),
		     0));
	pthread_join(thread, NULL);
	fsdp_comm_leave(first);
	fsdp_comm_leave(second);
	fsdp_close(other);
	assert_as_before();
}

Test(comm, the_error_of_the_others_names_a_rank_that_does_not_join_in_time)
{
	start_with(3, 0, LATE_MS);
	actor_kill(&ranks.actors[1]);
	ranks_begin(&ranks, trainer_join);
	ranks_end(&ranks);
	assert_all_say(-ETIMEDOUT, "rank 1 did not join communicator "
				   "'team/job' within 5000 ms");
	for (uint32_t rank = 0; rank < 3; rank += 2)
		(void)rank_run(&ranks, rank, leave);
	assert_as_before();
}

Test(comm, a_rank_that_joined_late_can_join_again)
{
	host_memory_only("NCCL may need longer to begin");
	start_with(2, 0, 500);
	actor_begin(&ranks.actors[0], trainer_join_patiently);
	while (status_value(client, "comms_failed") == 0)
		nap_ms(1);
	actor_begin(&ranks.actors[1], trainer_join_patiently);
	ranks_end(&ranks);
	cr_assert(zero(int, ranks.notes[0].code));
	cr_assert(zero(int, ranks.notes[1].code));
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_as_before();
}

Test(comm, the_error_names_the_option_that_differs_from_other_ranks)
{
	static const struct {
		struct fsdp_comm_options options;
		const char *says;
	} cases[] = {
		{{.n_shards = 1}, "a number of shards of 2, not 1"},
		{{.timeout_ms = 7}, "a time-out in ms of 60000, not 7"},
		{{.ttl_ms = 9}, "a time to live in ms of 600000, not 9"},
		{{.limiter = FSDP_LIMITER_FSDP1}, "a limiter of 0, not 1"},
		{{.limit = 5}, "a limit of groups of 0, not 5"},
		{{.limit_bytes = 5}, "a limit of bytes of 0, not 5"},
		{{.n_inputs = 5}, "a number of inputs of 1, not 5"},
		{{.access = {.mode = 0660, .gid = 0}},
		 "mode 0600; join with these"},
	};
	const struct fsdp_comm_options same = {
		.access = {.mode = 0600, .gid = getgid()}};
	struct fsdp_client *other = connect_client();
	struct fsdp_comm *comm;

	host_memory_only("the test joins by itself");
	start(2, 0);
	actor_begin(&ranks.actors[0], trainer_join);
	await_joined(1);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		cr_assert(eq(int,
			     fsdp_comm_join(other, "team/job", 2, 1,
					    &cases[i].options, &comm),
			     -EINVAL));
		cr_assert(ne(ptr, strstr(fsdp_error(), cases[i].says), NULL),
			  "%s", fsdp_error());
	}
	cr_assert(eq(int, fsdp_comm_join(other, "team/job", 3, 1, NULL, &comm),
		     -EINVAL));
	/* Nothing has changed for the rank that waits. The mode is the default
	 * that it asked for. */
	cr_assert(zero(int,
		       fsdp_comm_join(other, "team/job", 2, 1, &same, &comm)),
		  "%s", fsdp_error());
	cr_assert(eq(int, actor_end(&ranks.actors[0]), 0));
	fsdp_close(other);
}

Test(comm, the_next_run_waits_until_all_have_left_the_previous_one)
{
	start(2, 1);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, leave), 0));
	actor_begin(&ranks.actors[0], trainer_join);
	cr_assert(status_await(client, "waiters", 1));
	/* Rank 1 still belongs to the earlier run, and can leave it. */
	cr_assert(eq(int, rank_run(&ranks, 1, leave), 0));
	actor_begin(&ranks.actors[1], trainer_join);
	ranks_end(&ranks);
	cr_assert(eq(int, ranks.notes[0].code, 0));
	cr_assert(eq(int, ranks.notes[1].code, 0));
	cr_assert(eq(u64, status_value(client, "comms_failed"), 0));
}

Test(comm, the_error_names_a_rank_that_has_not_left_the_earlier_run)
{
	start_with(2, 1, LATE_MS);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join_patiently), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, leave), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, trainer_join), -ETIMEDOUT));
	assert_says(0,
		    "an earlier run of communicator 'team/job' has not ended: "
		    "rank 1 (pid ");
}

/* --- a lost connection --------------------------------------------------- */

static const struct request JOIN = {
	.kind = MESSAGE_COMM_JOIN,
	.comm_join = {.name = "team/job",
		      .access = {.gid = GID_DEFAULT},
		      .n_ranks = 2,
		      .n_shards = 2,
		      .timeout_ms = 60000,
		      .ttl_ms = 600000,
		      .n_inputs = 1},
};

static void send_again(struct wire *wire, const struct request *request,
		       uint64_t number, const int *fds, uint16_t n_fds)
{
	uint8_t *body;
	size_t size;

	must(request_encode(request, &body, &size, NULL) == 0);
	wire_send_body(wire, request->kind, number, body, size, fds, n_fds);
	free(body);
}

/* Connect the session of `lost` again. */
static struct wire *reconnect(const struct wire *lost)
{
	struct wire *wire = wire_connect(daemon_socket(&daemon_));
	const int fds[] = {lost->refs_fd, lost->doorbell_fd};
	struct request hello = wire_reconnect_hello(lost);

	send_again(wire, &hello, lost->number + 1, fds, 2);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, 0));
	return wire;
}

Test(comm, a_rank_that_reconnects_while_it_joins_has_still_joined)
{
	struct wire *lost = wire_open(daemon_socket(&daemon_));
	struct wire *other = wire_open(daemon_socket(&daemon_));
	struct request join = JOIN;
	struct wire *again;

	wire_send(lost, &join);
	cr_assert(status_await(client, "waiters", 1));
	again = reconnect(lost);
	cr_assert(status_await(client, "waiters", 0));
	send_again(again, &join, lost->number, NULL, 0);
	cr_assert(status_await(client, "waiters", 1));
	join.comm_join.rank = 1;
	cr_assert(eq(int, wire_call(other, &join), 0));
	cr_assert(eq(int, wire_receive(again), FRAME_OK));
	cr_assert(eq(int, again->frame.code, 0));
	cr_assert(eq(u64, again->reply.comm.comm, other->reply.comm.comm));
	wire_close(again);
	wire_close(lost);
	wire_close(other);
}

Test(comm, a_request_of_a_communicator_that_is_not_running_is_refused)
{
	struct wire *wire = wire_open(daemon_socket(&daemon_));
	struct request commit = {.kind = MESSAGE_COMMIT,
				 .commit = {.comm = 77, .step = 1}};
	struct request unshard = {.kind = MESSAGE_UNSHARD,
				  .unshard = {.group = 77}};
	struct request join = JOIN;

	cr_assert(eq(int, wire_call(wire, &commit), -ECONNABORTED));
	cr_assert(eq(int, wire_call(wire, &unshard), -ECONNABORTED));
	/* A communicator that is still waiting for ranks to join is not running
	 * either. */
	wire_send(wire, &join);
	cr_assert(status_await(client, "waiters", 1));
	for (uint64_t id = 1; id < 10; id++) {
		commit.commit.comm = id;
		cr_assert(lt(int, wire_call(wire, &commit), 0));
	}
	wire_close(wire);
}

/* --- registering --------------------------------------------------------- */

static int join_only(void)
{
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_)};
	struct trainer *self = trainer();

	must(fsdp_connect(&options, &self->client) == 0);
	return rank_note(fsdp_comm_join(self->client, "team/job", rank_world(),
					rank_self(), NULL, &self->comm));
}

/* One rank registers the group that `differing` describes, the others the first
 * layer. */
static int register_differing(void)
{
	struct trainer *self = trainer();
	const struct differing *mine = differing;

	if (rank_self() != mine->rank)
		return rank_note(fsdp_group_register(self->comm, "l0", PLAIN, 2,
						     NULL, &self->groups[0]));
	return rank_note(fsdp_group_register(self->comm, mine->name,
					     mine->params, mine->n,
					     &mine->policy, &self->groups[0]));
}

static int register_same(void)
{
	struct trainer *self = trainer();

	return rank_note(fsdp_group_register(self->comm, "l0", PLAIN, 2, NULL,
					     &self->groups[0]));
}

static void differ_by_nothing(void)
{
	memset(differing, 0, sizeof(*differing));
	differing->rank = 1;
	differing->name = "l0";
	memcpy(differing->params, PLAIN, sizeof(PLAIN));
	differing->n = 2;
}

/* All ranks are told what differs and where, in whatever order they arrive. */
static void assert_refused(const char *what)
{
	ranks_begin(&ranks, register_differing);
	ranks_end(&ranks);
	assert_all_say(-EINVAL, what);
}

Test(comm, all_ranks_get_an_error_that_names_the_differing_parameter)
{
	start(3, 0);
	cr_assert(eq(int, ranks_run(&ranks, join_only), 0));
	figures_read(client, &before);
	differ_by_nothing();
	differing->params[1].spec.dtype = FSDP_BF16;
	assert_refused("parameter \"bias\" has the dtype");
	differ_by_nothing();
	differing->params[0].spec.shape[0] = 6;
	assert_refused("parameter \"weight\" has the shape");
	differ_by_nothing();
	differing->params[0].name = "other";
	assert_refused("parameter 0 is \"");
	differ_by_nothing();
	differing->params[1].is_frozen = true;
	assert_refused("parameter \"bias\" is ");
	differ_by_nothing();
	differing->n = 1;
	assert_refused("parameter 1, \"bias\", is");
	differ_by_nothing();
	differing->policy.param_dtype = FSDP_BF16;
	assert_refused("the param dtype is");
	differ_by_nothing();
	differing->policy.layout = FSDP_LAYOUT_FLAT;
	assert_refused("the layout is");
	cr_assert(figures_await(client, &before));
	/* All ranks can still register the same. */
	cr_assert(eq(int, ranks_run(&ranks, register_same), 0));
}

Test(comm, groups_must_be_registered_in_the_same_order)
{
	start(2, 0);
	cr_assert(eq(int, ranks_run(&ranks, join_only), 0));
	differ_by_nothing();
	differing->name = "l1";
	assert_refused("all must register the same groups in the same order");
	cr_assert(eq(int, ranks_run(&ranks, register_same), 0));
}

Test(comm, a_parameter_that_cannot_be_sharded_is_an_error_for_all_ranks)
{
	start(2, 0);
	cr_assert(eq(int, ranks_run(&ranks, join_only), 0));
	differ_by_nothing();
	differing->params[0].shard_dim = 2;
	actor_begin(&ranks.actors[0], register_differing);
	cr_assert(status_await(client, "waiters", 1));
	cr_assert(eq(int, rank_run(&ranks, 1, register_differing), -EINVAL));
	assert_says(1, "parameter \"weight\"");
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -EINVAL));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, "parameter \"weight\"");
}

Test(comm, a_group_is_registered_once)
{
	start(2, 1);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, register_same), -EEXIST));
	assert_says(1, "has registered group 'l0' already");
}

Test(comm, the_error_names_a_rank_that_does_not_register_in_time)
{
	start_with(3, 0, LATE_MS);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join_patiently), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, register_same), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, "), like 1 other rank, has not registered group 'l0' of "
		       "communicator 'team/job' within 5000 ms");
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_as_before();
}

/* --- committing ---------------------------------------------------------- */

static struct fsdp_work commit_work;

static int commit_step(uint64_t step)
{
	return rank_note(fsdp_commit(trainer()->comm, step, &commit_work));
}

static int commit1(void)
{
	return commit_step(1);
}

static int commit2(void)
{
	return commit_step(2);
}

static int look_at_commit(void)
{
	return rank_note(fsdp_wait(&commit_work, 0));
}

static int await_commit(void)
{
	return rank_note(fsdp_wait(&commit_work, -1));
}

Test(comm, a_step_is_committed_when_all_ranks_have_committed_it)
{
	start(2, 2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, commit2), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, look_at_commit), -ETIMEDOUT));
	assert_says(0, "step 2 is not committed yet: rank 1 (pid ");
	cr_assert(eq(u32, look(), 1));
	cr_assert(eq(u64, seen.step, 0));
	/* Steps must be equal, and increase. */
	cr_assert(eq(int, rank_run(&ranks, 1, commit1), -EINVAL));
	assert_says(1, "other ranks commit step 2, not 1");
	cr_assert(eq(int, rank_run(&ranks, 1, commit2), 0));
	cr_assert(eq(int, ranks_run(&ranks, await_commit), 0));
	cr_assert(eq(u32, look(), 1));
	cr_assert(eq(u64, seen.step, 2));
	cr_assert(eq(int, rank_run(&ranks, 1, commit2), -EINVAL));
	assert_says(1, "step 2 must be greater than the last committed step");
}

Test(comm, the_error_names_a_rank_that_does_not_commit_in_time)
{
	start_with(2, 1, LATE_MS);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join_patiently), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, commit1), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, await_commit), -ECONNABORTED));
	assert_says(1, "rank 0 (pid ");
	assert_says(1, "has not committed step 1 of communicator 'team/job' "
		       "within 5000 ms");
	cr_assert(eq(u32, look(), 2));
	cr_assert(eq(int, seen.state, FSDP_COMM_FAILED));
	cr_assert(ne(ptr, strstr(seen_note, "has not committed step 1"), NULL));
}

/* The other rank is not reaped before the error has been received. Only without
 * its sandbox can the broker read how such a process ended. */
Test(comm_death, the_error_tells_how_a_rank_died)
{
	start(2, 1);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, commit1), 0));
	actor_begin(&ranks.actors[0], await_commit);
	cr_assert(status_await(client, "waiters", 1));
	cr_assert(zero(int, kill(ranks.actors[1].pid, SIGKILL)));
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, "of communicator 'team/job' has died: it was killed by "
		       "signal 9 (Killed)");
}

/* --- leaving ------------------------------------------------------------- */

Test(comm, a_finished_commit_can_be_awaited_after_others_have_left)
{
	start(2, 1);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, ranks_run(&ranks, commit1), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, await_commit), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, leave), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, await_commit), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, leave), 0));
	cr_assert(eq(u64, status_value(client, "comms_failed"), 0));
}

Test(comm, a_rank_that_continues_after_another_left_gets_an_error)
{
	start(2, 1);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, leave), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, commit1), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, await_commit), -ECONNABORTED));
	assert_says(1, "rank 0 (pid ");
	assert_says(1, "of communicator 'team/job' has left");
}

/* --- looking ------------------------------------------------------------- */

static int note_group(const struct fsdp_group_entry *entry, void *data)
{
	uint32_t *n = data;

	cr_assert(eq(str, (char *)entry->comm, "team/job"));
	cr_assert(eq(str, (char *)entry->name, *n ? "l1" : "l0"));
	cr_assert(eq(u32, entry->n_params, *n ? 1 : 2));
	cr_assert(eq(u64, entry->step, 1));
	/* On devices no shard can be used in place as a whole parameter. */
	cr_assert(eq(int, entry->full_bytes > 0, are_on_devices()));
	cr_assert(ne(u64, entry->hash, 0));
	++*n;
	return 0;
}

static int note_entry(const struct fsdp_plan_entry *entry, void *data)
{
	uint32_t *n = data;

	cr_assert(eq(str, (char *)entry->name, *n ? "bias" : "weight"));
	cr_assert(eq(u64, entry->chunk_bytes, *n ? 16 : 48));
	cr_assert(eq(u32, entry->n_shards, 2));
	cr_assert(eq(int, entry->is_in_place, !are_on_devices()));
	++*n;
	return 0;
}

Test(comm, groups_and_plans_can_be_inspected)
{
	uint32_t n = 0;

	start(2, 2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
	cr_assert(eq(int, fsdp_groups(client, "team/job", note_group, &n), 0));
	cr_assert(eq(u32, n, 2));
	n = 0;
	cr_assert(eq(int,
		     fsdp_group_plan(client, "team/job", "l0", note_entry, &n),
		     0));
	cr_assert(eq(u32, n, 2));
	cr_assert(eq(int, fsdp_groups(client, "team/none", note_group, &n),
		     -ENOENT));
	cr_assert(eq(int,
		     fsdp_group_plan(client, "team/job", "l9", note_entry, &n),
		     -ENOENT));
}
