/*
 * Tests how libfsdp makes, replaces and reads bundles.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include "tests/lib/impatient.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

CHECKED_SUITE(client_bundle, client_setup, client_teardown, .timeout = 300);

static const char *const MEMBERS[] = {"test/model/w", "test/model/b"};

static struct fsdp_bundle *stage(float value, struct fsdp_tensor **ret)
{
	struct fsdp_bundle_options options = {
		.access = {.gid = FSDP_GID_DEFAULT},
		.flags = FSDP_REPLACE,
		.device = memory_device()};
	struct fsdp_spec specs[2] = {VECTOR, VECTOR};
	struct fsdp_bundle *bundle = NULL;

	cr_assert(
		eq(int,
		   fsdp_bundle_begin(client, "test/model/", &options, &bundle),
		   0),
		"%s", fsdp_error());
	cr_assert(eq(int, fsdp_bundle_alloc(bundle, MEMBERS, specs, 2, ret), 0),
		  "%s", fsdp_error());
	for (int i = 0; i < 2; i++)
		memory_write(ret[i], 0, &value, sizeof(value));
	return bundle;
}

static void load(float value)
{
	struct fsdp_tensor *made[2];
	struct fsdp_bundle *bundle = stage(value, made);

	cr_assert(eq(int, fsdp_bundle_commit(bundle, NULL), 0), "%s",
		  fsdp_error());
	fsdp_free(made[0]);
	fsdp_free(made[1]);
}

Test(client_bundle, a_committed_bundle_keeps_its_address_and_is_read_only)
{
	struct fsdp_tensor *made[2];
	struct fsdp_bundle *bundle = stage(1, made);
	const void *before = fsdp_data(made[1]);
	uint64_t version = 0;

	cr_assert(eq(int, fsdp_bundle_commit(bundle, &version), 0), "%s",
		  fsdp_error());
	cr_assert(eq(u64, version, 1));
	cr_assert(eq(ptr, (void *)fsdp_data(made[1]), (void *)before));
	cr_assert(eq(flt, first_of(made[1]), 1));
	cr_assert(eq(ptr, fsdp_data_mut(made[1]), NULL));
}

/* --- once ----------------------------------------------------------------- */

static int begin_once(struct fsdp_client *by, int32_t timeout_ms,
		      struct fsdp_bundle **ret)
{
	const struct fsdp_bundle_options options = {.flags = FSDP_ONCE,
						    .device = memory_device(),
						    .timeout_ms = timeout_ms};

	return fsdp_bundle_begin(by, "test/once/", &options, ret);
}

static void commit_one(struct fsdp_bundle *bundle)
{
	const char *name = "test/once/w";
	struct fsdp_tensor *made;

	cr_assert(
		eq(int, fsdp_bundle_alloc(bundle, &name, &VECTOR, 1, &made), 0),
		"%s", fsdp_error());
	cr_assert(eq(int, fsdp_bundle_commit(bundle, NULL), 0), "%s",
		  fsdp_error());
	fsdp_free(made);
}

Test(client_bundle, one_client_at_a_time_stages_a_bundle_that_is_loaded_once)
{
	struct fsdp_client *other = connect_to(&daemon_, 0);
	struct fsdp_bundle *bundle, *second;

	cr_assert(eq(int, begin_once(client, 0, &bundle), 0));
	cr_expect(eq(int, begin_once(other, 0, &second), -EBUSY));
	cr_expect(eq(int, begin_once(other, 1, &second), -ETIMEDOUT));
	fsdp_bundle_abort(bundle);
	cr_assert(eq(int, begin_once(other, 0, &second), 0));
	commit_one(second);
	cr_expect(eq(int, begin_once(client, -1, &bundle), -EEXIST));
	cr_expect(eq(int, fsdp_close(other), 0));
}

static void *begin_late(void *data)
{
	struct fsdp_bundle **ret = data;

	if (begin_once(client, -1, ret) < 0)
		*ret = NULL;
	return NULL;
}

