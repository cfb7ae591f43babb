/*
 * Tests memory that processes share: which memory becomes a chunk, which
 * account is charged, and what remains when the sharer ends. The processes
 * share only handles and descriptors, and the broker opens none of them.
 */
#include "broker/tensor/shared_chunk.h"
#include "tests/unit/broker/tensor/share_fixture.h"

static struct device_uuid gpu;

static void set_up(void)
{
	gpu_open();
	broker = broker_make();
	broker->base.config.device_memory_max = 64 * MIB;
	gpu = broker_gpu(broker, 0);
	client_open(&alice, broker, 1000, 0);
	client_open(&bob, broker, 1001, 0);
}

TestSuite(shared_chunk, .init = set_up, .fini = gpu_close, .timeout = 300);

/* Run until all chunks that are being freed are gone. */
static void run_until_no_chunks(void)
{
	while (broker->store.pools.n_chunks > 0)
		loop_step(&broker->base.loop.uv);
}

static void expect_nothing_left(void)
{
	run_until_no_chunks();
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES)));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_CHUNKS)));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_SLOTS)));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_TICKETS)));
	cr_expect(zero(u32,
		       catalog_n_live(&broker->store.catalog, SECTION_CHUNK)));
	cr_expect(zero(u32,
		       catalog_n_live(&broker->store.catalog, SECTION_BLOCK)));
	cr_expect(zero(u32,
		       catalog_n_live(&broker->store.catalog, SECTION_SLOT)));
	while (pools_device_size(&broker->store.pools, &gpu) > 0)
		loop_step(&broker->base.loop.uv);
}

static const struct chunk_record *chunk_of(const struct slot_ref *ref)
{
	const struct catalog *catalog = &broker->store.catalog;
	uint32_t block = catalog_slot(catalog, ref->slot)->block;

	return catalog_chunk(catalog, catalog_block(catalog, block)->chunk);
}

/* Alice shares 100 bytes of an allocation, and publishes them. */
static struct slot_ref publish_legacy(const char *name)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB);
	struct slot_ref ref = {0};

	cr_assert(zero(int, client_share(&alice, &sharing, &ref)), "%s",
		  alice.sentence);
	cr_assert(client_publish(&alice, &ref, name, 0, 0) >= 0, "%s",
		  alice.sentence);
	return ref;
}

static int ask_for_chunk(struct client *client, uint32_t id)
{
	return client_ask(client, &(struct request){.kind = MESSAGE_CHUNK,
						    .chunk = {1, &id}});
}

/* --- sharing ------------------------------------------------------------- */

Test(shared_chunk, a_tensor_is_at_the_offset_that_its_sharer_gave)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB);
	struct tensor_place place;
	struct slot_ref ref;

	sharing.item.offset = 4096 + 7;
	cr_assert(zero(int, client_share(&alice, &sharing, &ref)), "%s",
		  alice.sentence);
	slot_place(&broker->store, ref.slot, NULL, &place);
	cr_expect(eq(u64, place.offset, 4096 + 7));
	cr_expect(eq(u64, place.size, 100));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_WRITING));
	cr_expect(eq(u64, chunk_of(&ref)->size, MIB));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	expect_nothing_left();
}

Test(shared_chunk, a_legacy_handle_is_passed_on_without_a_descriptor)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB);
	struct reply reply;
	const struct chunk_ref *chunk = NULL;

	cr_assert(zero(int, client_share_reply(&alice, &sharing, &reply)));
	cr_assert(eq(u32, reply.places.n_chunks, 1));
	chunk = &reply.places.chunks[0];
	cr_expect(chunk->has_handle);
	cr_expect(zero(int, memcmp(chunk->handle, &sharing.handle,
				   sizeof(chunk->handle))));
	cr_expect(zero(int, memcmp(&chunk->device, &gpu, sizeof(gpu))));
	cr_expect(zero(u32, alice.n_fds));
	reply_deinit(&reply);
}

