#include "tests/integration/scene.h"

/* At most this many passages of one failpoint are tried. */
#define MAX_PASSAGES (are_on_devices() ? 2u : 4u)

static const struct fsdp_access SHARED = {FSDP_GID_DEFAULT, 0640};
const struct fsdp_spec PAGE = {FSDP_U64, 1, {512}};

/* --- playing ------------------------------------------------------------- */

/* The tensor is in a pool of its own, so that a scene's first allocation needs
 * a chunk. */
static void publish_kept(struct stage *stage)
{
	struct fsdp_publication it = {.name = "kept/tensor"};

	must(memory_alloc(stage->bystander, &PAGE, 1, &SHARED, 0, &it.tensor) ==
	     0);
	pattern_fill(it.tensor, pattern_tag(it.name, 1));
	must(fsdp_publish(stage->bystander, &it, 1) == 0);
	stage->kept = it.tensor;
}

static void check_kept(struct stage *stage)
{
	struct fsdp_client *fresh = chaos_connect(&stage->chaos);

	cr_assert(pattern_is(stage->kept, pattern_tag("kept/tensor", 1)));
	cr_assert(pattern_is_published(fresh, "kept/tensor", 1));
	fsdp_close(fresh);
	cr_assert(eq(i64, count_holds(stage->bystander, "kept/tensor"), 1));
}

static void set_up(struct stage *stage, const struct scene *scene,
		   struct figures *ret)
{
	struct figures now;

	memset(stage, 0, sizeof(*stage));
	chaos_start(&stage->chaos, scene->config);
	stage->bystander = chaos_connect(&stage->chaos);
	publish_kept(stage);
	figures_read(stage->bystander, ret);
	stage->chunk_bytes = ret->chunk_bytes;
	stage->client = chaos_connect(&stage->chaos);
	stage->other = chaos_connect(&stage->chaos);
	if (scene->prepare)
		scene->prepare(stage);
	figures_read(stage->bystander, &now);
	ret->epoch = now.epoch;
	/* A pool keeps an empty chunk for a while. Chunks of bundles are freed
	 * at once. */
	if (!scene->has_no_pool) {
		ret->chunks++;
		ret->chunk_bytes += 2 << 20;
	}
}

static void act(struct stage *stage, const struct scene *scene)
{
	scene->act(stage);
	/* The broker may work on after its reply. That work must end before the
	 * scene goes on. */
	must(fsdp_ping(stage->bystander) == 0);
}

/* The holds of a client are counted exactly only after it has reconnected. */
static void check(struct stage *stage, const struct scene *scene)
{
	if (stage->client)
		must(fsdp_ping(stage->client) == 0);
	must(fsdp_ping(stage->other) == 0);
	scene->check(stage);
}

/* Check that the figures are as they were before the scene. */
static void tear_down(struct stage *stage, const struct figures *before)
{
	check_kept(stage);
	fsdp_close(stage->client);
	fsdp_close(stage->other);
	remove_all(stage->bystander, "scene/");
	cr_assert(figures_await(stage->bystander, before));
	/* The supervisor also keeps the catalog and the state table. */
	cr_assert(keeps_await(&stage->chaos, before->chunks + 2));
	fsdp_close(stage->bystander);
	chaos_stop(&stage->chaos);
}

/* Play the scene without a death. */
static void learn(const struct scene *scene, struct passages *ret)
{
	struct figures before, now;
	struct stage stage;

	set_up(&stage, scene, &before);
	passages_forget(stage.chaos.points);
	act(&stage, scene);
	passages_read(stage.chaos.points, ret);
	check(&stage, scene);
	figures_read(stage.bystander, &now);
	cr_assert(eq(u64, now.epoch, before.epoch));
	tear_down(&stage, &before);
}

/* Returns false if the failpoint was not passed that often. */
static bool die_at(const struct scene *scene, const char *point, unsigned int n)
{
	struct figures before, now;
	struct stage stage;
	bool is_done;

	set_up(&stage, scene, &before);
	plan_death(stage.chaos.plan, point, n);
	act(&stage, scene);
	is_done = plan_is_done(stage.chaos.plan);
	plan_drop(stage.chaos.plan);
	cr_assert(is_done || scene->is_ragged);
	check(&stage, scene);
	figures_read(stage.bystander, &now);
	/* In a scene with `is_ragged` the broker may have died after the
	 * failures were checked. */
	cr_assert(ge(u64, now.epoch, before.epoch + (is_done ? 1 : 0)));
	cr_assert(le(u64, now.epoch, before.epoch + 1));
	tear_down(&stage, &before);
	return is_done;
}

/* Send the request while there is no broker. This needs no failpoints. */
static void die_before(const struct scene *scene)
{
	struct figures before;
	struct stage stage;

	set_up(&stage, scene, &before);
	daemon_kill_broker(&stage.chaos.daemon);
	act(&stage, scene);
	check(&stage, scene);
	tear_down(&stage, &before);
}

void play(const struct scene *scene)
{
	struct passages passages;
	unsigned int n_deaths = 0;

	die_before(scene);
	if (!chaos_has_points())
		return;
	learn(scene, &passages);
	for (size_t i = 0; i < passages.n; i++) {
		const struct passage *it = &passages.list[i];

		for (unsigned int n = 1; n <= it->n && n <= MAX_PASSAGES; n++) {
			fprintf(stderr, "killed at passage %u of %s\n", n,
				it->name);
			n_deaths += die_at(scene, it->name, n);
		}
	}
	cr_assert(ge(uint, n_deaths, 4));
}

/* --- a bundle for scenes ------------------------------------------------- */

const char *const MEMBERS[2] = {"scene/model/w", "scene/model/b"};

void begin(struct stage *stage)
{
	struct fsdp_bundle_options options = {.access = {FSDP_GID_DEFAULT, 0},
					      .flags = FSDP_REPLACE,
					      .device = memory_device()};

	must(fsdp_bundle_begin(stage->client, BUNDLE, &options,
			       &stage->bundle) == 0);
}

void fill(struct stage *stage)
{
	struct fsdp_spec specs[2] = {PAGE, PAGE};

	must(fsdp_bundle_alloc(stage->bundle, MEMBERS, specs, 2, stage->mine) ==
	     0);
}

void write_members(struct stage *stage, uint64_t version)
{
	for (int i = 0; i < 2; i++)
		pattern_fill(stage->mine[i], pattern_tag(MEMBERS[i], version));
}

void commit(struct stage *stage, uint64_t expected)
{
	uint64_t version = 0;

	must(fsdp_bundle_commit(stage->bundle, &version) == 0);
	must(version == expected);
}

void begin_and_fill(struct stage *stage)
{
	begin(stage);
	fill(stage);
	write_members(stage, 1);
}

void commit_first(struct stage *stage)
{
	commit(stage, 1);
}

void load_first(struct stage *stage)
{
	begin_and_fill(stage);
	commit_first(stage);
	for (int i = 0; i < 2; i++)
		fsdp_free(stage->mine[i]);
}
