/*
 * Tests slots of channels: which files are valid, which consumer gets which
 * item, and what happens to the slots of users that have ended.
 */
#include "shm/memfd.h"
#include "shm/slots.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define CHANNEL UINT64_C(77)
#define N       4

static const struct slots_form FORM = {
	.channel = CHANNEL, .mode = SLOTS_SHARE, .capacity = 4096};

static struct slots slots;
static struct slots_present present;

static void make_form(enum slots_mode mode, bool has_lag)
{
	struct slots_form form = FORM;

	form.mode = mode;
	form.has_lag = has_lag;
	present = (struct slots_present){0};
	cr_assert(zero(int, slots_create(&slots, &form, NULL)));
	for (uint32_t i = 0; i < N; i++)
		slots_admit(&slots, i, i + 1, 1);
}

static void make(enum slots_mode mode)
{
	make_form(mode, false);
}

static void come(uint32_t place, bool is_producer)
{
	const struct slots_newcomer who = {place, 1000 + place, "somebody",
					   true};

	*(is_producer ? &present.producers : &present.consumers) |= UINT64_C(1)
								    << place;
	slots_add_user(&slots, &present, &who);
}

static void go(uint32_t place, bool died)
{
	present.producers &= ~(UINT64_C(1) << place);
	present.consumers &= ~(UINT64_C(1) << place);
	slots_remove_user(&slots, &present, place, died);
}

static uint32_t send_item(uint32_t place, int64_t value)
{
	struct slots_head head = {.kind = SLOTS_ITEM, .n_parts = 1};
	struct slots_hold hold;

	head.parts[0].shape[0] = value;
	cr_assert(slots_claim(&slots, place, &hold));
	slots_publish(&slots, place, &hold, &head);
	return hold.at;
}

static struct slots_hold receive(uint32_t place, struct slots_seen *seen,
				 int64_t value)
{
	struct slots_hold hold = {0};
	struct slots_head head;

	cr_assert(slots_has_item(&slots, place, seen));
	cr_assert(slots_take(&slots, place, seen, &hold));
	slots_read(&slots, &hold, &head);
	cr_expect(eq(i64, head.parts[0].shape[0], value));
	return hold;
}

static uint32_t count_free(void)
{
	uint32_t n_queued, n_free, n_held;

	slots_count(&slots, &n_queued, &n_free, &n_held);
	return n_free;
}

static int try_open(uint64_t channel)
{
	struct slots_form form = FORM;
	struct slots other = SLOTS_NULL;
	int r;

	form.channel = channel;
	r = slots_open(&other, dup(slots.fd), &form, SLOTS_USER, NULL);
	slots_close(&other);
	return r;
}

/* --- the file ------------------------------------------------------------ */

Test(slots, only_the_file_of_this_channel_is_opened)
{
	make(SLOTS_SHARE);
	cr_expect(zero(int, memcmp(slots.page, "FSDPCHN1", 8)));
	cr_expect(zero(int, try_open(CHANNEL)));
	cr_expect(eq(int, try_open(CHANNEL + 1), -EPROTO));
	slots.page->version++;
	cr_expect(eq(int, try_open(CHANNEL), -EPROTO));
	slots_close(&slots);
}

Test(slots, a_file_of_another_size_is_not_opened)
{
	int fd;

	cr_assert(zero(int, memfd_create_sealed("small", 4096,
						MEMFD_SEAL_CLOSED, &fd, NULL)));
	cr_expect(lt(int, slots_open(&slots, fd, &FORM, SLOTS_USER, NULL), 0));
	cr_expect(eq(int, fcntl(fd, F_GETFD), -1));
}

/* --- sharing ------------------------------------------------------------- */

Test(slots, the_oldest_item_is_taken_from_any_slot)
{
	struct slots_hold held;

	make(SLOTS_SHARE);
	come(0, true);
	come(1, false);
	for (int64_t i = 0; i < N; i++)
		send_item(0, i);
	held = receive(1, NULL, 0);
	slots_release(&slots, 1, &held);
	/* The first slot is used again. Its new item comes last. */
	cr_expect(eq(u32, send_item(0, N), 0));
	for (int64_t i = 1; i <= N; i++)
		(void)receive(1, NULL, i);
	cr_expect(not(slots_has_item(&slots, 1, NULL)));
	cr_expect(not(slots_has_credit(&slots, 0)));
}

