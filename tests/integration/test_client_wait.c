/*
 * Tests calls that wait for a name, for a newer version, or for room in a
 * budget.
 */
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include <errno.h>
#include <pthread.h>

CHECKED_SUITE(client_wait, client_setup, client_teardown, .timeout = 300);

Test(client_wait, a_thread_gets_a_tensor_published_by_another_on_its_connection)
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

Test(client_wait, a_get_of_a_name_that_is_not_published_times_out)
{
	struct fsdp_tensor *tensor = NULL;

	cr_assert(eq(int, get(client, "test/never", 20, &tensor), -ETIMEDOUT));
	cr_assert(eq(int, fsdp_ping(client), 0));
}

/* --- versions newer than one --------------------------------------------- */

Test(client_wait, a_wait_for_a_newer_version_ends_with_its_publication)
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

Test(client_wait, a_newer_version_that_exists_is_returned_at_once)
{
	uint64_t version = 0;

	for (int i = 0; i < 3; i++)
		put(client, "test/step", 1);
	cr_assert(zero(int, get_newer("test/step", 1, 0, &version)));
	cr_expect(eq(u64, version, 3), "the newest");
}

Test(client_wait, the_version_that_was_read_is_not_returned_again)
{
	uint64_t version = 0;

	put(client, "test/step", 1);
	cr_assert(zero(int, get_newer("test/step", 0, 0, &version)));
	cr_expect(eq(int, get_newer("test/step", 1, 0, &version), -ENOENT));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "there is no tensor \"test/step\" (newer than version 1) "
		     "yet; give a timeout to wait for it"));
	cr_expect(eq(int, get_newer("test/step", 1, 20, &version), -ETIMEDOUT));
}

/* Otherwise the caller would get another version than it asked for. */
Test(client_wait, only_a_bundle_can_be_gotten_at_a_given_version)
{
	const struct fsdp_get_options options = {.struct_size = sizeof(options),
						 .version = 2};
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_pending *pending;
	const char *name = "test/step";

	put(client, name, 1);
	cr_expect(eq(int, fsdp_get(client, &name, 1, &options, &tensor),
		     -EINVAL));
	cr_expect(eq(int, fsdp_get_begin(client, &name, 1, &options, &pending),
		     -EINVAL));
	cr_expect(eq(ptr, tensor, NULL));
}

Test(client_wait,
     a_reader_of_a_later_version_gets_an_error_if_the_name_restarts)
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

/* --- a full budget ------------------------------------------------------ */

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

Test(client_wait, a_full_budget_blocks_the_producer_until_a_release)
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

Test(client_wait, a_tensor_freed_before_its_publication_returns_its_memory)
{
	struct fsdp_client *small = connect_to(&daemon_, 1024);
	struct fsdp_tensor *tensor = make(small, &VECTOR, 1);

	fsdp_free(tensor);
	cr_assert(eq(int, memory_alloc(small, &VECTOR, 1, NULL, 60000, &tensor),
		     0),
		  "%s", fsdp_error());
	fsdp_close(small);
}
