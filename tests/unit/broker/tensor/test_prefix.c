/*
 * Tests the owners of prefixes, what counts as use of them, and when they are
 * free again.
 */
#include "tests/unit/broker/broker_fixture.h"

TestSuite(prefix, .init = broker_set_up, .timeout = 300);

Test(prefix, the_first_component_belongs_to_its_first_user)
{
	struct slot_ref ref = client_alloc(&bob, 1);
	struct client root;
	uint32_t owner;

	client_put(&alice, "mine/a", 0);
	cr_assert(prefix_owner(&broker->store, "mine/else", &owner));
	cr_assert(eq(u32, owner, 1000));
	cr_assert(eq(int, client_publish(&bob, &ref, "mine/b", 0, 0), -EPERM));
	cr_assert(eq(int, client_publish(&bob, &ref, "yours", 0, 0), 1));
	client_open(&root, broker, 0, 0);
	ref = client_alloc(&root, 1);
	cr_assert(eq(int, client_publish(&root, &ref, "mine/b", 0, 0), 1));
	ref = client_alloc(&alice, 1);
	cr_assert(
		eq(int, client_publish(&alice, &ref, "mine/b", 0, 0), -EEXIST));
	cr_assert(
		ne(ptr, strstr(alice.sentence, "belongs to uid 0; use"), NULL));
	cr_assert(eq(u64, used(broker, 1000, ACCOUNT_PREFIXES), 1));
}

Test(prefix, a_configured_owner_counts_from_the_start)
{
	struct config_prefix prefix = {.name = "models", .uid = 1001};
	struct slot_ref ref = client_alloc(&alice, 1);

	broker->base.config.prefixes = &prefix;
	broker->base.config.n_prefixes = 1;
	cr_assert(eq(int, client_publish(&alice, &ref, "models/a", 0, 0),
		     -EPERM));
	client_put(&bob, "models/a", 0);
	cr_assert(zero(u64, used(broker, 1001, ACCOUNT_PREFIXES)));
}

Test(prefix, too_many_first_components_are_refused)
{
	struct slot_ref ref = client_alloc(&alice, 1);

	broker->base.config.quota_prefixes = 1;
	client_put(&alice, "one/a", 0);
	client_put(&alice, "one/b", 0);
	cr_assert(eq(int, client_publish(&alice, &ref, "two", 0, 0), -EDQUOT));
}

Test(prefix, owners_are_charged_again_after_a_restart)
{
	struct error err = ERROR_NULL;

	client_put(&alice, "a", 0);
	client_put(&alice, "b", 0);
	accounts_deinit(&broker->base.accounts);
	accounts_init(&broker->base.accounts, &broker->base.config);
	must(prefix_adopt_all(&broker->store, &err), &err);
	cr_assert(eq(u64, used(broker, 1000, ACCOUNT_PREFIXES), 2));
}

/* Returns the fields of the record, which are all 0 if there is none. */
static struct prefix_record record_of(const char *name)
{
	uint32_t prefix = prefix_find(&broker->store, name, strlen(name));

	if (!prefix)
		return (struct prefix_record){0};
	return *catalog_prefix(&broker->store.catalog, prefix);
}

static void expect_counts(const char *name, uint32_t n_names,
			  uint32_t n_bundles)
{
	struct prefix_record record = record_of(name);

	cr_expect(eq(u32, record.n_names, n_names), "%s", name);
	cr_expect(eq(u32, record.n_bundles, n_bundles), "%s", name);
}

static void put_bundle(struct client *client, const char *name,
		       const char *member)
{
	const struct request begin = {
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = name,
				 .access = {.gid = GID_DEFAULT, .mode = 0644},
				 .flags = PUBLISH_REPLACE},
	};
	struct alloc_item item = item_of(100);
	struct request commit = {.kind = MESSAGE_BUNDLE_COMMIT};
	struct slot_ref ref;
	struct reply reply;

	cr_assert(zero(int, client_call(client, &begin, &reply)), "%s",
		  client->sentence);
	commit.bundle_commit.bundle = reply.bundle.bundle;
	reply_deinit(&reply);
	item.name = member;
	cr_assert(zero(int,
		       client_alloc_item(client, &item, 0644,
					 commit.bundle_commit.bundle, 0, &ref)),
		  "%s", client->sentence);
	cr_assert(zero(int, client_ask(client, &commit)), "%s",
		  client->sentence);
	cr_assert(zero(int, client_release_n(client, &ref, 1)));
}

