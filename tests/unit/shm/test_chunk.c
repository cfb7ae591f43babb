/*
 * Tests that pages of chunks are allocated and freed on request, and that only
 * whole huge pages are freed.
 */
#include "proto/error.h"
#include "shm/chunk.h"
#include "shm/memfd.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static uint64_t resident(int fd)
{
	struct stat status;

	cr_assert(zero(int, fstat(fd, &status)));
	return (uint64_t)status.st_blocks * 512;
}

static int make(uint64_t size)
{
	int fd = -1;

	cr_assert(zero(int, chunk_create(size, false, &fd, NULL)));
	return fd;
}

Test(chunk, sizes_round_up_to_huge_pages)
{
	cr_expect(eq(u64, chunk_page_up(1), 65536));
	cr_expect(eq(u64, chunk_page_up(131072), 131072));
	cr_expect(zero(u64, chunk_round(0)));
	cr_expect(eq(u64, chunk_round(1), 2 * MIB));
	cr_expect(eq(u64, chunk_round(2 * MIB), 2 * MIB));
	cr_expect(eq(u64, chunk_round(2 * MIB + 1), 4 * MIB));
	cr_expect(eq(u64, chunk_round(UINT64_C(1) << 44), UINT64_C(1) << 44));
}

Test(chunk, only_a_bundle_can_be_sealed_against_writes)
{
	int arena = -1, bundle = -1;

	cr_assert(zero(int, chunk_create(2 * MIB, false, &arena, NULL)));
	cr_assert(zero(int, chunk_create(2 * MIB, true, &bundle, NULL)));
	cr_expect(eq(int, memfd_seal_write(arena, NULL), -EPERM));
	cr_expect(zero(int, memfd_seal_write(bundle, NULL)));
	close(arena);
	close(bundle);
}

static void expect_populated(enum huge_pages huge_pages)
{
	int fd = make(40 * MIB);

	cr_expect(zero(u64, resident(fd)));
	/* The range begins and ends within a step. */
	cr_assert(zero(
		int, chunk_populate(fd, 13 * MIB, 8 * MIB, huge_pages, NULL)));
	cr_expect(eq(u64, resident(fd), 8 * MIB));
	cr_assert(zero(int, chunk_populate(fd, 0, 40 * MIB, huge_pages, NULL)));
	cr_expect(eq(u64, resident(fd), 40 * MIB));
	close(fd);
}

Test(chunk, populating_makes_the_pages_asked_for)
{
	expect_populated(HUGE_PAGES_NEVER);
	expect_populated(HUGE_PAGES_ADVISE);
}

Test(chunk, populating_past_the_end_is_an_error)
{
	struct error err = ERROR_NULL;
	int fd = make(2 * MIB);

	cr_expect(lt(int,
		     chunk_populate(fd, 0, 6 * MIB, HUGE_PAGES_NEVER, &err),
		     0));
	cr_expect(ne(ptr, strstr(err.msg, "2097152 to 4194304"), NULL));
	cr_expect(lt(int,
		     chunk_populate(fd, 0, 6 * MIB, HUGE_PAGES_ADVISE, NULL),
		     0));
	cr_expect(eq(u64, resident(fd), 2 * MIB));
	close(fd);
}

Test(chunk, populating_a_closed_descriptor_is_an_error)
{
	cr_expect(eq(int,
		     chunk_populate(-1, 0, 2 * MIB, HUGE_PAGES_NEVER, NULL),
		     -EBADF));
	cr_expect(eq(int,
		     chunk_populate(-1, 0, 2 * MIB, HUGE_PAGES_ADVISE, NULL),
		     -EBADF));
}

Test(chunk, punching_frees_whole_huge_pages)
{
	int fd = make(8 * MIB);

	cr_assert(zero(int,
		       chunk_populate(fd, 0, 8 * MIB, HUGE_PAGES_NEVER, NULL)));
	cr_expect(zero(int, chunk_punch(fd, 1 * MIB, 2 * MIB, NULL)));
	cr_expect(eq(u64, resident(fd), 8 * MIB)); /* none of them whole */
	cr_expect(zero(int, chunk_punch(fd, 1 * MIB, 4 * MIB, NULL)));
	cr_expect(eq(u64, resident(fd), 6 * MIB));
	cr_expect(zero(int, chunk_punch(fd, 0, 8 * MIB, NULL)));
	cr_expect(zero(u64, resident(fd)));
	close(fd);
}

Test(chunk, punched_pages_read_as_zeros)
{
	int fd = make(2 * MIB);
	char *at;

	cr_assert(zero(int, memfd_map(fd, 2 * MIB, true, (void **)&at, NULL)));
	memset(at, 'x', 2 * MIB);
	cr_assert(zero(int, chunk_punch(fd, 0, 2 * MIB, NULL)));
	cr_expect(zero(chr, at[0]));
	munmap(at, 2 * MIB);
	close(fd);
}

