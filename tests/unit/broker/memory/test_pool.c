/*
 * Tests pools.
 */
#include "shm/memfd.h"
#include "tests/unit/broker/memory/file_locker.h"
#include "tests/unit/broker/memory/pool_fixture.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t resident(int fd)
{
	struct stat status;

	cr_assert(zero(int, fstat(fd, &status)));
	return (uint64_t)status.st_blocks * 512;
}

/* Run the loop until no chunk is left, or the test's time has passed. */
Test(pool, a_request_gets_blocks_that_are_disjoint_and_aligned)
{
	struct broker *broker = setup();
	const uint64_t sizes[] = {100, 0, 64};
	uint32_t blocks[3], i;

	cr_assert(zero(int,
		       try_alloc(broker, &alice, 0, sizes, 3, blocks, NULL)));
	for (i = 0; i < 3; i++) {
		struct block_record *block = block_at(broker, blocks[i]);

		cr_expect(eq(u32, block->chunk, 1));
		cr_expect(zero(u64, block->offset % 64));
		cr_expect(eq(u64, block->size, sizes[i]));
	}
	cr_expect(ge(u64, block_at(broker, blocks[1])->offset, 128));
	cr_expect(
		eq(u32, catalog_chunk(&broker->store.catalog, 1)->n_blocks, 3));
	cr_expect(eq(u64, broker->store.table.header->chunks[1], 1));
	cr_expect(eq(u32, pool_find_chunk(&broker->store.pools, 1), 1));
	cr_expect(zero(u32, pool_find_chunk(&broker->store.pools, 2)));
	teardown(broker);
}

Test(pool, freed_memory_is_reused_without_a_new_chunk)
{
	struct broker *broker = setup();
	uint32_t block = alloc(broker, &alice, 3 * MIB);
	uint64_t warm, all;

	release(broker, block);
	pools_free_bytes(&broker->store.pools, &warm, &all);
	cr_expect(eq(u64, all, 4 * MIB));
	cr_expect(eq(u64, warm, all));
	block = alloc(broker, &alice, 3 * MIB);
	cr_expect(eq(u32, block_at(broker, block)->chunk, 1));
	cr_expect(zero(u64, block_at(broker, block)->offset));
	cr_expect(eq(u64, broker->store.pools.n_created, 1));
	teardown(broker);
}

Test(pool, access_classes_share_no_chunk)
{
	struct broker *broker = setup();
	uint32_t one = alloc(broker, &alice, 64);
	uint32_t other = alloc(broker, &bob, 64);

	cr_expect(ne(u32, block_at(broker, one)->chunk,
		     block_at(broker, other)->chunk));
	cr_expect(eq(u64,
		     accounts_get(&broker->base.accounts, 1001)
			     ->used[ACCOUNT_CHUNKS],
		     1));
	teardown(broker);
}

Test(pool, chunks_double_up_to_the_largest)
{
	struct broker *broker = setup();
	const uint64_t expected[] = {4, 8, 16, 16};
	uint32_t i;

	for (i = 0; i < 4; i++) {
		uint64_t size = expected[i] * MIB;
		uint32_t block = alloc(broker, &alice, size);

		cr_expect(eq(u64, chunk_size(broker, block), size));
	}
	/* Only 20 MiB are left, so the chunk is no larger than the request
	 * needs. */
	cr_expect(eq(u64, chunk_size(broker, alloc(broker, &bob, 17 * MIB)),
		     18 * MIB));
	teardown(broker);
}

