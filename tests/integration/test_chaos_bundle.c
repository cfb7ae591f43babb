/*
 * Kills the broker while bundles are made, replaced and removed.
 */
#include "tests/integration/scene.h"
#include "tests/lib/ranks.h"
#include <errno.h>

TestSuite(broker_dies_during, .timeout = 300);

static void check_bundle(struct stage *stage, uint64_t version)
{
	for (int i = 0; i < 2; i++) {
		cr_assert(pattern_is(stage->mine[i],
				     pattern_tag(MEMBERS[i], version)));
		cr_assert(pattern_is_published(stage->other, MEMBERS[i],
					       version));
		cr_assert(eq(i64, count_holds(stage->client, MEMBERS[i]), 1));
	}
}

static void check_begun(struct stage *stage)
{
	struct figures now;

	figures_read(stage->bystander, &now);
	cr_assert(eq(u64, now.bundles, 1));
	fill(stage);
	write_members(stage, 1);
	commit(stage, 1);
	check_bundle(stage, 1);
}

SCENE(bundle_begin, .has_no_pool = true, .act = begin, .check = check_begun)

static void check_filled(struct stage *stage)
{
	write_members(stage, 1);
	commit(stage, 1);
	check_bundle(stage, 1);
}

SCENE(bundle_alloc, .has_no_pool = true, .prepare = begin, .act = fill,
      .check = check_filled)

static void check_committed(struct stage *stage)
{
	check_bundle(stage, 1);
}

SCENE(bundle_commit, .has_no_pool = true, .prepare = begin_and_fill,
      .act = commit_first, .check = check_committed)

static void get_bundle(struct stage *stage)
{
	struct fsdp_tensor **all = NULL;
	size_t n = 0;

	must(fsdp_bundle_get(stage->other, BUNDLE, NULL, &all, &n) == 0);
	must(n == 2);
	memcpy(stage->others, all, 2 * sizeof(*all));
	free(all);
}

static void load_get_and_stage(struct stage *stage)
{
	load_first(stage);
	get_bundle(stage);
	begin(stage);
	fill(stage);
	write_members(stage, 2);
}

static void commit_second(struct stage *stage)
{
	commit(stage, 2);
}

static void check_bundle_replaced(struct stage *stage)
{
	struct figures now;

	check_bundle(stage, 2);
	for (int i = 0; i < 2; i++)
		cr_assert(pattern_is(stage->others[i],
				     pattern_tag(MEMBERS[i], 1)));
	figures_read(stage->bystander, &now);
	cr_assert(eq(u64, now.slots_limbo, 2));
	cr_assert(eq(u64, now.bundles, 2));
	must(fsdp_release_sync(stage->other, stage->others, 2) == 0);
	figures_read(stage->bystander, &now);
	cr_assert(eq(u64, now.slots_limbo, 0));
	cr_assert(eq(u64, now.bundles, 1));
}

SCENE(bundle_replace, .has_no_pool = true, .prepare = load_get_and_stage,
      .act = commit_second, .check = check_bundle_replaced)

/* No session holds the old version, so its memory is freed at once. */
static void load_and_stage(struct stage *stage)
{
	load_first(stage);
	begin(stage);
	fill(stage);
	write_members(stage, 2);
}

static void check_second(struct stage *stage)
{
	check_bundle(stage, 2);
}

SCENE(a_bundle_replace_that_frees, .has_no_pool = true,
      .prepare = load_and_stage, .act = commit_second, .check = check_second,
      .is_ragged = true)

static void abort_bundle(struct stage *stage)
{
	fsdp_free(stage->mine[0]);
	fsdp_free(stage->mine[1]);
	fsdp_bundle_abort(stage->bundle);
}

static void check_aborted(struct stage *stage)
{
	struct figures now;

	figures_read(stage->bystander, &now);
	cr_assert(eq(u64, now.bundles, 0));
	load_first(stage);
}

SCENE(bundle_abort, .has_no_pool = true, .prepare = begin_and_fill,
      .act = abort_bundle, .check = check_aborted, .is_ragged = true)

static void check_got(struct stage *stage)
{
	for (int i = 0; i < 2; i++) {
		cr_assert(pattern_is(stage->others[i],
				     pattern_tag(MEMBERS[i], 1)));
		cr_assert(eq(i64, count_holds(stage->client, MEMBERS[i]), 1));
	}
}

