/* Tests that a reader of a bundle gets all of one version or all of the
 * next. */
#include "tests/unit/broker/broker_fixture.h"

#include <sys/mman.h>

TestSuite(bundle, .init = broker_set_up, .timeout = 300);

static int begin(struct client *client, const char *name, uint32_t flags,
		 uint64_t *ret)
{
	struct request request = {
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = name,
				 .access = {0, GID_DEFAULT, 0644},
				 .flags = flags},
	};
	struct reply reply;
	int r = client_call(client, &request, &reply);

	if (r == 0)
		*ret = reply.bundle.bundle;
	reply_deinit(&reply);
	return r;
}

static int add(struct client *client, uint64_t bundle, const char *name,
	       struct slot_ref *ret)
{
	struct alloc_item item = item_of(1000);

	item.name = name;
	return client_alloc_item(client, &item, 0, bundle, 0, ret);
}

static int64_t end(struct client *client, uint16_t kind, uint64_t bundle)
{
	struct request request = {.kind = kind, .bundle_commit = {bundle}};
	struct reply reply;
	int64_t r = client_call(client, &request, &reply);

	if (r == 0 && kind == MESSAGE_BUNDLE_COMMIT)
		r = (int64_t)reply.bundle.version;
	reply_deinit(&reply);
	return r;
}

/* Commit members "<name>a" and "<name>b", which have no holds. */
static void put(struct client *client, const char *name, int64_t version,
		struct slot_ref refs[2])
{
	char member[64];
	uint64_t id;

	cr_assert(zero(int, begin(client, name, PUBLISH_REPLACE, &id)), "%s",
		  client->sentence);
	for (int i = 0; i < 2; i++) {
		snprintf(member, sizeof(member), "%s%c", name, 'a' + i);
		cr_assert(zero(int, add(client, id, member, &refs[i])), "%s",
			  client->sentence);
	}
	cr_assert(eq(int, end(client, MESSAGE_BUNDLE_COMMIT, id), version),
		  "%s", client->sentence);
	for (int i = 0; i < 2; i++)
		client_release_n(client, &refs[i], 1);
}

static int get(struct client *client, const char *name, struct reply *ret)
{
	return client_call(client,
			   &(struct request){.kind = MESSAGE_BUNDLE_GET,
					     .bundle_get = {.name = name}},
			   ret);
}

Test(bundle, is_invisible_until_it_is_committed)
{
	struct slot_ref ref, got;
	uint64_t id;

	cr_assert(zero(int, begin(&alice, "m/", 0, &id)));
	cr_assert(zero(int, add(&alice, id, "m/a", &ref)));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_WRITING));
	cr_assert(eq(int, client_get(&alice, "m/a", &got), -ENOENT));
	cr_assert(eq(int, client_publish(&alice, &ref, "x", 0, 0), -EINVAL));
	cr_assert(eq(int, end(&alice, MESSAGE_BUNDLE_COMMIT, id), 1));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_PUBLISHED));
	cr_assert(zero(int, client_get(&bob, "m/a", &got)));
	cr_assert(eq(u32, got.slot, ref.slot));
	cr_assert(eq(int, add(&alice, id, "m/b", &ref), -ENOENT),
		  "a committed bundle takes no more");
}

Test(bundle, is_replaced_as_a_whole)
{
	struct slot_ref old[2], new[2], got;

	put(&alice, "m/", 1, old);
	cr_assert(zero(int, client_get(&bob, "m/b", &got)));
	put(&alice, "m/", 2, new);
	cr_assert(eq(int, word_state(broker, &old[0]), SLOT_FREE));
	cr_assert(eq(int, word_state(broker, &old[1]), SLOT_LIMBO));
	cr_assert(eq(u32, index_find(&broker->store, "m/a"), new[0].slot));
	cr_assert(eq(u32, index_find(&broker->store, "m/b"), new[1].slot));
	cr_assert(client_release(&bob, &old[1]));
	collect_pending(&broker->store, &bob.session->holdings);
	cr_assert(eq(u32,
		     catalog_n_live(&broker->store.catalog, SECTION_BUNDLE),
		     1));
}