Test(pool, a_request_that_does_not_fit_is_refused_with_figures)
{
	struct broker *broker = setup();
	struct error err = ERROR_NULL;
	uint64_t size = 33 * MIB;
	uint32_t block;

	alloc(broker, &alice, 32 * MIB);
	cr_expect(eq(int, try_alloc(broker, &bob, 0, &size, 1, &block, &err),
		     POOL_FULL));
	cr_expect(eq(int, err.code, -ENOMEM));
	cr_expect(strstr(err.msg, "32 of memory_max's 64 MiB") != NULL, "%s",
		  err.msg);
	size = 65 * MIB;
	cr_expect(eq(int, try_alloc(broker, &bob, 0, &size, 1, &block, &err),
		     -ENOMEM));
	size = UINT64_MAX;
	cr_expect(eq(int, try_alloc(broker, &bob, 0, &size, 1, &block, &err),
		     -ENOMEM));
	cr_expect(eq(u32, broker->store.pools.n_chunks, 1));
	teardown(broker);
}

Test(pool, empty_chunks_of_other_users_are_freed_for_a_request)
{
	struct broker *broker = setup();

	release(broker, alloc(broker, &alice, 60 * MIB));
	cr_expect(eq(u64, broker->store.pools.host.total_size, 60 * MIB));
	alloc(broker, &bob, 30 * MIB);
	cr_expect(eq(u64, broker->store.pools.host.total_size, 30 * MIB));
	cr_expect(zero(u64, broker->store.pools.host.going_size));
	/* The chunk's record is used again, but its id is not. */
	cr_expect(eq(u64, broker->store.table.header->chunks[1], 2));
	cr_expect(eq(u64, broker->store.table.header->chunks_retired, 1));
	cr_expect(zero(u64, accounts_get(&broker->base.accounts, 1000)
				    ->used[ACCOUNT_CHUNKS]));
	teardown(broker);
}

static int try_once(struct broker *broker, const struct access_class *access,
		    uint64_t size)
{
	const struct pool_request request = {
		.access = *access, .n = 1, .sizes = &size};
	struct error err = ERROR_NULL;
	uint32_t block;
	int r;

	r = pool_alloc(&broker->store.pools, &request, &block, &err);
	catalog_commit(&broker->store.catalog);
	return r;
}

static void run_works(struct broker *broker)
{
	while (broker->store.pools.n_works > 0)
		uv_run(&broker->base.loop.uv, UV_RUN_ONCE);
}

/* Otherwise two requests could free each other's chunks without end. */
Test(pool, a_new_chunk_is_kept_for_the_request_that_caused_it)
{
	struct broker *broker = setup();
	struct pools *pools = &broker->store.pools;

	cr_assert(eq(int, try_once(broker, &bob, MIB), POOL_WAIT));
	run_works(broker);
	cr_assert(eq(int, try_once(broker, &alice, 64 * MIB), POOL_WAIT));
	cr_expect(zero(u64, pools->host.going_size));
	cr_assert(eq(int, try_once(broker, &bob, MIB), POOL_OK));
	cr_assert(eq(int, try_once(broker, &alice, 64 * MIB), POOL_FULL));
	teardown(broker);
}

Test(pool, a_new_chunk_is_freed_for_others_if_its_request_has_gone)
{
	struct broker *broker = setup();

	cr_assert(eq(int, try_once(broker, &bob, MIB), POOL_WAIT));
	run_works(broker);
	broker->store.pools.n_rounds += 2;
	alloc(broker, &alice, 64 * MIB);
	teardown(broker);
}

Test(pool, a_new_chunk_is_kept_longer_than_memory_stays_warm)
{
	struct broker *broker = setup();

	broker->base.config.warm_ms = 0;
	cr_assert(eq(int, try_once(broker, &bob, MIB), POOL_WAIT));
	run_works(broker);
	pools_look_again(&broker->store.pools);
	uv_run(&broker->base.loop.uv, UV_RUN_ONCE);
	cr_assert(eq(int, try_once(broker, &bob, MIB), POOL_OK));
	teardown(broker);
}