Test(prefix, published_names_and_bundles_are_counted)
{
	client_put(&alice, "m/a", 0);
	client_put(&alice, "m/b", 0);
	client_put(&alice, "m/b", PUBLISH_REPLACE);
	expect_counts("m", 2, 0);
	put_bundle(&alice, "m/x/", "m/x/w");
	put_bundle(&alice, "m/x/", "m/x/w");
	put_bundle(&alice, "m/y/", "m/y/w");
	expect_counts("m", 2, 2);
	cr_assert(zero(int, client_remove(&alice, "m/a")));
	cr_assert(zero(int, client_remove(&alice, "m/x/")));
	expect_counts("m", 1, 1);
}

/* Use prefixes until no more are available, even for root. */
Test(prefix, is_free_again_after_its_last_name)
{
	struct client root;
	char name[32];

	broker->base.config.prefix_grace_ms = 0;
	broker->base.config.quota_prefixes = 4;
	client_open(&root, broker, 0, 0);
	for (int i = 0; i < 20; i++) {
		snprintf(name, sizeof(name), "run-%d/a", i);
		client_put(i % 2 ? &root : &alice, name, 0);
		cr_assert(
			zero(int, client_remove(i % 2 ? &root : &alice, name)));
		while (catalog_n_live(&broker->store.catalog, SECTION_PREFIX))
			uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	}
	cr_assert(zero(u64, used(broker, 1000, ACCOUNT_PREFIXES)));
	cr_assert(zero(u64, used(broker, 0, ACCOUNT_PREFIXES)));
	client_put(&alice, "mine/a", 0);
	cr_assert(zero(int, client_remove(&alice, "mine/a")));
	while (catalog_n_live(&broker->store.catalog, SECTION_PREFIX))
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	client_put(&bob, "mine/a", 0);
	cr_assert(eq(u32, record_of("mine").uid, 1001));
}

Test(prefix, keeps_its_owner_between_two_versions_of_a_name)
{
	struct slot_ref ref = client_alloc(&bob, 1);

	client_put(&alice, "mine/a", 0);
	cr_assert(zero(int, client_remove(&alice, "mine/a")));
	for (int i = 0; i < 10; i++)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(eq(int, client_publish(&bob, &ref, "mine/b", 0, 0), -EPERM));
	client_put(&alice, "mine/a", 0);
	cr_assert(eq(u32, broker->store.catalog.header->idle_prefixes.n, 0));
	cr_assert(eq(u64, used(broker, 1000, ACCOUNT_PREFIXES), 1));
}

Test(prefix, ends_in_the_order_in_which_they_became_unused)
{
	const struct list *idle = &broker->store.catalog.header->idle_prefixes;
	struct prefix_record *record;

	client_put(&alice, "a/1", 0);
	client_put(&alice, "b/1", 0);
	cr_assert(zero(int, client_remove(&alice, "b/1")));
	cr_assert(zero(int, client_remove(&alice, "a/1")));
	cr_assert(eq(u32, idle->first, prefix_find(&broker->store, "b", 1)));
	cr_assert(eq(u32, idle->last, prefix_find(&broker->store, "a", 1)));
	record = catalog_prefix(&broker->store.catalog, idle->first);
	record->idle_ms -= broker->base.config.prefix_grace_ms;
	/* Act as if that time had passed; the deadline belonged to this
	 * prefix. */
	broker->base.deadlines.heap[broker->store.prefix_position].at_ms = 0;
	cr_assert(
		zero(int, uv_timer_start(&broker->base.deadlines.timer,
					 broker->base.deadlines.timer.timer_cb,
					 0, 0)));
	while (idle->n > 1)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(eq(u32, prefix_find(&broker->store, "b", 1), 0));
	cr_assert(ne(u32, prefix_find(&broker->store, "a", 1), 0));
	cr_assert(ne(u32, broker->store.prefix_position, 0),
		  "the next is planned");
}