/* The session of a process that is killed ends in the same way. */
Test(client_bundle, the_next_loader_starts_when_the_first_has_disconnected)
{
	struct fsdp_client *other = connect_to(&daemon_, 0);
	struct fsdp_bundle *first, *second;
	pthread_t thread;

	cr_assert(eq(int, begin_once(other, 0, &first), 0));
	cr_assert(
		zero(int, pthread_create(&thread, NULL, begin_late, &second)));
	wait_until_parked(1);
	cr_expect(eq(int, fsdp_close(other), 0));
	pthread_join(thread, NULL);
	cr_assert(ne(ptr, second, NULL));
	commit_one(second);
}

static int check_gid(const struct fsdp_entry *entry, void *data)
{
	cr_expect(eq(u32, entry->gid, *(gid_t *)data));
	cr_expect(eq(u32, entry->mode, 0600));
	return 0;
}

/* The access is all zeros, as in options that do not set it. */
Test(client_bundle, access_of_all_zeros_is_for_the_caller_alone)
{
	struct fsdp_bundle_options options = {.device = memory_device()};
	gid_t group = getuid() == 0 ? 61001 : getegid();
	const char *name = "mine/x";
	struct fsdp_client *other;
	struct fsdp_bundle *bundle;
	struct fsdp_tensor *tensor;

	cr_assert(zero(int, setegid(group)));
	other = connect_to(&daemon_, 0);
	cr_assert(eq(int, fsdp_bundle_begin(other, "mine/", &options, &bundle),
		     0),
		  "%s", fsdp_error());
	cr_assert(zero(int,
		       fsdp_bundle_alloc(bundle, &name, &VECTOR, 1, &tensor)));
	cr_assert(zero(int, fsdp_bundle_commit(bundle, NULL)));
	cr_assert(zero(int, fsdp_list(other, "mine/", check_gid, &group)));
	fsdp_free(tensor);
	fsdp_close(other);
}

Test(client_bundle, a_reader_keeps_the_old_version_of_a_replaced_bundle)
{
	struct fsdp_tensor *old[2], *new[2], **all = NULL;
	size_t n = 0;

	load(1);
	cr_assert(eq(int, fsdp_get(client, MEMBERS, 2, NULL, old), 0), "%s",
		  fsdp_error());
	load(2);
	cr_assert(eq(int, fsdp_get(client, MEMBERS, 2, NULL, new), 0));
	cr_assert(eq(flt, first_of(old[0]), 1));
	cr_assert(eq(flt, first_of(old[1]), 1));
	cr_assert(eq(flt, first_of(new[0]), 2));
	cr_assert(eq(flt, first_of(new[1]), 2));
	cr_assert(eq(int,
		     fsdp_bundle_get(client, "test/model/", NULL, &all, &n), 0),
		  "%s", fsdp_error());
	cr_assert(eq(sz, n, 2));
	cr_assert(eq(flt, first_of(all[0]), 2));
	free(all);
}

Test(client_bundle, a_private_mapping_is_written_by_its_owner_alone)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_tensor *held[2];
	float *mine, *others;

	host_memory_only("copy on write");
	load(1);
	cr_assert(eq(int, fsdp_get(client, MEMBERS, 2, NULL, held), 0));
	cr_assert(eq(int, fsdp_tensor_info(held[1], &info), 0));
	cr_assert(eq(int, fsdp_private_map(held[1], (void **)&mine), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, fsdp_private_map(held[1], (void **)&others), 0));
	load(2);
	cr_assert(eq(flt, *mine, 1));
	*mine = 7;
	cr_assert(eq(flt, *mine, 7));
	cr_assert(eq(flt, *others, 1));
	cr_assert(eq(flt, first_of(held[1]), 1));
	fsdp_private_unmap(mine, info.size);
	fsdp_private_unmap(others, info.size);
	cr_assert(eq(int, fsdp_release(held[1]), 0));
	cr_assert(eq(int, fsdp_private_map(held[1], (void **)&mine), -EINVAL));
}

