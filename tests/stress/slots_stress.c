/*
 * Threads act as the users of a channel: producers and consumers, in both
 * modes. Some of them stop anywhere with buffers in their hands, and the caller
 * then cleans up after them as the broker would. In some runs the number of
 * slots changes all the time. The buffers are plain memory,
 * so that a word that orders nothing is a race for ThreadSanitizer, and a wrong
 * number on a CPU with weak ordering. A wake that is lost leaves the run
 * hanging; an item that is lost, comes twice or comes in the wrong order ends
 * it.
 */
#include "proto/error.h"
#include "shm/slots.h"
#include "tests/stress/stress.h"
#include <string.h>

#define N_SLOTS     4
#define N_PRODUCERS 2
#define N_CONSUMERS 2
#define N_ITEMS     20000 /* of each producer */
#define N_RUNS      100   /* short runs, in which one user stops */
#define SHORT       50

static struct slots slots;
static struct slots_present present;
static struct {
	uint64_t maker, number;
} buffers[N_SLOTS]; /* plain on purpose */
static uint64_t n_items;
static atomic_ulong n_taken[N_PRODUCERS];
static bool is_resized;
static uint32_t victim; /* this user stops; SLOTS_USERS if all run on */

static void *produce(void *data)
{
	uint32_t me = (uint32_t)(uintptr_t)data;
	struct slots_wait wait = {
		.slots = &slots, .place = me, .is_over = look_over};
	const struct slots_head head = {.kind = SLOTS_ITEM};
	struct slots_hold hold;

	for (uint64_t i = 1; i <= n_items; i++) {
		while (!slots_claim(&slots, me, &hold))
			(void)slots_wait_credit(&wait, INT64_MAX);
		if (me == victim && i == n_items / 2)
			return NULL;
		buffers[hold.at].maker = me;
		buffers[hold.at].number = i;
		if (i % 512 == 0)
			come_late();
		slots_publish(&slots, me, &hold, &head);
	}
	return NULL;
}

/* Each consumer receives the items of each producer in order. */
static bool consume_one(uint32_t me, struct slots_seen *seen, uint64_t *last)
{
	struct slots_hold hold;
	uint64_t maker, number;

	if (!slots_take(&slots, me, seen, &hold))
		return false;
	maker = buffers[hold.at].maker;
	number = buffers[hold.at].number;
	check(maker < N_PRODUCERS && number > last[maker],
	      "an item came in the wrong order");
	check(slots.mode == SLOTS_SHARE || number == last[maker] + 1,
	      "an item of a broadcast is missing");
	last[maker] = number;
	if (me == victim && number == n_items / 4)
		pthread_exit(NULL);
	if (number % 1024 == 0)
		come_late();
	slots_release(&slots, me, &hold);
	atomic_fetch_add(&n_taken[maker], 1);
	return true;
}

static void *consume(void *data)
{
	uint32_t me = (uint32_t)(uintptr_t)data;
	uint64_t last[N_PRODUCERS] = {0};
	struct slots_seen seen;
	struct slots_wait wait = {.slots = &slots,
				  .place = me,
				  .seen = &seen,
				  .is_over = look_over};

	memset(&seen, 0, sizeof(seen));
	for (;;) {
		bool was_over = look_over(NULL);

		while (consume_one(me, &seen, last))
			;
		if (was_over)
			return NULL;
		(void)slots_wait_item(&wait, INT64_MAX);
	}
}

static void add_user(uint32_t place)
{
	const struct slots_newcomer who = {place, place, "thread", true};

	if (place < N_PRODUCERS)
		present.producers |= UINT64_C(1) << place;
	else
		present.consumers |= UINT64_C(1) << place;
	slots_add_user(&slots, &present, &who);
}

static void remove_user(uint32_t place)
{
	present.producers &= ~(UINT64_C(1) << place);
	present.consumers &= ~(UINT64_C(1) << place);
	slots_remove_user(&slots, &present, place, true);
}

