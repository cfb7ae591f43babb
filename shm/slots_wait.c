/*
 * Waits of the users of a channel for items and for credits.
 */
#include "shm/slots.h"
#include <sched.h>

static bool has_item(const void *data)
{
	const struct slots_wait *wait = data;

	return slots_has_item(wait->slots, wait->place, wait->seen);
}

static bool has_credit(const void *data)
{
	const struct slots_wait *wait = data;

	return slots_has_credit(wait->slots, wait->place);
}

static bool is_over(const void *data)
{
	const struct slots_wait *wait = data;

	return wait->is_over(wait->data);
}

static void tell_cpu(const struct slots *slots, uint32_t place, int32_t cpu)
{
	_Atomic int32_t *word = &slots->page->users[place].cpu;

	/* store only a change, because other users read the cache line */
	if (atomic_load_explicit(word, memory_order_relaxed) != cpu)
		atomic_store_explicit(word, cpu, memory_order_relaxed);
}

/* Returns whether one of these users uses the caller's CPU and does not
 * wait. */
static bool is_one_beside(const struct slots *slots, uint32_t place,
			  uint64_t others)
{
	int32_t cpu = sched_getcpu();

	tell_cpu(slots, place, cpu);
	for (others &= ~slots_bit(place); others; others &= others - 1) {
		const struct slots_user *user =
			&slots->page->users[__builtin_ctzll(others)];

		if (atomic_load_explicit(&user->cpu, memory_order_relaxed) ==
			    cpu &&
		    !atomic_load_explicit(&user->want, memory_order_relaxed))
			return true;
	}
	return false;
}

static bool is_producer_beside(const void *data)
{
	const struct slots_wait *wait = data;

	return is_one_beside(wait->slots, wait->place,
			     slots_producers(wait->slots));
}

static bool is_consumer_beside(const void *data)
{
	const struct slots_wait *wait = data;

	return is_one_beside(wait->slots, wait->place,
			     slots_consumers(wait->slots));
}

static void want(struct slots_wait *wait, enum slots_want what)
{
	struct slots_user *user = &wait->slots->page->users[wait->place];

	if (!wait->since_ns) {
		wait->since_ns = bell_recent_ns();
		atomic_fetch_add_explicit(&user->n_waits, 1,
					  memory_order_relaxed);
	}
	atomic_store_explicit(&user->since_ns, (uint64_t)wait->since_ns,
			      memory_order_relaxed);
	atomic_store_explicit(&user->want, what, memory_order_relaxed);
}

static uint32_t pid_of(const void *data, uint32_t place)
{
	const struct slots *slots = data;

	return atomic_load_explicit(&slots->page->users[place].pid,
				    memory_order_relaxed);
}

/* Looks after a sleep whether one of the users that this one waits for is
 * ending. Returns whether to sleep on. A signal may have ended the sleep. */
static bool sleeps_on(struct slots_wait *wait, uint64_t others,
		      int64_t slept_ns, int64_t until_ns)
{
	int64_t now_ns = bell_now_ns();

	if (now_ns < slept_ns)
		return false;
	others = slots_living(wait->slots, others & ~slots_bit(wait->place));
	wait->ending = liveness_find(&wait->slots->liveness, wait->since_ns,
				     others, pid_of, wait->slots);
	return wait->ending == LIVENESS_NONE && now_ns < until_ns;
}

typedef uint64_t users_fn(const struct slots *slots);

static enum bell_outcome wait_by(struct slots_wait *wait, struct bell *bell,
				 const struct bell_wait *how, users_fn *others,
				 int64_t until_ns)
{
	int64_t next_ns = liveness_next_ns(wait->since_ns, until_ns);
	enum bell_outcome outcome;

	wait->ending = LIVENESS_NONE;
	outcome = wait->is_watch ? bell_sleep(bell, how, next_ns)
				 : bell_wait(bell, how, next_ns);
	while (outcome == BELL_AGAIN &&
	       sleeps_on(wait, others(wait->slots), next_ns, until_ns)) {
		next_ns = liveness_next_ns(wait->since_ns, until_ns);
		outcome = bell_sleep(bell, how, next_ns);
	}
	return outcome;
}

/* An item wakes one sleeper. A watch then wakes the next one, because the
 * process of the watch may come late or not at all. */
enum bell_outcome slots_wait_item(struct slots_wait *wait, int64_t until_ns)
{
	const struct bell_wait how = {has_item, is_over, is_producer_beside,
				      wait};
	enum bell_outcome outcome;

	want(wait, SLOTS_WANTS_ITEM);
	outcome = wait_by(wait, &wait->slots->page->items, &how,
			  slots_producers, until_ns);
	if (wait->is_watch && outcome == BELL_MET)
		bell_ring_one(&wait->slots->page->items);
	want(wait, SLOTS_NOTHING);
	return outcome;
}

/* While a producer is starved, those with more credits leave the next one to
 * it. They are woken when it is not starved any more. */
enum bell_outcome slots_wait_credit(struct slots_wait *wait, int64_t until_ns)
{
	const struct bell_wait how = {has_credit, is_over, is_consumer_beside,
				      wait};
	struct slots_page *page = wait->slots->page;
	enum bell_outcome outcome;

	want(wait, SLOTS_WANTS_CREDIT);
	atomic_fetch_or_explicit(&page->starved, slots_bit(wait->place),
				 memory_order_seq_cst);
	outcome =
		wait_by(wait, &page->credits, &how, slots_consumers, until_ns);
	atomic_fetch_and_explicit(&page->starved, ~slots_bit(wait->place),
				  memory_order_seq_cst);
	bell_ring(&page->credits);
	want(wait, SLOTS_NOTHING);
	return outcome;
}
