/*
 * Tests pools on devices: chunks by the driver, admission for each device, the
 * refusal when the driver has no memory, and adoption without a driver.
 */
#include "cuda/vmm.h"
#include "tests/unit/broker/device_fixture.h"
#include "tests/unit/broker/memory/file_locker.h"

#define MIB (UINT64_C(1) << 20)

static struct slot_ref ref;

static void set_up(void)
{
	gpu_open();
	setenv("FAKECUDA_MEM_MB", "128", 1);
	broker = broker_make();
	broker->base.config.chunk_max = 16 * MIB;
	broker->base.config.device_memory_max = 64 * MIB;
	client_open(&alice, broker, 1000, 0);
	client_open(&bob, broker, 1001, 0);
}

TestSuite(pool_device, .init = set_up, .fini = gpu_close, .timeout = 300);

static struct chunk_record *chunk_of(const struct slot_ref *slot)
{
	struct catalog *catalog = &broker->store.catalog;
	const struct slot_record *record = catalog_slot(catalog, slot->slot);

	return catalog_chunk(catalog,
			     catalog_block(catalog, record->block)->chunk);
}

static uint64_t size_on(const struct device_uuid *gpu)
{
	return pools_device_size(&broker->store.pools, gpu);
}

/* Use `size` bytes of the device without the broker, as another process
 * would. */
static int take_outside(const struct device_uuid *gpu, uint64_t size)
{
	const struct device *device;
	int fd = -1;

	cr_assert(zero(int, device_find(gpu, &device, NULL)));
	cr_assert(zero(int, vmm_create(device, size, &fd, NULL)));
	return fd;
}

Test(pool_device, a_tensor_is_on_the_requested_device)
{
	struct device_uuid first = broker_gpu(broker, 0);
	struct device_uuid second = broker_gpu(broker, 1);

	cr_assert(zero(int, client_alloc_on(&alice, &second, 100, 0, &ref)));
	cr_expect(zero(int, memcmp(&chunk_of(&ref)->device, &second, 16)));
	cr_expect(zero(u64, size_on(&first)));
	cr_expect(eq(u64, size_on(&second), 2 * MIB));
	cr_expect(zero(u64, broker->store.pools.host.total_size));
	ref = client_alloc(&alice, 100);
	cr_expect(device_uuid_is_host(&chunk_of(&ref)->device));
}

Test(pool_device, blocks_are_aligned_to_512_bytes_and_charged_accordingly)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct slot_ref other;
	struct tensor_place a, b;

	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 1, 0, &ref)));
	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 513, 0, &other)));
	slot_place(&broker->store, ref.slot, NULL, &a);
	slot_place(&broker->store, other.slot, NULL, &b);
	cr_expect(zero(u64, a.offset % 512));
	cr_expect(zero(u64, b.offset % 512));
	cr_expect(
		eq(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES), 512 + 1024));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_BYTES)));
	cr_assert(zero(int, client_release_n(&alice, &other, 1)));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES)));
	cr_expect(zero(u64, alice.session->holdings.n_bytes));
}

Test(pool_device, the_reply_names_the_device_of_the_chunk)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct alloc_item item = item_of(100);
	struct request request = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT},
			  .n_items = 1,
			  .items = &item,
			  .device = gpu},
	};
	struct reply reply;

	cr_assert(zero(int, client_call(&alice, &request, &reply)));
	cr_assert(eq(u32, reply.places.n_chunks, 1));
	cr_expect(zero(int, memcmp(&reply.places.chunks[0].device, &gpu, 16)));
	cr_expect(reply.places.chunks[0].is_writable);
	reply_deinit(&reply);
}

Test(pool_device, chunks_double_up_to_the_limit_of_their_device)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct device_uuid other = broker_gpu(broker, 1);
	uint64_t largest = 0;
	int r;

	while ((r = client_alloc_on(&alice, &gpu, 2 * MIB, 0, &ref)) == 0) {
		if (chunk_of(&ref)->size > largest)
			largest = chunk_of(&ref)->size;
	}
	cr_expect(eq(int, r, -ENOMEM));
	cr_expect(eq(u64, largest, 16 * MIB));
	cr_expect(eq(u64, size_on(&gpu), 64 * MIB));
	cr_expect(ne(ptr, strstr(alice.sentence, "device_memory_max"), NULL),
		  "%s", alice.sentence);
	/* The limit of a device does not apply to the other device or the
	 * host. */
	cr_expect(zero(int, client_alloc_on(&alice, &other, MIB, 0, &ref)));
	(void)client_alloc(&alice, MIB);
}

Test(pool_device, a_request_that_can_never_fit_is_refused_at_once)
{
	struct device_uuid gpu = broker_gpu(broker, 0);

	cr_expect(eq(int, client_alloc_on(&alice, &gpu, 64 * MIB + 1, -1, &ref),
		     -ENOMEM));
	cr_expect(ne(ptr, strstr(alice.sentence, "never"), NULL), "%s",
		  alice.sentence);
}

