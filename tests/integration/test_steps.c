/*
 * Tests whole training steps: how often parameters are gathered and gradients
 * reduced, depending on what is resharded after the forward pass.
 */
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/leaks.h"
#include "tests/lib/ranks.h"
#include "tests/lib/trainer.h"

#define N_BLOCKS 3 /* layers 1 to N_BLOCKS; layer 0 is the root */

/* The cast makes every unshard a gather. */
#define LAYER(name_)                                                           \
	{                                                                      \
		.name = name_, .params = PARAMS, .n = 2, .policy = {           \
			.param_dtype = FSDP_BF16                               \
		}                                                              \
	}

static const struct fsdp_param_spec PARAMS[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {6, 4}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {6}}},
};

static const struct layer LAYERS[] = {
	LAYER("root"),
	LAYER("block1"),
	LAYER("block2"),
	LAYER("block3"),
};

static struct daemon daemon_;
static struct ranks ranks;
static struct fsdp_client *client;

/* These say what is resharded after the forward pass. */
static bool reshards_root, reshards_blocks;

static void setup(void)
{
	struct fsdp_connect_options options = {0};

	daemon_start(&daemon_);
	options.path = daemon_socket(&daemon_);
	cr_assert(zero(int, fsdp_connect(&options, &client)));
}

static void teardown(void)
{
	ranks_stop(&ranks);
	fsdp_close(client);
	daemon_stop(&daemon_);
}

CHECKED_SUITE(steps, setup, teardown, .timeout = 300);

static bool is_resharded(size_t layer)
{
	return layer == 0 ? reshards_root : reshards_blocks;
}

static int forward(void)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i <= N_BLOCKS; i++) {
		r = trainer_unshard(i);
		if (r == 0 && is_resharded(i))
			r = trainer_reshard(i);
	}
	return r;
}

static int backward(void)
{
	int r = 0;

	for (size_t i = N_BLOCKS + 1; r == 0 && i-- > 0;) {
		/* Nothing begins if it is still whole. */
		r = trainer_unshard(i);
		if (r == 0)
			r = trainer_reduce(i, 0, NULL, true);
		if (r == 0)
			r = trainer_reshard(i);
	}
	return r;
}

struct counts {
	uint64_t forward, backward, reductions;
};

static struct counts count(void)
{
	struct crew crew = {.daemon = &daemon_,
			    .comm = "steps",
			    .layers = LAYERS,
			    .n_layers = N_BLOCKS + 1,
			    .options = {.limit = N_BLOCKS + 1}};
	struct counts counts;
	uint64_t begun, between;

	crew_set(&crew);
	ranks_start(&ranks, 2);
	cr_assert(zero(int, ranks_run(&ranks, trainer_join)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	begun = status_value(client, "gathers");
	cr_assert(zero(int, ranks_run(&ranks, forward)));
	between = status_value(client, "gathers");
	cr_assert(zero(int, ranks_run(&ranks, backward)));
	counts = (struct counts){
		.forward = between - begun,
		.backward = status_value(client, "gathers") - between,
		.reductions = status_value(client, "reductions"),
	};
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_leave)));
	return counts;
}

/* case 60 */
Test(steps, groups_that_were_resharded_are_gathered_again)
{
	struct counts counts;

	reshards_root = reshards_blocks = true;
	counts = count();
	cr_expect(eq(u64, counts.forward, N_BLOCKS + 1));
	cr_expect(eq(u64, counts.backward, N_BLOCKS + 1));
	cr_expect(eq(u64, counts.reductions, N_BLOCKS + 1));
}

/* case 60 */
Test(steps, a_root_that_stays_unsharded_is_gathered_once)
{
	struct counts counts;

	reshards_root = false;
	reshards_blocks = true;
	counts = count();
	cr_expect(eq(u64, counts.forward, N_BLOCKS + 1));
	cr_expect(eq(u64, counts.backward, N_BLOCKS));
	cr_expect(eq(u64, counts.reductions, N_BLOCKS + 1));
}

/* case 60 */
Test(steps, groups_that_are_never_resharded_are_gathered_once)
{
	struct counts counts;

	reshards_root = reshards_blocks = false;
	counts = count();
	cr_expect(eq(u64, counts.forward, N_BLOCKS + 1));
	cr_expect(eq(u64, counts.backward, 0));
	cr_expect(eq(u64, counts.reductions, N_BLOCKS + 1));
}

static int unshard_first(void)
{
	return trainer_unshard(0);
}

/* The reduction may begin when the other rank has handed in, too. */
static int hand_in(void)
{
	int r = trainer_reduce(0, 0, NULL, false);

	return r < 0 ? r : trainer_reshard(0);
}

Test(steps, a_commit_needs_no_wait_for_a_reduction)
{
	struct crew crew = {.daemon = &daemon_,
			    .comm = "steps",
			    .layers = LAYERS,
			    .n_layers = 1,
			    .options = {.timeout_ms = 20000}};

	if (!are_on_devices() || getenv("FSDP_TEST_EXECUTOR"))
		cr_skip_test("fsdp-worker may refuse the commit meanwhile");
	crew_set(&crew);
	ranks_start(&ranks, 2);
	cr_assert(zero(int, ranks_run(&ranks, trainer_join)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&ranks, unshard_first)));
	cr_assert(zero(int, rank_run(&ranks, 0, hand_in)));
	cr_assert(zero(int, rank_run(&ranks, 1, hand_in)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_leave)));
}
