/*
 * Threads test the rules of shm/refs.h: clients acquire and release a few slots
 * as fast as they can while a broker publishes, reclaims and collects. One
 * plain word stands for a slot's memory: it holds the generation while the slot
 * lives, and poison once it is freed. A reader that finds anything else used
 * memory after it was freed, and under ThreadSanitizer the two accesses are a
 * race as well.
 *
 * The broker frees by pending bits alone, never by walking limbo, so a ring
 * that gets lost leaves a slot in limbo to the end, which fails. Sessions
 * differ from real ones in one point: broker and client use one mapping,
 * because ThreadSanitizer knows memory by its address.
 */
#include "proto/error.h"
#include "shm/refs.h"
#include "tests/stress/stress.h"
#include <sched.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define N_SESSIONS 2
#define N_THREADS  4 /* divided among the sessions */
#define N_SLOTS    3 /* 1 to N_SLOTS; far apart, each in a word of its own */
#define N_ROUNDS   600000
#define N_SECONDS  20 /* time limit, because yields may take long */
#define POISON     UINT64_MAX

struct session {
	struct refs refs;
	int doorbell_fd;
	int32_t granted[N_SLOTS + 1]; /* the broker's */
	/* Generation of a hold that was granted but not yet taken. */
	_Atomic uint64_t mailbox[N_SLOTS + 1];
};

static struct table table;
static struct session sessions[N_SESSIONS];
static uint64_t memory[N_SLOTS + 1];        /* plain on purpose */
static _Atomic uint64_t known[N_SLOTS + 1]; /* the reply of a get */
static atomic_int n_running = N_THREADS;
static atomic_ulong n_held, n_stale, n_late, n_rings;
static time_t last_second;

static uint32_t slot_number(uint32_t i)
{
	return i * 5000;
}

static uint32_t dice(uint32_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	*seed ^= *seed << 5;
	return *seed;
}

/* --- clients ------------------------------------------------------------- */

static void ring(struct session *session)
{
	uint64_t one = 1;

	atomic_fetch_add_explicit(&n_rings, 1, memory_order_relaxed);
	check(write(session->doorbell_fd, &one, 8) == 8, "no doorbell");
}

static void release(struct session *session, uint32_t i)
{
	if (refs_release(&session->refs, &table, slot_number(i)))
		ring(session);
}

static void use(struct session *session, uint32_t i, uint64_t generation,
		uint32_t how)
{
	check(memory[i] == generation, "memory was freed under a holder");
	if (how % 4 == 0)
		refs_hold(&session->refs, slot_number(i));
	if (how % 64 == 0)
		sched_yield();
	check(memory[i] == generation, "memory was freed under a holder");
	if (how % 4 == 0)
		release(session, i);
	check(memory[i] == generation, "memory was freed under a holder");
	release(session, i);
}

/* Try once to get a known tensor without a request. */
static void try(struct session *session, uint32_t i, uint32_t how)
{
	/* acquire: stands for the reply that contained the generation. */
	uint64_t generation =
		atomic_load_explicit(&known[i], memory_order_acquire);
	enum refs_outcome outcome;

	/* Sometimes use a handle of the previous generation. */
	if (how % 16 == 1)
		generation--;
	outcome = refs_acquire(&session->refs, &table, slot_number(i),
			       generation);
	if (outcome == REFS_HELD) {
		atomic_fetch_add_explicit(&n_held, 1, memory_order_relaxed);
		use(session, i, generation, how / 16);
		return;
	}
	atomic_fetch_add_explicit(&n_stale, 1, memory_order_relaxed);
	if (outcome == REFS_STALE_RING)
		ring(session);
	/* Yield to the thread that holds the slot, or to the broker. */
	if (how / 16 % 4 == 0)
		sched_yield();
}

static void take_mail(struct session *session, uint32_t i, uint32_t how)
{
	/* acquire: stands for the reply that brought the grant. */
	uint64_t generation = atomic_exchange_explicit(&session->mailbox[i], 0,
						       memory_order_acquire);

	if (generation != 0)
		use(session, i, generation, how);
}

/* Returns whether the time limit has passed. Reads the clock only now and
 * then. */
static bool is_late(uint32_t n)
{
	struct timespec now;

	if (n % 1024 != 0)
		return false;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec > last_second;
}

/* A run in which no threads meet would prove nothing. */
static bool have_met(void)
{
	return n_held > 0 && n_stale > 0 && n_late > 0;
}

static void *client(void *data)
{
	uint32_t number = (uint32_t)(uintptr_t)data, seed = number + 1, i, n;
	struct session *session = &sessions[number % N_SESSIONS];

	for (n = 0; (n < N_ROUNDS && !is_late(n)) || !have_met(); n++) {
		i = 1 + dice(&seed) % N_SLOTS;
		if (n % 8 == 0)
			take_mail(session, i, dice(&seed));
		else
			try(session, i, dice(&seed));
	}
	atomic_fetch_sub(&n_running, 1);
	return NULL;
}

/* --- broker -------------------------------------------------------------- */

struct broker {
	enum slot_state states[N_SLOTS + 1];
	uint64_t generations[N_SLOTS + 1];
	unsigned long n_lives, n_revived;
	uint32_t seed;
};

