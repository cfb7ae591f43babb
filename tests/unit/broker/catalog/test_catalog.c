/*
 * Tests the catalog's records, lists, buckets and blobs, and that a death
 * between any two instructions of a transaction leaves all of the transaction
 * or nothing of it.
 *
 * For the latter a child runs a transaction under single-step. After an
 * instruction the file has the state that SIGKILL would leave there. The test
 * copies and adopts the file, and compares the result with the files before and
 * after the transaction.
 */
#include "broker/catalog/catalog.h"
#include "proto/error.h"
#include "shm/memfd.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRANT_LINK  offsetof(struct grant_record, slot_link)
#define JOURNAL     ((off_t)LAYOUT_PAGE_SIZE)
#define JOURNAL_END (JOURNAL + (8 << 20))

static struct catalog make(void)
{
	struct catalog catalog = CATALOG_NULL;

	cr_assert(zero(int, catalog_create(&catalog, NULL)));
	return catalog;
}

/* --- copies of the file -------------------------------------------------- */

static void copy_range(int from, int to, off_t start, off_t end)
{
	char page[4096];

	for (; start < end; start += (off_t)sizeof(page)) {
		cr_assert(eq(long, pread(from, page, sizeof(page), start),
			     sizeof(page)));
		cr_assert(eq(long, pwrite(to, page, sizeof(page), start),
			     sizeof(page)));
	}
}

static int copy_file(int fd)
{
	struct stat status;
	off_t start = 0, end;
	int copy = -1;

	cr_assert(zero(int, fstat(fd, &status)));
	cr_assert(
		zero(int, memfd_create_sealed("copy", (uint64_t)status.st_size,
					      MEMFD_SEAL_CLOSED, &copy, NULL)));
	while ((start = lseek(fd, start, SEEK_DATA)) >= 0) {
		end = lseek(fd, start, SEEK_HOLE);
		copy_range(fd, copy, start, end);
		start = end;
	}
	return copy;
}

/* Compares all bytes of a page that have a meaning. The count of adoptions, the
 * journal's size and the area above the blobs in use have none here. */
static void read_page(int fd, off_t at, char *page)
{
	uint64_t top;

	cr_assert(eq(
		long,
		pread(fd, &top, 8, offsetof(struct catalog_header, blob_top)),
		8));
	cr_assert(eq(long, pread(fd, page, 4096, at), 4096));
	if (at == 0)
		memset(page + 12, 0, 12);
	if ((uint64_t)at < top && (uint64_t)at + 4096 > top)
		memset(page + top % 4096, 0, 4096 - top % 4096);
}

/* Returns whether the files have the same contents. Only ranges in which `a`
 * has data are compared, because undoing makes no pages. */
static bool is_same(int a, int b)
{
	off_t start = 0, end;

	while ((start = lseek(a, start, SEEK_DATA)) >= 0) {
		end = lseek(a, start, SEEK_HOLE);
		for (; start < end; start += 4096) {
			char one[4096], other[4096];

			if (start >= JOURNAL && start < JOURNAL_END)
				continue;
			read_page(a, start, one);
			read_page(b, start, other);
			if (memcmp(one, other, 4096) != 0)
				return false;
		}
	}
	return true;
}

static int adopt_copy(int fd)
{
	struct catalog catalog = CATALOG_NULL;
	int copy = copy_file(fd);
	int kept = dup(copy);

	cr_assert(zero(int, catalog_adopt(&catalog, copy, NULL)));
	catalog_close(&catalog);
	return kept;
}

/* --- transactions -------------------------------------------------------- */

/* Make one slot with two grants in its list, chained in a bucket, and a
 * blob. */
static uint32_t make_slot(struct catalog *catalog, char name)
{
	uint32_t index = catalog_alloc(catalog, SECTION_SLOT);
	struct slot_record *slot = catalog_slot(catalog, index);
	uint32_t *bucket = catalog_bucket(catalog, HASH_NAME, 77);
	uint32_t i;

	slot->generation++;
	slot->block = 9;
	slot->blob = catalog_blob_alloc(catalog, 40);
	memset(catalog_blob(catalog, slot->blob), name, 40);
	slot->name_next = *bucket;
	catalog_set(catalog, *bucket, index);
	for (i = 0; i < 2; i++) {
		uint32_t grant = catalog_alloc(catalog, SECTION_GRANT);

		catalog_grant(catalog, grant)->session = 5;
		catalog_list_append(catalog, &slot->grants, SECTION_GRANT,
				    GRANT_LINK, grant);
	}
	return index;
}

