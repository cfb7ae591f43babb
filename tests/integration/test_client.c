/*
 * libfsdp against a real broker, in one process and two.
 */
#include "client/fsdp.h"
#include "tests/lib/daemon.h"
#include "tests/lib/memory.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct fsdp_spec VECTOR = {FSDP_F32, 1, {256}};

static struct fsdp_client *connect_to(const struct daemon *daemon,
				      uint64_t budget)
{
	struct fsdp_connect_options options = {.path = daemon_socket(daemon),
					       .budget = budget};
	struct fsdp_client *client = NULL;

	cr_assert(eq(int, fsdp_connect(&options, &client), 0), "%s",
		  fsdp_error());
	return client;
}

static struct fsdp_tensor *make(struct fsdp_client *client,
				const struct fsdp_spec *spec, float first)
{
	struct fsdp_tensor *tensor = NULL;

	cr_assert(eq(int, memory_alloc(client, spec, 1, NULL, 0, &tensor), 0),
		  "%s", fsdp_error());
	if (fsdp_data_mut(tensor))
		memory_write(tensor, 0, &first, sizeof(first));
	return tensor;
}

static int publish(struct fsdp_client *client, struct fsdp_tensor *tensor,
		   const char *name, uint32_t flags)
{
	struct fsdp_publication it = {
		.tensor = tensor, .name = name, .flags = flags};

	return fsdp_publish(client, &it, 1);
}

/* Make, publish under `name`, let go. */
static void put(struct fsdp_client *client, const char *name, float first)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, first);

	cr_assert(eq(int, publish(client, tensor, name, FSDP_REPLACE), 0), "%s",
		  fsdp_error());
	fsdp_free(tensor);
}

static int get(struct fsdp_client *client, const char *name, int32_t timeout_ms,
	       struct fsdp_tensor **ret)
{
	struct fsdp_get_options options = {.timeout_ms = timeout_ms};

	return fsdp_get(client, &name, 1, &options, ret);
}

static float first_of(const struct fsdp_tensor *tensor)
{
	float first;

	memory_read(&first, tensor, 0, sizeof(first));
	return first;
}

static int count_entry(const struct fsdp_entry *entry, void *data)
{
	(void)entry;
	++*(int *)data;
	return 0;
}

static int count_limbo(struct fsdp_client *client)
{
	int n = 0;

	cr_assert(eq(int, fsdp_limbo(client, count_entry, &n), 0), "%s",
		  fsdp_error());
	return n;
}

static struct daemon daemon_;
static struct fsdp_client *client;

static void setup(void)
{
	daemon_start(&daemon_);
	client = connect_to(&daemon_, 0);
}

static void setup_supervised(void)
{
	daemon_start_supervised(&daemon_);
	client = connect_to(&daemon_, 0);
}

static void teardown(void)
{
	fsdp_close(client);
	daemon_stop(&daemon_);
}

TestSuite(client, .init = setup, .fini = teardown, .timeout = 60);
TestSuite(reconnect, .init = setup_supervised, .fini = teardown, .timeout = 30);

Test(client, a_published_tensor_is_found_by_another_process_s_connection)
{
	struct fsdp_client *other = connect_to(&daemon_, 0);
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_info info = {.struct_size = sizeof(info)};

	put(client, "test/a", 1.5f);
	cr_assert(eq(int, get(other, "test/a", 0, &tensor), 0), "%s",
		  fsdp_error());
	cr_assert(eq(flt, first_of(tensor), 1.5f));
	cr_assert(eq(ptr, fsdp_data_mut(tensor), NULL));
	fsdp_tensor_info(tensor, &info);
	cr_assert(eq(str, (char *)info.name, "test/a"));
	cr_assert(eq(u64, info.version, 1));
	cr_assert(eq(u64, info.size, 1024));
	fsdp_close(other);
}

/* A later release's options, of which this library knows the beginning. */
struct later_options {
	struct fsdp_get_options known;
	uint64_t later;
};

Test(client, options_of_a_later_release_are_refused_only_if_they_are_used)
{
	struct later_options options = {
		.known = {.struct_size = sizeof(options)}};
	const char *name = "test/a";
	struct fsdp_tensor *tensor;

	put(client, name, 1.5f);
	cr_assert(zero(int,
		       fsdp_get(client, &name, 1,
				(struct fsdp_get_options *)&options, &tensor)));
	fsdp_free(tensor);
	options.later = 1;
	cr_assert(eq(int,
		     fsdp_get(client, &name, 1,
			      (struct fsdp_get_options *)&options, &tensor),
		     -E2BIG));
}