Test(client_bundle, memory_that_may_be_reused_cannot_be_mapped_privately)
{
	struct fsdp_tensor *made[2];
	struct fsdp_bundle *bundle;
	struct fsdp_tensor *plain;
	void *mine;

	plain = make(client, &VECTOR, 1);
	cr_assert(eq(int, fsdp_private_map(plain, &mine), -EOPNOTSUPP));
	cr_assert(ne(ptr, strstr(fsdp_error(), "copy it"), NULL), "%s",
		  fsdp_error());
	bundle = stage(1, made);
	cr_assert(eq(int, fsdp_private_map(made[0], &mine), -EOPNOTSUPP));
	fsdp_bundle_abort(bundle);
}

Test(client_bundle, an_aborted_bundle_is_never_visible)
{
	struct fsdp_tensor *made[2], *got = NULL;
	struct fsdp_bundle *bundle = stage(1, made);

	cr_assert(eq(int, get(client, MEMBERS[0], 0, &got), -ENOENT));
	fsdp_bundle_abort(bundle);
	cr_assert(eq(int, get(client, MEMBERS[0], 0, &got), -ENOENT));
	load(2);
}

static char stop_plan[64];

/* The first wait ends when the broker has stopped after its commit; the others
 * continue. */
static int give_up_once(void *data)
{
	static bool has_given_up;

	if (!plan_is_done(stop_plan))
		return 0;
	if (!has_given_up) {
		has_given_up = true;
		return 1;
	}
	kill(daemon_broker_pid(data), SIGCONT);
	return 0;
}

Test(client_bundle, members_stay_read_only_if_an_interrupted_commit_is_done)
{
	struct fsdp_connect_options options = {.interrupted = give_up_once};
	struct fsdp_client *before = client;
	struct fsdp_tensor *made[2];
	struct fsdp_bundle *bundle;
	struct chaos chaos;
	float value = 2;

	if (!chaos_has_points())
		cr_skip_test("points are not compiled in");
	snprintf(stop_plan, sizeof(stop_plan), "%s/plan", daemon_.dir);
	cr_assert(zero(int, setenv("FSDP_STOP_PLAN", stop_plan, 1)));
	plan_death(stop_plan, "verb.bundle_commit.committed", 1);
	chaos_start(&chaos, NULL);
	options.path = daemon_socket(&chaos.daemon);
	options.interrupted_data = &chaos.daemon;
	cr_assert(zero(int, fsdp_connect(&options, &client)));
	bundle = stage(1, made);
	cr_expect(eq(int, fsdp_bundle_commit(bundle, NULL), -EINTR));
	cr_expect(eq(ptr, fsdp_data_mut(made[0]), NULL));
	cr_expect(eq(int, fsdp_copy_in(made[0], 0, &value, sizeof(value)),
		     -EACCES));
	cr_expect(eq(flt, first_of(made[0]), 1));
	fsdp_bundle_abort(bundle);
	cr_expect(zero(int, get(client, MEMBERS[0], 0, &made[1])), "%s",
		  fsdp_error());
	fsdp_close(client);
	client = before;
	chaos_stop(&chaos);
}

/* Commit a bundle whose broker dies at that point. No other broker is started
 * while the supervisor is stopped. */
static struct fsdp_bundle *commit_in_doubt(struct chaos *chaos,
					   const char *point,
					   struct fsdp_tensor **ret)
{
	struct fsdp_bundle *bundle;