Test(pool, empty_chunks_are_freed_when_they_are_cold, .timeout = 300)
{
	struct broker *broker = setup();
	uint32_t block;
	int fd;

	broker->base.config.warm_ms = 5;
	block = alloc(broker, &alice, MIB);
	fd = fcntl(broker->store.pools.chunks[1].fd, F_DUPFD_CLOEXEC, 3);
	cr_expect(eq(u64, resident(fd), 4 * MIB));
	release(broker, block);
	run_until_empty(broker);
	/* The pages are freed although this process still has the file open. */
	cr_expect(zero(u64, resident(fd)));
	cr_expect(zero(u32, broker->store.pools.n_chunks));
	cr_expect(eq(ptr, broker->store.pools.first, NULL));
	cr_expect(zero(u32,
		       catalog_n_live(&broker->store.catalog, SECTION_CHUNK)));
	close(fd);
	teardown(broker);
}

Test(pool, free_pages_of_a_chunk_in_use_are_freed_when_they_are_cold,
     .timeout = 300)
{
	struct broker *broker = setup();
	uint64_t warm, all;
	uint32_t first, second;
	int fd;

	broker->base.config.warm_ms = 5;
	first = alloc(broker, &alice, 2 * MIB);
	second = alloc(broker, &alice, MIB);
	fd = broker->store.pools.chunks[1].fd;
	release(broker, first);
	while (broker->store.pools.n_trims == 0)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_expect(eq(u64, resident(fd), 2 * MIB));
	pools_free_bytes(&broker->store.pools, &warm, &all);
	cr_expect(eq(u64, warm, MIB));
	cr_expect(eq(u64, all, 3 * MIB));
	/* The chunks are allocated again like any others. */
	first = alloc(broker, &alice, 2 * MIB);
	cr_expect(eq(u32, broker->store.pools.n_chunks, 1));
	release(broker, first);
	release(broker, second);
	run_until_empty(broker);
	teardown(broker);
}

Test(pool, a_large_chunk_is_populated_in_pieces)
{
	struct broker *broker = setup();
	uint32_t block;

	broker->base.config.memory_max = 256 * MIB;
	broker->base.config.chunk_min = 128 * MIB;
	broker->base.config.chunk_max = 128 * MIB;
	block = alloc(broker, &alice, 60 * MIB);
	cr_expect(eq(u64, chunk_size(broker, block), 128 * MIB));
	cr_expect(
		eq(u64, resident(broker->store.pools.chunks[1].fd), 64 * MIB));
	block = alloc(broker, &alice, 8 * MIB);
	cr_expect(eq(u32, block_at(broker, block)->chunk, 1));
	cr_expect(
		eq(u64, resident(broker->store.pools.chunks[1].fd), 128 * MIB));
	cr_expect(eq(u64, catalog_chunk(&broker->store.catalog, 1)->populated,
		     128 * MIB));
	teardown(broker);
}

Test(pool, too_many_chunks_of_a_user_are_refused)
{
	struct broker *broker = setup();
	struct access_class access = alice;
	struct error err = ERROR_NULL;
	uint64_t size = 64;
	uint32_t block;

	broker->base.config.quota_chunks = 1;
	alloc(broker, &access, size);
	access.mode = 0644;
	cr_expect(eq(int, try_alloc(broker, &access, 0, &size, 1, &block, &err),
		     -EDQUOT));
	cr_expect(strstr(err.msg, "quota_chunks") != NULL, "%s", err.msg);
	teardown(broker);
}

Test(pool, a_user_at_the_limit_waits_for_its_chunks_that_are_being_freed)
{
	struct broker *broker = setup();
	struct access_class access = alice;

	broker->base.config.quota_chunks = 1;
	for (int i = 0; i < 3; i++) {
		release(broker, alloc(broker, &access, 64));
		access.mode ^= 0044;
	}
	teardown(broker);
}

/* If an id were used again, clients would use the chunk that they have mapped
 * under it. */