Test(shared_chunk, donated_memory_is_passed_on_as_its_descriptor)
{
	struct sharing sharing = donation_of(&gpu, 2 * MIB);
	struct reply reply;

	cr_assert(zero(int, client_share_reply(&alice, &sharing, &reply)), "%s",
		  alice.sentence);
	cr_assert(eq(u32, reply.places.n_chunks, 1));
	cr_expect(not(reply.places.chunks[0].has_handle));
	cr_expect(eq(u32, alice.n_fds, 1));
	reply_deinit(&reply);
	close(sharing.fd);
}

Test(shared_chunk, shared_memory_of_a_client_is_not_charged)
{
	struct slot_ref ref = publish_legacy("x");

	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES)));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_CHUNKS), 1));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_SLOTS), 1));
	cr_expect(zero(u64, pools_device_size(&broker->store.pools, &gpu)));
	cr_expect(zero(u64, alice.session->holdings.n_bytes));
	cr_assert(zero(int, client_remove(&alice, "x")));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	expect_nothing_left();
}

Test(shared_chunk, donated_memory_is_charged_as_a_whole)
{
	struct sharing sharing = donation_of(&gpu, 4 * MIB);
	struct slot_ref ref;

	cr_assert(zero(int, client_share(&alice, &sharing, &ref)), "%s",
		  alice.sentence);
	close(sharing.fd);
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES), 4 * MIB));
	cr_expect(eq(u64, pools_device_size(&broker->store.pools, &gpu),
		     4 * MIB));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	expect_nothing_left();
}

Test(shared_chunk, the_same_allocation_is_the_same_chunk)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB);
	struct sharing next = sharing_of(&gpu, 2, MIB);
	struct slot_ref a, b, c, d;

	cr_assert(zero(int, client_share(&alice, &sharing, &a)));
	cr_assert(zero(int, client_share(&alice, &sharing, &b)));
	cr_expect(eq(u32, chunk_of(&a)->id, chunk_of(&b)->id));
	/* Another mode, another allocation and another session make another
	 * chunk. */
	sharing.mode = 0600;
	cr_assert(zero(int, client_share(&alice, &sharing, &c)));
	cr_expect(ne(u32, chunk_of(&a)->id, chunk_of(&c)->id));
	cr_assert(zero(int, client_share(&alice, &next, &d)));
	cr_expect(ne(u32, chunk_of(&a)->id, chunk_of(&d)->id));
	cr_assert(zero(int, client_share(&bob, &sharing, &d)));
	cr_expect(ne(u32, chunk_of(&c)->id, chunk_of(&d)->id));
	cr_expect(eq(u32, broker->store.pools.n_chunks, 4));
}

Test(shared_chunk, the_same_open_file_is_the_same_chunk)
{
	struct sharing sharing = donation_of(&gpu, 2 * MIB);
	struct sharing other = donation_of(&gpu, 2 * MIB);
	struct slot_ref a, b, c;

	cr_assert(zero(int, client_share(&alice, &sharing, &a)));
	cr_assert(zero(int, client_share(&alice, &sharing, &b)));
	cr_assert(zero(int, client_share(&alice, &other, &c)));
	cr_expect(ne(u32, chunk_of(&a)->id, chunk_of(&c)->id));
	if (!has_kcmp())
		cr_skip("the kernel does not compare descriptors");
	cr_expect(eq(u32, chunk_of(&a)->id, chunk_of(&b)->id));
}

Test(shared_chunk, an_empty_tensor_is_allowed)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB);
	struct slot_ref ref;

	sharing.item.type.shape[0] = 0;
	sharing.item.offset = MIB;
	cr_assert(zero(int, client_share(&alice, &sharing, &ref)), "%s",
		  alice.sentence);
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	expect_nothing_left();
}