Test(bundle, get_holds_every_member)
{
	struct slot_ref refs[2];
	struct reply reply;

	put(&alice, "m/", 1, refs);
	cr_assert(zero(int, get(&bob, "m/", &reply)));
	cr_assert(eq(u32, reply.bundle_get.n_members, 2));
	cr_assert(eq(u64, reply.bundle_get.version, 1));
	reply_deinit(&reply);
	cr_assert(zero(int, client_remove(&alice, "m/")));
	for (int i = 0; i < 2; i++)
		cr_assert(eq(int, word_state(broker, &refs[i]), SLOT_LIMBO));
	client_close(&bob);
	client_close(&alice);
	assert_empty(broker, 1000);
}

Test(bundle, the_manifest_lists_the_members_in_order)
{
	struct error err = ERROR_NULL;
	struct tensor_place places[3];
	struct manifest *manifest;
	struct slot_ref refs[2];
	uint32_t bundle;
	uint64_t size;
	void *map;
	int fd;

	put(&alice, "m/", 1, refs);
	bundle = index_find_bundle(&broker->store, "m/");
	fd = catalog_bundle(&broker->store.catalog, bundle)->manifest_fd;
	size = broker->store.bundles[bundle].manifest_size;
	map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	cr_assert(ne(ptr, map, MAP_FAILED));
	must(manifest_open(map, size, &manifest, &err), &err);
	cr_assert(eq(int, manifest_read(manifest, places, 3, &err), 2));
	cr_assert(eq(u32, places[0].ref.slot, refs[0].slot));
	cr_assert(eq(str, (char *)places[1].name, "m/b"));
	cr_assert(lt(int, (int)write(fd, "x", 1), 0));
	manifest_close(manifest);
	munmap(map, size);
}

Test(bundle, an_aborted_bundle_leaves_nothing)
{
	struct slot_ref ref;
	uint64_t id;

	cr_assert(zero(int, begin(&alice, "m/", 0, &id)));
	cr_assert(zero(int, add(&alice, id, "m/a", &ref)));
	cr_assert(zero(int, (int)end(&alice, MESSAGE_BUNDLE_ABORT, id)));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO),
		  "its loader holds it");
	client_release_n(&alice, &ref, 1);
	client_close(&alice);
	assert_empty(broker, 1000);
}

Test(bundle, dies_with_its_loader_while_staged)
{
	struct slot_ref ref;
	uint64_t id;

	cr_assert(zero(int, begin(&alice, "m/", 0, &id)));
	cr_assert(zero(int, add(&alice, id, "m/a", &ref)));
	cr_assert(zero(int, begin(&alice, "empty/", 0, &id)));
	client_close(&alice);
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
	assert_empty(broker, 1000);
}

Test(bundle, tied_to_its_session_ends_with_it)
{
	struct slot_ref ref;
	uint64_t id;

	cr_assert(zero(int, begin(&alice, "m/", PUBLISH_TIED, &id)));
	cr_assert(zero(int, add(&alice, id, "m/a", &ref)));
	cr_assert(eq(int, end(&alice, MESSAGE_BUNDLE_COMMIT, id), 1));
	client_close(&alice);
	cr_assert(zero(u32, index_find(&broker->store, "m/a")));
	assert_empty(broker, 1000);
}

Test(bundle, without_members_is_not_committed)
{
	uint64_t id;

	cr_assert(zero(int, begin(&alice, "m/", 0, &id)));
	cr_assert(eq(int, end(&alice, MESSAGE_BUNDLE_COMMIT, id), -EINVAL));
	cr_assert(zero(int, (int)end(&alice, MESSAGE_BUNDLE_ABORT, id)));
	cr_assert(eq(int, end(&alice, MESSAGE_BUNDLE_ABORT, id), -ENOENT));
}

Test(bundle, names_of_members_are_checked)
{
	struct slot_ref ref;
	uint64_t id;

	client_put(&alice, "m/plain", 0);
	cr_assert(zero(int, begin(&alice, "m/", 0, &id)));
	cr_assert(eq(int, add(&alice, id, "n/a", &ref), -EINVAL));
	cr_assert(eq(int, add(&alice, id, "m/plain", &ref), -EEXIST));
	cr_assert(zero(int, add(&alice, id, "m/a", &ref)));
	cr_assert(eq(int, add(&alice, id, "m/a", &ref), -EEXIST));
	cr_assert(eq(int, add(&bob, id, "m/b", &ref), -ENOENT),
		  "it is not bob's");
}