Test(slots, an_item_that_is_put_back_is_received_next)
{
	struct slots_hold held;

	make(SLOTS_SHARE);
	come(0, true);
	come(1, false);
	send_item(0, 1);
	send_item(0, 2);
	held = receive(1, NULL, 1);
	slots_put_back(&slots, 1, NULL, &held);
	(void)receive(1, NULL, 1);
	(void)receive(1, NULL, 2);
}

Test(slots, a_second_release_does_not_free_the_item_of_another_user)
{
	struct slots_hold held;

	make(SLOTS_SHARE);
	come(0, true);
	come(1, false);
	send_item(0, 1);
	held = receive(1, NULL, 1);
	slots_release(&slots, 1, &held);
	send_item(0, 2);
	slots_release(&slots, 1, &held);
	cr_expect(eq(u32, count_free(), N - 1));
	(void)receive(1, NULL, 2);
}

Test(slots, while_another_producer_waits_a_producer_has_its_share_plus_one)
{
	struct slots_hold hold;

	make(SLOTS_SHARE);
	come(0, true);
	come(1, true);
	slots.page->starved = 2;
	for (int i = 0; i < N / 2 + 1; i++)
		cr_expect(slots_claim(&slots, 0, &hold));
	cr_expect(not(slots_has_credit(&slots, 0)));
	cr_expect(not(slots_claim(&slots, 0, &hold)));
	cr_expect(slots_claim(&slots, 1, &hold));
	slots.page->starved = 0;
	slots_cancel(&slots, &hold);
	cr_expect(slots_claim(&slots, 0, &hold));
}

static bool look_never(const void *data)
{
	(void)data;
	return false;
}

Test(slots, a_repeated_wait_is_counted_once)
{
	struct slots_seen seen = {.numbers = {0}};
	struct slots_wait wait = {.slots = &slots,
				  .place = 5,
				  .seen = &seen,
				  .is_over = look_never};
	struct slots_user *user;

	make(SLOTS_SHARE);
	come(5, false);
	user = &slots.page->users[5];
	for (int i = 0; i < 3; i++) {
		cr_expect(eq(int, slots_wait_item(&wait, bell_now_ns()),
			     BELL_AGAIN));
		cr_expect(eq(u64, atomic_load(&user->since_ns),
			     (uint64_t)wait.since_ns));
	}
	cr_expect(eq(u64, atomic_load(&user->n_waits), 1));
}

/* --- those who have gone ------------------------------------------------- */

Test(slots, slots_held_by_dead_users_are_freed_and_queued_items_stay)
{
	struct slots_hold hold;

	make(SLOTS_SHARE);
	come(0, true);
	come(1, false);
	come(2, true);
	send_item(0, 1);
	send_item(0, 2);
	cr_assert(slots_claim(&slots, 0, &hold));
	cr_assert(slots_claim(&slots, 2, &hold));
	(void)receive(1, NULL, 1);
	cr_expect(zero(u32, count_free()));
	go(0, true);
	cr_expect(eq(u32, count_free(), 1));
	go(1, true);
	cr_expect(eq(u32, count_free(), 2));
	cr_expect(eq(u32, slots.page->people.n_died, 1));
	cr_expect(eq(u32, slots.page->people.last_pid, 1000));
	cr_expect(eq(u64, slots.page->people.producers, 4));
	cr_expect(zero(u64, slots.page->people.consumers));
	come(1, false);
	(void)receive(1, NULL, 2);
}

Test(slots, slots_of_an_ending_user_are_freed_only_when_it_has_exited)
{
	struct slots_hold hold;

	make(SLOTS_SHARE);
	come(0, true);
	come(1, false);
	send_item(0, 1);
	cr_assert(slots_claim(&slots, 0, &hold));
	cr_assert(slots_claim(&slots, 0, &hold));
	slots_note_ending(&slots, 0);
	slots_note_ending(&slots, 0);
	slots_note_ending(&slots, 2);
	cr_expect(eq(u32, slots.page->people.n_died, 1));
	cr_expect(eq(u32, slots.page->people.last_pid, 1000));
	cr_expect(eq(u64, slots_producers(&slots), 1));
	cr_expect(zero(u64, slots_living(&slots, 1)));
	cr_expect(eq(u32, count_free(), 1));
	go(0, true);
	cr_expect(eq(u32, slots.page->people.n_died, 1));
	cr_expect(eq(u32, count_free(), 3));
	come(0, true);
	cr_expect(eq(u64, slots_living(&slots, 1), 1));
	(void)receive(1, NULL, 1);
}