Test(client, publications_lie_as_far_apart_as_the_caller_has_them)
{
	struct {
		struct fsdp_publication known;
		uint64_t later;
	} items[2] = {
		{.known = {.struct_size = sizeof(*items), .name = "test/a"}},
		{.known = {.struct_size = sizeof(*items), .name = "test/b"}}};

	for (int i = 0; i < 2; i++)
		items[i].known.tensor = make(client, &VECTOR, 1);
	cr_assert(zero(int, fsdp_publish(client, &items[0].known, 2)), "%s",
		  fsdp_error());
	cr_expect(eq(u64, items[0].known.version, 1));
	cr_expect(eq(u64, items[1].known.version, 1));
}

Test(client, an_unknown_name_is_refused_with_a_sentence)
{
	struct fsdp_tensor *tensor = NULL;

	cr_assert(eq(int, get(client, "test/none", 0, &tensor), -ENOENT));
	cr_assert(ne(int, strlen(fsdp_error()), 0));
	cr_assert(eq(ptr, tensor, NULL));
}

Test(client, a_handle_is_held_as_often_as_it_says)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, 1);

	cr_assert(eq(int, publish(client, tensor, "test/a", 0), 0));
	cr_assert(eq(int, fsdp_hold(tensor), 0));
	cr_assert(eq(int, fsdp_release(tensor), 0));
	cr_assert(eq(int, fsdp_release(tensor), 0));
	cr_assert(eq(int, fsdp_release(tensor), -EINVAL));
	cr_assert(eq(int, fsdp_hold(tensor), -EINVAL));
	cr_assert(eq(int, fsdp_acquire(tensor), 0));
	cr_assert(eq(int, fsdp_release(tensor), 0));
}

Test(client, a_replaced_version_stays_readable_and_cannot_be_acquired)
{
	struct fsdp_tensor *old = NULL, *new = NULL;

	put(client, "test/a", 1);
	cr_assert(eq(int, get(client, "test/a", 0, &old), 0));
	put(client, "test/a", 2);
	cr_assert(eq(int, get(client, "test/a", 0, &new), 0));
	cr_assert(eq(flt, first_of(old), 1));
	cr_assert(eq(flt, first_of(new), 2));
	cr_assert(eq(int, count_limbo(client), 1));
	cr_assert(eq(int, fsdp_acquire(old), -ESTALE));
	cr_assert(eq(int, fsdp_release_sync(client, &old, 1), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, fsdp_acquire(old), -ESTALE));
	cr_assert(eq(int, count_limbo(client), 0));
}

Test(client, a_taken_name_is_refused_unless_it_is_replaced)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, 1);
	struct fsdp_publication it = {.tensor = tensor, .name = "test/a"};

	put(client, "test/a", 1);
	cr_assert(eq(int, fsdp_publish(client, &it, 1), -EEXIST));
	cr_assert(ne(ptr, fsdp_data_mut(tensor), NULL));
	it.flags = FSDP_REPLACE;
	cr_assert(eq(int, fsdp_publish(client, &it, 1), 0));
	cr_assert(eq(u64, it.version, 2));
	cr_assert(eq(ptr, fsdp_data_mut(tensor), NULL));
}

Test(client, scalars_and_empty_tensors_travel_like_others)
{
	struct fsdp_spec scalar = {FSDP_F32, 0, {0}};
	struct fsdp_spec empty = {FSDP_F32, 2, {3, 0}};
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_info info = {.struct_size = sizeof(info)};

	tensor = make(client, &scalar, 7);
	cr_assert(eq(int, publish(client, tensor, "test/scalar", 0), 0));
	tensor = make(client, &empty, 0);
	cr_assert(eq(ptr, (void *)fsdp_data(tensor), NULL));
	cr_assert(eq(int, publish(client, tensor, "test/empty", 0), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, get(client, "test/scalar", 0, &tensor), 0));
	cr_assert(eq(flt, first_of(tensor), 7));
	cr_assert(eq(int, get(client, "test/empty", 0, &tensor), 0));
	fsdp_tensor_info(tensor, &info);
	cr_assert(eq(u64, info.size, 0));
	cr_assert(eq(i64, info.shape[0], 3));
}

Test(client, a_bad_spec_is_refused_before_anything_is_made)
{
	struct fsdp_spec specs[2] = {VECTOR, {FSDP_F32, 1, {-1}}};
	struct fsdp_tensor *tensors[2] = {NULL, NULL};

	cr_assert(eq(int, memory_alloc(client, specs, 2, NULL, 0, tensors),
		     -EINVAL));
	cr_expect(strstr(fsdp_error(), "specs[1]") != NULL, "%s", fsdp_error());
	specs[1].n_dims = 9;
	cr_assert(eq(int, memory_alloc(client, specs, 2, NULL, 0, tensors),
		     -EINVAL));
	cr_assert(eq(int, memory_alloc(client, specs, 257, NULL, 0, tensors),
		     -E2BIG));
	cr_assert(eq(ptr, tensors[0], NULL));
}