Test(bundle, protects_the_names_in_it)
{
	struct slot_ref refs[2], ref = client_alloc(&alice, 1);
	uint64_t id;

	put(&alice, "m/", 1, refs);
	cr_assert(eq(int, client_publish(&alice, &ref, "m/c", 0, 0), -EEXIST));
	cr_assert(eq(int,
		     client_publish(&alice, &ref, "m/a", PUBLISH_REPLACE, 0),
		     -EEXIST));
	cr_assert(eq(int, client_publish(&alice, &ref, "m", 0, 0), 1));
	cr_assert(eq(int, client_remove(&alice, "m/a"), -EINVAL));
	cr_assert(eq(int, begin(&alice, "m/", 0, &id), -EEXIST));
	cr_assert(eq(int, begin(&alice, "m/sub/", 0, &id), -EEXIST));
	cr_assert(eq(int, begin(&bob, "m/", PUBLISH_REPLACE, &id), -EPERM));
	/* It would not help him to ask for a replacement. */
	cr_assert(eq(int, begin(&bob, "m/", 0, &id), -EEXIST));
	cr_assert(eq(str, bob.sentence,
		     (char *)"bundle \"m/\" exists and belongs to uid 1000; "
			     "use another name"));
	put(&alice, "top/sub/", 1, refs);
	cr_assert(eq(int, begin(&alice, "top/", 0, &id), -EEXIST));
}

Test(bundle, a_name_published_meanwhile_makes_the_commit_fail)
{
	struct slot_ref ref;
	uint64_t id;

	cr_assert(zero(int, begin(&alice, "m/", 0, &id)));
	cr_assert(zero(int, add(&alice, id, "m/a", &ref)));
	client_put(&alice, "m/a", 0);
	cr_assert(eq(int, end(&alice, MESSAGE_BUNDLE_COMMIT, id), -EEXIST));
	cr_assert(zero(int, client_remove(&alice, "m/a")));
	cr_assert(eq(int, end(&alice, MESSAGE_BUNDLE_COMMIT, id), 1));
}

Test(bundle, views_are_created_within_a_bundle)
{
	struct alloc_item item = item_of(10);
	struct slot_ref base, view;
	uint64_t id = 0;

	cr_assert(zero(int, begin(&alice, "m/", 0, &id)));
	cr_assert(zero(int, add(&alice, id, "m/a", &base)));
	item.is_view = true;
	item.base = base;
	item.name = "m/tied";
	cr_assert(zero(int, client_alloc_item(&alice, &item, 0, id, 0, &view)));
	cr_assert(eq(int, end(&alice, MESSAGE_BUNDLE_COMMIT, id), 1));
	cr_assert(eq(u32, index_find(&broker->store, "m/tied"), view.slot));
	item.name = "";
	cr_assert(eq(int, client_alloc_item(&alice, &item, 0, 0, 0, &view),
		     -EINVAL));
}

/* --- sealing, on a thread ------------------------------------------------ */

static uint64_t stage(struct client *client, const char *name,
		      const char *member)
{
	struct slot_ref ref;
	uint64_t id;

	cr_assert(zero(int, begin(client, name, 0, &id)));
	cr_assert(zero(int, add(client, id, member, &ref)));
	return id;
}

/* The reply comes later. */
static void send_commit(struct client *client, uint64_t bundle)
{
	struct request request = {.kind = MESSAGE_BUNDLE_COMMIT,
				  .bundle_commit = {bundle}};

	client_send(client, &request, ++client->number);
}

static int receive(struct client *client)
{
	struct reply reply;
	int code;

	while (!client_recv(client, &reply, &code))
		loop_step(&broker->base.loop.uv);
	reply_deinit(&reply);
	return code;
}

static void finish_works(void)
{
	while (broker->store.pools.n_works || broker->store.pools.n_chunks)
		loop_step(&broker->base.loop.uv);
}