Test(pool, ids_of_chunks_are_never_reused)
{
	struct broker *broker = setup();
	struct catalog_header *header = broker->store.catalog.header;
	struct error err = ERROR_NULL;
	uint64_t size = 64;
	uint32_t block;
	int r;

	header->next_chunk_id = UINT32_MAX - TABLE_CHUNKS;
	block = alloc(broker, &alice, size);
	cr_expect(
		eq(u32, header->next_chunk_id, UINT32_MAX - TABLE_CHUNKS + 1));
	release(broker, block);
	header->next_chunk_id = UINT32_MAX;
	r = try_alloc(broker, &bob, 0, &size, 1, &block, &err);
	cr_expect(eq(int, r, -ENOSPC));
	cr_expect(strstr(err.msg, "numbers of chunks") != NULL, "%s", err.msg);
	cr_expect(eq(u32, header->next_chunk_id, UINT32_MAX));
	cr_expect(eq(u32, block_at(broker, alloc(broker, &alice, size))->chunk,
		     1),
		  "what is there is used on");
	teardown(broker);
}

Test(pool, a_chunk_that_cannot_be_created_fails_one_request_only)
{
	struct broker *broker = setup();
	struct rlimit old, none;
	uint64_t size = 64;
	uint32_t block;
	int r;

	/* The first allocation starts the thread that makes chunks, which needs
	 * descriptors. */
	release(broker, alloc(broker, &bob, 64));
	cr_assert(zero(int, getrlimit(RLIMIT_NOFILE, &old)));
	none = (struct rlimit){0, old.rlim_max};
	setrlimit(RLIMIT_NOFILE, &none);
	r = try_alloc(broker, &alice, 0, &size, 1, &block, NULL);
	setrlimit(RLIMIT_NOFILE, &old);
	cr_expect(eq(int, r, -EMFILE));
	cr_expect(eq(u32, broker->store.pools.n_chunks, 1));
	cr_expect(eq(u64, broker->store.pools.host.total_size, 4 * MIB));
	alloc(broker, &alice, 64);
	teardown(broker);
}

/* --- bundles ------------------------------------------------------------- */

Test(pool, a_sealed_bundle_is_read_only_for_all_clients)
{
	struct broker *broker = setup();
	uint32_t bundle = make_bundle(broker);
	uint32_t block = alloc_member(broker, bundle);
	struct error err = ERROR_NULL;
	char pid[32];
	void *map = MAP_FAILED;
	int fd = -1;

	cr_expect(eq(u64, chunk_size(broker, block), 2 * MIB));
	cr_expect(zero(
		int, pool_chunk_fd(&broker->store.pools, 1, true, &fd, NULL)));
	cr_expect(eq(int, fcntl(fd, F_GETFL) & O_ACCMODE, O_RDWR));
	map = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert(map != MAP_FAILED);
	cr_expect(eq(int, seal(broker, bundle, &err), -EBUSY));
	snprintf(pid, sizeof(pid), "process %d (", (int)getpid());
	cr_expect(strstr(err.msg, pid) != NULL, "%s", err.msg);
	munmap(map, 2 * MIB);
	cr_expect(zero(int, seal(broker, bundle, NULL)));
	cr_expect(zero(int, seal(broker, bundle, NULL)));
	cr_expect(zero(
		int, pool_chunk_fd(&broker->store.pools, 1, true, &fd, NULL)));
	cr_expect(eq(int, fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY));
	catalog_commit(&broker->store.catalog);
	release(broker, block);
	run_until_empty(broker);
	teardown(broker);
}

Test(pool, a_bundle_shares_no_chunk_with_an_earlier_one_of_its_record)
{
	struct broker *broker = setup();
	uint32_t bundle = make_bundle(broker);
	uint32_t old = alloc_member(broker, bundle);
	uint32_t new;

	pool_forget_bundle(&broker->store.pools, bundle);
	new = alloc_member(broker, bundle);
	cr_expect(ne(u32, block_at(broker, old)->chunk,
		     block_at(broker, new)->chunk));
	release(broker, old);
	release(broker, new);
	run_until_empty(broker);
	teardown(broker);
}

