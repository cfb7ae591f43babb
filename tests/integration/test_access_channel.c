/*
 * Tests channels between two users: which user may open a channel in which
 * role, and what each may do with the memory.
 */
#include "tests/lib/actor.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/leaks.h"
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALICE  61001
#define BOB    61002
#define GROUP  61100
#define NUMBER UINT64_C(0x1234)
#define QUOTA  (8 << 20)

/* The test passes these arguments to the actors. */
struct talk {
	char path[128];
	const char *name;
	struct fsdp_access access;
	enum fsdp_channel_role role;
	bool changes_items;
	uint64_t capacity;
};

static struct daemon daemon_;
static struct actor alice, bob;
static struct talk *talk;
/* Each actor has its own client and channel. */
static struct fsdp_client *mine;
static struct fsdp_channel *channel;

static int do_connect(void)
{
	const struct fsdp_connect_options options = {.path = talk->path};

	return fsdp_connect(&options, &mine);
}

static void setup(void)
{
	const struct daemon_options options = {
		.config = "[memory]\nmemory_max = 256M\nchunk_min = 4M\n"
			  "[quota]\nquota_bytes = 8M\n"
			  "[prefixes]\ngiven = 61001\n"};
	const struct identity first = {ALICE, ALICE, GROUP};
	const struct identity second = {BOB, BOB, GROUP};

	if (!actor_may_be_others())
		cr_skip_test("only root can be two users");
	talk = shared_memory(sizeof(*talk));
	daemon_start_with(&daemon_, &options);
	cr_assert(zero(int, chmod(daemon_.dir, 0755)));
	(void)snprintf(talk->path, sizeof(talk->path), "%s",
		       daemon_socket(&daemon_));
	talk->name = "given/batches";
	talk->capacity = 4096;
	actor_start(&alice, &first);
	actor_start(&bob, &second);
	cr_assert(zero(int, actor_run(&alice, do_connect)));
	cr_assert(zero(int, actor_run(&bob, do_connect)));
}

static void teardown(void)
{
	if (!talk)
		return;
	actor_kill(&alice);
	actor_kill(&bob);
	daemon_stop(&daemon_);
	(void)munmap(talk, sizeof(*talk));
}

CHECKED_SUITE(access_channel, setup, teardown, .timeout = 300);

static int do_make(void)
{
	const struct fsdp_channel_options options = {.access = talk->access,
						     .capacity = talk->capacity,
						     .n_slots = 2};

	return fsdp_channel_open(mine, talk->name, &options, FSDP_PRODUCER,
				 &channel);
}

static int do_join(void)
{
	const struct fsdp_channel_options options = {
		.changes_items = talk->changes_items};

	return fsdp_channel_open(mine, talk->name, &options, talk->role,
				 &channel);
}

static int do_send(void)
{
	const struct fsdp_spec spec = {FSDP_U64, 0, {0}};
	struct fsdp_item *item;
	void *data;
	int r = fsdp_item_begin(channel, 0, &item);

	if (r == 0)
		r = fsdp_item_part(item, &spec, &data);
	if (r < 0)
		return r;
	*(uint64_t *)data = NUMBER;
	return fsdp_item_send(item);
}

/* Returns whether this process can write there. */
static bool is_writable(const void *at)
{
	unsigned long begin, end, address = (unsigned long)(uintptr_t)at;
	bool is_found = false;
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512], access[8];

	while (maps && !is_found && fgets(line, sizeof(line), maps))
		is_found = sscanf(line, "%lx-%lx %7s", &begin, &end, access) ==
				   3 &&
			   begin <= address && address < end;
	if (maps)
		(void)fclose(maps);
	return !is_found || access[1] == 'w';
}

static int do_receive(void)
{
	struct fsdp_item_view view = {.struct_size = sizeof(view)};
	struct fsdp_item *item;
	int r = fsdp_item_receive(channel, 10000, &item);

	if (r == 0)
		r = fsdp_item_view(item, 0, &view);
	if (r < 0)
		return r;
	if (*(const uint64_t *)view.data != NUMBER || view.data_mut ||
	    is_writable(view.data))
		return -EBADF;
	return fsdp_item_release(item);
}