Test(pool_device, an_empty_chunk_is_freed_as_a_whole_after_warm_ms)
{
	struct device_uuid gpu = broker_gpu(broker, 0);

	cr_assert(zero(int, client_alloc_on(&alice, &gpu, MIB, 0, &ref)));
	broker->base.config.warm_ms = 0;
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	while (size_on(&gpu) > 0)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_CHUNKS)));
	cr_expect(zero(u32, broker->store.pools.n_chunks));
	/* The whole device is free again. */
	close(take_outside(&gpu, 128 * MIB));
}

Test(pool_device, a_chunk_in_use_is_not_punched)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct slot_ref small;

	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 100, 0, &small)));
	cr_assert(zero(int, client_alloc_on(&alice, &gpu, MIB, 0, &ref)));
	broker->base.config.warm_ms = 0;
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	while (broker->store.pools.trim_position)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_expect(zero(u64, broker->store.pools.n_trims));
	cr_expect(eq(u64, size_on(&gpu), 2 * MIB));
	cr_expect(zero(int, client_alloc_on(&alice, &gpu, MIB, 0, &ref)));
}

Test(pool_device, empty_chunks_of_others_are_freed_on_the_same_device_only)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct device_uuid other = broker_gpu(broker, 1);
	struct slot_ref kept;

	cr_assert(zero(int, client_alloc_on(&bob, &gpu, 40 * MIB, 0, &ref)));
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	cr_assert(zero(int, client_alloc_on(&bob, &other, 40 * MIB, 0, &ref)));
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 40 * MIB, 0, &kept)),
		  "%s", alice.sentence);
	cr_expect(eq(u64, size_on(&gpu), 40 * MIB));
	cr_expect(eq(u64, size_on(&other), 40 * MIB), "nobody needed it");
}

Test(pool_device, evictable_tensors_of_the_device_are_evicted_for_a_request)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct device_uuid other = broker_gpu(broker, 1);
	struct slot_ref here, there, host = client_put(&bob, "host", 2);

	cr_assert(zero(int, client_alloc_on(&bob, &gpu, 60 * MIB, 0, &here)));
	cr_assert(client_publish(&bob, &here, "here", PUBLISH_EVICTABLE, 0) >
		  0);
	cr_assert(zero(int, client_release_n(&bob, &here, 1)));
	cr_assert(zero(int, client_alloc_on(&bob, &other, MIB, 0, &there)));
	cr_assert(client_publish(&bob, &there, "there", PUBLISH_EVICTABLE, 0) >
		  0);
	cr_assert(zero(int, client_release_n(&bob, &there, 1)));
	cr_expect(zero(int, client_alloc_on(&alice, &gpu, 60 * MIB, 0, &ref)),
		  "%s", alice.sentence);
	cr_expect(eq(int, word_state(broker, &here), SLOT_FREE));
	cr_expect(eq(int, word_state(broker, &there), SLOT_PUBLISHED));
	cr_expect(eq(int, word_state(broker, &host), SLOT_PUBLISHED));
}

Test(pool_device, a_quota_counts_all_devices_and_not_the_host)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct device_uuid other = broker_gpu(broker, 1);

	broker->base.config.quota_device_bytes = 3 * MIB;
	broker->base.config.quota_bytes = MIB;
	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 2 * MIB, 0, &ref)));
	cr_expect(eq(int, client_alloc_on(&alice, &other, 2 * MIB, 0, &ref),
		     -EDQUOT));
	cr_expect(ne(ptr, strstr(alice.sentence, "quota_device_bytes"), NULL),
		  "%s", alice.sentence);
	cr_expect(zero(int, client_alloc_on(&alice, &other, MIB, 0, &ref)));
	(void)client_alloc(&alice, MIB);
	/* The quota does not affect other users. A chunk's size hint does not
	 * exceed the limit. */
	cr_assert(zero(int, client_alloc_on(&bob, &gpu, 2 * MIB, 0, &ref)));
	cr_expect(eq(u64, chunk_of(&ref)->size, 2 * MIB));
}

Test(pool_device, an_evictable_tensor_of_the_user_is_evicted_to_meet_its_quota)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct device_uuid other = broker_gpu(broker, 1);
	struct slot_ref host = client_put(&alice, "host", PUBLISH_EVICTABLE);
	struct slot_ref old;

	broker->base.config.quota_device_bytes = 3 * MIB;
	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 2 * MIB, 0, &old)));
	cr_assert(client_publish(&alice, &old, "old", PUBLISH_EVICTABLE, 0) >
		  0);
	cr_assert(zero(int, client_release_n(&alice, &old, 1)));
	cr_expect(zero(int, client_alloc_on(&alice, &other, 2 * MIB, 0, &ref)),
		  "%s", alice.sentence);
	cr_expect(eq(int, word_state(broker, &old), SLOT_FREE));
	cr_expect(eq(int, word_state(broker, &host), SLOT_PUBLISHED));
}

