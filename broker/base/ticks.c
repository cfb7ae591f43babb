/*
 * The rate is measured between two readings of both clocks, a second apart, so
 * that it follows a virtual machine to another host. A reading that was
 * interrupted between the two clocks is not used.
 */
#include "broker/base/ticks.h"
#include <stdio.h>
#include <string.h>

#define FIRST_NS 1000000
#define NEXT_NS  1000000000
/* Reading both clocks takes far less time than this. */
#define MAX_READ_NS 2000

static bool is_trusted(void)
{
	FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/"
			   "current_clocksource",
			   "re");
	char name[32] = "";

	if (!file)
		return false;
	if (!fgets(name, sizeof(name), file))
		name[0] = '\0';
	fclose(file);
	name[strcspn(name, "\n")] = '\0';
	return *name && strcmp(name, TICKS_CLOCKSOURCE) == 0;
}

/* Reads both clocks at the same time. Returns false if something interrupted
 * the two readings. */
static bool read_pair(uint64_t *ret_tick, uint64_t *ret_ns)
{
	uint64_t before_ns = uv_hrtime();

	*ret_tick = ticks_read();
	*ret_ns = uv_hrtime();
	return *ret_ns - before_ns < MAX_READ_NS;
}

void ticks_init(struct ticks *ticks)
{
	*ticks = (struct ticks){.is_used = is_trusted()};
	/* If the reading is interrupted, only the first measurement is
	 * delayed. */
	if (ticks->is_used && !read_pair(&ticks->at_tick, &ticks->at_ns))
		ticks->at_ns = 0;
}

void ticks_sync(struct ticks *ticks)
{
	uint64_t least = ticks->rate ? NEXT_NS : FIRST_NS;
	uint64_t tick, ns;

	if (!ticks->is_used || ticks_now(ticks) - ticks->at_ns < least ||
	    !read_pair(&tick, &ns))
		return;
	/* A suspend may have reset the counter. */
	if (ticks->at_ns && tick > ticks->at_tick)
		ticks->rate = (uint64_t)(((unsigned __int128)(ns - ticks->at_ns)
					  << 32) /
					 (tick - ticks->at_tick));
	ticks->at_tick = tick;
	ticks->at_ns = ns;
}