/* The catalog of a broker that dies there names the user as before. */
Test(slots,
     a_death_is_counted_once_if_the_broker_dies_while_it_removes_the_user)
{
	struct slots_present before;

	make(SLOTS_SHARE);
	come(0, true);
	before = present;
	go(0, true);
	slots_set_users(&slots, &before);
	go(0, true);
	cr_expect(eq(u32, slots.page->people.n_died, 1));
	come(0, true);
	go(0, true);
	cr_expect(eq(u32, slots.page->people.n_died, 2));
}

Test(slots, invalid_words_of_a_hostile_user_name_no_user)
{
	make(SLOTS_SHARE);
	come(0, true);
	/* A hostile user may write these values. */
	slots.page->words[0] = slots_word(1, 0, SLOTS_WRITING);
	slots.page->words[1] = slots_word(1, 0x1fff, SLOTS_HELD);
	slots.page->words[2] = UINT64_MAX;
	slots.page->n_slots = UINT32_MAX;
	slots.page->users[0].cpu = INT32_MIN;
	go(0, true);
	cr_expect(eq(u32, count_free(), 1));
	cr_expect(not(slots_take_out(&slots, 1, 0)));
	cr_expect(not(slots_has_item(&slots, 1, NULL)));
}

/* --- broadcast ----------------------------------------------------------- */

Test(slots, a_slot_of_a_broadcast_is_free_when_all_consumers_released_it)
{
	struct slots_seen seen[2] = {0};
	struct slots_hold hold;

	make(SLOTS_BROADCAST);
	come(0, true);
	cr_expect(not(slots_claim(&slots, 0, &hold)));
	come(1, false);
	come(2, false);
	send_item(0, 1);
	send_item(0, 2);
	for (uint32_t i = 0; i < 2; i++) {
		for (int64_t j = 1; j <= 2; j++) {
			cr_expect(eq(u32, count_free(),
				     N - 2 + (i == 1 ? (uint32_t)j - 1 : 0)));
			hold = receive(1 + i, &seen[i], j);
			slots_release(&slots, 1 + i, &hold);
		}
		cr_expect(not(slots_has_item(&slots, 1 + i, &seen[i])));
	}
	cr_expect(eq(u32, count_free(), N));
}

Test(slots, a_consumer_that_leaves_a_broadcast_releases_its_items)
{
	struct slots_seen seen[2] = {0};
	struct slots_hold hold;

	make(SLOTS_BROADCAST);
	come(0, true);
	come(1, false);
	come(2, false);
	send_item(0, 1);
	send_item(0, 2);
	hold = receive(1, &seen[0], 1);
	slots_release(&slots, 1, &hold);
	go(2, true);
	cr_expect(eq(u32, count_free(), N - 1));
	(void)receive(1, &seen[0], 2);
	go(1, false);
	cr_expect(eq(u32, count_free(), N));
}

Test(slots, a_consumer_of_a_broadcast_receives_only_items_sent_after_it_joined)
{
	struct slots_seen seen = {0};

	make(SLOTS_BROADCAST);
	come(0, true);
	come(1, false);
	send_item(0, 1);
	come(2, false);
	cr_expect(not(slots_has_item(&slots, 2, &seen)));
	send_item(0, 2);
	(void)receive(2, &seen, 2);
}

/* A consumer has two threads, one of which was stopped after it had looked for
 * an item. */
Test(slots, an_item_of_a_broadcast_is_not_taken_after_a_later_one_of_its_slot)
{
	struct slots_seen seen = {0};
	struct slots_hold hold;

	make(SLOTS_BROADCAST);
	come(0, true);
	come(1, false);
	for (int64_t i = 1; i <= 2; i++) {
		cr_assert(zero(u32, send_item(0, i)));
		hold = receive(1, &seen, i);
		if (i == 1)
			slots_release(&slots, 1, &hold);
	}
	slots_put_back(&slots, 1, &seen, &hold);
	hold = receive(1, &seen, 2);
	/* The consumer holds that item, and the word of its slot is overwritten
	 * with an older one. */
	slots.page->words[0] = slots_word(1, 1, SLOTS_QUEUED);
	cr_expect(not(slots_has_item(&slots, 1, &seen)));
	cr_expect(not(slots_take(&slots, 1, &seen, &hold)));
}