Test(client, a_view_keeps_the_memory_after_its_base_is_gone)
{
	struct fsdp_tensor *base = make(client, &VECTOR, 1), *view = NULL;
	struct fsdp_spec spec = {FSDP_F32, 1, {4}};
	const float value = 42;
	int64_t stride = 2;

	memory_write(base, 48, &value, sizeof(value));
	cr_assert(eq(int, fsdp_view(base, &spec, &stride, 48, &view), 0), "%s",
		  fsdp_error());
	cr_assert(eq(ptr, (void *)fsdp_data(view),
		     (void *)((const char *)fsdp_data(base) + 48)));
	fsdp_free(base);
	cr_assert(eq(flt, first_of(view), 42));
	cr_assert(eq(int, publish(client, view, "test/view", 0), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, get(client, "test/view", 0, &base), 0));
	cr_assert(eq(flt, first_of(base), 42));
}

Test(client, a_view_that_reaches_outside_is_refused)
{
	struct fsdp_tensor *base = make(client, &VECTOR, 1), *view = NULL;

	cr_assert(eq(int, fsdp_view(base, &VECTOR, NULL, 4, &view), -ERANGE));
	cr_assert(eq(int, fsdp_release(base), 0));
	cr_assert(eq(int, fsdp_view(base, &VECTOR, NULL, 0, &view), -EINVAL));
}

Test(client, a_ticket_carries_an_unnamed_tensor_once)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, 5), *got = NULL;
	struct fsdp_client *other = connect_to(&daemon_, 0);
	struct fsdp_ticket ticket;

	cr_assert(eq(int, publish(client, tensor, NULL, 0), 0));
	cr_assert(eq(int, fsdp_ticket_make(tensor, 1, 10000, &ticket), 0), "%s",
		  fsdp_error());
	fsdp_free(tensor);
	cr_assert(eq(int, fsdp_ticket_redeem(other, &ticket, 1, &got), 0), "%s",
		  fsdp_error());
	cr_assert(eq(flt, first_of(got), 5));
	cr_assert(
		eq(int, fsdp_ticket_redeem(other, &ticket, 1, &got), -ENOENT));
	fsdp_close(other);
}

Test(client, a_name_that_was_removed_is_not_found_from_the_cache)
{
	const char *names[] = {"test/a", "test/b"};
	struct fsdp_tensor *tensors[2] = {NULL, NULL};

	put(client, "test/a", 1);
	put(client, "test/b", 2);
	for (int i = 0; i < 3; i++) {
		cr_assert(
			eq(int, fsdp_get(client, names, 2, NULL, tensors), 0));
		fsdp_free(tensors[0]);
		fsdp_free(tensors[1]);
	}
	cr_assert(eq(int, fsdp_remove(client, &names[1], 1), 0));
	cr_assert(eq(int, fsdp_get(client, names, 2, NULL, tensors), -ENOENT));
	cr_assert(eq(int, fsdp_get(client, names, 1, NULL, tensors), 0));
}

/* --- waiting ------------------------------------------------------------- */

struct waiting {
	struct fsdp_client *client;
	const char *name;
	float value;
	int r;
};

static void *wait_for_name(void *data)
{
	struct waiting *it = data;
	struct fsdp_tensor *tensor = NULL;

	it->r = get(it->client, it->name, -1, &tensor);
	if (it->r == 0)
		it->value = first_of(tensor);
	return NULL;
}

static int count_waiting(const struct fsdp_peer *peer, void *data)
{
	*(uint32_t *)data += peer->n_waiting;
	return 0;
}

static void wait_until_parked(uint32_t n)
{
	uint32_t n_waiting = 0;

	while (n_waiting != n) {
		n_waiting = 0;
		cr_assert(eq(int,
			     fsdp_clients(client, count_waiting, &n_waiting),
			     0));
	}
}

Test(client, one_thread_gets_what_another_publishes_on_the_same_connection)
{
	struct waiting waits[4];
	pthread_t threads[4];

	for (int i = 0; i < 4; i++) {
		waits[i] = (struct waiting){client, "test/late", 0, 1};
		pthread_create(&threads[i], NULL, wait_for_name, &waits[i]);
	}
	wait_until_parked(4);
	put(client, "test/late", 3);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		cr_assert(eq(int, waits[i].r, 0));
		cr_assert(eq(flt, waits[i].value, 3));
	}
}