/* Two of them are on threads at a time (pool_work.c). */
Test(bundle, is_sealed_beside_other_commits_of_its_user)
{
	struct client clients[3];
	static const char *const names[] = {"m/", "n/", "o/"};
	static const char *const members[] = {"m/a", "n/a", "o/a"};
	uint64_t bundles[3];
	int i;

	for (i = 0; i < 3; i++) {
		client_open(&clients[i], broker, 1000, 0);
		bundles[i] = stage(&clients[i], names[i], members[i]);
	}
	for (i = 0; i < 3; i++)
		send_commit(&clients[i], bundles[i]);
	cr_expect(eq(u32, broker->store.pools.n_works, 3));
	cr_expect(zero(u32, index_find(&broker->store, "m/a")), "not yet");
	for (i = 0; i < 3; i++)
		cr_expect(zero(int, receive(&clients[i])));
	cr_expect(ne(u32, index_find(&broker->store, "o/a"), 0));
}

Test(bundle, whose_loader_dies_while_it_is_sealed_leaves_nothing)
{
	send_commit(&alice, stage(&alice, "m/", "m/a"));
	cr_assert(eq(u32, broker->store.pools.n_works, 1));
	client_close(&alice);
	assert_empty(broker, 1000);
	finish_works();
	client_open(&alice, broker, 1000, 0);
	send_commit(&alice, stage(&alice, "m/", "m/a"));
	cr_expect(zero(int, receive(&alice)));
}

Test(bundle, can_be_aborted_while_it_is_sealed)
{
	uint64_t id = stage(&alice, "m/", "m/a");
	struct request abort = {.kind = MESSAGE_BUNDLE_ABORT,
				.bundle_abort = {id}};

	send_commit(&alice, id);
	client_send(&alice, &abort, ++alice.number);
	cr_expect(zero(int, receive(&alice)), "aborted");
	cr_expect(eq(int, receive(&alice), -ENOENT), "and not committed");
	client_close(&alice);
	assert_empty(broker, 1000);
	finish_works();
}

static uint32_t chunk_of(const char *name)
{
	const struct catalog *catalog = &broker->store.catalog;
	uint32_t slot = index_find(&broker->store, name);

	cr_assert(ne(u32, slot, 0), "%s", name);
	return catalog_block(catalog, catalog_slot(catalog, slot)->block)
		->chunk;
}

/* The second request comes while the first one is parked. If its memory is
 * there before the seal, it gets new memory; otherwise the bundle is committed
 * first. */
Test(bundle, gets_no_new_member_while_its_memory_is_being_sealed)
{
	struct alloc_item item = item_of(1000);
	struct request alloc = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.n_items = 1, .items = &item},
	};
	uint64_t id = stage(&alice, "m/", "m/a");
	int second;

	item.name = "m/b";
	alloc.alloc.bundle = id;
	send_commit(&alice, id);
	client_send(&alice, &alloc, ++alice.number);
	cr_assert(zero(int, receive(&alice)));
	second = receive(&alice);
	if (second == 0) {
		cr_expect(ne(u32, chunk_of("m/b"), chunk_of("m/a")));
		return;
	}
	cr_expect(eq(int, second, -ENOENT), "it is committed");
	cr_expect(zero(u32, index_find(&broker->store, "m/b")));
}

/* --- large ones, in steps ------------------------------------------------ */

/* Make members "<name>0" to "<name>(n - 1)", which the loader holds. */
static void put_large(struct client *client, const char *name, int n)
{
	enum { N = 256 };
	static struct alloc_item items[N];
	static char names[N][32];
	struct request alloc = {.kind = MESSAGE_ALLOC,
				.alloc = {.n_items = N, .items = items}};
	uint64_t id = 0;

	cr_assert(zero(int, begin(client, name, PUBLISH_REPLACE, &id)));
	alloc.alloc.bundle = id;
	for (int first = 0; first < n; first += N) {
		for (int i = 0; i < N; i++) {
			snprintf(names[i], sizeof(names[i]), "%s%d", name,
				 first + i);
			items[i] = item_of(64);
			items[i].name = names[i];
		}
		cr_assert(zero(int, client_ask(client, &alloc)), "%s",
			  client->sentence);
	}
	cr_assert(gt(i64, end(client, MESSAGE_BUNDLE_COMMIT, id), 0));
}

