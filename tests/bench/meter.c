/*
 * Measures the cost of timing a request in the broker, in its worst case: the
 * request is alone in an iteration of the loop, so that both its beginning and
 * its end are read from the clock. The floor is one reading of the system's
 * clock, the least that any such measurement would take.
 */
#include "broker/base/meter.h"
#include "bench.h"
#include <uv.h>

#define N_CALLS 100000

static struct meter meter;

static void measure_floor(struct pairs *pairs)
{
	volatile uint64_t sum = 0;
	uint64_t start_ns = now_ns();

	for (int i = 0; i < N_CALLS; i++)
		sum += uv_hrtime();
	(void)sum;
	samples_add(&pairs->floor, (double)(now_ns() - start_ns) / N_CALLS);
}

static void measure_ours(struct pairs *pairs)
{
	uint64_t start_ns = now_ns();

	for (uint16_t i = 0; i < N_CALLS / 16; i++) {
		for (uint16_t kind = 1; kind <= 16; kind++) {
			meter.lap_ns = 0;
			meter_begin(&meter);
			meter_request(&meter, kind);
		}
	}
	samples_add(&pairs->ours, (double)(now_ns() - start_ns) / N_CALLS);
}

void meter_request_ns(const struct bench *bench, struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;

	pin(bench->server_cpu);
	ticks_init(&meter.ticks);
	/* If the kernel uses another clock, the row shows the cost of that. */
	while (meter.ticks.is_used && !meter.ticks.rate)
		ticks_sync(&meter.ticks);
	for (unsigned i = 0; i < bench->n_pairs; i++) {
		measure_floor(&pairs);
		measure_ours(&pairs);
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1, ret);
	pairs_deinit(&pairs);
}
