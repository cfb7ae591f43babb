/* Tests the threads that move bytes between files and memory: jobs of all sizes
 * are done and digested, and errors are reported. */
#include "client/ctl/transfer.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#define MIB ((uint64_t)1 << 20)
/* The sizes are less than, equal to and more than a piece, or many pieces. */
static const uint64_t sizes[] = {
	0,          1,       4097,    256 * 1024 - 1,
	256 * 1024, 2 * MIB, MIB + 1, 20 * MIB + 5000,
	3 * MIB,    7,
};
#define N_JOBS (sizeof(sizes) / sizeof(*sizes))
#define ROOM   (40 * MIB)

static int fd;         /* the file */
static char *expected; /* its contents */
static char *memory;   /* what tensors have: a mapped memory file */
static uint64_t digests[N_JOBS];
static struct transfer *transfer;

static char *map_memory(const char *name, int *ret_fd)
{
	void *address;

	*ret_fd = memfd_create(name, MFD_CLOEXEC);
	cr_assert(*ret_fd >= 0 && ftruncate(*ret_fd, ROOM) == 0);
	address = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd,
		       0);
	cr_assert(address != MAP_FAILED);
	return address;
}

static void setup(void)
{
	int memory_fd;

	expected = map_memory("file", &fd);
	memory = map_memory("memory", &memory_fd);
	close(memory_fd);
	for (size_t i = 0; i < ROOM; i++)
		expected[i] = (char)(i * 31 + i / 4093);
	cr_assert(zero(int, transfer_start(NULL, &transfer, NULL)));
}

static void teardown(void)
{
	transfer_stop(transfer);
	munmap(expected, ROOM);
	munmap(memory, ROOM);
	close(fd);
}

TestSuite(transfer, .init = setup, .fini = teardown, .timeout = 120);

/* Add a job for each size. In file and memory each begins after the one before,
 * at any address. Returns the sum of the sizes. */
static uint64_t add_all(enum transfer_direction direction, char *bytes)
{
	uint64_t at = 0;

	for (size_t i = 0; i < N_JOBS; i++) {
		struct transfer_job job = {.direction = direction,
					   .fd = fd,
					   .path = "file",
					   .offset = at,
					   .memory = bytes + at,
					   .size = sizes[i],
					   .ret_digest = &digests[i]};

		cr_assert(zero(int, transfer_add(transfer, &job, NULL)));
		at += sizes[i];
	}
	return at;
}

static void check_digests(void)
{
	uint64_t at = 0;

	for (size_t i = 0; i < N_JOBS; i++) {
		cr_expect(eq(u64, digests[i],
			     XXH3_64bits(expected + at, sizes[i])),
			  "job %zu", i);
		at += sizes[i];
	}
}

Test(transfer, jobs_of_all_sizes_are_read_and_digested)
{
	uint64_t size = add_all(TRANSFER_READ, memory);

	cr_assert(zero(int, transfer_wait(transfer, NULL)));
	check_digests();
	cr_assert(memcmp(memory, expected, size) == 0);
	cr_assert(eq(chr, memory[size], 0));
}

/* Count the pages of the memory that this process has mapped. */
static size_t count_mapped(const char *bytes, size_t size)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	size_t n = 0;

	cr_assert(pagemap >= 0);
	for (size_t at = 0; at < size; at += page) {
		off_t offset = (off_t)(((uintptr_t)bytes + at) / page * 8);
		uint64_t entry;

		cr_assert(eq(llong, pread(pagemap, &entry, 8, offset), 8));
		n += entry >> 63;
	}
	close(pagemap);
	return n;
}

Test(transfer, memory_that_was_read_is_unmapped)
{
	struct transfer_job job = {.direction = TRANSFER_READ,
				   .fd = fd,
				   .path = "file",
				   .memory = memory,
				   .size = 20 * MIB,
				   .ret_digest = digests};

	cr_assert(zero(int, transfer_add(transfer, &job, NULL)));
	cr_assert(zero(int, transfer_wait(transfer, NULL)));
	cr_assert(zero(sz, count_mapped(memory, job.size)));
	cr_assert(memcmp(memory, expected, job.size) == 0);
	cr_assert(count_mapped(memory, job.size) > 0);
}

Test(transfer, jobs_of_all_sizes_are_written_and_digested)
{
	uint64_t size;
	char *file = expected;

	/* The file gets the bytes of `memory`, and then has the same. */
	memcpy(memory, expected, ROOM);
	memset(file, 0, ROOM);
	size = add_all(TRANSFER_WRITE, memory);
	cr_assert(zero(int, transfer_wait(transfer, NULL)));
	check_digests();
	cr_assert(memcmp(memory, file, size) == 0);
	cr_assert(eq(chr, file[size], 0));
}

Test(transfer, jobs_of_all_sizes_are_digested_only)
{
	add_all(TRANSFER_DIGEST, expected);
	cr_assert(zero(int, transfer_wait(transfer, NULL)));
	check_digests();
}

Test(transfer, jobs_that_are_added_after_a_wait_are_done_too)
{
	for (int i = 0; i < 3; i++) {
		memset(digests, 0, sizeof(digests));
		add_all(TRANSFER_READ, memory);
		cr_assert(zero(int, transfer_wait(transfer, NULL)));
		check_digests();
	}
}

Test(transfer, a_file_that_is_too_short_is_reported)
{
	struct error err = ERROR_NULL;

	cr_assert(zero(int, ftruncate(fd, 21 * MIB)));
	add_all(TRANSFER_READ, memory);
	cr_assert(eq(int, transfer_wait(transfer, &err), -EIO));
	cr_assert(eq(str, err.msg,
		     "cannot read file: it became shorter meanwhile; try again "
		     "when no program writes it"));
}

Test(transfer, a_file_that_cannot_be_written_is_reported)
{
	struct transfer_job job = {
		.direction = TRANSFER_WRITE,
		.fd = open("/dev/null", O_RDONLY | O_CLOEXEC),
		.path = "file",
		.memory = memory,
		.size = 1,
		.ret_digest = &digests[0]};
	struct error err = ERROR_NULL;

	cr_assert(zero(int, transfer_add(transfer, &job, &err)));
	cr_assert(eq(int, transfer_wait(transfer, &err), -EBADF));
	cr_assert(eq(str, err.msg, "cannot write file: Bad file descriptor"));
	close(job.fd);
}

Test(transfer, jobs_can_be_dropped_at_any_time)
{
	add_all(TRANSFER_READ, memory);
	/* the teardown stops the threads in the middle of the jobs */
}
