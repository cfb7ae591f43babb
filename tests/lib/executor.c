#include "tests/lib/executor.h"
#include "tests/lib/check.h"
#include "tests/lib/device.h"
#include "tests/lib/gpu.h"
#include <errno.h>
#include <stdlib.h>

const struct fsdp_param_spec EXECUTOR_PARAMS[EXECUTOR_N_PARAMS] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {6, 4}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {5}}},
	{.name = "table", .spec = {FSDP_F32, 1, {8}}, .is_frozen = true},
};

/* The sum covers trained parameters only, so that a commit keeps the frozen
 * ones. */
const struct layer EXECUTOR_LAYERS[EXECUTOR_N_LAYERS] = {
	{"l0", EXECUTOR_PARAMS, 2, {0}}, {"l1", EXECUTOR_PARAMS, 3, {0}}};

/* the second is the broker of another node */
struct daemon executor_daemon, executor_other;
struct ranks executor_ranks;
struct fsdp_client *executor_client; /* the session of the test */

void executor_set_up(void)
{
	gpu_open();
	setenv("FSDP_TEST_DEVICES", "1", 1);
	setenv("FSDP_TEST_EXECUTOR", "worker", 1);
	setenv("FAKECUDA_DEVICES", "4", 1);
	setenv("FAKECUDA_COUNT", "1", 1);
}

void executor_tear_down(void)
{
	ranks_stop(&executor_ranks);
	fsdp_close(executor_client);
	daemon_stop(&executor_daemon);
	daemon_stop(&executor_other);
	gpu_close();
}

int32_t executor_timeout_ms;

void executor_start_with(uint32_t n, size_t n_layers, const char *const *env)
{
	struct fsdp_connect_options options = {
		.path = daemon_socket(&executor_daemon)};

	daemon_start_with(&executor_daemon,
			  &(struct daemon_options){.env = env});
	crew_set(&(struct crew){
		.daemon = &executor_daemon,
		.comm = "job",
		.options = {.timeout_ms = executor_timeout_ms},
		.layers = EXECUTOR_LAYERS,
		.n_layers = n_layers,
	});
	ranks_start(&executor_ranks, n);
	cr_assert(zero(int, fsdp_connect(&options, &executor_client)));
}

void executor_start(uint32_t n, size_t n_layers)
{
	executor_start_with(n, n_layers, NULL);
}

/* Starts a rank that joins and commits its first step. */
void executor_start_crew(void)
{
	executor_start(2, 1);
	cr_assert(
		zero(int, ranks_run(&executor_ranks, trainer_join_patiently)));
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_commit)));
}

void executor_expect_all_told(const char *what)
{
	for (uint32_t i = 0; i < 2; i++) {
		if (executor_ranks.actors[i].pid <= 0)
			continue;
		cr_expect(eq(int, executor_ranks.notes[i].code, -ECONNABORTED));
		executor_expect_says(i, what);
	}
}

/* --- what ranks do ------------------------------------------------------- */

int executor_unshard(void)
{
	return trainer_unshard(0);
}

int executor_reshard(void)
{
	return trainer_reshard(0);
}

int executor_reduce(void)
{
	static const struct fsdp_reduce_options defaults;

	return trainer_reduce(0, 0, &defaults, true);
}

int executor_see_whole(void)
{
	return trainer_sees_whole(0) ? 0 : -EBADMSG;
}

static double mean(size_t param, uint64_t index)
{
	return (gradient_of(0, param, index, 0) +
		gradient_of(1, param, index, 0)) /
	       2;
}

static int see_mean(void)
{
	return trainer_sees_gradients(0, mean) ? 0 : -EBADMSG;
}

int executor_join_anew(void)
{
	trainer_leave();
	return trainer_join();
}

void executor_must_train(void)
{
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_unshard)));
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_see_whole)));
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_reshard)));
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_reduce)));
	cr_assert(zero(int, ranks_run(&executor_ranks, see_mean)));
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_commit)));
}

struct fsdp_comm_entry executor_seen;

int executor_note_comm(const struct fsdp_comm_entry *entry, void *data)
{
	(void)data;
	executor_seen = *entry;
	return 0;
}