Test(pool_device, memory_used_by_other_processes_is_an_error_with_figures)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	int fd = take_outside(&gpu, 120 * MIB);

	cr_expect(eq(int, client_alloc_on(&alice, &gpu, 16 * MIB, 0, &ref),
		     -ENOMEM));
	cr_expect(ne(ptr, strstr(alice.sentence, "GPU-"), NULL), "%s",
		  alice.sentence);
	cr_expect(ne(ptr, strstr(alice.sentence, "OUT_OF_MEMORY"), NULL), "%s",
		  alice.sentence);
	cr_expect(zero(u64, size_on(&gpu)));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_CHUNKS)));
	/* If there is no memory for a chunk of the usual size, a smaller one is
	 * made. */
	broker->base.config.chunk_min = 16 * MIB;
	while (client_alloc_on(&bob, &gpu, MIB, 0, &ref) == -ENOMEM)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_expect(eq(u64, size_on(&gpu), 2 * MIB));
	cr_expect(eq(u64,
		     accounts_get(&broker->base.accounts, 1001)->chunk_size[1],
		     2 * MIB));
	close(fd);
}

static void give_back(uv_timer_t *timer)
{
	close(*(int *)timer->data);
	uv_close((uv_handle_t *)timer, NULL);
}

/* The situation after a process was killed: its memory is returned a while
 * later. */
Test(pool_device, a_request_waits_for_memory_that_is_freed_soon)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	int fd = take_outside(&gpu, 120 * MIB);
	uv_timer_t timer = {.data = &fd};

	uv_timer_init(&broker->base.loop.uv, &timer);
	uv_timer_start(&timer, give_back, 25, 0);
	cr_expect(zero(int, client_alloc_on(&alice, &gpu, 16 * MIB, 0, &ref)),
		  "%s", alice.sentence);
	cr_expect(zero(u32, broker->store.pools.host.next->n_refusals));
}

Test(pool_device, a_request_with_a_time_out_gets_memory_that_is_freed_later)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	int fd = take_outside(&gpu, 120 * MIB);
	uv_timer_t timer = {.data = &fd};

	uv_timer_init(&broker->base.loop.uv, &timer);
	uv_timer_start(&timer, give_back, 600, 0);
	cr_expect(zero(int, client_alloc_on(&alice, &gpu, 16 * MIB, -1, &ref)),
		  "%s", alice.sentence);
}

Test(pool_device, empty_chunks_are_freed_when_the_driver_has_no_memory)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	int fd;

	cr_assert(zero(int, client_alloc_on(&bob, &gpu, 20 * MIB, 0, &ref)));
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	fd = take_outside(&gpu, 100 * MIB);
	/* The broker's own sums admit it, because 20 and 16 are below 64. */
	cr_expect(zero(int, client_alloc_on(&alice, &gpu, 16 * MIB, 0, &ref)),
		  "%s", alice.sentence);
	cr_expect(eq(u64, size_on(&gpu), 16 * MIB));
	close(fd);
}

Test(pool_device, memory_freed_by_the_broker_ends_the_pause)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct slot_ref kept;
	int fd;

	cr_assert(zero(int, client_alloc_on(&bob, &gpu, 20 * MIB, 0, &kept)));
	fd = take_outside(&gpu, 100 * MIB);
	cr_assert(eq(int, client_alloc_on(&alice, &gpu, 16 * MIB, 0, &ref),
		     -ENOMEM));
	cr_assert(ne(u32, broker->store.pools.host.next->try_position, 0));
	cr_assert(zero(int, client_release_n(&bob, &kept, 1)));
	cr_expect(zero(int, client_alloc_on(&alice, &gpu, 16 * MIB, 0, &ref)),
		  "%s", alice.sentence);
	close(fd);
}

Test(pool_device, a_view_is_on_the_device_of_its_base)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct alloc_item item = item_of(10);
	struct slot_ref view;

	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 100, 0, &ref)));
	item.is_view = true;
	item.base = ref;
	item.base_offset = 90;
	cr_assert(zero(int, client_alloc_item(&alice, &item, 0, 0, 0, &view)),
		  "%s", alice.sentence);
	cr_expect(eq(ptr, chunk_of(&view), chunk_of(&ref)));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES), 512));
}

