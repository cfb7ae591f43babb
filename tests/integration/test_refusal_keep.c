/*
 * Tests bad input about holds, tickets and bundles, which keep tensors.
 */
#include "tests/integration/refusal.h"
#include "tests/lib/leaks.h"
#include "tests/lib/memory.h"
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

CHECKED_SUITE(refusal, refusal_setup, refusal_teardown, .timeout = 300);

/* --- release, tickets ---------------------------------------------------- */

Test(refusal, of_releases)
{
	struct release_item two = {named.ref, 2}, none = {named.ref, 0},
			    many = {named.ref, UINT32_MAX},
			    foreign = {theirs.ref, 1}, stale = {gone, 1},
			    both[] = {{named.ref, 1}, {named.ref, 1}},
			    half[] = {{named.ref, 1}, {theirs.ref, 1}};
	const struct refusal all[] = {
		{"one too many", release_of(&two, 1), -EINVAL,
		 "1 times, and cannot release it 2 times"},
		{"none", release_of(&none, 1), -EINVAL, "0 holds"},
		{"wildly many", release_of(&many, 1), -EINVAL, "4294967295"},
		{"another's", release_of(&foreign, 1), -EINVAL, "0 times"},
		{"a released one", release_of(&stale, 1), -ESTALE,
		 "has no tensor of generation"},
		{"one twice", release_of(both, 2), -EINVAL, "2 times"},
		{"one of ours and one of another's", release_of(half, 2),
		 -EINVAL, "0 times"},
	};

	CHECK(all);
	wire_must(me, wire_release(me, &named.ref));
	cr_assert(eq(int, wire_release(me, &named.ref), -EINVAL));
}

static struct request ticket_of(const struct slot_ref *ref, uint32_t n_uses,
				uint64_t ttl_ms)
{
	return (struct request){
		.kind = MESSAGE_TICKET,
		.ticket = {.ref = *ref, .n_uses = n_uses, .ttl_ms = ttl_ms},
	};
}

Test(refusal, of_tickets)
{
	const uint64_t day = 24 * 3600 * 1000;
	static const uint8_t unknown[1][TICKET_SIZE] = {{1}};
	const struct refusal all[] = {
		{"for no use", ticket_of(&named.ref, 0, 1000), -EINVAL,
		 "number of uses"},
		{"for too many uses", ticket_of(&named.ref, 1000001, 1000),
		 -EINVAL, "1000001"},
		{"for no time", ticket_of(&named.ref, 1, 0), -EINVAL,
		 "time to live"},
		{"for too long", ticket_of(&named.ref, 1, day + 1), -EINVAL,
		 "86400000"},
		{"for ever", ticket_of(&named.ref, 1, UINT64_MAX), -EINVAL,
		 "time to live"},
		{"for another's", ticket_of(&theirs.ref, 1, 1000), -EINVAL,
		 "does not hold"},
		{"for what is gone", ticket_of(&gone, 1, 1000), -ESTALE,
		 "no tensor"},
		{"unknown", redeem_of(unknown, 1), -ENOENT,
		 "tickets[0] is unknown"},
		{"used up", redeem_of(tickets, 2), -ENOENT,
		 "tickets[1] is unknown"},
		{"twice at once", redeem_of(twice, 2), -ENOENT,
		 "tickets[1] is unknown"},
	};

	CHECK(all);
	wire_must(me, redeem(me, &tickets[0], 1));
	cr_assert(eq(int, redeem(me, &tickets[0], 1), -ENOENT));
}

Test(refusal, of_an_expired_ticket)
{
	uint8_t ticket[1][TICKET_SIZE];

	wire_must(me, make_ticket(me, &named.ref, 1, ticket[0]));
	wire_wait_status(me, "tickets", 1);
	cr_assert(eq(int, redeem(me, ticket, 1), -ENOENT));
	cr_assert(ne(ptr, strstr(wire_sentence(me), "expired"), NULL));
}

Test(refusal, of_a_ticket_of_half_its_size)
{
	uint8_t body[32];
	size_t n = put_field(body, 1, tickets[0], TICKET_SIZE - 1);

	check_body(MESSAGE_REDEEM, body, n, -EINVAL, "15 bytes");
}

/* --- bundles ------------------------------------------------------------- */

static struct request end_of(enum message_kind kind, uint64_t bundle)
{
	return (struct request){
		.kind = (uint16_t)kind,
		.bundle_commit = {.bundle = bundle},
	};
}