	chaos_start(chaos, NULL);
	client = connect_impatiently(daemon_socket(&chaos->daemon), 50);
	bundle = stage(1, ret);
	plan_death(chaos->plan, point, 1);
	must(kill(chaos->daemon.pid, SIGSTOP) == 0);
	cr_expect(eq(int, fsdp_bundle_commit(bundle, NULL), -ECONNREFUSED),
		  "%s", point);
	cr_expect(ne(ptr, strstr(fsdp_error(), "abort the bundle"), NULL),
		  "%s: %s", point, fsdp_error());
	cr_expect(eq(ptr, fsdp_data_mut(ret[0]), NULL), "%s", point);
	must(kill(chaos->daemon.pid, SIGCONT) == 0);
	while (fsdp_ping(client) < 0)
		nap_ms(1);
	return bundle;
}

static const struct {
	const char *point;
	int r; /* of a get after the abort */
} doubts[] = {{"verb.bundle_commit.done", -ENOENT},
	      {"verb.bundle_commit.committed", 0}};

Test(client_bundle, a_bundle_is_whole_or_gone_after_a_commit_without_a_reply)
{
	struct fsdp_client *before = client;

	if (!chaos_has_points())
		cr_skip_test("points are not compiled in");
	for (size_t i = 0; i < 2; i++) {
		struct fsdp_tensor *made[2], *got = NULL;
		struct chaos chaos;

		fsdp_bundle_abort(
			commit_in_doubt(&chaos, doubts[i].point, made));
		for (size_t j = 0; j < 2; j++)
			cr_expect(eq(int, get(client, MEMBERS[j], 0, &got),
				     doubts[i].r),
				  "%s: %s", doubts[i].point, fsdp_error());
		fsdp_close(client);
		chaos_stop(&chaos);
	}
	client = before;
}

static int get_bundle_newer(uint64_t version, int32_t timeout_ms,
			    uint64_t *ret_version)
{
	struct fsdp_get_options options = {.timeout_ms = timeout_ms,
					   .newer_than = version};
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_tensor **members;
	size_t n;
	int r = fsdp_bundle_get(client, "test/model/", &options, &members, &n);

	if (r < 0)
		return r;
	fsdp_tensor_info(members[0], &info);
	*ret_version = info.version;
	for (size_t i = 0; i < n; i++)
		fsdp_free(members[i]);
	free(members);
	return 0;
}

static void *read_newer_bundle(void *data)
{
	struct reading *it = data;

	it->r = get_bundle_newer(it->seen, 60000, &it->version);
	return NULL;
}

Test(client_bundle, a_wait_for_a_newer_bundle_ends_with_its_commit)
{
	struct reading whole = {NULL, 1, 1, 0};
	struct reading member = {MEMBERS[0], 1, 1, 0};
	pthread_t threads[2];
	uint64_t version;

	load(1);
	cr_expect(eq(int, get_bundle_newer(1, 0, &version), -ENOENT));
	cr_expect(eq(int, get_bundle_newer(2, 0, &version), -ESTALE));
	pthread_create(&threads[0], NULL, read_newer_bundle, &whole);
	pthread_create(&threads[1], NULL, read_newer, &member);
	wait_until_parked(2);
	load(2);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	cr_assert(zero(int, whole.r));
	cr_expect(eq(u64, whole.version, 2));
	cr_assert(zero(int, member.r));
	cr_expect(eq(u64, member.version, 2));
}

static int count_mapped_bundles(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int n = 0;

	cr_assert(ne(ptr, maps, NULL));
	while (fgets(line, sizeof(line), maps))
		n += strstr(line, "fsdp-bundle") != NULL;
	fclose(maps);
	return n;
}

Test(client_bundle, memory_of_a_removed_bundle_is_unmapped)
{
	const char *name = "test/model/";

	host_memory_only("mappings of files");
	load(1);
	cr_assert(eq(int, count_mapped_bundles(), 1));
	cr_assert(eq(int, fsdp_remove(client, &name, 1), 0), "%s",
		  fsdp_error());
	while (count_mapped_bundles() > 0)
		cr_assert(eq(int, fsdp_ping(client), 0));
}