Test(client, a_get_that_waits_in_vain_times_out)
{
	struct fsdp_tensor *tensor = NULL;

	cr_assert(eq(int, get(client, "test/never", 20, &tensor), -ETIMEDOUT));
	cr_assert(eq(int, fsdp_ping(client), 0));
}

/* --- versions newer than one --------------------------------------------- */

static int get_newer(const char *name, uint64_t version, int32_t timeout_ms,
		     uint64_t *ret_version)
{
	struct fsdp_get_options options = {.timeout_ms = timeout_ms,
					   .newer_than = version};
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_tensor *tensor;
	int r = fsdp_get(client, &name, 1, &options, &tensor);

	if (r < 0)
		return r;
	fsdp_tensor_info(tensor, &info);
	*ret_version = info.version;
	fsdp_free(tensor);
	return 0;
}

/* What a thread gets that has seen the versions up to `seen`. */
struct reading {
	const char *name;
	uint64_t seen;
	int r;
	uint64_t version;
};

static void *read_newer(void *data)
{
	struct reading *it = data;

	it->r = get_newer(it->name, it->seen, 60000, &it->version);
	return NULL;
}

Test(client, a_wait_for_a_newer_version_ends_with_its_publication)
{
	struct reading reading = {"test/step", 1, 1, 0};
	pthread_t thread;

	put(client, "test/step", 1);
	pthread_create(&thread, NULL, read_newer, &reading);
	wait_until_parked(1);
	put(client, "test/step", 2);
	pthread_join(thread, NULL);
	cr_assert(zero(int, reading.r));
	cr_expect(eq(u64, reading.version, 2));
}

Test(client, a_newer_version_that_is_there_is_given_at_once)
{
	uint64_t version = 0;

	for (int i = 0; i < 3; i++)
		put(client, "test/step", 1);
	cr_assert(zero(int, get_newer("test/step", 1, 0, &version)));
	cr_expect(eq(u64, version, 3), "the newest");
}

Test(client, the_version_that_was_had_is_not_given_again)
{
	uint64_t version = 0;

	put(client, "test/step", 1);
	cr_assert(zero(int, get_newer("test/step", 0, 0, &version)));
	cr_expect(eq(int, get_newer("test/step", 1, 0, &version), -ENOENT));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "there is no tensor \"test/step\" (newer than version 1) "
		     "(yet)"));
	cr_expect(eq(int, get_newer("test/step", 1, 20, &version), -ETIMEDOUT));
}

Test(client, a_name_that_begins_again_is_told_to_those_who_saw_more_of_it)
{
	struct reading reading = {"test/step", 2, 1, 0};
	const char *name = "test/step";
	pthread_t thread;

	put(client, name, 1);
	put(client, name, 2);
	pthread_create(&thread, NULL, read_newer, &reading);
	wait_until_parked(1);
	cr_assert(zero(int, fsdp_remove(client, &name, 1)));
	put(client, name, 1);
	pthread_join(thread, NULL);
	cr_expect(eq(int, reading.r, -ESTALE));
	cr_expect(eq(int, get_newer(name, 2, 0, &reading.version), -ESTALE));
	cr_expect(zero(int, get_newer(name, 0, 0, &reading.version)));
}

struct producer {
	struct fsdp_client *client;
	struct fsdp_tensor *tensor;
	int r;
};

static void *alloc_patiently(void *data)
{
	struct producer *it = data;

	it->r = memory_alloc(it->client, &VECTOR, 1, NULL, -1, &it->tensor);
	return NULL;
}

Test(client, a_full_budget_holds_the_producer_back_until_a_release)
{
	struct fsdp_client *small = connect_to(&daemon_, 1024);
	struct fsdp_tensor *first = make(small, &VECTOR, 1), *second = NULL;
	struct producer producer = {small, NULL, 1};
	pthread_t thread;

	cr_assert(eq(int, memory_alloc(small, &VECTOR, 1, NULL, 0, &second),
		     -EDQUOT));
	cr_assert(eq(int, publish(small, first, NULL, 0), 0));
	pthread_create(&thread, NULL, alloc_patiently, &producer);
	wait_until_parked(1);
	cr_assert(eq(int, fsdp_release(first), 0));
	pthread_join(thread, NULL);
	cr_assert(eq(int, producer.r, 0), "%s", fsdp_error());
	fsdp_close(small);
}