/* One thread of a consumer has taken the item, and another one sleeps until
 * there is an item. */
Test(slots, an_item_of_a_broadcast_that_is_put_back_wakes_other_threads)
{
	struct slots_seen seen = {0};
	struct slots_hold hold;
	struct bell *bell;
	uint32_t word;

	make(SLOTS_BROADCAST);
	bell = &slots.page->items;
	come(0, true);
	come(1, false);
	send_item(0, 1);
	hold = receive(1, &seen, 1);
	cr_assert(not(slots_has_item(&slots, 1, &seen)));
	bell->sleepers = 1;
	word = bell->word;
	slots_put_back(&slots, 1, &seen, &hold);
	cr_expect(ne(u32, bell->word, word));
	cr_expect(slots_has_item(&slots, 1, &seen));
}

/* --- a limit of lag ------------------------------------------------------ */

/* Make a producer and two consumers. The second consumer holds one item and has
 * received no other. */
static struct slots_hold make_late(struct slots_seen *seen)
{
	struct slots_hold hold = {0};

	make_form(SLOTS_BROADCAST, true);
	come(0, true);
	come(1, false);
	come(2, false);
	for (int64_t i = 1; i <= N; i++)
		send_item(0, i);
	hold = receive(2, &seen[1], 1);
	for (int64_t i = 1; i <= N; i++) {
		struct slots_hold other = receive(1, &seen[0], i);

		slots_release(&slots, 1, &other);
	}
	cr_assert(zero(u32, count_free()));
	return hold;
}

static void cut(uint32_t place)
{
	present.consumers &= ~(UINT64_C(1) << place);
	slots_cut(&slots, &present, UINT64_C(1) << place);
}

Test(slots, a_consumer_that_keeps_the_oldest_item_too_long_is_late)
{
	struct slots_seen seen[2] = {0};
	struct slots_hold hold = make_late(seen);

	cr_expect(zero(u64, slots_find_late(&slots, 0)));
	cr_expect(eq(u64, slots_find_late(&slots, bell_now_ns()), 4));
	slots_release(&slots, 2, &hold);
	cr_expect(zero(u64, slots_find_late(&slots, bell_now_ns())));
	slots_close(&slots);
}

Test(slots, the_oldest_item_determines_which_consumer_is_late)
{
	struct slots_seen seen[2] = {0};

	make_form(SLOTS_BROADCAST, true);
	come(0, true);
	come(1, false);
	send_item(0, 1);
	come(2, false);
	for (int64_t i = 2; i <= N; i++)
		send_item(0, i);
	cr_expect(eq(u64, slots_find_late(&slots, bell_now_ns()), 2));
	slots_close(&slots);
	(void)make_late(seen);
	slots.page->sent_ns[0] = INT64_MAX;
	cr_expect(zero(u64, slots_find_late(&slots, bell_now_ns())));
}

Test(slots, a_consumer_that_is_cut_keeps_the_items_it_holds)
{
	struct slots_seen seen[2] = {0};
	struct slots_hold hold = make_late(seen), other;

	cr_expect(not(slots_take_away(&slots, hold.at)));
	cut(2);
	cr_expect(eq(u32, count_free(), N - 1));
	cr_expect(not(slots_has_item(&slots, 2, &seen[1])));
	cr_expect(not(slots_take(&slots, 2, &seen[1], &other)));
	cr_expect(eq(u64, slots_load(&slots, hold.at), hold.word));
	/* The other users continue. */
	send_item(0, 9);
	other = receive(1, &seen[0], 9);
	slots_release(&slots, 1, &other);
	slots_release(&slots, 2, &hold);
	cr_expect(eq(u32, count_free(), N));
}

Test(slots, a_buffer_held_by_a_consumer_that_was_cut_is_replaced)
{
	struct slots_seen seen[2] = {0};
	struct slots_hold hold = make_late(seen), other;

	cut(2);
	cr_expect(slots_take_away(&slots, hold.at));
	cr_expect(not(slots_take_away(&slots, hold.at)));
	slots_admit(&slots, hold.at, 9, 3);
	cr_expect(eq(u32, count_free(), N));
	cr_assert(eq(u32, send_item(0, 9), hold.at));
	/* The consumer that was cut releases the buffer that was replaced,
	 * which frees nothing. */
	slots_release(&slots, 2, &hold);
	other = receive(1, &seen[0], 9);
	slots_release(&slots, 1, &other);
	cr_expect(eq(u32, count_free(), N));
}