Test(chunk, sealed_memory_cannot_be_punched)
{
	struct error err = ERROR_NULL;
	int fd = -1;

	cr_assert(zero(int, chunk_create(2 * MIB, true, &fd, NULL)));
	cr_assert(zero(int, memfd_seal_write(fd, NULL)));
	cr_expect(eq(int, chunk_punch(fd, 0, 2 * MIB, &err), -EPERM));
	cr_expect(ne(ptr, strstr(err.msg, "give bytes"), NULL));
	close(fd);
}

static void first_line(const char *path, char text[128])
{
	FILE *file = fopen(path, "re");

	text[0] = '\0';
	if (!file)
		return;
	cr_assert(ne(ptr, fgets(text, 128, file), NULL));
	fclose(file);
}

#define SETTINGS "/sys/kernel/mm/transparent_hugepage/"

Test(chunk, the_state_of_huge_pages_is_read_from_the_kernel)
{
	char all[128], pmd_size[128], own[128];

	first_line(SETTINGS "shmem_enabled", all);
	first_line(SETTINGS "hpage_pmd_size", pmd_size);
	first_line(SETTINGS "hugepages-2048kB/shmem_enabled", own);
	cr_expect(eq(int, huge_pages_state(),
		     huge_pages_parse(all, pmd_size, own)));
}

Test(chunk, the_setting_of_2_mib_pages_is_found)
{
	static const struct {
		const char *all, *pmd_size, *own;
		enum huge_pages want;
	} cases[] = {
		{"", "", "", HUGE_PAGES_NEVER},
		/* The text is that of Linux before 6.11, with pages of 4 and of
		 * 64 KiB. */
		{"always [advise] never\n", "2097152\n", "", HUGE_PAGES_ADVISE},
		{"[always] advise never\n", "2097152\n", "", HUGE_PAGES_ALWAYS},
		{"always advise [never]\n", "2097152\n", "", HUGE_PAGES_NEVER},
		{"[always] advise never\n", "536870912\n", "",
		 HUGE_PAGES_NEVER},
		/* This kernel has a setting for each size. */
		{"[always] advise never\n", "536870912\n",
		 "always inherit advise [never]\n", HUGE_PAGES_NEVER},
		{"always advise [never]\n", "536870912\n",
		 "always inherit [advise] never\n", HUGE_PAGES_ADVISE},
		{"always [advise] never\n", "2097152\n",
		 "always [inherit] advise never\n", HUGE_PAGES_ADVISE},
		{"always advise never [deny] force\n", "2097152\n",
		 "[always] inherit advise never\n", HUGE_PAGES_NEVER},
		{"always advise never deny [force]\n", "536870912\n",
		 "always inherit advise [never]\n", HUGE_PAGES_ALWAYS},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_expect(eq(int,
			     huge_pages_parse(cases[i].all, cases[i].pmd_size,
					      cases[i].own),
			     cases[i].want),
			  "case %zu", i);
}

#ifdef FSDP_TEST_POINTS
Test(chunk, small_pages_are_populated_without_a_mapping)
{
	int fd = make(4 * MIB);

	setenv("FSDP_FAIL_AT", "memfd.map:*:12", 1);
	cr_expect(zero(int,
		       chunk_populate(fd, 0, 4 * MIB, HUGE_PAGES_NEVER, NULL)));
	cr_expect(eq(u64, resident(fd), 4 * MIB));
	cr_expect(eq(int,
		     chunk_populate(fd, 0, 4 * MIB, HUGE_PAGES_ADVISE, NULL),
		     -ENOMEM));
	close(fd);
}

Test(chunk, a_kernel_without_madvise_populate_still_allocates_pages)
{
	int fd = make(4 * MIB);

	setenv("FSDP_FAIL_AT", "chunk.populate:*:22", 1);
	cr_expect(zero(
		int, chunk_populate(fd, 0, 4 * MIB, HUGE_PAGES_ADVISE, NULL)));
	cr_expect(eq(u64, resident(fd), 4 * MIB));
	close(fd);
}

Test(chunk, the_error_for_want_of_memory_names_a_remedy)
{
	struct error err = ERROR_NULL;
	int fd = make(4 * MIB);

	setenv("FSDP_FAIL_AT", "chunk.populate:1:12", 1);
	cr_expect(eq(int,
		     chunk_populate(fd, 0, 4 * MIB, HUGE_PAGES_NEVER, &err),
		     -ENOMEM));
	cr_expect(ne(ptr, strstr(err.msg, "memory_max"), NULL));
	close(fd);
}

Test(chunk, a_memory_failure_is_reported)
{
	struct error err = ERROR_NULL;
	int fd = make(4 * MIB);

	setenv("FSDP_FAIL_AT", "chunk.populate:1:133", 1);
	cr_expect(eq(int,
		     chunk_populate(fd, 0, 4 * MIB, HUGE_PAGES_NEVER, &err),
		     -EHWPOISON));
	cr_expect(ne(ptr, strstr(err.msg, "hardware"), NULL));
	close(fd);
}

Test(chunk, a_failed_punch_is_reported)
{
	int fd = make(2 * MIB);

	setenv("FSDP_FAIL_AT", "chunk.punch:1:95", 1);
	cr_expect(eq(int, chunk_punch(fd, 0, 2 * MIB, NULL), -EOPNOTSUPP));
	close(fd);
}
#endif