Test(refusal, of_bundles)
{
	struct alloc_item outside = vector("test/x", 1),
			  same = vector("test/s/x", 1),
			  itself = vector("test/s", 1),
			  duplicates[] = {vector("test/s/y", 1),
					  vector("test/s/y", 1)};
	uint64_t empty = begin(me, "test/e/");
	const struct refusal all[] = {
		{"one that is there", begin_of("test/m/", 0), -EEXIST,
		 "test/m/"},
		{"one within", begin_of("test/m/n/", 0), -EEXIST, "test/m/"},
		{"one around", begin_of("test/", 0), -EEXIST, "test/m/"},
		{"one to replace",
		 begin_of("test/x/", PUBLISH_REPLACE | PUBLISH_MUST_EXIST),
		 -ENOENT, "test/x/"},
		{"an evictable one", begin_of("test/x/", PUBLISH_EVICTABLE),
		 -EINVAL, "0x2"},
		{"a member outside", member_of(staged, &outside, 1), -EINVAL,
		 "\"test/x\" does not begin with"},
		{"a member like the bundle", member_of(staged, &itself, 1),
		 -EINVAL, "test/s"},
		{"a member again", member_of(staged, &same, 1), -EEXIST,
		 "test/s/x"},
		{"duplicates", member_of(staged, duplicates, 2), -EEXIST,
		 "test/s/y"},
		{"a commit of none", end_of(MESSAGE_BUNDLE_COMMIT, 0), -EINVAL,
		 "number of its bundle is"},
		{"a commit of an unknown one",
		 end_of(MESSAGE_BUNDLE_COMMIT, 999), -ENOENT, "999"},
		{"a commit of another's",
		 end_of(MESSAGE_BUNDLE_COMMIT, staged_by_other), -ENOENT,
		 "is not staging bundle"},
		{"an abort of another's",
		 end_of(MESSAGE_BUNDLE_ABORT, staged_by_other), -ENOENT,
		 "is not staging bundle"},
		{"an empty commit", end_of(MESSAGE_BUNDLE_COMMIT, empty),
		 -EINVAL, "has no tensors"},
		{"a get of a staged one",
		 {.kind = MESSAGE_BUNDLE_GET,
		  .bundle_get = {.name = "test/s/"}},
		 -ENOENT,
		 "test/s/"},
	};

	CHECK(all);
	wire_must(me, end_bundle(me, MESSAGE_BUNDLE_ABORT, staged));
	cr_assert(
		eq(int, end_bundle(me, MESSAGE_BUNDLE_ABORT, staged), -ENOENT));
}

Test(refusal, of_names_of_members)
{
	const char *name = "test/m/x";
	const struct refusal all[] = {
		{"remove",
		 {.kind = MESSAGE_REMOVE,
		  .remove = {.n_names = 1, .names = &name}},
		 -EINVAL,
		 "member of a bundle"},
	};

	CHECK(all);
}

/* Start a process that maps the bundle's memory writable and keeps the
 * mapping. */
static pid_t map_elsewhere(int fd)
{
	int ready[2];
	char byte;
	pid_t pid;

	cr_assert(zero(int, pipe(ready)));
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* If the broker printed this name unescaped, the text after it
		 * would be red on a terminal. */
		prctl(PR_SET_NAME, "e\x1b[31mvil");
		if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			 0) == MAP_FAILED)
			_exit(1);
		(void)!write(ready[1], "", 1);
		pause();
		_exit(0);
	}
	cr_assert(eq(int, (int)read(ready[0], &byte, 1), 1));
	close(ready[0]);
	close(ready[1]);
	return pid;
}

Test(refusal, of_a_commit_names_a_process_that_could_still_write)
{
	struct refusal all[] = {
		{"commit", end_of(MESSAGE_BUNDLE_COMMIT, staged), -EBUSY, ""},
	};
	struct tensor_place place;
	char says[32];
	pid_t pid;
	int fd;

	host_memory_only("nobody seals the memory of a device");
	place = add_member(me, staged, "test/s/y");
	fd = wire_chunk(me, place.chunk);
	cr_assert(ge(int, fd, 0));
	pid = map_elsewhere(fd);
	snprintf(says, sizeof(says), "process %d (e?[31mvil)", (int)pid);
	/* A sandboxed broker that does not run as root cannot read which
	 * process has the mapping. */
	all[0].says = geteuid() ? "mapped writable" : says;
	CHECK(all);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	wire_must(me, end_bundle(me, MESSAGE_BUNDLE_COMMIT, staged));
	close(fd);
}