Test(pool, a_bundle_forgotten_while_its_chunk_is_created_leaves_no_chunk)
{
	struct broker *broker = setup();
	uint32_t bundle = make_bundle(broker), block;
	const uint64_t size = MIB;
	struct pool_request request = {
		.access = alice, .bundle = bundle, .n = 1, .sizes = &size};

	cr_assert(eq(int,
		     pool_alloc(&broker->store.pools, &request, &block, NULL),
		     POOL_WAIT));
	pool_forget_bundle(&broker->store.pools, bundle);
	run_until_empty(broker);
	cr_expect(zero(u32, broker->store.pools.n_chunks));
	cr_expect(eq(ptr, broker->store.pools.first, NULL));
	teardown(broker);
}

/* --- locked files -------------------------------------------------------- */

static void await_busy(struct broker *broker, uint32_t chunk)
{
	while (!broker->store.pools.chunks[chunk].is_busy)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
}

Test(pool, files_that_users_lock_leave_threads_to_others)
{
	static const struct access_class users[] = {
		{1000, 1000, 0600}, {1002, 1002, 0600}, {1003, 1003, 0600}};
	struct broker *broker = setup();
	struct locker lockers[6];
	const uint64_t size = MIB;
	uint32_t blocks[12], bundle, other, i;
	uint64_t n_trims;

	broker->base.config.chunk_min = broker->base.config.chunk_max = 8 * MIB;
	broker->base.config.warm_ms = 0;
	for (i = 0; i < 12; i++) {
		blocks[i] = alloc(broker, &users[i / 4], 3 * MIB);
		cr_assert(
			eq(u32, block_at(broker, blocks[i])->chunk, 1 + i / 2));
	}
	for (i = 0; i < 6; i++)
		lock_file(&lockers[i], broker->store.pools.chunks[i + 1].fd);
	/* Of each user one chunk is punched, and the other retired. */
	for (i = 0; i < 12; i++)
		if (i % 4 != 1)
			release(broker, blocks[i]);
	for (i = 1; i <= 6; i++)
		await_busy(broker, i);
	/* Memory of another user is made, punched and retired. */
	other = alloc(broker, &bob, 3 * MIB);
	n_trims = broker->store.pools.n_trims;
	release(broker, alloc(broker, &bob, 3 * MIB));
	while (broker->store.pools.n_trims == n_trims)
		loop_step(&broker->base.loop.uv);
	release(broker, other);
	while (broker->store.pools.host.total_size > 48 * MIB)
		loop_step(&broker->base.loop.uv);
	/* Memory of that user is populated, as no other chunk has space for
	 * it, and sealed. */
	broker->base.config.memory_max = 180 * MIB;
	broker->base.config.chunk_min = broker->base.config.chunk_max =
		128 * MIB;
	other = alloc(broker, &bob, 60 * MIB);
	cr_expect(eq(u64, chunk_size(broker, other), 128 * MIB));
	release(broker, alloc(broker, &bob, 8 * MIB));
	release(broker, other);
	bundle = make_bundle(broker);
	cr_assert(zero(
		int, try_alloc(broker, &bob, bundle, &size, 1, &other, NULL)));
	cr_expect(zero(int, seal(broker, bundle, NULL)));
	release(broker, other);
	for (i = 0; i < 6; i++)
		let_go(&lockers[i]);
	for (i = 1; i < 12; i += 4)
		release(broker, blocks[i]);
	run_until_empty(broker);
	teardown(broker);
}

