/*
 * Tests ref-counter files: the words of acquire and release, the pending
 * bitmap, and files of a hostile client.
 */
#include "shm/memfd.h"
#include "shm/refs.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct table table;
static struct refs broker, client;

static void setup(void)
{
	table = TABLE_NULL;
	broker = client = REFS_NULL;
	cr_assert(zero(int, table_create(&table, NULL)));
	cr_assert(zero(int, refs_create(&broker, NULL)));
	cr_assert(zero(int,
		       refs_open(&client, dup(broker.fd), REFS_CLIENT, NULL)));
}

static void teardown(void)
{
	refs_close(&client);
	refs_close(&broker);
	table_close(&table);
}

TestSuite(refs, .init = setup, .fini = teardown);

Test(refs, a_published_slot_can_be_acquired)
{
	table_store(&table, 5, table_word(3, SLOT_PUBLISHED));
	atomic_store(&table.header->era, 42);
	cr_expect(eq(int, refs_acquire(&client, &table, 5, 3), REFS_HELD));
	cr_expect(eq(i32, refs_delta(&broker, 5), 1));
	cr_expect(eq(u16, refs_used(&broker, 5), 42));
	refs_hold(&client, 5);
	cr_expect(eq(i32, refs_delta(&broker, 5), 2));
	cr_expect(zero(int, refs_release(&client, &table, 5)));
	cr_expect(zero(int, refs_release(&client, &table, 5)));
	cr_expect(zero(i32, refs_delta(&broker, 5)));
}

Test(refs, a_release_may_make_the_count_of_this_process_negative)
{
	table_store(&table, 5, table_word(3, SLOT_PUBLISHED));
	cr_expect(zero(int, refs_release(&client, &table, 5)));
	cr_expect(eq(i32, refs_delta(&broker, 5), -1));
}

Test(refs, acquiring_another_generation_is_stale_and_not_counted)
{
	uint32_t slots[4];

	table_store(&table, 5, table_word(4, SLOT_PUBLISHED));
	cr_expect(eq(int, refs_acquire(&client, &table, 5, 3), REFS_STALE));
	table_store(&table, 5, table_word(3, SLOT_FREE));
	cr_expect(eq(int, refs_acquire(&client, &table, 5, 3), REFS_STALE));
	cr_expect(zero(i32, refs_delta(&broker, 5)));
	cr_expect(zero(u32, refs_take_pending(&broker, slots, 4)));
}

Test(refs, backing_out_of_limbo_rings_for_any_generation)
{
	uint32_t slots[4];

	table_store(&table, 5, table_word(9, SLOT_LIMBO));
	cr_expect(
		eq(int, refs_acquire(&client, &table, 5, 3), REFS_STALE_RING));
	cr_expect(zero(i32, refs_delta(&broker, 5)));
	cr_assert(eq(u32, refs_take_pending(&broker, slots, 4), 1));
	cr_expect(eq(u32, slots[0], 5));
}

Test(refs, a_writer_that_gives_up_rings)
{
	uint32_t slots[4];

	table_store(&table, 5, table_word(3, SLOT_WRITING));
	cr_expect(refs_release(&client, &table, 5));
	cr_assert(eq(u32, refs_take_pending(&broker, slots, 4), 1));
	cr_expect(eq(u32, slots[0], 5));
}

Test(refs, a_release_in_limbo_rings_while_holds_remain)
{
	uint32_t slots[4];

	refs_hold(&client, 5);
	refs_hold(&client, 5);
	table_store(&table, 5, table_word(3, SLOT_LIMBO));
	cr_expect(refs_release(&client, &table, 5));
	cr_expect(eq(u32, refs_take_pending(&broker, slots, 4), 1));
	cr_expect(refs_release(&client, &table, 5));
	cr_expect(eq(u32, refs_take_pending(&broker, slots, 4), 1));
	cr_expect(zero(u32, refs_take_pending(&broker, slots, 4)));
}

/* These slots are at the ends of words, summary words and the file. */
static const uint32_t spread[] = {
	1, 63, 64, 127, 4095, 4096, 8191, 8192, TABLE_SLOTS - 1};
#define N_SPREAD (sizeof(spread) / sizeof(spread[0]))

Test(refs, pending_slots_are_taken_in_batches_and_once_each)
{
	uint32_t slots[N_SPREAD], n, i, round;

	for (round = 1; round <= N_SPREAD; round++) {
		for (i = 0; i < N_SPREAD; i++) {
			table_store(&table, spread[i],
				    table_word(1, SLOT_LIMBO));
			cr_assert(refs_release(&client, &table, spread[i]));
		}
		for (n = 0; n < N_SPREAD; n += i) {
			i = refs_take_pending(
				&broker, slots + n,
				round < N_SPREAD - n ? round : N_SPREAD - n);
			cr_assert(gt(u32, i, 0));
		}
		cr_expect(zero(int, memcmp(slots, spread, sizeof(spread))));
		cr_expect(zero(u32, refs_take_pending(&broker, slots, 1)));
	}
}

