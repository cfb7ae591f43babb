/*
 * Tests communicators of another user. A user cannot see those that it may not
 * read, cannot join those that it may not write, and cannot use ids that it
 * guesses.
 */
#include "proto/error.h"
#include "tests/lib/actor.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/wire.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALICE 61001
#define BOB   61002
#define GROUP 61100
#define COMM  "team/job"

/* The test and its actors share this memory. */
struct shared {
	char path[96];
	struct request request; /* contains only pointers to constants */
	uint64_t comm, group;   /* ids in the last reply */
	struct slot_ref slot;
	uint32_t n;        /* items of a list */
	uint32_t n_of_bob; /* descriptors through which Bob can write */
	char sentence[ERROR_MSG_SIZE];
};

static struct shared *shared;
static struct daemon daemon_;
static struct actor alice, bob;
static struct wire *other; /* a client of root */

/* --- what actors do ------------------------------------------------------ */

static struct wire *me;

static int do_connect(void)
{
	me = wire_connect(shared->path);
	return me ? wire_hello(me, 0) : -errno;
}

static void note_fds(void)
{
	uint32_t n = 0;
	void *at;

	for (uint16_t i = 0; i < me->frame.n_fds; i++) {
		at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
			  me->frame.fds[i], 0);
		if (at == MAP_FAILED)
			continue;
		munmap(at, 4096);
		n++;
	}
	/* Both actors may be here at the same time, so only Bob stores his
	 * count. */
	if (getuid() == BOB)
		shared->n_of_bob = n;
}

static void note_answer(void)
{
	const struct reply *reply = &me->reply;

	shared->n = 0;
	if (reply->kind == MESSAGE_COMM_JOIN) {
		shared->comm = reply->comm.comm;
	} else if (reply->kind == MESSAGE_GROUP) {
		shared->group = reply->group.group;
		note_fds();
	} else if (reply->kind == MESSAGE_INPUT) {
		shared->slot = reply->places.places[0].ref;
	} else if (reply->kind == MESSAGE_COMMS) {
		shared->n = reply->comms.n_items;
	} else if (reply->kind == MESSAGE_GROUPS) {
		shared->n = reply->groups.n_items;
	}
}

static int do_request(void)
{
	int r = wire_call(me, &shared->request);

	snprintf(shared->sentence, sizeof(shared->sentence), "%s",
		 wire_sentence(me));
	if (r == 0)
		note_answer();
	return r;
}

static int do_goodbye(void)
{
	wire_goodbye(me);
	return 0;
}

/* --- the stage ----------------------------------------------------------- */

static void start(struct actor *actor, uid_t uid)
{
	const struct identity identity = {uid, uid, GROUP};

	actor_start(actor, &identity);
	cr_assert(zero(int, actor_run(actor, do_connect)));
}

static void setup(void)
{
	if (!actor_may_be_others())
		cr_skip_test("only root can be two users");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	daemon_start_with(&daemon_,
			  &(struct daemon_options){
				  .config = "[memory]\nchunk_min = 4M\n"});
	cr_assert(zero(int, chmod(daemon_.dir, 0755)));
	snprintf(shared->path, sizeof(shared->path), "%s",
		 daemon_socket(&daemon_));
	start(&alice, ALICE);
	start(&bob, BOB);
	other = wire_open(daemon_socket(&daemon_));
}

static void teardown(void)
{
	if (!actor_may_be_others())
		return;
	actor_kill(&alice);
	actor_kill(&bob);
	wire_close(other);
	daemon_stop(&daemon_);
}

TestSuite(access_collective, .init = setup, .fini = teardown, .timeout = 300);

static int ask(struct actor *actor, struct request request)
{
	shared->request = request;
	return actor_run(actor, do_request);
}

static void must(struct actor *actor, struct request request)
{
	cr_assert(zero(int, ask(actor, request)), "%s", shared->sentence);
}

static void refuse(struct actor *actor, struct request request, int code,
		   const char *says)
{
	cr_assert(eq(int, ask(actor, request), code), "%s", shared->sentence);
	cr_assert(ne(ptr, strstr(shared->sentence, says), NULL),
		  "\"%s\" does not say \"%s\"", shared->sentence, says);
}

static struct request join_of(uint32_t n_ranks, uint32_t rank, uint32_t mode)
{
	return (struct request){
		.kind = MESSAGE_COMM_JOIN,
		.comm_join = {.name = COMM,
			      .access = {.gid = mode ? GROUP : GID_DEFAULT,
					 .mode = mode},
			      .n_ranks = n_ranks,
			      .rank = rank,
			      .n_shards = n_ranks,
			      .timeout_ms = 60000,
			      .ttl_ms = 60000,
			      .n_inputs = 1},
	};
}

/* Actors are forked, so they have these constants at the same addresses. */
static struct group_param param = {
	.name = "w",
	.type = {.dtype = DTYPE_F32,
		 .n_dims = 1,
		 .shape = {1000},
		 .strides = {1}},
};

static struct request group_of(uint64_t comm)
{
	return (struct request){
		.kind = MESSAGE_GROUP,
		.group = {.comm = comm,
			  .name = "first",
			  .n_params = 1,
			  .params = &param},
	};
}

static struct request plan_of(void)
{
	return (struct request){.kind = MESSAGE_GROUP_PLAN,
				.group_plan = {COMM, "first", 0}};
}

static struct request groups_of(const char *name)
{
	return (struct request){.kind = MESSAGE_GROUPS,
				.groups = {.comm = name}};
}

static const struct request COMMS = {.kind = MESSAGE_COMMS};
static const struct request REMOVE = {.kind = MESSAGE_COMM_REMOVE,
				      .comm_remove = {.name = COMM}};

/* Make Alice's communicator of one rank, with a group and an input that she
 * fills. */