Test(pool, a_third_work_of_a_user_waits_for_the_first_two)
{
	struct broker *broker = setup();
	struct locker lockers[2];
	uint32_t blocks[3], i;

	broker->base.config.chunk_min = broker->base.config.chunk_max = 2 * MIB;
	broker->base.config.warm_ms = 0;
	for (i = 0; i < 3; i++)
		blocks[i] = alloc(broker, &alice, 2 * MIB);
	for (i = 0; i < 2; i++)
		lock_file(&lockers[i], broker->store.pools.chunks[i + 1].fd);
	for (i = 0; i < 3; i++) {
		release(broker, blocks[i]);
		await_busy(broker, i + 1);
	}
	/* Another user's chunk comes and goes meanwhile. */
	release(broker, alloc(broker, &bob, MIB));
	while (broker->store.pools.n_chunks > 3)
		loop_step(&broker->base.loop.uv);
	for (i = 0; i < 2; i++)
		let_go(&lockers[i]);
	run_until_empty(broker);
	teardown(broker);
}

/* Makes a pool's first chunk, of this size. */
static uint32_t alloc_in_new(struct broker *broker,
			     const struct access_class *access, uint64_t size)
{
	broker->base.config.memory_max = 4096 * MIB;
	broker->base.config.chunk_min = broker->base.config.chunk_max = size;
	return alloc(broker, access, MIB);
}

static void await_late(struct broker *broker, uint32_t chunk)
{
	while (!broker->store.pools.chunks[chunk].is_late)
		loop_step(&broker->base.loop.uv);
}

Test(pool, a_work_is_late_after_large_ones_before_it_unless_they_are)
{
	static const uint64_t sizes[] = {512 * MIB, 512 * MIB, 2 * MIB,
					 512 * MIB, 2 * MIB};
	struct access_class classes[] = {alice, alice, alice, bob, alice};
	struct broker *broker = setup();
	const struct chunk *chunks = broker->store.pools.chunks;
	struct locker lockers[3];
	uint32_t blocks[5], i;

	for (i = 0; i < 5; i++)
		classes[i].mode |= i;
	for (i = 0; i < 3; i++)
		blocks[i] = alloc_in_new(broker, &classes[i], sizes[i]);
	for (i = 0; i < 2; i++)
		lock_file(&lockers[i], chunks[i + 1].fd);
	broker->base.config.warm_ms = 0;
	for (i = 0; i < 3; i++)
		release(broker, blocks[i]);
	await_late(broker, 3);
	cr_expect(chunks[1].is_late && chunks[2].is_late);
	/* The next one is small, and is late before a large one of bob. */
	for (i = 3; i < 5; i++) {
		blocks[i] = alloc_in_new(broker, &classes[i], sizes[i]);
		if (i == 3)
			lock_file(&lockers[2], chunks[4].fd);
		release(broker, blocks[i]);
		await_busy(broker, i + 1);
	}
	await_late(broker, 5);
	cr_expect(!chunks[4].is_late);
	for (i = 0; i < 3; i++)
		let_go(&lockers[i]);
	run_until_empty(broker);
	teardown(broker);
}

/* The only chunk is alice's, is dying, and has a work that waits for the lock.
 * Requests are refused until it ends, instead of waiting for it. */
static void refuse_until_let_go(struct broker *broker, struct locker *locker)
{
	const uint64_t large = 64 * MIB, small = 64;
	struct pool_source *host = &broker->store.pools.host;
	uint32_t block;

	broker->base.config.chunk_max = large;
	broker->base.config.quota_chunks = 1;
	cr_expect(eq(int, try_alloc(broker, &bob, 0, &large, 1, &block, NULL),
		     POOL_FULL));
	cr_expect(zero(u64, host->going_size));
	cr_expect(eq(int, try_alloc(broker, &alice, 0, &small, 1, &block, NULL),
		     -EDQUOT));
	let_go(locker);
	run_until_empty(broker);
	cr_expect(zero(u64, host->going_size));
	cr_expect(zero(u32, host->n_works));
	release(broker, alloc(broker, &bob, large));
	run_until_empty(broker);
}

