/*
 * The generator is xorshift64*.
 */
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include <getopt.h>
#include <string.h>
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

static uint64_t read_number(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);

	if (end != text && !*end)
		return value;
	fprintf(stderr, "\"%s\" is not a number\n", text);
	exit(2);
}

void course_choose(int argc, char **argv, const char *what,
		   struct course *course)
{
	const struct option options[] = {
		{what, required_argument, NULL, 'n'},
		{"seed", required_argument, NULL, 's'},
		{NULL, 0, NULL, 0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (option == 'n')
			course->n = (unsigned int)read_number(optarg);
		else if (option == 's')
			course->seed = read_number(optarg);
		else
			exit(2);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%s: --seed %llu --%s %u\n", basename(argv[0]),
	       (unsigned long long)course->seed, what, course->n);
}

uint64_t clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