static void add_to_limbo(struct catalog *catalog, uint32_t slot)
{
	catalog_list_append(catalog, &catalog->header->limbo, SECTION_SLOT,
			    offsetof(struct slot_record, limbo_link), slot);
}

/* Free what make_slot() made and use all of it again. Then put another slot
 * into a list. */
static void churn(struct catalog *catalog, uint32_t index, uint32_t other)
{
	struct slot_record *slot = catalog_slot(catalog, index);
	uint32_t *bucket = catalog_bucket(catalog, HASH_NAME, 77);

	while (slot->grants.first) {
		uint32_t grant = slot->grants.first;

		catalog_list_remove(catalog, &slot->grants, SECTION_GRANT,
				    GRANT_LINK, grant);
		catalog_release(catalog, SECTION_GRANT, grant);
	}
	catalog_set(catalog, *bucket, slot->name_next);
	catalog_blob_release(catalog, slot->blob, 40);
	catalog_release(catalog, SECTION_SLOT, index);
	make_slot(catalog, 'b');
	make_slot(catalog, 'c');
	add_to_limbo(catalog, other);
	memset(catalog_blob(catalog, catalog_blob_alloc(catalog, 3)), 'y', 3);
}

static void run_traced(struct catalog *catalog)
{
	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	raise(SIGSTOP);
	churn(catalog, 2, 1);
	catalog_commit(catalog);
	_exit(0);
}

static pid_t start_traced(struct catalog *catalog)
{
	pid_t child = fork();
	int status;

	cr_assert(ge(int, child, 0));
	if (child == 0)
		run_traced(catalog);
	cr_assert(eq(int, waitpid(child, &status, 0), child));
	cr_assert(not(zero(int, WIFSTOPPED(status))), "no ptrace");
	return child;
}

/* Returns false if the child has ended. */
static bool step(pid_t child)
{
	int status;

	ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
	cr_assert(eq(int, waitpid(child, &status, 0), child));
	return WIFSTOPPED(status);
}

Test(catalog, a_death_at_any_instruction_leaves_a_transaction_whole_or_undone)
{
	struct catalog catalog = make();
	int before, after = -1, n_undone = 0, n_steps = 0;
	pid_t child;

	cr_assert(eq(u32, make_slot(&catalog, 'o'), 1));
	cr_assert(eq(u32, make_slot(&catalog, 'a'), 2));
	add_to_limbo(&catalog, make_slot(&catalog, 'l'));
	catalog_commit(&catalog);
	before = copy_file(catalog.fd);
	child = start_traced(&catalog);
	while (step(child)) {
		/* To stop after every instruction would take too long. The step
		 * is a prime, so that every part of a loop gets its turn. */
		if (after >= 0 || ++n_steps % 7)
			continue;
		after = adopt_copy(catalog.fd);
		if (!is_same(before, after))
			continue;
		close(after);
		after = -1;
		n_undone++;
	}
	/* The first transaction that was not undone must have been done
	 * completely. */
	cr_expect(gt(int, n_undone, 100));
	cr_assert(ge(int, after, 0));
	cr_expect(zero(u64, catalog.header->journal_size));
	cr_expect(is_same(catalog.fd, after));
	close(after);
	close(before);
	catalog_close(&catalog);
}

Test(catalog, a_transaction_leaves_no_journal_after_its_commit)
{
	struct catalog catalog = make();
	size_t room = catalog_journal_room(&catalog);

	make_slot(&catalog, 'a');
	cr_expect(lt(sz, catalog_journal_room(&catalog), room));
	catalog_commit(&catalog);
	cr_expect(eq(sz, catalog_journal_room(&catalog), room));
	catalog_close(&catalog);
}

/* --- adoption ------------------------------------------------------------ */

static int try_adopt(int fd)
{
	struct catalog catalog = CATALOG_NULL;
	struct error err = ERROR_NULL;
	int r = catalog_adopt(&catalog, fcntl(fd, F_DUPFD_CLOEXEC, 3), &err);

	cr_expect(eq(int, err.code, r));
	cr_expect(eq(int, r < 0, catalog.fd < 0));
	catalog_close(&catalog);
	return r;
}