Test(refs, peeking_at_counts_allocates_no_page)
{
	const uint32_t slots[] = {1, 31, 32, 33, 4096, TABLE_SLOTS - 1};
	struct refs_peek peek = {0};
	struct stat before, after;

	refs_hold(&client, 31);
	refs_hold(&client, 32);
	cr_assert(zero(int, fstat(broker.fd, &before)));
	for (size_t i = 0; i < sizeof(slots) / sizeof(*slots); i++)
		cr_expect(eq(i32, refs_peek_delta(&broker, slots[i], &peek),
			     slots[i] == 31 || slots[i] == 32));
	cr_expect(zero(i32,
		       refs_peek_delta(&(struct refs){.fd = -1}, 31, &peek)));
	cr_assert(zero(int, fstat(broker.fd, &after)));
	cr_expect(eq(i64, after.st_blocks, before.st_blocks));
}

Test(refs, all_bits_that_a_hostile_client_sets_are_valid_slots)
{
	uint32_t slots[1000], n, total = 0, i;

	memset(client.summary, 0xff, TABLE_SLOTS / 512);
	memset(client.bitmap, 0xff, TABLE_SLOTS / 8);
	cr_expect(zero(u32, refs_take_pending(&broker, slots, 0)));
	do {
		n = refs_take_pending(&broker, slots, 1000);
		for (i = 0; i < n; i++)
			cr_assert(slots[i] > 0 && slots[i] < TABLE_SLOTS);
		total += n;
	} while (n == 1000);
	cr_expect(eq(u32, total, TABLE_SLOTS - 1)); /* 0 is not a slot */
}

Test(refs, summary_bits_without_slots_are_forgotten)
{
	uint32_t slots[4];

	memset(client.summary, 0xff, TABLE_SLOTS / 512);
	cr_expect(zero(u32, refs_take_pending(&broker, slots, 4)));
	cr_expect(zero(u64, atomic_load(&client.summary[0])));
}

Test(refs, the_broker_cannot_write_counts, .signal = SIGSEGV)
{
	refs_hold(&broker, 5);
}

Test(refs, a_forked_child_has_no_mapping_of_the_file)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		refs_hold(&client, 5);
		_exit(0);
	}
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(ne(int, status, 0));
	cr_expect(zero(i32, refs_delta(&broker, 5)));
}

Test(refs, counts_survive_the_broker)
{
	struct refs second = REFS_NULL;

	refs_hold(&client, 5);
	cr_assert(zero(int,
		       refs_open(&second, dup(client.fd), REFS_BROKER, NULL)));
	cr_expect(eq(u64, second.inode, broker.inode));
	cr_expect(eq(i32, refs_delta(&second, 5), 1));
	refs_close(&second);
	cr_expect(eq(int, second.fd, -1));
	refs_close(&second);
}

static int forge(const void *head, enum memfd_seals seals)
{
	struct stat status;
	int fd = -1;

	cr_assert(zero(int, fstat(broker.fd, &status)));
	cr_assert(zero(int,
		       memfd_create_sealed("forged", (uint64_t)status.st_size,
					   seals, &fd, NULL)));
	cr_assert(eq(long, pwrite(fd, head, 16, 0), 16));
	return fd;
}

static int open_forged(int fd)
{
	struct refs refs = REFS_NULL;
	int r = refs_open(&refs, fd, REFS_BROKER, NULL);

	cr_expect(r == 0 || fcntl(fd, F_GETFD) == -1, "consumed");
	cr_expect(r == 0 || refs.head == NULL, "nothing is given on failure");
	refs_close(&refs);
	return r;
}

Test(refs, files_that_are_not_ref_counter_files_are_refused)
{
	char head[16], bad[16];
	int i, fd = -1, wanted;

	memcpy(head, client.head, 16);
	cr_expect(zero(int, memcmp(head, "FSDPREF1", 8)));
	cr_expect(zero(int, open_forged(forge(head, MEMFD_SEAL_CLOSED))));
	/* magic, version, number of slots */
	for (i = 0; i < 16; i += i ? 4 : 8) {
		memcpy(bad, head, 16);
		bad[i] ^= 0x10;
		wanted = open_forged(forge(bad, MEMFD_SEAL_CLOSED));
		cr_expect(eq(int, wanted, -EPROTO), "byte %d", i);
	}
	cr_expect(eq(int, open_forged(forge(head, MEMFD_SEAL_SIZE)), -EPERM));
	cr_assert(zero(int, memfd_create_sealed("small", 4096,
						MEMFD_SEAL_CLOSED, &fd, NULL)));
	cr_expect(eq(int, open_forged(fd), -EINVAL));
	cr_expect(eq(int, open_forged(open("/dev/null", O_RDWR)), -EINVAL));
}

Test(refs, a_file_sealed_against_writing_is_refused)
{
	char head[16];
	int fd;

	memcpy(head, client.head, 16);
	fd = forge(head, MEMFD_SEAL_SIZE);
	cr_assert(zero(int, memfd_seal_write(fd, NULL)));
	cr_expect(eq(int, open_forged(fd), -EPERM));
}

#ifdef FSDP_TEST_POINTS
Test(refs, a_partial_mapping_is_undone)
{
	struct refs refs = REFS_NULL;

	setenv("FSDP_FAIL_AT", "memfd.map:2:12", 1);
	/* The second passage is that of the entries. */
	cr_expect(eq(int, refs_open(&refs, dup(client.fd), REFS_BROKER, NULL),
		     -ENOMEM));
	cr_expect(eq(ptr, refs.head, NULL));
}
#endif
