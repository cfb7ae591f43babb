/*
 * Threads act as the users of a broadcast with a limit of lag. From time to
 * time a consumer keeps an item until it is cut, reads it again, leaves and
 * comes back; a producer that has waited for too long does what the broker does
 * for it. The buffers are plain memory: one that is written while a consumer
 * that was cut reads it is a race for ThreadSanitizer, and a wrong number
 * without. A wake that is lost leaves the run hanging.
 */
#include "proto/error.h"
#include "shm/slots.h"
#include "tests/stress/stress.h"
#include <string.h>

#define N_SLOTS     4
#define N_PRODUCERS 2
#define N_CONSUMERS 2
#define N_ITEMS     10000 /* at least, of each producer */
#define KEPT        500   /* each item of such a number is kept */
#define LAG_NS      INT64_C(2000000)
#define N_BUFFERS   65536

static struct slots slots;
static pthread_mutex_t broker = PTHREAD_MUTEX_INITIALIZER;
static struct slots_present present; /* with the mutex, as the next one */
static uint32_t n_buffers;
static struct {
	uint64_t maker, number;
} buffers[N_BUFFERS]; /* plain on purpose */
static atomic_ulong n_cuts, n_taken_away;

/* --- the broker ----------------------------------------------------------- */

static void admit(uint32_t at)
{
	check(n_buffers < N_BUFFERS, "too many buffers were replaced");
	slots_admit(&slots, at, n_buffers++, 1);
}

static void cut_late(void)
{
	uint64_t late;

	pthread_mutex_lock(&broker);
	late = slots_find_late(&slots, bell_now_ns() - LAG_NS);
	if (late) {
		present.consumers &= ~late;
		slots_cut(&slots, &present, late);
		atomic_fetch_add(&n_cuts, 1);
	}
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		if (!slots_take_away(&slots, i))
			continue;
		admit(i);
		atomic_fetch_add(&n_taken_away, 1);
	}
	pthread_mutex_unlock(&broker);
}

static void come(uint32_t place)
{
	const struct slots_newcomer who = {place, place, "thread", true};

	pthread_mutex_lock(&broker);
	if (place < N_PRODUCERS)
		present.producers |= slots_bit(place);
	else
		present.consumers |= slots_bit(place);
	slots_add_user(&slots, &present, &who);
	pthread_mutex_unlock(&broker);
}

static void leave(uint32_t place)
{
	pthread_mutex_lock(&broker);
	present.consumers &= ~slots_bit(place);
	slots_remove_user(&slots, &present, place, false);
	pthread_mutex_unlock(&broker);
}

/* --- users ---------------------------------------------------------------- */

static uint32_t find_buffer(uint32_t at)
{
	return atomic_load_explicit(&slots.page->buffers[at].slot,
				    memory_order_relaxed);
}

/* On a busy machine a consumer may be cut only while it waits for its turn. */
static bool goes_on(uint64_t item)
{
	return item <= N_ITEMS || atomic_load(&n_taken_away) == 0;
}

static void *produce(void *data)
{
	uint32_t me = (uint32_t)(uintptr_t)data;
	struct slots_wait wait = {
		.slots = &slots, .place = me, .is_over = look_over};
	const struct slots_head head = {.kind = SLOTS_ITEM};
	struct slots_hold hold;

	for (uint64_t i = 1; goes_on(i); i++) {
		while (!slots_claim(&slots, me, &hold)) {
			if (slots_wait_credit(&wait, bell_now_ns() + LAG_NS) ==
			    BELL_AGAIN)
				cut_late();
		}
		buffers[find_buffer(hold.at)].maker = me;
		buffers[find_buffer(hold.at)].number = i;
		slots_publish(&slots, me, &hold, &head);
	}
	return NULL;
}

struct consumer {
	uint32_t place;
	struct slots_seen seen;
	/* 0 if the consumer has received nothing since it came */
	uint64_t last[N_PRODUCERS];
};

static bool is_cut(const struct consumer *me)
{
	return !(slots_consumers(&slots) & slots_bit(me->place));
}

static void come_back(struct consumer *me)
{
	leave(me->place);
	memset(me->last, 0, sizeof(me->last));
	memset(&me->seen, 0, sizeof(me->seen));
	come(me->place);
}

/* Check that the consumer receives every item since it came, in order. */
static void use(struct consumer *me, uint32_t buffer)
{
	uint64_t maker = buffers[buffer].maker, number = buffers[buffer].number;

	check(maker < N_PRODUCERS, "an item has no maker");
	check(!me->last[maker] || number == me->last[maker] + 1,
	      "an item is missing, or came twice");
	me->last[maker] = number;
	while (number % KEPT == 0 && me->place > N_PRODUCERS && !is_cut(me) &&
	       !look_over(NULL))
		come_late();
	check(buffers[buffer].maker == maker &&
		      buffers[buffer].number == number,
	      "an item changed in the hands of a consumer");
}

static bool consume_one(struct consumer *me)
{
	struct slots_hold hold;
	uint32_t buffer;

	if (!slots_take(&slots, me->place, &me->seen, &hold))
		return false;
	buffer = find_buffer(hold.at);
	/* If the consumer was cut before, the buffer may belong to another item
	 * now. */
	if (!is_cut(me))
		use(me, buffer);
	slots_release(&slots, me->place, &hold);
	return true;
}

static bool has_news(const void *me)
{
	return look_over(NULL) || is_cut(me);
}

static void *consume(void *data)
{
	struct consumer me = {.place = (uint32_t)(uintptr_t)data};
	struct slots_wait wait = {.slots = &slots,
				  .place = me.place,
				  .seen = &me.seen,
				  .is_over = has_news,
				  .data = &me};

	for (;;) {
		bool was_over = look_over(NULL);

		while (consume_one(&me))
			;
		if (is_cut(&me))
			come_back(&me);
		else if (was_over)
			return NULL;
		else
			(void)slots_wait_item(&wait, INT64_MAX);
	}
}

int main(void)
{
	const struct slots_form form = {
		.channel = 1, .mode = SLOTS_BROADCAST, .has_lag = true};
	pthread_t threads[N_PRODUCERS + N_CONSUMERS];
	uint32_t n_queued, n_free, n_held;
	struct error err = ERROR_NULL;

	check(slots_create(&slots, &form, &err) == 0, err.msg);
	for (uint32_t i = 0; i < N_SLOTS; i++)
		admit(i);
	for (uint32_t i = 0; i < N_PRODUCERS + N_CONSUMERS; i++)
		come(i);
	for (uintptr_t i = 0; i < N_PRODUCERS + N_CONSUMERS; i++)
		check(pthread_create(&threads[i], NULL,
				     i < N_PRODUCERS ? produce : consume,
				     (void *)i) == 0,
		      "no thread");
	join_threads(threads, N_PRODUCERS);
	atomic_store_explicit(&is_over, true, memory_order_seq_cst);
	bell_ring_always(&slots.page->items);
	join_threads(threads + N_PRODUCERS, N_CONSUMERS);
	slots_count(&slots, &n_queued, &n_free, &n_held);
	check(n_free == N_SLOTS, "a slot was lost");
	printf("%lu cuts, %lu buffers replaced\n", n_cuts, n_taken_away);
	slots_close(&slots);
	return 0;
}