Test(catalog, is_refused_after_two_adoptions_that_did_not_end_well)
{
	struct catalog catalog = make();

	cr_expect(zero(int, try_adopt(catalog.fd)));
	cr_expect(zero(int, try_adopt(catalog.fd)));
	cr_expect(eq(int, try_adopt(catalog.fd), -EUCLEAN));
	catalog_adopted(&catalog);
	cr_expect(zero(int, try_adopt(catalog.fd)));
	catalog_close(&catalog);
}

Test(catalog, of_another_layout_is_refused)
{
	struct catalog catalog = make();

	catalog.header->layout_version++;
	cr_expect(eq(int, try_adopt(catalog.fd), -EPROTO));
	cr_expect(zero(u32, catalog.header->adoption_attempts));
	catalog_close(&catalog);
}

/* Try to adopt a file of another size that begins as a catalog does, or as one
 * of another layout. */
static int try_small(uint32_t other)
{
	struct catalog catalog = make();
	int fd = -1, r;

	catalog.header->layout_version += other;
	cr_assert(zero(int, memfd_create_sealed("x", 4096, MEMFD_SEAL_CLOSED,
						&fd, NULL)));
	cr_assert(eq(sz, (size_t)pwrite(fd, catalog.base, 4096, 0), 4096));
	r = try_adopt(fd);
	close(fd);
	catalog_close(&catalog);
	return r;
}

Test(catalog, of_another_layout_and_size_is_told_from_a_damaged_one)
{
	int other = -1;

	cr_expect(eq(int, try_small(1), -EPROTO));
	cr_expect(eq(int, try_small(0), -EUCLEAN));
	cr_assert(zero(int, memfd_create_sealed("x", 4096, MEMFD_SEAL_CLOSED,
						&other, NULL)));
	cr_expect(eq(int, try_adopt(other), -EUCLEAN));
	close(other);
}

Test(catalog, with_a_journal_of_invalid_addresses_is_refused_unchanged)
{
	struct catalog catalog = make();
	uint64_t *trailer = (void *)(catalog.base + JOURNAL + 8);
	const uint64_t bad[][2] = {
		{JOURNAL, 8},           /* the journal itself is overwritten */
		{UINT64_C(1) << 60, 8}, /* the address is after the end */
		{0, 16},                /* this is more than the file has */
		{0, UINT64_MAX},        /* an overflow */
	};
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		trailer[0] = bad[i][0];
		trailer[1] = bad[i][1];
		catalog.header->journal_size = 24;
		catalog.header->adoption_attempts = 0;
		cr_expect(eq(int, try_adopt(catalog.fd), -EUCLEAN));
		cr_expect(eq(u64, catalog.header->journal_size, 24));
	}
	catalog.header->journal_size = UINT64_C(9) << 20;
	catalog.header->adoption_attempts = 0;
	cr_expect(eq(int, try_adopt(catalog.fd), -EUCLEAN));
	catalog_close(&catalog);
}

/* --- records, lists, blobs ----------------------------------------------- */

Test(catalog, records_are_numbered_from_1_and_zeroed_before_reuse)
{
	struct catalog catalog = make();
	uint32_t first = catalog_alloc(&catalog, SECTION_GRANT);
	uint32_t second = catalog_alloc(&catalog, SECTION_GRANT);

	cr_expect(eq(u32, first, 1));
	cr_expect(eq(u32, second, 2));
	memset(catalog_grant(&catalog, first), 0xff,
	       sizeof(struct grant_record));
	catalog_release(&catalog, SECTION_GRANT, first);
	cr_expect(zero(u32, catalog_grant(&catalog, first)->session));
	cr_expect(eq(u32, catalog_n_live(&catalog, SECTION_GRANT), 1));
	cr_expect(eq(u32, catalog_alloc(&catalog, SECTION_GRANT), first));
	cr_expect(zero(i32, catalog_grant(&catalog, first)->granted));
	cr_expect(zero(u32, catalog_grant(&catalog, first)->hash_next));
	cr_expect(eq(u32, catalog_n_touched(&catalog, SECTION_GRANT), 2));
	catalog_close(&catalog);
}

