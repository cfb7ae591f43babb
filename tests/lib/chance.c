/*
 * The generator is xorshift64*.
 */
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include <sys/random.h>
#include <time.h>

uint32_t draw(struct chance *chance, uint32_t below)
{
	uint64_t x = chance->state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	chance->state = x;
	return (uint32_t)((x * UINT64_C(0x2545f4914f6cdd1d)) >> 32) % below;
}

uint64_t choose_seed(const char *name)
{
	const char *given = getenv(name);
	uint32_t seed = 1;

	if (given)
		return strtoul(given, NULL, 10);
	must(getrandom(&seed, sizeof(seed), 0) == sizeof(seed));
	return seed;
}

uint64_t clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