Test(pool, no_request_waits_for_ever_for_a_chunk_whose_file_is_locked)
{
	struct broker *broker = setup();
	struct locker locker;
	uint32_t block;

	broker->base.config.warm_ms = 0;
	block = alloc(broker, &alice, 2 * MIB);
	lock_file(&locker, broker->store.pools.chunks[1].fd);
	release(broker, block);
	await_busy(broker, 1);
	refuse_until_let_go(broker, &locker);
	teardown(broker);
}

/* The bundle ends before its work is late, or after that. */
static void end_while_sealing(bool is_late)
{
	struct broker *broker = setup();
	struct pools *pools = &broker->store.pools;
	uint32_t bundle = make_bundle(broker);
	uint32_t block = alloc_member(broker, bundle);
	struct locker locker;

	broker->base.config.warm_ms = 0;
	lock_file(&locker, pools->chunks[1].fd);
	cr_assert(eq(int, pool_seal_bundle(pools, bundle, NULL), POOL_WAIT));
	while (is_late && pools->host.n_works > 0)
		loop_step(&broker->base.loop.uv);
	release(broker, block);
	refuse_until_let_go(broker, &locker);
	teardown(broker);
}

Test(pool, no_request_waits_for_ever_for_a_bundle_that_ends_while_sealed)
{
	end_while_sealing(false);
	end_while_sealing(true);
}

/* A work on alice's only chunk waits for the lock of its file. */
static void expect_another_chunk(struct broker *broker, struct locker *locker)
{
	const struct chunk *locked = &broker->store.pools.chunks[1];
	uint32_t block = alloc(broker, &alice, 8 * MIB);

	cr_expect(eq(u32, block_at(broker, block)->chunk, 2));
	cr_expect(locked->is_busy);
	let_go(locker);
	while (locked->is_busy)
		loop_step(&broker->base.loop.uv);
	teardown(broker);
}

Test(pool, an_owner_gets_memory_while_a_lock_keeps_pages_from_being_freed)
{
	struct broker *broker = setup();
	struct locker locker;
	uint32_t block;

	broker->base.config.chunk_min = 8 * MIB;
	block = alloc(broker, &alice, 3 * MIB);
	alloc(broker, &alice, 3 * MIB);
	lock_file(&locker, broker->store.pools.chunks[1].fd);
	broker->base.config.warm_ms = 0;
	release(broker, block);
	await_busy(broker, 1);
	expect_another_chunk(broker, &locker);
}

Test(pool, an_owner_gets_memory_while_a_lock_keeps_pages_from_being_added)
{
	struct broker *broker = setup();
	struct locker locker;

	broker->base.config.memory_max = 256 * MIB;
	broker->base.config.chunk_min = broker->base.config.chunk_max =
		128 * MIB;
	alloc(broker, &alice, 60 * MIB);
	lock_file(&locker, broker->store.pools.chunks[1].fd);
	expect_another_chunk(broker, &locker);
}

#ifdef FSDP_TEST_POINTS
Test(pool, works_that_get_no_thread_leave_libuv_its_threads)
{
	struct access_class classes[] = {alice, alice, bob, bob};
	const struct access_class carol = {1002, 1002, 0600};
	struct broker *broker = setup();
	struct locker lockers[4];
	uint32_t blocks[4], i;

	broker->base.config.chunk_min = 2 * MIB;
	broker->base.config.warm_ms = 0;
	for (i = 0; i < 4; i++) {
		classes[i].mode |= i;
		blocks[i] = alloc(broker, &classes[i], 2 * MIB);
		lock_file(&lockers[i], broker->store.pools.chunks[i + 1].fd);
	}
	setenv("FSDP_FAIL_AT", "pool.thread:*:EAGAIN", 1);
	for (i = 0; i < 4; i++)
		release(broker, blocks[i]);
	await_busy(broker, 4);
	/* libuv has four threads, and one of them makes carol's chunk. */
	blocks[0] = alloc(broker, &carol, MIB);
	unsetenv("FSDP_FAIL_AT");
	for (i = 0; i < 4; i++)
		let_go(&lockers[i]);
	release(broker, blocks[0]);
	run_until_empty(broker);
	teardown(broker);
}