Test(slots, a_consumer_that_dies_with_an_item_releases_it)
{
	struct slots_seen seen[2] = {0};
	struct slots_hold hold = make_late(seen);

	cut(2);
	go(2, true);
	cr_expect(eq(u32, count_free(), N));
	cr_expect(zero(u64, slots.page->readers[hold.at]));
}

Test(slots, an_item_that_is_put_back_has_no_reader)
{
	struct slots_seen seen[2] = {0};
	struct slots_hold hold = make_late(seen);

	slots_put_back(&slots, 2, &seen[1], &hold);
	cr_expect(zero(u64, slots.page->readers[hold.at]));
	hold = receive(2, &seen[1], 1);
	slots_release(&slots, 2, &hold);
	cr_expect(eq(u32, count_free(), 1));
}

Test(slots, a_channel_with_lag_is_opened_only_by_users_that_support_lag)
{
	make_form(SLOTS_BROADCAST, true);
	cr_expect(eq(int, try_open(CHANNEL), -EPROTO));
	slots_close(&slots);
}

/* --- buffers ------------------------------------------------------------- */

Test(slots, a_buffer_is_taken_out_only_by_the_holder_of_its_item)
{
	struct slots_hold held;

	make(SLOTS_SHARE);
	come(0, true);
	come(1, false);
	send_item(0, 1);
	cr_expect(not(slots_take_out(&slots, 0, 1)));
	held = receive(1, NULL, 1);
	cr_expect(not(slots_take_out(&slots, 0, 0)));
	cr_expect(slots_take_out(&slots, 0, 1));
	slots_release(&slots, 1, &held);
	cr_expect(eq(u32, count_free(), N - 1));
	slots_admit(&slots, 0, 9, 3);
	cr_expect(eq(u32, count_free(), N));
	cr_expect(eq(u32, slots.page->buffers[0].slot, 9));
	slots_force_out(&slots, 1);
	cr_expect(eq(u32, count_free(), N - 1));
}

/* --- another number of slots --------------------------------------------- */

Test(slots, slots_beyond_the_limit_are_received_but_not_claimed)
{
	struct slots_hold hold, held[N];

	make(SLOTS_SHARE);
	come(0, true);
	come(1, false);
	for (uint32_t i = 0; i < N; i++)
		cr_assert(eq(u32, send_item(0, i), i));
	cr_expect(zero(u32, slots_limit(&slots)));
	slots_set_limit(&slots, 1);
	cr_expect(not(slots_retire(&slots, 1)));
	for (uint32_t i = 0; i < N; i++)
		held[i] = receive(1, NULL, i);
	for (uint32_t i = 1; i < N; i++) {
		slots_release(&slots, 1, &held[i]);
		cr_expect(slots_is_surplus(&slots, i));
	}
	cr_expect(not(slots_has_credit(&slots, 0)));
	cr_expect(not(slots_claim(&slots, 0, &hold)));
	slots_release(&slots, 1, &held[0]);
	cr_expect(not(slots_is_surplus(&slots, 0)));
	cr_expect(slots_retire(&slots, 3));
	cr_expect(eq(u32, count_free(), N - 1));
	cr_expect(zero(u32, send_item(0, 9)));
	cr_expect(not(slots_claim(&slots, 0, &hold)));
	/* One slot was not removed yet, and the other one is added again. */
	slots_set_limit(&slots, N);
	slots_admit(&slots, 3, 9, 1);
	for (uint32_t i = 1; i < N; i++)
		cr_expect(eq(u32, send_item(0, i), i));
}

Test(slots, a_free_slot_beyond_the_limit_does_not_end_a_wait)
{
	struct slots_seen seen[2] = {0};
	struct slots_hold second;

	(void)make_late(seen);
	second = receive(2, &seen[1], 2);
	slots_release(&slots, 2, &second);
	cr_expect(zero(u64, slots_find_late(&slots, bell_now_ns())));
	slots_set_limit(&slots, 1);
	cr_expect(eq(u64, slots_find_late(&slots, bell_now_ns()), 4));
}