Test(catalog, a_free_record_is_recognised_by_its_own_field)
{
	struct catalog catalog = make();
	uint32_t section;

	/* Two records of each section are freed, so that the first has a link
	 * to the second. */
	for (section = 0; section < SECTION_N; section++) {
		cr_assert(eq(u32, catalog_alloc(&catalog, section), 1));
		cr_assert(eq(u32, catalog_alloc(&catalog, section), 2));
		catalog_release(&catalog, section, 2);
		catalog_release(&catalog, section, 1);
	}
	cr_expect(zero(u32, catalog_slot(&catalog, 1)->block));
	cr_expect(zero(u32, catalog_block(&catalog, 1)->chunk));
	cr_expect(zero(u32, catalog_grant(&catalog, 1)->session));
	cr_expect(zero(u32, catalog_chunk(&catalog, 1)->id));
	cr_expect(zero(u64, catalog_session(&catalog, 1)->id));
	cr_expect(zero(u32, catalog_ticket(&catalog, 1)->slot));
	cr_expect(eq(int, catalog_bundle(&catalog, 1)->state, BUNDLE_FREE));
	cr_expect(zero(u32, catalog_prefix(&catalog, 1)->name_size));
	cr_expect(zero(u64, catalog_comm(&catalog, 1)->id));
	cr_expect(zero(u64, catalog_group(&catalog, 1)->id));
	for (section = 0; section < SECTION_N; section++) {
		cr_expect(eq(u32, catalog_alloc(&catalog, section), 1));
		cr_expect(eq(u32, catalog_alloc(&catalog, section), 2));
	}
	catalog_close(&catalog);
}

Test(catalog, committed_records_of_communicators_are_adopted)
{
	struct catalog catalog = make();
	uint32_t comm = catalog_alloc(&catalog, SECTION_COMM);
	uint32_t group = catalog_alloc(&catalog, SECTION_GROUP);
	struct catalog adopted = CATALOG_NULL;

	cr_expect(ge(u32, catalog_capacity(SECTION_COMM), 1024));
	cr_expect(ge(u32, catalog_capacity(SECTION_GROUP), 65536));
	cr_expect(eq(u64, catalog.header->next_comm_id, 1));
	catalog_comm(&catalog, comm)->id = 5;
	catalog_comm(&catalog, comm)->first_group = group;
	catalog_comm(&catalog, comm)->step = 7;
	catalog_group(&catalog, group)->comm = comm;
	catalog_set(&catalog, catalog.header->next_comm_id, 9);
	catalog_commit(&catalog);
	catalog_set(&catalog, catalog_comm(&catalog, comm)->step, 8);
	catalog_release(&catalog, SECTION_GROUP, group);
	cr_assert(zero(int,
		       catalog_adopt(&adopted, copy_file(catalog.fd), NULL)));
	cr_expect(eq(u64, catalog_comm(&adopted, comm)->step, 7));
	cr_expect(eq(u32, catalog_comm(&adopted, comm)->first_group, group));
	cr_expect(eq(u32, catalog_group(&adopted, group)->comm, comm));
	cr_expect(eq(u64, adopted.header->next_comm_id, 9));
	catalog_close(&adopted);
	catalog_close(&catalog);
}

Test(catalog, a_slot_keeps_its_generation_when_it_is_freed)
{
	struct catalog catalog = make();
	uint32_t slot = catalog_alloc(&catalog, SECTION_SLOT);

	catalog_slot(&catalog, slot)->generation = 41;
	catalog_slot(&catalog, slot)->size = 7;
	catalog_release(&catalog, SECTION_SLOT, slot);
	cr_assert(eq(u32, catalog_alloc(&catalog, SECTION_SLOT), slot));
	cr_expect(eq(u64, catalog_slot(&catalog, slot)->generation, 41));
	cr_expect(zero(u64, catalog_slot(&catalog, slot)->size));
	catalog_close(&catalog);
}

