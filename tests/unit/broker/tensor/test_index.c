/* Tests which names a client sees, and which waiters are woken. */
#include "tests/unit/broker/broker_fixture.h"

TestSuite(index, .init = broker_set_up, .timeout = 300);

Test(index, finds_published_names_and_no_others)
{
	struct slot_ref a = client_put(&alice, "x/a", 0);
	struct slot_ref b = client_put(&alice, "x/b", 0);

	cr_assert(eq(u32, index_find(&broker->store, "x/a"), a.slot));
	cr_assert(eq(u32, index_find(&broker->store, "x/b"), b.slot));
	cr_assert(zero(u32, index_find(&broker->store, "x")));
	cr_assert(zero(u32, index_find(&broker->store, "x/ab")));
	cr_assert(zero(int, client_remove(&alice, "x/a")));
	cr_assert(zero(u32, index_find(&broker->store, "x/a")));
	cr_assert(eq(u32, index_find(&broker->store, "x/b"), b.slot));
}

Test(index, a_taken_name_needs_replace)
{
	struct slot_ref ref;

	client_put(&alice, "a", 0);
	ref = client_alloc(&alice, 1);
	cr_assert(eq(int, client_publish(&alice, &ref, "a", 0, 0), -EEXIST));
	cr_assert(eq(int, client_publish(&alice, &ref, "a", PUBLISH_REPLACE, 0),
		     2));
	ref = client_alloc(&alice, 1);
	cr_assert(eq(int,
		     client_publish(&alice, &ref, "new",
				    PUBLISH_REPLACE | PUBLISH_MUST_EXIST, 0),
		     -ENOENT));
}

Test(index, a_tensor_without_permission_to_read_is_not_granted)
{
	struct alloc_item item = item_of(8);
	struct slot_ref ref;

	cr_assert(
		zero(int, client_alloc_item(&alice, &item, 0600, 0, 0, &ref)));
	client_publish(&alice, &ref, "secret", 0, 0);
	cr_assert(eq(int, client_get(&bob, "secret", &ref), -EACCES));
	cr_assert(zero(int, client_get(&alice, "secret", &ref)));
	cr_assert(eq(int, client_remove(&bob, "secret"), -EPERM));
	cr_assert(eq(int, client_remove(&bob, "none"), -ENOENT));
}

Test(index, another_user_is_trusted_only_if_named_or_owner_of_the_prefix)
{
	const char *name = "shared/b";
	struct request get = {.kind = MESSAGE_GET,
			      .get = {.n_names = 1,
				      .names = &name,
				      .is_trust_set = true,
				      .trusted_uid = 1000}};
	struct config_prefix prefix = {.name = "shared", .uid = 1001};
	struct slot_ref ref;

	client_put(&alice, "shared/b", 0);
	cr_assert(zero(int, client_get(&bob, "shared/b", &ref)),
		  "the owner of the prefix is trusted");
	broker->base.config.prefixes = &prefix;
	broker->base.config.n_prefixes = 1;
	cr_assert(eq(int, client_get(&bob, "shared/b", &ref), -EACCES));
	cr_assert(zero(int, client_ask(&bob, &get)));
	get.get.trusted_uid = 1001;
	cr_assert(eq(int, client_ask(&bob, &get), -EACCES));
}

Test(index, a_get_waits_for_a_name)
{
	const char *name = "later";
	struct request get = {
		.kind = MESSAGE_GET,
		.get = {.timeout_ms = -1, .n_names = 1, .names = &name}};
	struct slot_ref ref;
	struct reply reply;
	int code;

	client_send(&bob, &get, ++bob.number);
	cr_assert(not(client_recv(&bob, &reply, &code)));
	ref = client_put(&alice, "later", 0);
	while (!client_recv(&bob, &reply, &code))
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(zero(int, code));
	cr_assert(eq(u32, reply.places.places[0].ref.slot, ref.slot));
	reply_deinit(&reply);
	get.get.timeout_ms = 1;
	name = "never";
	cr_assert(eq(int, client_ask(&bob, &get), -ETIMEDOUT));
	cr_assert(zero(u32, bob.session->n_waiting));
}