Test(shared_chunk, the_list_distinguishes_shared_tensors_from_others)
{
	struct request request = {.kind = MESSAGE_LIST,
				  .list = {.prefix = "", .filter = LIST_ALL}};
	struct slot_ref ref = publish_legacy("x");
	struct slot_ref ours;
	struct reply reply;
	uint32_t n;
	uint64_t size;

	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 10, -1, &ours)));
	cr_assert(zero(int, client_call(&alice, &request, &reply)));
	cr_assert(eq(u32, reply.list.n_items, 2));
	for (uint32_t i = 0; i < 2; i++)
		cr_expect(eq(u32, reply.list.items[i].shared,
			     reply.list.items[i].place.ref.slot == ref.slot
				     ? SHARE_LEGACY
				     : SHARE_NONE));
	reply_deinit(&reply);
	pools_shared(&broker->store.pools, &n, &size);
	cr_expect(eq(u32, n, 1));
	cr_expect(eq(u64, size, MIB));
}

/* Evicting the tensor would free no memory, because its sharer has allocated
 * it. */
Test(shared_chunk, a_shared_tensor_is_not_evicted)
{
	struct sharing sharing = donation_of(&gpu, 64 * MIB);
	struct slot_ref ref, ours;

	cr_assert(zero(int, client_share(&alice, &sharing, &ref)), "%s",
		  alice.sentence);
	cr_assert(client_publish(&alice, &ref, "x", PUBLISH_EVICTABLE, 0) > 0);
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_expect(
		eq(int, client_alloc_on(&alice, &gpu, 10, 0, &ours), -ENOMEM));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_PUBLISHED));
}

/* --- refusals ------------------------------------------------------------ */

#define expect_refusal(sharing, code)                                          \
	do {                                                                   \
		struct slot_ref ref_;                                          \
                                                                               \
		cr_expect(eq(int, client_share(&alice, &(sharing), &ref_),     \
			     code),                                            \
			  "%s", alice.sentence);                               \
		cr_expect(ne(str, alice.sentence, ""));                        \
	} while (0)

Test(shared_chunk, invalid_handles_and_descriptors_are_refused)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB), bad;

	bad = sharing;
	bad.has_handle = false; /* neither a handle nor a descriptor */
	expect_refusal(bad, -EINVAL);
	bad = sharing;
	bad.fd = memfd_create("both", MFD_CLOEXEC);
	expect_refusal(bad, -EINVAL);
	bad.has_handle = false; /* a file of the host */
	cr_assert(zero(int, ftruncate(bad.fd, MIB)));
	expect_refusal(bad, -EINVAL);
	close(bad.fd);
	bad = sharing;
	bad.size = 2 * MIB;
	expect_refusal(bad, -EINVAL);
	bad = sharing;
	bad.handle.kind = HANDLE_EVENT;
	expect_refusal(bad, -EINVAL);
	bad = sharing;
	bad.handle.version++;
	expect_refusal(bad, -EBADMSG);
	bad = sharing;
	bad.size = bad.handle.size = UINT64_C(1) << 60;
	expect_refusal(bad, -EINVAL);
	bad = sharing;
	bad.device.bytes[3] ^= 1;
	expect_refusal(bad, -ENODEV);
	expect_nothing_left();
}

Test(shared_chunk, ranges_outside_of_the_shared_chunk_are_refused)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB);

	sharing.item.offset = MIB - 99;
	expect_refusal(sharing, -ERANGE);
	sharing.item.offset = UINT64_MAX;
	expect_refusal(sharing, -ERANGE);
}

Test(shared_chunk, quotas_and_limits_are_enforced)
{
	struct sharing legacy = sharing_of(&gpu, 1, MIB);
	struct sharing donated = donation_of(&gpu, 2 * MIB);
	struct sharing large = donation_of(&gpu, 66 * MIB);

	expect_refusal(large, -ENOMEM);
	cr_expect(ne(ptr, strstr(alice.sentence, "device_memory_max"), NULL),
		  "%s", alice.sentence);
	broker->base.config.quota_device_bytes = 2 * MIB - 1;
	expect_refusal(donated, -EDQUOT);
	broker->base.config.quota_chunks = 0;
	expect_refusal(legacy, -EDQUOT);
	broker->base.config.quota_chunks = 1;
	broker->base.config.quota_slots = 0;
	expect_refusal(legacy, -EDQUOT);
	expect_nothing_left();
}