Test(prefix, the_error_for_too_many_prefixes_names_a_remedy)
{
	struct slot_ref ref = client_alloc(&alice, 1);

	broker->base.config.quota_prefixes = 1;
	client_put(&alice, "one/a", 0);
	cr_assert(eq(int, client_publish(&alice, &ref, "two", 0, 0), -EDQUOT));
	cr_assert(ne(ptr, strstr(alice.sentence, "fsdpctl prefixes"), NULL),
		  "%s", alice.sentence);
	cr_assert(ne(ptr, strstr(alice.sentence, "\"two\""), NULL), "%s",
		  alice.sentence);
}

/* Publish two tensors with two new first components. Returns the code. */
static int publish_two(void)
{
	struct publish_item items[2] = {
		{.ref = client_alloc(&alice, 1), .name = "two"},
		{.ref = client_alloc(&alice, 1), .name = "three"},
	};

	return client_ask(&alice, &(struct request){.kind = MESSAGE_PUBLISH,
						    .publish = {2, items}});
}

Test(prefix, the_error_for_a_batch_with_too_many_prefixes_names_a_remedy)
{
	broker->base.config.quota_prefixes = 1;
	cr_assert(eq(int, publish_two(), -EDQUOT));
	cr_assert(ne(ptr, strstr(alice.sentence, "fsdpctl prefixes"), NULL),
		  "%s", alice.sentence);
}

Test(prefix, a_full_catalog_is_not_reported_as_a_quota)
{
	struct catalog *catalog = &broker->store.catalog;
	uint32_t n = catalog_capacity(SECTION_PREFIX);

	while (catalog_n_live(catalog, SECTION_PREFIX) < n - 1)
		cr_assert(ne(u32, catalog_alloc(catalog, SECTION_PREFIX), 0));
	catalog_commit(catalog);
	cr_assert(eq(int, publish_two(), -ENOSPC), "%s", alice.sentence);
	cr_assert(
		ne(ptr, strstr(alice.sentence, "no room for the owner"), NULL),
		"%s", alice.sentence);
	cr_assert(zero(u64, used(broker, 1000, ACCOUNT_PREFIXES)));
}

/* Configured prefixes are counted, but charged to no user, and are never
 * lost. */
Test(prefix, that_is_configured_keeps_its_owner)
{
	struct config_prefix prefix = {.name = "models", .uid = 1001};
	struct slot_ref ref = client_alloc(&alice, 1);

	broker->base.config.prefixes = &prefix;
	broker->base.config.n_prefixes = 1;
	broker->base.config.prefix_grace_ms = 0;
	client_put(&bob, "models/a", 0);
	expect_counts("models", 1, 0);
	cr_assert(zero(int, client_remove(&bob, "models/a")));
	while (prefix_find(&broker->store, "models", 6))
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(zero(u64, used(broker, 1001, ACCOUNT_PREFIXES)));
	cr_assert(eq(int, client_publish(&alice, &ref, "models/a", 0, 0),
		     -EPERM));
}

/* The bytes after a name in the catalog belong to another, longer name. */
Test(prefix, a_name_without_a_slash_is_its_own_prefix)
{
	char name[16];

	broker->base.config.prefix_grace_ms = 0;
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "longer-name-%d", i);
		client_put(&alice, name, 0);
		cr_assert(zero(int, client_remove(&alice, name)));
		client_put(&alice, "a", 0);
		cr_assert(eq(u32, record_of("a").n_names, 1));
		cr_assert(zero(int, client_remove(&alice, "a")));
		while (catalog_n_live(&broker->store.catalog, SECTION_PREFIX))
			uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	}
}