Test(pool, a_work_without_a_thread_does_not_delay_a_stop)
{
	struct broker *broker = setup();

	broker->base.config.warm_ms = 0;
	setenv("FSDP_FAIL_AT", "pool.thread:*:EAGAIN", 1);
	release(broker, alloc(broker, &alice, 3 * MIB));
	await_busy(broker, 1);
	broker->base.loop.is_stopping = true;
	run_until_empty(broker);
	teardown(broker);
}
#endif

/* --- restart ------------------------------------------------------------- */

/* Set what a keeper would return. Chunk ids equal their records here. */
static void inherit(struct broker *broker, uint32_t n)
{
	struct fdstore *store = &broker->base.fdstore;
	uint32_t i;

	store->inherited = calloc(n, sizeof(*store->inherited));
	store->n_inherited = n;
	for (i = 0; i < n; i++) {
		struct fdstore_entry *entry = &store->inherited[i];
		int fd = broker->store.pools.chunks[i + 1].fd;

		if (fd < 0)
			fd = broker->store.pools.chunks[1].fd;
		entry->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		snprintf(entry->name, sizeof(entry->name), "c%u", i + 1);
	}
}

static int restart(struct broker *broker, struct error *err)
{
	deadlines_remove(&broker->base.deadlines,
			 &broker->store.pools.trim_position);
	pools_deinit(&broker->store.pools);
	accounts_deinit(&broker->base.accounts);
	pools_init(&broker->store.pools);
	return pools_adopt(&broker->store.pools, err);
}

Test(pool, after_a_restart_blocks_have_the_same_offsets)
{
	struct broker *broker = setup();
	uint32_t kept = alloc(broker, &alice, 3 * MIB);
	uint32_t gone = alloc(broker, &alice, 512);
	uint32_t other = alloc(broker, &bob, 64);

	release(broker, gone);
	inherit(broker, 3); /* "c3" belongs to no chunk */
	cr_assert(zero(int, restart(broker, NULL)));
	cr_expect(eq(u32, broker->store.pools.n_chunks, 2));
	cr_expect(eq(u64, broker->store.pools.host.total_size, 8 * MIB));
	cr_expect(eq(int, broker->base.fdstore.inherited[2].fd, -1));
	cr_expect(eq(u64, broker->store.table.header->chunks[2], 2));
	gone = alloc(broker, &alice, MIB);
	cr_expect(eq(u64, block_at(broker, gone)->offset, 3 * MIB));
	cr_expect(eq(u32, block_at(broker, gone)->chunk, 1));
	release(broker, gone);
	release(broker, kept);
	release(broker, other);
	teardown(broker);
}

Test(pool, a_chunk_without_a_stored_descriptor_makes_adoption_fail)
{
	struct broker *broker = setup();
	struct error err = ERROR_NULL;

	alloc(broker, &alice, 64);
	alloc(broker, &bob, 64);
	inherit(broker, 1);
	cr_expect(eq(int, restart(broker, &err), -EUCLEAN));
	cr_expect(strstr(err.msg, "adopt chunk 2") != NULL, "%s", err.msg);
	teardown(broker);
}

Test(pool, an_empty_bundle_chunk_does_not_outlive_a_restart)
{
	struct broker *broker = setup();
	uint32_t bundle = make_bundle(broker);

	pool_release(&broker->store.pools, alloc_member(broker, bundle));
	catalog_commit(&broker->store.catalog);
	/* The broker dies before it retires the chunk. */
	inherit(broker, 1);
	cr_assert(zero(int, restart(broker, NULL)));
	run_until_empty(broker);
	cr_expect(zero(u32,
		       catalog_n_live(&broker->store.catalog, SECTION_CHUNK)));
	teardown(broker);
}