static void make_with(uint32_t mode)
{
	talk->access = (struct fsdp_access){GROUP, mode};
	cr_assert(zero(int, actor_run(&alice, do_make)));
}

static int join_as(enum fsdp_channel_role role, bool changes_items)
{
	talk->role = role;
	talk->changes_items = changes_items;
	return actor_run(&bob, do_join);
}

Test(access_channel, a_reader_can_receive_but_not_produce)
{
	make_with(0640);
	cr_expect(eq(int, join_as(FSDP_PRODUCER, false), -EACCES));
	cr_expect(eq(int, join_as(FSDP_CONSUMER, true), -EACCES));
	cr_assert(zero(int, join_as(FSDP_CONSUMER, false)));
	for (int i = 0; i < 5; i++) {
		cr_assert(zero(int, actor_run(&alice, do_send)));
		cr_assert(zero(int, actor_run(&bob, do_receive)));
	}
}

Test(access_channel, a_writer_may_produce)
{
	make_with(0660);
	cr_assert(zero(int, join_as(FSDP_PRODUCER, false)));
	cr_assert(zero(int, actor_run(&bob, do_send)));
}

static int do_resize(void)
{
	return fsdp_channel_resize(channel, 4, 0);
}

Test(access_channel, only_a_user_that_may_write_can_resize_a_channel)
{
	make_with(0640);
	cr_assert(zero(int, join_as(FSDP_CONSUMER, false)));
	cr_expect(eq(int, actor_run(&bob, do_resize), -EACCES));
	cr_expect(zero(int, actor_run(&alice, do_resize)));
}

Test(access_channel, a_user_without_permission_cannot_open_a_channel)
{
	make_with(0600);
	cr_expect(eq(int, join_as(FSDP_CONSUMER, false), -EACCES));
	cr_expect(eq(int, join_as(FSDP_PRODUCER, false), -EACCES));
}

Test(access_channel, a_channel_of_an_untrusted_user_is_not_opened)
{
	/* The first component of this name belongs to no user. */
	talk->name = "free/batches";
	make_with(0666);
	cr_expect(eq(int, join_as(FSDP_CONSUMER, false), -EACCES));
}

Test(access_channel, a_channel_under_the_prefix_of_another_user_is_refused)
{
	talk->access = (struct fsdp_access){GROUP, 0640};
	cr_expect(eq(int, actor_run(&bob, do_make), -EPERM));
}

/* --- memory --------------------------------------------------------------- */

/* One of the two buffers leaves the channel. */
static int do_keep(void)
{
	const struct fsdp_channel_options options = {.capacity = 0};
	struct fsdp_channel *inbox;
	struct fsdp_tensor *kept;
	struct fsdp_item *item;
	int r = fsdp_channel_open(mine, talk->name, &options, FSDP_CONSUMER,
				  &inbox);

	if (r == 0)
		r = do_send();
	if (r == 0)
		r = fsdp_item_receive(inbox, 10000, &item);
	if (r == 0)
		r = fsdp_item_keep(item, 0, &kept);
	return r < 0 ? r : fsdp_item_release(item);
}

static int do_fill(void)
{
	struct fsdp_item *items[2];
	int r = fsdp_item_begin(channel, 10000, &items[0]);

	return r < 0 ? r : fsdp_item_begin(channel, 10000, &items[1]);
}

Test(access_channel, a_user_at_its_quota_does_not_delay_buffers_of_others)
{
	talk->capacity = QUOTA / 2;
	make_with(0600);
	cr_assert(zero(int, actor_run(&alice, do_keep)));
	talk->capacity = 4096;
	talk->name = "bobs/batches";
	cr_assert(zero(int, actor_run(&bob, do_make)));
	cr_assert(zero(int, actor_run(&bob, do_keep)));
	cr_expect(zero(int, actor_run(&bob, do_fill)));
}