static void set(struct broker *broker, uint32_t i, enum slot_state state)
{
	broker->states[i] = state;
	table_store(&table, slot_number(i),
		    table_word(broker->generations[i], state));
}

static bool is_held(uint32_t i)
{
	int64_t holds;
	uint32_t s;

	for (s = 0; s < N_SESSIONS; s++) {
		holds = (int64_t)sessions[s].granted[i] +
			refs_delta(&sessions[s].refs, slot_number(i));
		check(holds >= 0, "more releases than holds");
		if (holds > 0)
			return true;
	}
	return false;
}

/* Grants stay as they are. The next tensor in the slot counts on from there. */
static bool free_unless_held(struct broker *broker, uint32_t i)
{
	if (is_held(i))
		return false;
	memory[i] = POISON;
	set(broker, i, SLOT_FREE);
	return true;
}

static void publish(struct broker *broker, uint32_t i)
{
	struct session *session = &sessions[dice(&broker->seed) % N_SESSIONS];
	uint64_t generation = ++broker->generations[i];

	set(broker, i, SLOT_WRITING);
	memory[i] = generation;
	session->granted[i]++;
	set(broker, i, SLOT_PUBLISHED);
	/* release: these stand for replies. */
	atomic_store_explicit(&known[i], generation, memory_order_release);
	atomic_store_explicit(&session->mailbox[i], generation,
			      memory_order_release);
	broker->n_lives++;
}

static void let_go(struct broker *broker, uint32_t i)
{
	set(broker, i, SLOT_LIMBO);
	(void)free_unless_held(broker, i);
}

static void advance(struct broker *broker, uint32_t i)
{
	if (broker->states[i] == SLOT_FREE) {
		publish(broker, i);
	} else if (broker->states[i] == SLOT_PUBLISHED) {
		let_go(broker, i);
	} else if (dice(&broker->seed) % 64 == 0 && is_held(i)) {
		set(broker, i, SLOT_PUBLISHED); /* a holder named the slot */
		broker->n_revived++;
	}
}

static void collect(struct broker *broker, struct session *session)
{
	uint32_t slots[2], n, j, i;
	uint64_t count;

	if (read(session->doorbell_fd, &count, 8) != 8)
		return;
	do {
		n = refs_take_pending(&session->refs, slots, 2);
		for (j = 0; j < n; j++) {
			i = slots[j] / slot_number(1);
			check(i >= 1 && i <= N_SLOTS, "a slot nobody has");
			if (broker->states[i] == SLOT_LIMBO &&
			    free_unless_held(broker, i))
				atomic_fetch_add(&n_late, 1);
		}
	} while (n == 2);
}

static void serve(struct broker *broker)
{
	uint32_t s;

	while (atomic_load(&n_running) > 0) {
		for (s = 0; s < N_SESSIONS; s++)
			collect(broker, &sessions[s]);
		if (dice(&broker->seed) % 4 == 0)
			advance(broker, 1 + dice(&broker->seed) % N_SLOTS);
		if (dice(&broker->seed) % 32 == 0)
			sched_yield();
	}
}

/* No client runs any more, so what is in limbo now must have been announced. */
static void finish(struct broker *broker)
{
	uint32_t s, i;

	for (s = 0; s < N_SESSIONS; s++)
		for (i = 1; i <= N_SLOTS; i++)
			take_mail(&sessions[s], i, 1);
	for (i = 1; i <= N_SLOTS; i++)
		if (broker->states[i] == SLOT_PUBLISHED)
			let_go(broker, i);
	for (s = 0; s < N_SESSIONS; s++)
		collect(broker, &sessions[s]);
	for (i = 1; i <= N_SLOTS; i++)
		check(broker->states[i] == SLOT_FREE,
		      "a slot was left in limbo: its ring got lost");
}

/* --- main ---------------------------------------------------------------- */

static void start(void)
{
	struct error err = ERROR_NULL;
	struct refs made;
	uint32_t s;

	check(table_create(&table, &err) == 0, err.msg);
	for (s = 0; s < N_SESSIONS; s++) {
		check(refs_create(&made, &err) == 0, err.msg);
		check(refs_open(&sessions[s].refs, dup(made.fd), REFS_CLIENT,
				&err) == 0,
		      err.msg);
		refs_close(&made);
		sessions[s].doorbell_fd =
			eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		check(sessions[s].doorbell_fd >= 0, "no eventfd");
	}
}

int main(void)
{
	struct broker broker = {.seed = 7};
	pthread_t threads[N_THREADS];
	struct timespec now;

	start();
	clock_gettime(CLOCK_MONOTONIC, &now);
	last_second = now.tv_sec + N_SECONDS;
	start_threads(threads, N_THREADS, client);
	serve(&broker);
	join_threads(threads, N_THREADS);
	finish(&broker);
	printf("%lu lives, %lu freed late, %lu revived; %lu held, %lu stale, "
	       "%lu rings\n",
	       broker.n_lives, n_late, broker.n_revived, n_held, n_stale,
	       n_rings);
	return 0;
}