Test(pool_device, a_driver_that_hangs_blocks_two_threads_at_most)
{
	struct alloc_item item = item_of(MIB);
	struct request request = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT},
			  .n_items = 1,
			  .items = &item},
	};
	struct client users[4];
	struct reply reply;
	int code;

	setenv("FAKECUDA_FAIL", "MemCreate:1+:sleep=300", 1);
	request.alloc.device = broker_gpu(broker, 0);
	/* The tensors are of different users, so that each needs a chunk. */
	for (uint32_t i = 0; i < 4; i++) {
		client_open(&users[i], broker, 2000 + i, 0);
		client_send(&users[i], &request, 1);
		cr_expect(le(u32, broker->store.pools.n_works, 2));
	}
	(void)client_alloc(&alice, MIB);
	for (uint32_t i = 0; i < 4; i++) {
		while (!client_recv(&users[i], &reply, &code))
			uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
		cr_expect(zero(int, code), "%s", users[i].sentence);
		reply_deinit(&reply);
	}
}

/* --- bundles ------------------------------------------------------------- */

static uint64_t begin(const struct device_uuid *gpu, uint64_t size_hint)
{
	struct request request = {
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = "m/",
				 .access = {.gid = GID_DEFAULT, .mode = 0644},
				 .size_hint = size_hint,
				 .device = *gpu},
	};
	struct reply reply;
	uint64_t bundle;

	cr_assert(zero(int, client_call(&alice, &request, &reply)), "%s",
		  alice.sentence);
	bundle = reply.bundle.bundle;
	reply_deinit(&reply);
	return bundle;
}

static int commit(uint64_t bundle)
{
	return client_ask(&alice,
			  &(struct request){.kind = MESSAGE_BUNDLE_COMMIT,
					    .bundle_commit = {bundle}});
}

Test(pool_device,
     chunks_of_a_committed_bundle_are_not_given_writable_to_clients)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct alloc_item item = item_of(MIB);
	uint64_t bundle = begin(&gpu, 3 * MIB);
	struct request request = {.kind = MESSAGE_CHUNK,
				  .chunk = {.n_chunks = 1}};
	struct reply reply;

	item.name = "m/w";
	cr_assert(
		zero(int, client_alloc_item(&alice, &item, 0, bundle, 0, &ref)),
		"%s", alice.sentence);
	cr_expect(eq(u64, chunk_of(&ref)->size, 4 * MIB), "as was said");
	request.chunk.chunks = &chunk_of(&ref)->id;
	cr_assert(zero(int, client_call(&alice, &request, &reply)));
	cr_expect(reply.chunks.chunks[0].is_writable);
	reply_deinit(&reply);
	cr_assert(zero(int, commit(bundle)), "%s", alice.sentence);
	cr_assert(zero(int, client_call(&alice, &request, &reply)));
	cr_expect(not(reply.chunks.chunks[0].is_writable));
	cr_expect(zero(int, memcmp(&reply.chunks.chunks[0].device, &gpu, 16)));
	reply_deinit(&reply);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_PUBLISHED));
}

/* A driver's descriptor refers to the memory only if it is passed on. One that
 * was opened again would not. */
Test(pool_device, readers_get_the_descriptor_of_the_memory)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	uint32_t block;
	int fd = -1;

	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 100, 0, &ref)));
	block = catalog_slot(&broker->store.catalog, ref.slot)->block;
	cr_assert(zero(
		int,
		pool_chunk_fd(
			&broker->store.pools,
			catalog_block(&broker->store.catalog, block)->chunk,
			false, &fd, NULL)));
	cr_expect(eq(int, fd, broker->store.pools.chunks[1].fd));
}

Test(pool_device, files_that_a_user_locks_leave_its_devices_alone)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct slot_ref host[2], device[2];
	struct locker lockers[2];
	int i;

	broker->base.config.warm_ms = 0;
	broker->base.config.chunk_max = 2 * MIB;
	for (i = 0; i < 2; i++) {
		host[i] = client_alloc(&alice, 2 * MIB);
		lock_file(&lockers[i],
			  broker->store.pools.chunks[2 * i + 1].fd);
		cr_assert(zero(int, client_alloc_on(&alice, &gpu, 2 * MIB, 0,
						    &device[i])));
	}
	for (i = 0; i < 2; i++) {
		cr_assert(zero(int, client_release_n(&alice, &host[i], 1)));
		cr_assert(zero(int, client_release_n(&alice, &device[i], 1)));
	}
	while (size_on(&gpu) > 0)
		loop_step(&broker->base.loop.uv);
	/* Works that are late take no thread of devices, either. */
	while (broker->store.pools.host.n_works > 0)
		loop_step(&broker->base.loop.uv);
	cr_assert(zero(int, client_alloc_on(&bob, &gpu, MIB, 0, &device[0])));
	cr_expect(eq(u64, broker->store.pools.host.total_size, 4 * MIB));
	for (i = 0; i < 2; i++)
		let_go(&lockers[i]);
}