/* Run the loop until no deferred work is left. */
static void run_chores(void)
{
	while (broker->store.chores.first ||
	       broker->sessions.draining.is_wanted)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
}

static uint32_t n_grants(const struct client *client)
{
	return session_record(client->session)->grants.n;
}

/* Returns how many members of this version the client holds; all of them are
 * PUBLISHED or in LIMBO. */
static uint32_t n_held(const struct client *client, uint32_t bundle)
{
	const struct catalog *catalog = &broker->store.catalog;
	uint32_t slot = catalog_bundle(catalog, bundle)->members.first;
	uint32_t n = 0, grant;

	for (; slot; slot = catalog_slot(catalog, slot)->bundle_link.next) {
		grant = grant_find(&broker->store,
				   client->session->holdings.index, slot);
		n += grant && grant_holds(&broker->store, grant) == 1;
	}
	return n;
}

Test(bundle, all_members_of_a_large_bundle_are_granted_although_it_is_replaced)
{
	enum { N = 4096 };
	struct reply reply;
	uint32_t bundle;

	put_large(&alice, "m/", N);
	bundle = index_find_bundle(&broker->store, "m/");
	cr_assert(zero(int, get(&bob, "m/", &reply)), "%s", bob.sentence);
	cr_assert(eq(u32, reply.bundle_get.n_members, N));
	cr_assert(eq(u64, reply.bundle_get.version, 1));
	reply_deinit(&reply);
	cr_assert(lt(u32, n_grants(&bob), N), "the test needs a larger one");
	client_close(&alice);
	client_open(&alice, broker, 1000, 0);
	/* Bob has not been granted all members yet. Only the lease keeps the
	 * others. */
	cr_assert(zero(int, client_remove(&alice, "m/")));
	cr_assert(eq(u32, catalog_n_live(&broker->store.catalog, SECTION_SLOT),
		     N));
	run_chores();
	cr_assert(eq(u32, n_held(&bob, bundle), N));
	cr_assert(eq(u32, broker->store.n_leased, 0));
	put_large(&alice, "m/", 256);
	client_close(&bob);
	run_chores();
	cr_assert(eq(u32, catalog_n_live(&broker->store.catalog, SECTION_SLOT),
		     256));
	cr_assert(zero(int, client_remove(&alice, "m/")));
	client_close(&alice);
	run_chores();
	assert_empty(broker, 1000);
	assert_empty(broker, 1001);
}

/* No client would ring the doorbell for a member that was released before it
 * was granted. So the broker must notice by itself. */
Test(bundle, members_released_while_they_are_granted_are_freed)
{
	enum { N = 1024 };
	const struct catalog *catalog = &broker->store.catalog;
	struct slot_ref first, last;
	struct reply reply;
	uint32_t bundle;

	put_large(&alice, "m/", N);
	bundle = index_find_bundle(&broker->store, "m/");
	first.slot = catalog_bundle(catalog, bundle)->members.first;
	last.slot = catalog_bundle(catalog, bundle)->members.last;
	cr_assert(zero(int, get(&bob, "m/", &reply)));
	reply_deinit(&reply);
	client_close(&alice);
	client_open(&alice, broker, 1000, 0);
	cr_assert(zero(int, client_remove(&alice, "m/")));
	while (n_grants(&bob) == 0)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(client_release(&bob, &first));
	cr_assert(client_release(&bob, &last));
	collect_pending(&broker->store, &bob.session->holdings);
	run_chores();
	cr_assert(eq(u32, catalog_n_live(catalog, SECTION_SLOT), N - 2));
	cr_assert(eq(u32, n_held(&bob, bundle), N - 2));
	client_close(&bob);
	client_close(&alice);
	run_chores();
	assert_empty(broker, 1001);
}

