#include "shm/pieces.h"
#include "proto/failpoint.h"

static uint64_t open_lap(uint32_t number)
{
	return (uint64_t)number << 32;
}

/* Returns the number of laps by which the word is ahead of that number. */
static int32_t distance(uint64_t word, uint32_t number)
{
	return (int32_t)((uint32_t)(word >> 32) - number);
}

/* relaxed: the later change of `next` publishes it to other processes. If
 * several processes open the lap, one of them succeeds, and no process counts a
 * piece before that. */
static void open_done(struct pieces *pieces, uint32_t number)
{
	uint64_t done =
		atomic_load_explicit(&pieces->done, memory_order_relaxed);

	if (distance(done, number) < 0)
		(void)atomic_compare_exchange_strong_explicit(
			&pieces->done, &done, open_lap(number),
			memory_order_relaxed, memory_order_relaxed);
}

uint32_t pieces_take(struct pieces *pieces, uint32_t number, uint32_t n)
{
	uint64_t word =
		atomic_load_explicit(&pieces->next, memory_order_acquire);

	for (;;) {
		int32_t ahead = distance(word, number);
		uint64_t taken = ahead < 0 ? open_lap(number) : word;

		if (ahead > 0 || (uint32_t)taken >= n)
			return PIECES_NONE;
		if (ahead < 0) {
			open_done(pieces, number);
			failpoint("pieces.opened");
		}
		if (atomic_compare_exchange_weak_explicit(
			    &pieces->next, &word, taken + 1,
			    memory_order_acq_rel, memory_order_acquire))
			return (uint32_t)taken;
	}
}

bool pieces_end_one(struct pieces *pieces, uint32_t number, uint32_t n)
{
	uint64_t before = atomic_fetch_add_explicit(&pieces->done, 1,
						    memory_order_seq_cst);

	return distance(before, number) == 0 && (uint32_t)before + 1 == n;
}

bool pieces_are_done(const struct pieces *pieces, uint32_t number, uint32_t n)
{
	uint64_t done =
		atomic_load_explicit(&pieces->done, memory_order_seq_cst);
	int32_t ahead = distance(done, number);

	return ahead > 0 || (ahead == 0 && (uint32_t)done >= n);
}
