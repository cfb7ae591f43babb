/*
 * Tests timeline files: counters that one side raises and the other reads,
 * poison, and refusals.
 */
#include "proto/error.h"
#include "shm/memfd.h"
#include "shm/timeline.h"
#include "tests/lib/check.h"
#include "tests/unit/fds_fixture.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct timelines broker, client, reader;

static int readonly_fd(void)
{
	int fd = -1;

	cr_assert(zero(int, memfd_open_readonly(broker.fd, &fd, NULL)));
	return fd;
}

static void setup(void)
{
	broker = client = reader = TIMELINES_NULL;
	cr_assert(zero(int, timelines_create(&broker, NULL)));
	cr_assert(
		zero(int, timelines_open(&client, dup(broker.fd), true, NULL)));
	cr_assert(
		zero(int, timelines_open(&reader, readonly_fd(), false, NULL)));
}

static void teardown(void)
{
	timelines_close(&reader);
	timelines_close(&client);
	timelines_close(&broker);
}

TestSuite(timeline, .init = setup, .fini = teardown);

/* Do what the client's device would do. */
static void write_counter(uint32_t timeline, uint64_t value)
{
	memcpy((char *)client.pages + TIMELINE_STRIDE * timeline, &value,
	       sizeof(value));
}

Test(timeline, counters_are_independent_and_start_at_zero)
{
	uint32_t i;

	for (i = 1; i < TIMELINES; i++) {
		cr_expect(zero(u64, timelines_load(&broker, i)));
		write_counter(i, i * 1000);
	}
	for (i = 1; i < TIMELINES; i++) {
		cr_expect(eq(u64, timelines_load(&broker, i), i * 1000));
		cr_expect(eq(u64, timelines_load(&reader, i), i * 1000));
	}
	cr_expect(zero(int, memcmp(broker.pages, "FSDPTIM2", 8)),
		  "63 counters leave the header alone");
}

Test(timeline, any_untrusted_number_maps_to_a_counter)
{
	write_counter(5, 7);
	cr_expect(eq(u64, timelines_load(&broker, TIMELINES + 5), 7));
	cr_expect(eq(u64, timelines_load(&broker, UINT32_MAX), 0));
}

Test(timeline, every_value_of_no_timeline_is_reached)
{
	cr_expect(timeline_has_reached(timelines_load(&broker, 0),
				       TIMELINE_POISON - 1));
	cr_expect(timeline_has_reached(timelines_load(&broker, TIMELINES),
				       TIMELINE_POISON - 1));
}

Test(timeline, a_value_is_reached_once_the_counter_has_it)
{
	cr_expect(timeline_has_reached(0, 0));
	cr_expect(not(timeline_has_reached(0, 1)));
	cr_expect(not(timeline_has_reached(6, 7)));
	cr_expect(timeline_has_reached(7, 7));
	cr_expect(timeline_has_reached(8, 7));
	cr_expect(not(timeline_has_reached(7, TIMELINE_POISON - 1)));
}

Test(timeline, a_poisoned_file_has_reached_every_value_for_all_processes)
{
	uint32_t i;

	write_counter(3, 12);
	timelines_poison(&broker);
	for (i = 1; i < TIMELINES; i++) {
		cr_expect(timeline_has_reached(timelines_load(&client, i), 1));
		cr_expect(timeline_has_reached(timelines_load(&reader, i),
					       TIMELINE_POISON - 1));
	}
}

Test(timeline, a_poisoned_file_can_still_be_mapped)
{
	struct timelines late = TIMELINES_NULL;

	timelines_poison(&broker);
	cr_assert(zero(int, timelines_open(&late, readonly_fd(), false, NULL)));
	cr_expect(eq(u64, timelines_load(&late, 63), TIMELINE_POISON));
	timelines_close(&late);
	cr_expect(eq(int, late.fd, -1));
	timelines_close(&late);
}

Test(timeline, a_process_that_may_only_wait_cannot_write, .signal = SIGSEGV)
{
	memset((char *)reader.pages + TIMELINE_STRIDE, 1, 8);
}

Test(timeline, a_read_only_descriptor_cannot_be_mapped_writable)
{
	struct error err = ERROR_NULL;
	struct timelines bad = TIMELINES_NULL;

	cr_expect(eq(int, timelines_open(&bad, readonly_fd(), true, &err),
		     -EACCES));
	cr_expect(ne(ptr, strstr(err.msg, "writable"), NULL));
	cr_expect(eq(ptr, bad.pages, NULL));
}

Test(timeline, a_forked_child_has_no_mapping_of_the_file)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		write_counter(5, 1);
		_exit(0);
	}
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(ne(int, status, 0));
	cr_expect(zero(u64, timelines_load(&broker, 5)));
}

static int open_forged(const char *magic, enum memfd_seals seals, uint64_t size)
{
	struct timelines bad = TIMELINES_NULL;
	int n = count_fds(), fd = -1, r;

	cr_assert(zero(int,
		       memfd_create_sealed("forged", size, seals, &fd, NULL)));
	cr_assert(eq(long, pwrite(fd, magic, 8, 0), 8));
	r = timelines_open(&bad, fd, true, NULL);
	cr_expect(eq(ptr, bad.pages, NULL), "nothing is given on failure");
	cr_expect(eq(int, count_fds(), n), "consumed");
	return r;
}

Test(timeline, files_that_are_not_timeline_files_are_refused)
{
	struct timelines bad = TIMELINES_NULL;

	cr_expect(eq(int,
		     open_forged("FSDPTIM3", MEMFD_SEAL_CLOSED, TIMELINE_SIZE),
		     -EPROTO));
	cr_expect(eq(
		int,
		open_forged("\0\0\0\0\0\0\0", MEMFD_SEAL_CLOSED, TIMELINE_SIZE),
		-EPROTO));
	cr_expect(eq(int,
		     open_forged("FSDPTIM2", MEMFD_SEAL_SIZE, TIMELINE_SIZE),
		     -EPERM));
	cr_expect(eq(
		int,
		open_forged("FSDPTIM2", MEMFD_SEAL_CLOSED, 2 * TIMELINE_SIZE),
		-EINVAL));
	cr_expect(
		eq(int,
		   timelines_open(&bad, open("/dev/null", O_RDWR), true, NULL),
		   -EINVAL));
	cr_expect(eq(int, timelines_open(&bad, -1, true, NULL), -EBADF));
}

#ifdef FSDP_TEST_POINTS
Test(timeline, a_file_that_cannot_be_mapped_leaves_no_descriptor)
{
	struct error err = ERROR_NULL;
	struct timelines bad = TIMELINES_NULL;
	int n = count_fds();

	setenv("FSDP_FAIL_AT", "memfd.map:*:12", 1);
	cr_expect(eq(int, timelines_open(&bad, dup(broker.fd), true, &err),
		     -ENOMEM));
	cr_expect(ne(str, err.msg, ""));
	cr_expect(eq(int, timelines_create(&bad, NULL), -ENOMEM));
	cr_expect(eq(int, bad.fd, -1));
	cr_expect(eq(int, count_fds(), n));
}
#endif
