#include "tests/lib/home.h"
#include "tests/lib/device.h"
#include "tests/lib/gpu.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>

const struct fsdp_param_spec HOME_PARAMS[HOME_N_PARAMS] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {6, 4}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {5}}},
	{.name = "table", .spec = {FSDP_F32, 1, {8}}, .is_frozen = true},
};

/* The sum covers trained parameters only, so that a commit keeps the frozen
 * ones. */
const struct layer HOME_LAYERS[HOME_N_LAYERS] = {{"l0", HOME_PARAMS, 2, {0}},
						 {"l1", HOME_PARAMS, 3, {0}}};

struct daemon home_daemon, home_other; /* broker of another node */
struct ranks home_ranks;
struct fsdp_client *home_client; /* the session of the test */

void home_set_up(void)
{
	gpu_open();
	setenv("FSDP_TEST_DEVICES", "1", 1);
	setenv("FSDP_TEST_HOME", "worker", 1);
	setenv("FAKECUDA_DEVICES", "4", 1);
	setenv("FAKECUDA_COUNT", "1", 1);
}

void home_tear_down(void)
{
	ranks_stop(&home_ranks);
	fsdp_close(home_client);
	daemon_stop(&home_daemon);
	daemon_stop(&home_other);
	gpu_close();
}

int32_t home_timeout_ms;

void home_start_with(uint32_t n, size_t n_layers, const char *const *env)
{
	struct fsdp_connect_options options = {
		.path = daemon_socket(&home_daemon)};

	daemon_start_with(&home_daemon, &(struct daemon_options){.env = env});
	crew_set(&(struct crew){
		.daemon = &home_daemon,
		.comm = "job",
		.options = {.timeout_ms = home_timeout_ms},
		.layers = HOME_LAYERS,
		.n_layers = n_layers,
	});
	ranks_start(&home_ranks, n);
	cr_assert(zero(int, fsdp_connect(&options, &home_client)));
}

void home_start(uint32_t n, size_t n_layers)
{
	home_start_with(n, n_layers, NULL);
}

/* Start a rank that joins and commits its first step. */
void home_start_crew(void)
{
	home_start(2, 1);
	cr_assert(zero(int, ranks_run(&home_ranks, trainer_join)));
	cr_assert(zero(int, ranks_run(&home_ranks, trainer_commit)));
}

void home_expect_all_told(const char *what)
{
	for (uint32_t i = 0; i < 2; i++) {
		if (home_ranks.actors[i].pid <= 0)
			continue;
		cr_expect(eq(int, home_ranks.notes[i].code, -ECONNABORTED));
		home_expect_says(i, what);
	}
}

/* --- what ranks do ------------------------------------------------------- */

int home_unshard(void)
{
	return trainer_unshard(0);
}

int home_reshard(void)
{
	return trainer_reshard(0);
}

int home_reduce(void)
{
	static const struct fsdp_reduce_options defaults;

	return trainer_reduce(0, 0, &defaults, true);
}

int home_see_whole(void)
{
	return trainer_sees_whole(0) ? 0 : -EBADMSG;
}

static double mean(size_t param, uint64_t index)
{
	return (gradient_of(0, param, index, 0) +
		gradient_of(1, param, index, 0)) /
	       2;
}

int home_see_mean(void)
{
	return trainer_sees_gradients(0, mean) ? 0 : -EBADMSG;
}

int home_join_anew(void)
{
	trainer_leave();
	return trainer_join();
}

void home_must_train(void)
{
	cr_assert(zero(int, ranks_run(&home_ranks, home_unshard)));
	cr_assert(zero(int, ranks_run(&home_ranks, home_see_whole)));
	cr_assert(zero(int, ranks_run(&home_ranks, home_reshard)));
	cr_assert(zero(int, ranks_run(&home_ranks, home_reduce)));
	cr_assert(zero(int, ranks_run(&home_ranks, home_see_mean)));
	cr_assert(zero(int, ranks_run(&home_ranks, trainer_commit)));
}

struct fsdp_comm_entry home_seen;

int home_note_comm(const struct fsdp_comm_entry *entry, void *data)
{
	(void)data;
	home_seen = *entry;
	return 0;
}