Test(client, what_is_freed_before_it_was_published_goes_back)
{
	struct fsdp_client *small = connect_to(&daemon_, 1024);
	struct fsdp_tensor *tensor = make(small, &VECTOR, 1);

	fsdp_free(tensor);
	cr_assert(eq(int, memory_alloc(small, &VECTOR, 1, NULL, 60000, &tensor),
		     0),
		  "%s", fsdp_error());
	fsdp_close(small);
}

/* --- bundles ------------------------------------------------------------- */

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

Test(client, a_committed_bundle_lies_where_it_was_and_cannot_be_written)
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

static int check_gid(const struct fsdp_entry *entry, void *data)
{
	cr_expect(eq(u32, entry->gid, *(gid_t *)data));
	cr_expect(eq(u32, entry->mode, 0600));
	return 0;
}

/* Options in which nobody thought of access. */
Test(client, access_that_is_all_0_is_for_the_caller_alone)
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

Test(client, a_reader_keeps_the_old_version_of_a_replaced_bundle)
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

Test(client, an_aborted_bundle_was_never_seen)
{
	struct fsdp_tensor *made[2], *got = NULL;
	struct fsdp_bundle *bundle = stage(1, made);

	cr_assert(eq(int, get(client, MEMBERS[0], 0, &got), -ENOENT));
	fsdp_bundle_abort(bundle);
	cr_assert(eq(int, get(client, MEMBERS[0], 0, &got), -ENOENT));
	load(2);
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

Test(client, a_wait_for_a_newer_bundle_ends_with_its_commit)
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

Test(client, memory_that_is_gone_is_unmapped)
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

/* --- fork ---------------------------------------------------------------- */

static int child_status(int status)
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* In the child: 0 if all is as it should be, else the step that failed. */
static int use_in_child(struct fsdp_tensor *inherited)
{
	struct fsdp_client *mine = NULL;
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_)};

	if (fsdp_ping(client) != -ECHILD || fsdp_release(inherited) != -ECHILD)
		return 1;
	if (first_of(inherited) != 9)
		return 2;
	if (fsdp_connect(&options, &mine) < 0)
		return 3;
	if (get(mine, "test/a", 0, &tensor) < 0 || first_of(tensor) != 9)
		return 4;
	fsdp_close(client);
	if (first_of(tensor) != 9)
		return 5;
	fsdp_close(mine);
	return 0;
}

Test(client, a_forked_child_reads_on_and_connects_itself)
{
	struct fsdp_client *reader = client;
	struct fsdp_client *maker = connect_to(&daemon_, 0);
	struct fsdp_tensor *tensor = NULL;
	int status = -1;
	pid_t pid;

	host_memory_only("a driver does not survive a fork");
	put(maker, "test/a", 9);
	cr_assert(eq(int, get(reader, "test/a", 0, &tensor), 0));
	pid = fork();
	if (pid == 0)
		_exit(use_in_child(tensor));
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_assert(eq(int, child_status(status), 0));
	cr_assert(eq(int, fsdp_release(tensor), 0));
	fsdp_close(maker);
}

/* --- many threads -------------------------------------------------------- */

struct worker {
	int index, n_failed;
};

static void *work(void *data)
{
	struct worker *it = data;
	char name[32];

	snprintf(name, sizeof(name), "test/worker%d", it->index);
	for (int i = 0; i < 50; i++) {
		struct fsdp_tensor *made = NULL, *got = NULL;

		if (memory_alloc(client, &VECTOR, 1, NULL, 0, &made) < 0 ||
		    publish(client, made, name, FSDP_REPLACE) < 0 ||
		    get(client, name, 0, &got) < 0)
			it->n_failed++;
		fsdp_free(made);
		fsdp_free(got);
	}
	return NULL;
}

Test(client, more_threads_than_the_broker_remembers_answers_share_a_connection)
{
	struct worker workers[80] = {{0}};
	pthread_t threads[80];

	for (int i = 0; i < 80; i++) {
		workers[i].index = i;
		pthread_create(&threads[i], NULL, work, &workers[i]);
	}
	for (int i = 0; i < 80; i++) {
		pthread_join(threads[i], NULL);
		cr_assert(eq(int, workers[i].n_failed, 0));
	}
	cr_assert(eq(int, count_limbo(client), 0));
}

/* --- a broker that dies -------------------------------------------------- */