static void set_stage(uint32_t mode)
{
	must(&alice, join_of(1, 0, mode));
	must(&alice, group_of(shared->comm));
	must(&alice, (struct request){.kind = MESSAGE_INPUT,
				      .input = {.group = shared->group}});
}

/* --- tests --------------------------------------------------------------- */

Test(access_collective, of_another_user_is_not_joined)
{
	const struct request input = {.kind = MESSAGE_INPUT,
				      .input = {.group = shared->group}};
	struct wire_counts before, after;

	(void)input;
	set_stage(0);
	wire_count(other, &before);
	refuse(&bob, join_of(1, 0, 0), -EACCES,
	       "belongs to uid 61001 (gid 61001, mode 0600), and uid 61002 may "
	       "not "
	       "write its memory");
	refuse(&bob, join_of(2, 1, 0), -EACCES, "may not write");
	refuse(&bob, REMOVE, -EPERM, "belongs to uid 61001");
	wire_count(other, &after);
	cr_assert(eq(ptr, (void *)wire_counts_differ(&before, &after), NULL),
		  "%s", wire_counts_differ(&before, &after));
	/* After all ranks have left, the communicator is kept and still belongs
	 * to Alice. */
	cr_assert(zero(int, actor_run(&alice, do_goodbye)));
	wire_wait_status(other, "comms_running", 0);
	cr_assert(eq(u64, wire_status(other, "comms"), 1));
	refuse(&bob, join_of(1, 0, 0), -EACCES, "may not write");
	refuse(&bob, REMOVE, -EPERM, "belongs to uid 61001");
}

Test(access_collective, is_not_accessible_by_guessing_ids)
{
	uint64_t comm, group;
	struct slot_ref slot;

	set_stage(0);
	comm = shared->comm;
	group = shared->group;
	slot = shared->slot;
	const struct request all[] = {
		group_of(comm),
		{.kind = MESSAGE_COMM_LEAVE, .comm_leave = {.comm = comm}},
		{.kind = MESSAGE_UNSHARD, .unshard = {.group = group}},
		{.kind = MESSAGE_RESHARD, .reshard = {.group = group}},
		{.kind = MESSAGE_INPUT, .input = {.group = group}},
		{.kind = MESSAGE_REDUCE,
		 .reduce = {.group = group, .input = slot}},
		{.kind = MESSAGE_COMMIT, .commit = {.comm = comm, .step = 1}},
		{.kind = MESSAGE_WAIT,
		 .wait = {.comm = comm, .kind = WORK_COMMIT, .sequence = 1}},
		{.kind = MESSAGE_WAIT,
		 .wait = {.comm = comm,
			  .group = group,
			  .kind = WORK_UNSHARD,
			  .sequence = 1}},
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		refuse(&bob, all[i], -ECONNABORTED, "is not running here");
	/* Bob cannot use the tensors of the communicator either. No list shows
	 * them to him. */
	refuse(&bob,
	       (struct request){.kind = MESSAGE_WHO,
				.who = {.name = "", .ref = slot}},
	       -EACCES, "tensor of uid 61001");
	refuse(&bob,
	       (struct request){
		       .kind = MESSAGE_TICKET,
		       .ticket = {.ref = slot, .n_uses = 1, .ttl_ms = 1000}},
	       -EINVAL, "does not hold");
	must(&alice, all[6]);
}

Test(access_collective, is_shown_to_users_that_may_read_it)
{
	set_stage(0);
	must(&bob, COMMS);
	cr_assert(zero(u32, shared->n));
	must(&bob, groups_of(""));
	cr_assert(zero(u32, shared->n));
	refuse(&bob, groups_of(COMM), -EACCES, "not readable for uid 61002");
	refuse(&bob, plan_of(), -EACCES, "not readable for uid 61002");
	must(&alice, COMMS);
	cr_assert(eq(u32, shared->n, 1));
	must(&alice, groups_of(""));
	cr_assert(eq(u32, shared->n, 1));
	must(&alice, plan_of());
}

Test(access_collective, is_shown_but_not_joined_with_a_mode_to_read)
{
	set_stage(0640);
	must(&bob, COMMS);
	cr_assert(eq(u32, shared->n, 1));
	must(&bob, groups_of(COMM));
	cr_assert(eq(u32, shared->n, 1));
	must(&bob, plan_of());
	refuse(&bob, join_of(1, 0, 0640), -EACCES, "may not write");
	refuse(&bob, REMOVE, -EPERM, "belongs to uid 61001");
}

Test(access_collective, is_joined_by_members_of_its_group)
{
	uint64_t comm;

	actor_begin(&alice, do_connect); /* a second session, as rank 0 */
	cr_assert(zero(int, actor_end(&alice)));
	shared->request = join_of(2, 0, 0660);
	actor_begin(&alice, do_request);
	wire_wait_status(other, "waiters", 1);
	refuse(&bob, join_of(2, 1, 0), -EINVAL,
	       "the group 61100 and mode 0660");
	must(&bob, join_of(2, 1, 0660));
	cr_assert(zero(int, actor_end(&alice)));
	comm = shared->comm;
	shared->request = group_of(comm);
	actor_begin(&alice, do_request);
	wire_wait_status(other, "waiters", 1);
	must(&bob, group_of(comm));
	cr_assert(eq(u32, shared->n_of_bob, 1), "bob writes his shards");
	cr_assert(zero(int, actor_end(&alice)));
	/* Its owner may remove it. */
	cr_assert(zero(int, actor_run(&alice, do_goodbye)));
	refuse(&bob, REMOVE, -EPERM, "belongs to uid 61001");
	cr_assert(zero(int, actor_run(&bob, do_goodbye)));
	wire_wait_status(other, "comms_running", 0);
}