/* Change the number of slots as the broker does. No user has to be told
 * here. */
static void set_size(uint32_t n)
{
	slots_set_limit(&slots, n);
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		if (i >= n)
			(void)slots_retire(&slots, i);
		else if (slots_state(slots_load(&slots, i)) == SLOTS_RETIRED)
			slots_admit(&slots, i, i + 1, 1);
	}
}

static void *resize(void *unused)
{
	for (uint32_t i = 0; !look_over(unused); i++) {
		set_size(1 + i % N_SLOTS);
		if (i % 64 == 0)
			come_late();
	}
	set_size(N_SLOTS);
	return NULL;
}

static void make(enum slots_mode mode)
{
	const struct slots_form form = {.channel = 1, .mode = mode};
	struct error err = ERROR_NULL;

	check(slots_create(&slots, &form, &err) == 0, err.msg);
	for (uint32_t i = 0; i < N_SLOTS; i++)
		slots_admit(&slots, i, i + 1, 1);
	present = (struct slots_present){0};
	for (uint32_t i = 0; i < N_PRODUCERS + N_CONSUMERS; i++)
		add_user(i);
	for (uint32_t i = 0; i < N_PRODUCERS; i++)
		atomic_store(&n_taken[i], 0);
	atomic_store(&is_over, false);
}

static void end(const pthread_t *threads, const pthread_t *resizer)
{
	uint32_t n_queued, n_free, n_held;

	for (uint32_t i = 0; i < N_PRODUCERS; i++) {
		if (i != victim)
			(void)pthread_join(threads[i], NULL);
	}
	atomic_store_explicit(&is_over, true, memory_order_seq_cst);
	bell_ring_always(&slots.page->items);
	for (uint32_t i = N_PRODUCERS; i < N_PRODUCERS + N_CONSUMERS; i++) {
		if (i != victim)
			(void)pthread_join(threads[i], NULL);
	}
	if (resizer)
		(void)pthread_join(*resizer, NULL);
	slots_count(&slots, &n_queued, &n_free, &n_held);
	check(n_free == N_SLOTS, "a slot was lost");
	slots_close(&slots);
}

static void run(enum slots_mode mode)
{
	pthread_t threads[N_PRODUCERS + N_CONSUMERS], resizer;

	make(mode);
	if (is_resized)
		check(pthread_create(&resizer, NULL, resize, NULL) == 0,
		      "no thread");
	for (uintptr_t i = 0; i < N_PRODUCERS + N_CONSUMERS; i++)
		check(pthread_create(&threads[i], NULL,
				     i < N_PRODUCERS ? produce : consume,
				     (void *)i) == 0,
		      "no thread");
	if (victim < SLOTS_USERS) {
		(void)pthread_join(threads[victim], NULL);
		remove_user(victim);
	}
	end(threads, is_resized ? &resizer : NULL);
}

int main(void)
{
	const enum slots_mode modes[] = {SLOTS_SHARE, SLOTS_BROADCAST};

	for (int i = 0; i < 4; i++) {
		is_resized = i >= 2;
		n_items = N_ITEMS;
		victim = SLOTS_USERS;
		run(modes[i % 2]);
		for (int j = 0; j < N_PRODUCERS; j++)
			check(n_taken[j] ==
				      (i % 2 ? N_CONSUMERS : 1u) * N_ITEMS,
			      "items were lost, or came twice");
		n_items = SHORT;
		for (uint32_t j = 0; j < N_RUNS; j++) {
			/* In a share it is not determined which consumer gets
			 * which item. */
			victim = i % 2 ? j % (N_PRODUCERS + N_CONSUMERS)
				       : j % N_PRODUCERS;
			run(modes[i % 2]);
		}
	}
	printf("%d items each way, %d deaths\n", N_ITEMS, 4 * N_RUNS);
	return 0;
}