Test(catalog, a_full_section_has_no_record_left)
{
	struct catalog catalog = make();
	uint32_t n = catalog_capacity(SECTION_CHUNK), i;

	cr_expect(lt(u32, n, TABLE_CHUNKS));
	cr_expect(eq(u32, catalog_capacity(SECTION_SLOT), TABLE_SLOTS - 1));
	cr_expect(eq(u32, catalog_capacity(SECTION_SESSION),
		     CATALOG_MAX_SESSIONS));
	for (i = 1; i <= n; i++)
		cr_assert(eq(u32, catalog_alloc(&catalog, SECTION_CHUNK), i));
	cr_expect(zero(u32, catalog_alloc(&catalog, SECTION_CHUNK)));
	catalog_release(&catalog, SECTION_CHUNK, 3);
	cr_expect(eq(u32, catalog_alloc(&catalog, SECTION_CHUNK), 3));
	catalog_close(&catalog);
}

Test(catalog, lists_keep_their_order_when_any_element_is_removed)
{
	struct catalog catalog = make();
	struct list *list = &catalog.header->limbo;
	const uint32_t removed[] = {2, 1, 4, 3};
	uint32_t i;

	for (i = 1; i <= 4; i++) {
		catalog_alloc(&catalog, SECTION_GRANT);
		catalog_list_append(&catalog, list, SECTION_GRANT, GRANT_LINK,
				    i);
	}
	cr_expect(eq(u32, list->first, 1));
	cr_expect(eq(u32, list->last, 4));
	for (i = 0; i < 4; i++) {
		catalog_list_remove(&catalog, list, SECTION_GRANT, GRANT_LINK,
				    removed[i]);
		cr_expect(eq(u32, list->n, 3 - i));
		if (i == 0)
			cr_expect(eq(u32,
				     catalog_grant(&catalog, 1)->slot_link.next,
				     3));
		if (i == 2)
			cr_expect(eq(u32, list->first, list->last));
	}
	cr_expect(zero(u32, list->first));
	cr_expect(zero(u32, list->last));
	catalog_close(&catalog);
}

Test(catalog, buckets_of_different_hashes_are_separate)
{
	struct catalog catalog = make();
	uint32_t hash;

	for (hash = 0; hash < HASH_N; hash++) {
		*catalog_bucket(&catalog, hash, UINT64_MAX) = hash + 1;
		*catalog_bucket(&catalog, hash, 0) = 100 + hash;
	}
	for (hash = 0; hash < HASH_N; hash++) {
		cr_expect(eq(u32, *catalog_bucket(&catalog, hash, UINT64_MAX),
			     hash + 1));
		cr_expect(eq(u32, *catalog_bucket(&catalog, hash, 0),
			     100 + hash));
	}
	catalog_close(&catalog);
}

Test(catalog, freed_blobs_of_a_size_class_are_reused)
{
	struct catalog catalog = make();
	uint64_t small = catalog_blob_alloc(&catalog, 33);
	uint64_t large = catalog_blob_alloc(&catalog, 65536);
	uint64_t bytes = catalog_blob_bytes(&catalog);

	cr_expect(zero(u64, small % 8));
	cr_expect(zero(u64, large % 8));
	cr_expect(eq(u64, bytes, 48 + 65536));
	catalog_blob_release(&catalog, small, 33);
	cr_expect(ne(u64, catalog_blob_alloc(&catalog, 49), small));
	cr_expect(eq(u64, catalog_blob_alloc(&catalog, 48), small));
	catalog_blob_release(&catalog, large, 65536);
	cr_expect(eq(u64, catalog_blob_alloc(&catalog, 49153), large));
	cr_expect(eq(u64, catalog_blob_bytes(&catalog), bytes + 64));
	catalog_close(&catalog);
}

Test(catalog, needs_little_memory_per_tensor)
{
	struct catalog catalog = make();
	const uint64_t n = 20000;
	struct stat status;
	uint64_t i;

	for (i = 0; i < n; i++) {
		struct slot_record *slot;

		catalog_alloc(&catalog, SECTION_BLOCK);
		catalog_alloc(&catalog, SECTION_GRANT);
		slot = catalog_slot(&catalog,
				    catalog_alloc(&catalog, SECTION_SLOT));
		slot->blob = catalog_blob_alloc(&catalog, 30 + 32);
		memset(catalog_blob(&catalog, slot->blob), 1, 62);
		catalog_commit(&catalog);
	}
	cr_assert(zero(int, fstat(catalog.fd, &status)));
	cr_expect(lt(u64, (uint64_t)status.st_blocks * 512 / n, 320));
	catalog_close(&catalog);
}