Test(shared_chunk, a_group_of_which_the_caller_is_not_a_member_is_refused)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB);

	sharing.gid = 4711;
	expect_refusal(sharing, -EPERM);
}

Test(shared_chunk, a_client_without_permission_to_read_is_not_given_the_handle)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB);
	struct slot_ref ref;

	sharing.mode = 0600;
	cr_assert(zero(int, client_share(&alice, &sharing, &ref)));
	cr_expect(eq(int, ask_for_chunk(&bob, chunk_of(&ref)->id), -EACCES));
	cr_expect(zero(int, ask_for_chunk(&alice, chunk_of(&ref)->id)));
}

/* The broker closes the descriptor of a sharer that disconnects before its
 * request is done. */
Test(shared_chunk, a_descriptor_is_closed_if_its_sharer_disconnects)
{
	struct sharing sharing = donation_of(&gpu, 2 * MIB);
	int ends[2];

	cr_assert(zero(int, socketpair(AF_UNIX, SOCK_STREAM, 0, ends)));
	close(sharing.fd);
	sharing.fd = ends[0];
	client_send_share(&alice, &sharing);
	close(ends[0]);
	client_close(&alice);
	/* A thread may still check the descriptor. */
	while (broker->store.pools.n_works > 0)
		loop_step(&broker->base.loop.uv);
	cr_expect(zero(i64, recv(ends[1], &(char){0}, 1, 0)));
	close(ends[1]);
	expect_nothing_left();
}

/* --- the end of a sharer ------------------------------------------------- */

Test(shared_chunk, shared_tensors_end_with_their_sharer)
{
	struct slot_ref ref = publish_legacy("x"), got;
	uint32_t chunk = chunk_of(&ref)->id;
	struct request ticket = {
		.kind = MESSAGE_TICKET,
		.ticket = {.ref = ref, .n_uses = 5, .ttl_ms = 60000}};

	cr_assert(zero(int, client_get_trusted(&bob, "x", 1000, &got)));
	cr_assert(zero(int, client_ask(&bob, &ticket)));
	client_close(&alice);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_expect(table_word_is_tainted(
		table_load(&broker->store.table, ref.slot)));
	cr_expect(eq(u64, broker->store.n_tainted, 1));
	cr_expect(eq(int, client_get_trusted(&bob, "x", 1000, &got), -ENOENT));
	cr_expect(zero(u64, used(broker, 1001, ACCOUNT_TICKETS)));
	/* No client gets the chunk, a ticket or a view any more. */
	cr_expect(eq(int, ask_for_chunk(&bob, chunk), -EOWNERDEAD));
	cr_expect(eq(int, client_ask(&bob, &ticket), -EOWNERDEAD));
	cr_expect(eq(int, client_view(&bob, &ref, &got), -EOWNERDEAD));
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	expect_nothing_left();
}

/* The session's end takes several rounds, each of which ends some of the
 * tensors. */
Test(shared_chunk, many_tensors_end_with_their_sharer)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB);
	struct slot_ref refs[1500], got;

	for (int i = 0; i < 1500; i++)
		cr_assert(zero(int, client_share(&alice, &sharing, &refs[i])));
	cr_assert(client_publish(&alice, &refs[0], "x", 0, 0) > 0);
	cr_assert(client_publish(&alice, &refs[1499], "y", 0, 0) > 0);
	cr_assert(zero(int, client_get_trusted(&bob, "x", 1000, &got)));
	cr_assert(zero(int, client_get_trusted(&bob, "y", 1000, &got)));
	client_close(&alice);
	while (broker->sessions.n > 1)
		loop_step(&broker->base.loop.uv);
	cr_expect(eq(u64, broker->store.n_tainted, 1500));
	cr_expect(eq(u32, catalog_n_live(&broker->store.catalog, SECTION_SLOT),
		     2));
	cr_assert(zero(int, client_release_n(&bob, &refs[0], 1)));
	cr_assert(zero(int, client_release_n(&bob, &refs[1499], 1)));
	expect_nothing_left();
}