Test(reconnect, holds_names_and_a_waiting_get_survive_the_broker)
{
	struct waiting waiting = {client, "test/late", 0, 1};
	struct fsdp_tensor *held = NULL, *again = NULL;
	pthread_t thread;

	put(client, "test/a", 1);
	cr_assert(eq(int, get(client, "test/a", 0, &held), 0));
	pthread_create(&thread, NULL, wait_for_name, &waiting);
	wait_until_parked(1);
	daemon_kill_broker(&daemon_);
	cr_assert(eq(flt, first_of(held), 1));
	cr_assert(eq(int, fsdp_release(held), 0));
	cr_assert(eq(int, fsdp_acquire(held), 0));
	put(client, "test/a", 2);
	cr_assert(eq(int, count_limbo(client), 1));
	cr_assert(eq(flt, first_of(held), 1));
	cr_assert(eq(int, get(client, "test/a", 0, &again), 0));
	cr_assert(eq(flt, first_of(again), 2));
	put(client, "test/late", 3);
	pthread_join(thread, NULL);
	cr_assert(eq(int, waiting.r, 0));
	cr_assert(eq(flt, waiting.value, 3));
	cr_assert(eq(int, fsdp_release_sync(client, &held, 1), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, count_limbo(client), 0));
}

Test(reconnect, calls_go_through_while_the_broker_is_killed_again_and_again)
{
	for (int i = 0; i < 4; i++) {
		struct fsdp_tensor *tensor = NULL;

		daemon_kill_broker(&daemon_);
		put(client, "test/a", (float)i);
		cr_assert(eq(int, get(client, "test/a", 0, &tensor), 0), "%s",
			  fsdp_error());
		cr_assert(eq(flt, first_of(tensor), (float)i));
		fsdp_free(tensor);
	}
	cr_assert(eq(int, count_limbo(client), 0));
}

Test(reconnect, without_a_broker_calls_fail_in_time_and_releases_do_not)
{
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_),
					       .reconnect_ms = 50};
	struct fsdp_client *impatient = NULL;
	struct fsdp_tensor *tensor = NULL;

	cr_assert(eq(int, fsdp_connect(&options, &impatient), 0));
	put(impatient, "test/a", 4);
	cr_assert(eq(int, get(impatient, "test/a", 0, &tensor), 0));
	fsdp_close(client);
	client = NULL;
	daemon_stop(&daemon_);
	cr_assert(lt(int, fsdp_ping(impatient), 0));
	cr_assert(eq(flt, first_of(tensor), 4));
	cr_assert(eq(int, fsdp_release(tensor), 0));
	fsdp_close(impatient);
	daemon_start(&daemon_);
}

/* Whoever has forgotten us must not be told that we hold things: the memory
 * stays readable, and every call says what happened. */
Test(client, a_broker_without_its_memory_ends_the_connection_for_good)
{
	char path[96];
	struct fsdp_connect_options options = {.path = path};
	struct fsdp_client *lost = NULL;
	struct fsdp_tensor *tensor = NULL;
	struct daemon first;

	daemon_start(&first);
	snprintf(path, sizeof(path), "%s/link", daemon_.dir);
	cr_assert(eq(int, symlink(daemon_socket(&first), path), 0));
	cr_assert(eq(int, fsdp_connect(&options, &lost), 0));
	put(lost, "test/a", 6);
	cr_assert(eq(int, get(lost, "test/a", 0, &tensor), 0));
	daemon_stop(&first);
	cr_assert(eq(int, unlink(path), 0));
	cr_assert(eq(int, symlink(daemon_socket(&daemon_), path), 0));
	cr_assert(eq(int, fsdp_ping(lost), -ESTALE));
	cr_assert(eq(int, fsdp_ping(lost), -ESTALE));
	cr_assert(ne(int, strlen(fsdp_error()), 0));
	cr_assert(eq(flt, first_of(tensor), 6));
	fsdp_close(lost);
	cr_assert(eq(int, unlink(path), 0));
}

/* --- what is known here -------------------------------------------------- */

static int get_known(const char *name, struct fsdp_tensor **ret)
{
	struct fsdp_get_options options = {.known_only = true};

	return fsdp_get(client, &name, 1, &options, ret);
}

static int note_requests(const struct fsdp_peer *peer, void *data)
{
	*(uint64_t *)data = peer->n_requests;
	return 0;
}

/* Of the only session: this test's. The question counts, too. */
static uint64_t count_requests(void)
{
	uint64_t n = 0;

	cr_assert(zero(int, fsdp_clients(client, note_requests, &n)));
	return n;
}

Test(client, a_look_at_what_is_known_asks_nobody)
{
	struct fsdp_tensor *tensor;
	uint64_t n;

	put(client, "test/a", 1);
	n = count_requests();
	cr_expect(eq(int, get_known("test/a", &tensor), -EAGAIN));
	cr_expect(eq(u64, count_requests(), n + 1));
	cr_assert(zero(int, get(client, "test/a", 0, &tensor)));
	fsdp_free(tensor);
	n = count_requests();
	cr_assert(zero(int, get_known("test/a", &tensor)));
	cr_expect(eq(flt, first_of(tensor), 1));
	fsdp_free(tensor);
	cr_expect(eq(u64, count_requests(), n + 1));
	put(client, "test/a", 2);
	cr_expect(eq(int, get_known("test/a", &tensor), -EAGAIN), "replaced");
}

