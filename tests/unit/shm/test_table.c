/*
 * Tests which processes may write the state table, and which files are refused.
 */
#include "proto/error.h"
#include "shm/memfd.h"
#include "shm/table.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct table make(void)
{
	struct table table = TABLE_NULL;

	cr_assert(zero(int, table_create(&table, NULL)));
	return table;
}

/* Make a sealed file of the table's size that begins with these bytes. */
static int forge(int like_fd, const void *bytes, size_t size)
{
	struct stat status;
	int fd = -1;

	cr_assert(zero(int, fstat(like_fd, &status)));
	cr_assert(zero(int,
		       memfd_create_sealed("forged", (uint64_t)status.st_size,
					   MEMFD_SEAL_CLOSED, &fd, NULL)));
	cr_assert(eq(long, pwrite(fd, bytes, size, 0), (long)size));
	return fd;
}

Test(table, a_word_encodes_state_and_generation)
{
	uint64_t word = table_word(UINT64_C(1) << 60, SLOT_LIMBO);

	cr_expect(eq(u64, table_word_generation(word), UINT64_C(1) << 60));
	cr_expect(eq(int, table_word_state(word), SLOT_LIMBO));
	cr_expect(zero(u64, table_word(0, SLOT_FREE)));
}

/* Whether a run is alive is decided by the word of that run only. */
Test(table, a_verdict_applies_to_one_run)
{
	struct table table = make();

	cr_expect(not(table_is_alive(&table, 1, 5)));
	table_set_verdict(&table, 1, table_verdict(5, false));
	cr_expect(table_is_alive(&table, 1, 5));
	cr_expect(not(table_is_alive(&table, 1, 4)));
	cr_expect(not(table_is_alive(&table, 2, 5)));
	table_set_verdict(&table, 1, table_verdict(5, true));
	cr_expect(not(table_is_alive(&table, 1, 5)));
	table_set_verdict(&table, 1, table_verdict(6, false));
	cr_expect(not(table_is_alive(&table, 1, 5)));
	table_close(&table);
}

Test(table, all_slots_of_a_new_table_are_free)
{
	struct table table = make();

	cr_expect(eq(u32, table.header->n_slots, TABLE_SLOTS));
	cr_expect(zero(int, memcmp(table.header, "FSDPTAB1", 8)));
	cr_expect(zero(u64, table_load(&table, 0)));
	cr_expect(zero(u64, table_load(&table, TABLE_SLOTS - 1)));
	cr_expect(zero(u64, atomic_load(&table.header->epoch)));
	table_close(&table);
	cr_expect(eq(int, table.fd, -1));
	table_close(&table);
}

Test(table, a_reader_sees_what_the_broker_stores)
{
	struct table table = make(), reader = TABLE_NULL;
	int fd = -1;

	cr_assert(zero(int, memfd_open_readonly(table.fd, &fd, NULL)));
	cr_assert(zero(int, table_open(&reader, fd, false, NULL)));
	table_store(&table, TABLE_SLOTS - 1, table_word(9, SLOT_PUBLISHED));
	cr_expect(eq(u64, table_load(&reader, TABLE_SLOTS - 1),
		     table_word(9, SLOT_PUBLISHED)));
	atomic_store(&table.header->chunks[TABLE_CHUNKS - 1], 5);
	cr_expect(eq(u64, atomic_load(&reader.header->chunks[TABLE_CHUNKS - 1]),
		     5));
	table_close(&reader);
	table_close(&table);
}

Test(table, a_reader_cannot_write, .signal = SIGSEGV)
{
	struct table table = make(), reader = TABLE_NULL;
	int fd = -1;

	cr_assert(zero(int, memfd_open_readonly(table.fd, &fd, NULL)));
	cr_assert(zero(int, table_open(&reader, fd, false, NULL)));
	table_store(&reader, 1, 1);
}

Test(table, a_read_only_descriptor_is_refused_to_a_broker)
{
	struct table table = make(), second = TABLE_NULL;
	int fd = -1;

	cr_assert(zero(int, memfd_open_readonly(table.fd, &fd, NULL)));
	cr_expect(eq(int, table_open(&second, fd, true, NULL), -EACCES));
	cr_expect(eq(ptr, second.header, NULL));
	cr_expect(eq(int, fcntl(fd, F_GETFD), -1)); /* consumed */
	table_close(&table);
}

Test(table, an_adopted_table_keeps_its_words)
{
	struct table table = make(), second = TABLE_NULL;

	table_store(&table, 3, table_word(4, SLOT_LIMBO));
	cr_assert(zero(int, table_open(&second, dup(table.fd), true, NULL)));
	table_close(&table);
	cr_expect(eq(u64, table_load(&second, 3), table_word(4, SLOT_LIMBO)));
	table_store(&second, 3, 0);
	table_close(&second);
}

Test(table, files_that_are_not_tables_are_refused)
{
	struct table table = make(), opened = TABLE_NULL;
	struct {
		char magic[8];
		uint32_t version, n_slots;
	} head;
	struct error err = ERROR_NULL;
	int fd = -1;

	memcpy(&head, table.header, sizeof(head));
	fd = forge(table.fd, &head, sizeof(head));
	cr_assert(zero(int, table_open(&opened, fd, false, NULL)));
	table_close(&opened);

	head.version++;
	fd = forge(table.fd, &head, sizeof(head));
	cr_expect(eq(int, table_open(&opened, fd, false, &err), -EPROTO));
	cr_expect(ne(ptr, strstr(err.msg, "version"), NULL));
	head.version--;
	head.n_slots *= 2;
	fd = forge(table.fd, &head, sizeof(head));
	cr_expect(eq(int, table_open(&opened, fd, false, NULL), -EPROTO));
	head.n_slots /= 2;
	head.magic[0] = 'X';
	fd = forge(table.fd, &head, sizeof(head));
	cr_expect(eq(int, table_open(&opened, fd, false, NULL), -EPROTO));

	cr_assert(zero(int, memfd_create_sealed("small", 4096,
						MEMFD_SEAL_CLOSED, &fd, NULL)));
	cr_expect(eq(int, table_open(&opened, fd, false, NULL), -EINVAL));
	cr_expect(eq(int, fcntl(fd, F_GETFD), -1));
	cr_expect(eq(int, table_open(&opened, -1, false, NULL), -EBADF));
	cr_expect(eq(ptr, opened.header, NULL));
	table_close(&table);
}