/* A round looks at a limited number of blocks, and the next one goes on. */
Test(shared_chunk, the_end_of_a_sharer_among_many_tensors_takes_several_rounds)
{
	struct sharing sharing = sharing_of(&gpu, 2, MIB);
	struct slot_ref refs[200], ref;
	uint32_t left = 2;

	for (int i = 0; i < 200; i++)
		cr_assert(zero(int, client_share(&bob, &sharing, &refs[i])));
	ref = publish_legacy("x");
	/* Its block is free then. */
	cr_assert(zero(int, client_release_n(&bob, &refs[0], 1)));
	shared_chunk_end_session(&alice.session->holdings, &left);
	cr_expect(zero(u32, left));
	cr_expect(zero(u64, broker->store.n_tainted));
	left = 2;
	shared_chunk_end_session(&alice.session->holdings, &left);
	cr_expect(eq(u64, broker->store.n_tainted, 1));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	for (int i = 1; i < 200; i++)
		cr_assert(zero(int, client_release_n(&bob, &refs[i], 1)));
	expect_nothing_left();
}

Test(shared_chunk, a_tensor_without_holders_is_freed_when_its_sharer_ends)
{
	struct slot_ref ref = publish_legacy("x");

	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	client_close(&alice);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
	expect_nothing_left();
}

Test(shared_chunk, donated_memory_outlives_its_sharer)
{
	struct sharing sharing = donation_of(&gpu, 2 * MIB);
	struct slot_ref ref, got;

	cr_assert(zero(int, client_share(&alice, &sharing, &ref)));
	close(sharing.fd);
	cr_assert(client_publish(&alice, &ref, "x", 0, 0) > 0);
	client_close(&alice);
	cr_assert(zero(int, client_get_trusted(&bob, "x", 1000, &got)));
	cr_expect(not(table_word_is_tainted(
		table_load(&broker->store.table, ref.slot))));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES), 2 * MIB));
	cr_expect(zero(int, ask_for_chunk(&bob, chunk_of(&got)->id)));
	slot_end_name(&broker->store, ref.slot);
	cr_assert(zero(int, client_release_n(&bob, &got, 1)));
	expect_nothing_left();
}

/* --- a new broker -------------------------------------------------------- */

Test(shared_chunk, a_new_broker_finds_handles_in_the_catalog)
{
	struct slot_ref ref = publish_legacy("x");
	uint32_t id = chunk_of(&ref)->id;
	struct error err = ERROR_NULL;

	pools_deinit(&broker->store.pools);
	pools_init(&broker->store.pools);
	alice.session->holdings.account->used[ACCOUNT_CHUNKS] = 0;
	must(pools_adopt(&broker->store.pools, &err), &err);
	cr_expect(ne(u32, pool_find_chunk(&broker->store.pools, id), 0));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_CHUNKS), 1));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES)));
	alice.session->sent_chunks[pool_find_chunk(&broker->store.pools, id)] =
		0;
	cr_expect(zero(int, ask_for_chunk(&alice, id)));
	cr_assert(zero(int, client_remove(&alice, "x")));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	expect_nothing_left();
}

Test(shared_chunk, an_invalid_chunk_record_is_not_adopted)
{
	struct slot_ref ref = publish_legacy("x");
	struct chunk_record *record = (void *)(uintptr_t)chunk_of(&ref);
	uint64_t handle = record->handle;
	struct error err = ERROR_NULL;

	pools_deinit(&broker->store.pools);
	record->handle = 0;
	pools_init(&broker->store.pools);
	cr_expect(eq(int, pools_adopt(&broker->store.pools, &err), -EUCLEAN));
	record->handle = handle;
	record->shared = SHARE_MAX + 1;
	cr_expect(eq(int, pools_adopt(&broker->store.pools, &err), -EUCLEAN));
}