/* --- handles that are none ----------------------------------------------- */

Test(client, a_null_client_is_refused_by_everything)
{
	struct fsdp_get_options patient = {.timeout_ms = -1};
	struct fsdp_tensor *tensor, **tensors;
	struct fsdp_bundle *bundle;
	const char *name = "test/a";
	uint64_t n_slots;
	size_t n;

	cr_expect(eq(int, fsdp_ping(NULL), -EINVAL));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "there is no connection: the client is NULL; "
		     "fsdp_connect() makes one"));
	cr_expect(eq(int, fsdp_alloc(NULL, &VECTOR, 1, NULL, 0, &tensor),
		     -EINVAL));
	cr_expect(eq(int, fsdp_publish(NULL, NULL, 1), -EINVAL));
	cr_expect(
		eq(int, fsdp_get(NULL, &name, 1, &patient, &tensor), -EINVAL));
	cr_expect(eq(int, fsdp_remove(NULL, &name, 1), -EINVAL));
	cr_expect(
		eq(int, fsdp_bundle_begin(NULL, "m/", NULL, &bundle), -EINVAL));
	cr_expect(eq(int, fsdp_bundle_get(NULL, "m/", NULL, &tensors, &n),
		     -EINVAL));
	cr_expect(
		eq(int, fsdp_clients(NULL, count_waiting, &n_slots), -EINVAL));
	cr_expect(zero(int, fsdp_close(NULL)));
}

Test(client, a_null_tensor_or_bundle_is_refused_by_everything)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_publication it = {.name = "test/a"};
	struct fsdp_tensor *none = NULL, *ret;
	struct fsdp_ticket ticket;
	const char *name = "m/a";

	cr_expect(eq(int, fsdp_acquire(NULL), -EINVAL));
	cr_expect(eq(int, fsdp_hold(NULL), -EINVAL));
	cr_expect(eq(int, fsdp_release(NULL), -EINVAL));
	cr_expect(eq(int, fsdp_release_on(NULL, NULL), -EINVAL));
	cr_expect(eq(int, fsdp_release_sync(client, &none, 1), -EINVAL));
	cr_expect(zero(ptr, (void *)fsdp_data(NULL)));
	cr_expect(zero(ptr, fsdp_data_mut(NULL)));
	cr_expect(eq(int, fsdp_tensor_info(NULL, &info), -EINVAL));
	cr_expect(eq(int, fsdp_tensor_wait(NULL, NULL, 0), -EINVAL));
	cr_expect(eq(int, fsdp_tensor_check(NULL), -EINVAL));
	cr_expect(eq(int, fsdp_view(NULL, &VECTOR, NULL, 0, &ret), -EINVAL));
	cr_expect(eq(int, fsdp_copy_in(NULL, 0, &info, 1), -EINVAL));
	cr_expect(eq(int, fsdp_copy_out(&info, NULL, 0, 1), -EINVAL));
	cr_expect(eq(int, fsdp_ticket_make(NULL, 1, 1000, &ticket), -EINVAL));
	cr_expect(eq(int, fsdp_unshare(NULL, 0), -EINVAL));
	cr_expect(eq(int, fsdp_bundle_commit(NULL, NULL), -EINVAL));
	cr_expect(eq(int, fsdp_bundle_alloc(NULL, &name, &VECTOR, 1, &ret),
		     -EINVAL));
	cr_expect(eq(int, fsdp_publish(client, &it, 1), -EINVAL));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "publications[0].tensor: there is no tensor: the handle "
		     "is NULL"));
}

Test(client, a_released_handle_has_no_address)
{
	struct fsdp_tensor *tensor;

	put(client, "test/a", 1);
	cr_assert(zero(int, get(client, "test/a", 0, &tensor)));
	cr_assert(zero(int, fsdp_release(tensor)));
	cr_expect(zero(ptr, (void *)fsdp_data(tensor)));
	cr_assert(zero(int, fsdp_acquire(tensor)));
	cr_expect(eq(flt, first_of(tensor), 1));
	fsdp_free(tensor);
}