Test(bundle, a_session_that_ends_while_members_are_granted_leaves_no_lease)
{
	struct reply reply;

	put_large(&alice, "m/", 4096);
	cr_assert(zero(int, get(&bob, "m/", &reply)));
	reply_deinit(&reply);
	cr_assert(gt(u32, broker->store.n_leased, 0));
	client_close(&alice);
	client_open(&alice, broker, 1000, 0);
	cr_assert(zero(int, client_remove(&alice, "m/")));
	client_close(&bob);
	cr_assert(zero(u32, broker->store.n_leased));
	client_close(&alice);
	run_chores();
	assert_empty(broker, 1000);
	assert_empty(broker, 1001);
}

Test(bundle, a_second_get_waits_for_the_grants_of_the_first)
{
	struct request request = {.kind = MESSAGE_BUNDLE_GET,
				  .bundle_get = {.name = "m/"}};

	put_large(&alice, "m/", 1024);
	client_send(&bob, &request, ++bob.number);
	client_send(&bob, &request, ++bob.number);
	cr_assert(eq(u32, broker->sessions.waiters.n, 1));
	cr_assert(zero(int, receive(&bob)));
	cr_assert(zero(int, receive(&bob)));
	run_chores();
	cr_assert(zero(int, client_ask(&bob, &(struct request){
						     .kind = MESSAGE_PING})));
	cr_assert(eq(u32, n_grants(&bob), 1024));
}

/* Commit a version with one member, which alice releases. Two older versions
 * are kept. */
static void put_kept(void)
{
	const struct request request = {
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = "m/",
				 .access = {0, GID_DEFAULT, 0644},
				 .flags = PUBLISH_REPLACE,
				 .n_kept = 3},
	};
	struct slot_ref ref;
	struct reply reply;
	uint64_t id;

	cr_assert(zero(int, client_call(&alice, &request, &reply)));
	id = reply.bundle.bundle;
	reply_deinit(&reply);
	cr_assert(zero(int, add(&alice, id, "m/a", &ref)));
	cr_assert(gt(i64, end(&alice, MESSAGE_BUNDLE_COMMIT, id), 0));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
}

/* A name may have 64 versions, and one request may remove 256 names. */
Test(bundle, kept_versions_are_not_freed_by_the_request_that_removes_their_name)
{
	for (int i = 0; i < 3; i++)
		put_kept();
	cr_assert(eq(u32, catalog_n_live(&broker->store.catalog, SECTION_SLOT),
		     3));
	cr_assert(zero(int, client_remove(&alice, "m/")));
	cr_assert(eq(u32, catalog_n_live(&broker->store.catalog, SECTION_SLOT),
		     2));
	run_chores();
	client_close(&alice);
	client_close(&bob);
	assert_empty(broker, 1000);
}

/* The members need half of the journal. Those that do not fit are freed in a
 * later round. */
Test(bundle, a_large_bundle_is_removed_in_several_rounds, .timeout = 300)
{
	enum { BATCHES = 240, N = 256 };
	static struct alloc_item items[N];
	static char names[N][32];
	struct request alloc = {.kind = MESSAGE_ALLOC,
				.alloc = {.n_items = N, .items = items}};
	struct reply reply;
	uint64_t id = 0;

	cr_assert(zero(int, begin(&alice, "m/", 0, &id)));
	alloc.alloc.bundle = id;
	for (int b = 0; b < BATCHES; b++) {
		for (int i = 0; i < N; i++) {
			snprintf(names[i], sizeof(names[i]), "m/%d.%d", b, i);
			items[i] = item_of(64);
			items[i].name = names[i];
		}
		cr_assert(zero(int, client_ask(&alice, &alloc)), "%s",
			  alice.sentence);
	}
	cr_assert(eq(int, end(&alice, MESSAGE_BUNDLE_COMMIT, id), 1));
	cr_assert(zero(int, get(&bob, "m/", &reply)), "%s", bob.sentence);
	cr_assert(eq(u32, reply.bundle_get.n_members, BATCHES * N));
	reply_deinit(&reply);
	client_close(&alice);
	client_close(&bob);
	client_open(&alice, broker, 1000, 0);
	cr_assert(zero(int, client_remove(&alice, "m/")));
	cr_assert(catalog_n_live(&broker->store.catalog, SECTION_SLOT) > 0,
		  "the test needs a larger bundle");
	while (catalog_n_live(&broker->store.catalog, SECTION_SLOT))
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	client_close(&alice);
	assert_empty(broker, 1000);
}
