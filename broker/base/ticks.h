/*
 * A clock that costs a few nanoseconds: the CPU's counter, converted to the
 * nanoseconds of uv_hrtime().
 *
 * It is for measuring only. The counter is used if the kernel itself keeps time
 * by it; otherwise, and until its rate has been measured, ticks_now() is
 * uv_hrtime().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct ticks {
	bool is_used;     /* the kernel trusts the counter */
	uint64_t rate;    /* ns per tick, times 2^32; 0: not measured yet */
	uint64_t at_tick; /* the last reading of both clocks */
	uint64_t at_ns;
};

void ticks_init(struct ticks *ticks);
/* Measures the rate again. Call it often: it does so about once in a second. */
void ticks_sync(struct ticks *ticks);

#if defined(__x86_64__)
#define TICKS_CLOCKSOURCE "tsc"
static inline uint64_t ticks_read(void)
{
	return __builtin_ia32_rdtsc();
}
#elif defined(__aarch64__)
#define TICKS_CLOCKSOURCE "arch_sys_counter"
static inline uint64_t ticks_read(void)
{
	uint64_t value;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
	return value;
}
#else
#define TICKS_CLOCKSOURCE "" /* no kernel has this name */
static inline uint64_t ticks_read(void)
{
	return 0;
}
#endif

/* Returns the time in ns. It may go back a little after ticks_sync(). */
static inline uint64_t ticks_now(const struct ticks *ticks)
{
	uint64_t tick;

	if (!ticks->rate)
		return uv_hrtime();
	tick = ticks_read();
	/* The counter of another CPU may lag a little. */
	if (tick <= ticks->at_tick)
		return ticks->at_ns;
	return ticks->at_ns +
	       (uint64_t)((unsigned __int128)(tick - ticks->at_tick) *
				  ticks->rate >>
			  32);
}