Test(client, a_freed_handle_is_refused)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_publication it = {.name = "test/b"};
	struct fsdp_tensor *freed, *tensors[2];
	struct fsdp_ticket ticket;

	put(client, "test/a", 1);
	cr_assert(zero(int, get(client, "test/a", 0, &freed)));
	fsdp_free(freed);
	cr_expect(eq(int, fsdp_acquire(freed), -EINVAL));
	cr_expect(eq(int, fsdp_hold(freed), -EINVAL));
	cr_expect(eq(int, fsdp_release(freed), -EINVAL));
	cr_expect(zero(ptr, (void *)fsdp_data(freed)));
	cr_expect(eq(int, fsdp_tensor_info(freed, &info), -EINVAL));
	cr_expect(eq(int, fsdp_ticket_make(freed, 1, 1000, &ticket), -EINVAL));
	it.tensor = freed;
	cr_expect(eq(int, fsdp_publish(client, &it, 1), -EINVAL));
	/* Were it in the list twice, two tensors would be one handle. */
	fsdp_free(freed);
	for (int i = 0; i < 2; i++)
		cr_assert(zero(int, get(client, "test/a", 0, &tensors[i])));
	cr_expect(ne(ptr, tensors[0], tensors[1]));
	cr_expect(zero(int, count_limbo(client)));
}

Test(client, a_wrong_spec_is_named_with_its_field)
{
	struct fsdp_spec specs[2] = {VECTOR, VECTOR};
	struct fsdp_tensor *ret[2];

	specs[1].dtype = 99;
	cr_expect(eq(int, fsdp_alloc(client, specs, 2, NULL, 0, ret), -EINVAL));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "specs[1].dtype is 99, which is not in enum fsdp_dtype"));
	specs[1] = VECTOR;
	specs[1].shape[0] = -1;
	cr_expect(eq(int, fsdp_alloc(client, specs, 2, NULL, 0, ret), -EINVAL));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "specs[1].shape[0] is -1; sizes are 0 or more"));
}

/* --- kill -9 in the middle of a request ---------------------------------- */

static int sum_slots(const struct fsdp_peer *peer, void *data)
{
	*(uint64_t *)data += peer->n_slots;
	return 0;
}

static void use_everything(void)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, 1), *got = NULL;
	struct fsdp_ticket ticket;
	const char *name = "test/a";

	cr_assert(eq(int, publish(client, tensor, name, 0), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, fsdp_ticket_make(tensor, 1, 10000, &ticket), 0));
	fsdp_free(tensor);
	cr_assert(eq(int, get(client, name, 0, &got), 0), "%s", fsdp_error());
	cr_assert(eq(int, fsdp_release_sync(client, &got, 1), 0), "%s",
		  fsdp_error());
	fsdp_free(got);
	cr_assert(eq(int, fsdp_ticket_redeem(client, &ticket, 1, &got), 0),
		  "%s", fsdp_error());
	cr_assert(eq(int, fsdp_remove(client, &name, 1), 0), "%s",
		  fsdp_error());
	cr_assert(eq(flt, first_of(got), 1));
	cr_assert(eq(int, fsdp_release_sync(client, &got, 1), 0), "%s",
		  fsdp_error());
	fsdp_free(got);
}

static void check_one_kill(const char *point)
{
	char at[64], token[64], token_variable[96];
	const char *env[] = {at, token_variable, NULL};
	struct daemon_options options = {.is_supervised = true, .env = env};
	uint64_t n_slots = 0;
	struct daemon victim;
	bool was_killed;
	int fd;

	snprintf(token, sizeof(token), "%s/token", daemon_.dir);
	snprintf(at, sizeof(at), "FSDP_KILL_AT=%s", point);
	snprintf(token_variable, sizeof(token_variable), "FSDP_KILL_TOKEN=%s",
		 token);
	fd = open(token, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	cr_assert(ge(int, fd, 0));
	close(fd);
	daemon_start_with(&victim, &options);
	client = connect_to(&victim, 0);
	use_everything();
	cr_assert(eq(int, fsdp_clients(client, sum_slots, &n_slots), 0));
	fsdp_close(client);
	client = NULL;
	daemon_stop(&victim);
	was_killed = unlink(token) < 0;
	if (!was_killed)
		cr_skip_test("built without FSDP_TEST_POINTS");
	cr_assert(eq(u64, n_slots, 0), "held after a kill at %s", point);
}

Test(client, a_broker_killed_within_a_request_neither_loses_nor_doubles_a_hold)
{
	static const char *const verbs[] = {"alloc",   "publish", "get",
					    "release", "remove",  "ticket",
					    "redeem"};
	char point[64];

	fsdp_close(client);
	client = NULL;
	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++) {
		snprintf(point, sizeof(point), "verb.%s.done", verbs[i]);
		check_one_kill(point);
		snprintf(point, sizeof(point), "verb.%s.committed", verbs[i]);
		check_one_kill(point);
	}
}
