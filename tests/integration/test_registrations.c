/*
 * Tests memory that is registered with NCCL (FSDP_MEMORY_REGISTERED): each
 * chunk once, before its first use, and only while it is mapped. The fake NCCL
 * counts, and refuses to deregister what is not registered.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/fake_nccl.h"
#include "tests/lib/gpu.h"
#include "tests/lib/trainer.h"
#include <errno.h>
#include <string.h>

/* Chunks are as small as possible, and are freed as soon as they are empty. */
#define CONFIG "[memory]\nchunk_min = 2M\nchunk_max = 2M\nwarm_ms = 1\n"

static const struct fsdp_param_spec SMALL[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {6, 4}}},
};
/* The gradients have a chunk of their own. */
static const struct fsdp_param_spec LARGE[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {500, 1000}}},
};
static const struct layer LAYERS[] = {
	{.name = "small", .params = SMALL, .n = 1},
	{.name = "large", .params = LARGE, .n = 1},
};

static struct daemon daemons[2]; /* one for each node */
static struct ranks ranks;
static struct fsdp_client *client; /* of the test */

static void setup(void)
{
	const struct daemon_options options = {.config = CONFIG};
	struct fsdp_connect_options connect = {0};

	daemon_start_with(&daemons[0], &options);
	connect.path = daemon_socket(&daemons[0]);
	must(fsdp_connect(&connect, &client) == 0);
}

static void teardown(void)
{
	ranks_stop(&ranks);
	fsdp_close(client);
	daemon_stop(&daemons[0]);
}

TestSuite(registrations, .init = setup, .fini = teardown, .timeout = 300);

static void start(size_t n_layers, uint32_t n_shards)
{
	crew_set(&(struct crew){
		.daemon = &daemons[0],
		.comm = "test",
		.options = {.memory = FSDP_MEMORY_REGISTERED,
			    .n_shards = n_shards},
		.layers = LAYERS,
		.n_layers = n_layers,
	});
	ranks_start(&ranks, 2);
}

static void all(actor_fn *fn)
{
	int r = ranks_run(&ranks, fn);

	cr_assert(zero(int, r), "%s", ranks.notes[0].sentence);
}

/* --- in a rank ----------------------------------------------------------- */

static int count_made(void)
{
	unsigned int made, left;

	count_registrations(&made, &left);
	return (int)made;
}

static int count_left(void)
{
	unsigned int made, left;

	count_registrations(&made, &left);
	return (int)left;
}

/* Check a count. Only the fake driver has these counts. */
static void expect_count(uint32_t rank, actor_fn *count, int n)
{
	if (is_fake())
		cr_expect(eq(int, rank_run(&ranks, rank, count), n));
}

static int train(void)
{
	int r = trainer_commit();

	if (r == 0)
		r = trainer_unshard(0);
	if (r == 0 && !trainer_sees_whole(0))
		return rank_say(-EILSEQ, "a layer is not whole");
	if (r == 0)
		r = trainer_reduce(0, 0, NULL, true);
	return r == 0 ? trainer_reshard(0) : r;
}

static int reduce_large(void)
{
	return trainer_reduce(1, 0, NULL, true);
}

/* --- tests --------------------------------------------------------------- */

Test(registrations, a_chunk_is_registered_once_until_the_rank_leaves)
{
	start(1, 2);
	all(trainer_join);
	expect_count(0, count_made, 0);
	all(train);
	all(train);
	/* Everything is in one chunk. */
	expect_count(0, count_made, 2);
	expect_count(0, count_left, 2);
	all(trainer_leave);
	expect_count(0, count_left, 0);
}

Test(registrations, replicas_register_a_chunk_in_each_communicator)
{
	start(1, 1);
	all(trainer_join);
	all(train);
	expect_count(1, count_left, 3);
	all(trainer_leave);
	expect_count(1, count_left, 0);
}

static void await_retired(uint64_t n)
{
	while (status_value(client, "chunks_retired") < n)
		nap_ms(1);
}

/* The memory of large inputs is returned to the device. */
Test(registrations, a_chunk_is_deregistered_before_it_is_unmapped)
{
	uint64_t n_retired;
	int n_left;

	start(2, 2);
	all(trainer_join);
	all(train);
	n_left = is_fake() ? rank_run(&ranks, 0, count_left) : 0;
	n_retired = status_value(client, "chunks_retired");
	all(reduce_large);
	expect_count(0, count_left, n_left + 2);
	/* One chunk of each rank is retired, and others if a rank was late. */
	await_retired(n_retired + 2);
	all(train);
	expect_count(0, count_left, n_left);
	all(reduce_large);
	expect_count(0, count_made, n_left + 4);
	all(trainer_leave);
	expect_count(0, count_left, 0);
}

/* --- refusals ------------------------------------------------------------ */

static int train_where_nccl_refuses(void)
{
	int r;

	if (rank_self() == 1)
		setenv("FAKENCCL_FAIL", "CommRegister:1:3", 1);
	r = trainer_join();
	return r == 0 ? train() : r;
}

Test(registrations, a_registration_that_nccl_refuses_fails_the_communicator)
{
	need_fake("calls must fail");
	start(1, 2);
	ranks_begin(&ranks, train_where_nccl_refuses);
	ranks_end(&ranks);
	cr_expect(eq(int, ranks.notes[0].code, -ECONNABORTED));
	cr_expect(eq(int, ranks.notes[1].code, -ECONNABORTED));
	assert_says(1, "cannot register chunk");
	all(trainer_leave);
	expect_count(0, count_left, 0);
}

/* Not all ranks request registration. */
static int join_differently(void)
{
	crew_set(&(struct crew){
		.daemon = &daemons[0],
		.comm = "test",
		.options = {.memory = rank_self() == 0 ? FSDP_MEMORY_REGISTERED
						       : FSDP_MEMORY_DEFAULT},
		.layers = LAYERS,
		.n_layers = 1,
	});
	return trainer_join();
}

Test(registrations, ranks_of_a_node_must_agree_about_registration)
{
	start(1, 2);
	actor_begin(&ranks.actors[0], join_differently);
	cr_assert(status_await(client, "waiters", 1));
	cr_expect(eq(int, rank_run(&ranks, 1, join_differently), -EINVAL));
	assert_says(1, "with a kind of memory of");
	actor_kill(&ranks.actors[0]);
}

/* Each rank is a node of its own. */
static struct {
	uint8_t id[FSDP_NCCL_ID_SIZE];
} * job; /* shared */

static int make_id(void)
{
	return rank_note(fsdp_nccl_id(job->id));
}

static int join_as_node(void)
{
	crew_set(&(struct crew){
		.daemon = &daemons[rank_self()],
		.comm = "test",
		.options = {.memory = rank_self() == 0 ? FSDP_MEMORY_REGISTERED
						       : FSDP_MEMORY_DEFAULT,
			    .n_local = 1,
			    .nccl_id = job->id},
		.layers = LAYERS,
		.n_layers = 1,
	});
	return trainer_join();
}

Test(registrations, ranks_of_several_nodes_must_agree_about_registration)
{
	job = shared_memory(sizeof(*job));
	daemon_start(&daemons[1]);
	start(1, 2);
	cr_assert(zero(int, rank_run(&ranks, 0, make_id)));
	ranks_begin(&ranks, join_as_node);
	ranks_end(&ranks);
	for (uint32_t rank = 0; rank < 2; rank++) {
		cr_expect(eq(int, ranks.notes[rank].code, -EINVAL));
		assert_says(rank, "the kind of memory");
	}
	daemon_stop(&daemons[1]);
}
