#include "shm/liveness.h"
#include "proto/ending.h"
#include "shm/bell.h"

#define MS_NS INT64_C(1000000)
/* The time between two looks, each of which costs about 5 us for each process
 * and wakes a CPU. A process that has waited for long looks less often. */
#define LOOK_NS     (20 * MS_NS)
#define MAX_LOOK_NS (200 * MS_NS)
#define WAITED_PART 8
#define PAUSE_NS    (1000 * MS_NS)

int64_t liveness_next_ns(int64_t since_ns, int64_t end_ns)
{
	int64_t now_ns = bell_recent_ns();
	int64_t look_ns = (now_ns - since_ns) / WAITED_PART;

	if (look_ns > MAX_LOOK_NS)
		look_ns = MAX_LOOK_NS;
	if (look_ns < LOOK_NS)
		look_ns = LOOK_NS;
	return now_ns + look_ns < end_ns ? now_ns + look_ns : end_ns;
}

static void put_off(struct liveness *liveness, int64_t until_ns)
{
	atomic_store_explicit(&liveness->next_ns, until_ns,
			      memory_order_relaxed);
}

uint32_t liveness_find(struct liveness *liveness, int64_t since_ns,
		       uint64_t processes, liveness_pid_fn *pid,
		       const void *data)
{
	int64_t now_ns = bell_now_ns();

	if (now_ns < since_ns + LOOK_NS ||
	    now_ns < atomic_load_explicit(&liveness->next_ns,
					  memory_order_relaxed))
		return LIVENESS_NONE;
	put_off(liveness, now_ns + LOOK_NS / 2);
	for (; processes; processes &= processes - 1) {
		uint32_t number = (uint32_t)__builtin_ctzll(processes);

		if (process_is_ending((pid_t)pid(data, number)))
			return number;
	}
	return LIVENESS_NONE;
}

void liveness_pause(struct liveness *liveness)
{
	put_off(liveness, bell_now_ns() + PAUSE_NS);
}