SCENE(bundle_get, .has_no_pool = true, .prepare = load_first, .act = get_bundle,
      .check = check_got)

static void remove_bundle(struct stage *stage)
{
	const char *name = BUNDLE;

	must(fsdp_remove(stage->client, &name, 1) == 0);
}

static void check_bundle_removed(struct stage *stage)
{
	struct fsdp_tensor *none = NULL;

	cr_assert(eq(int, fsdp_get(stage->client, MEMBERS, 1, NULL, &none),
		     -ENOENT));
	/* The members of a large bundle are freed in steps. */
	cr_assert(status_await(stage->bystander, "bundles", 0));
}

SCENE(bundle_remove, .has_no_pool = true, .prepare = load_first,
      .act = remove_bundle, .check = check_bundle_removed, .is_ragged = true)

/* --- more members than one request handles ------------------------------- */

#define LARGE   "scene/large/"
#define N_LARGE 300

static void load_large(struct stage *stage)
{
	struct fsdp_bundle_options options = {.access = {FSDP_GID_DEFAULT, 0},
					      .device = memory_device()};
	static struct fsdp_tensor *tensors[N_LARGE];
	static struct fsdp_spec specs[N_LARGE];
	static const char *pointers[N_LARGE];
	static char names[N_LARGE][32];

	must(fsdp_bundle_begin(stage->client, LARGE, &options,
			       &stage->bundle) == 0);
	for (int i = 0; i < N_LARGE; i++) {
		snprintf(names[i], sizeof(names[i]), LARGE "%d", i);
		pointers[i] = names[i];
		specs[i] = (struct fsdp_spec){FSDP_U64, 1, {2}};
	}
	for (int i = 0; i < N_LARGE; i += 150)
		must(fsdp_bundle_alloc(stage->bundle, pointers + i, specs + i,
				       150, tensors + i) == 0);
	for (int i = 0; i < N_LARGE; i++)
		pattern_fill(tensors[i], pattern_tag(names[i], 1));
	commit(stage, 1);
	must(fsdp_release_sync(stage->client, tensors, 150) == 0);
	must(fsdp_release_sync(stage->client, tensors + 150, 150) == 0);
}

static struct fsdp_tensor **large;

static void get_large(struct stage *stage)
{
	size_t n = 0;

	must(fsdp_bundle_get(stage->other, LARGE, NULL, &large, &n) == 0);
	must(n == N_LARGE);
}

/* Check that each member is held once, and has its contents. */
static void check_large(struct stage *stage)
{
	char name[32];

	for (int i = 0; i < N_LARGE; i++) {
		snprintf(name, sizeof(name), LARGE "%d", i);
		cr_assert(pattern_is(large[i], pattern_tag(name, 1)));
		if (i % 50 == 0 || i == N_LARGE - 1)
			cr_assert(eq(i64,
				     count_slot_holds(stage->client, large[i]),
				     1));
	}
	must(fsdp_release_sync(stage->other, large, 150) == 0);
	must(fsdp_release_sync(stage->other, large + 150, 150) == 0);
	free(large);
}

SCENE(a_large_bundle_get, .has_no_pool = true, .prepare = load_large,
      .act = get_large, .check = check_large, .is_ragged = true)

/* The version is removed while its members are granted. */
static void get_and_remove_large(struct stage *stage)
{
	const char *name = LARGE;

	get_large(stage);
	must(fsdp_remove(stage->client, &name, 1) == 0);
}

SCENE(a_large_bundle_get_and_remove, .has_no_pool = true, .prepare = load_large,
      .act = get_and_remove_large, .check = check_large, .is_ragged = true)

static void remove_large(struct stage *stage)
{
	const char *name = LARGE;

	must(fsdp_remove(stage->client, &name, 1) == 0);
}

SCENE(a_large_bundle_remove, .has_no_pool = true, .prepare = load_large,
      .act = remove_large, .check = check_bundle_removed, .is_ragged = true)

static void check_large_loaded(struct stage *stage)
{
	get_large(stage);
	/* The broker replies when all members are granted. */
	must(fsdp_ping(stage->other) == 0);
	check_large(stage);
}

SCENE(a_large_bundle_load, .has_no_pool = true, .act = load_large,
      .check = check_large_loaded, .is_ragged = true)
