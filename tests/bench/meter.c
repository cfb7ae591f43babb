/*
 * Measures the cost of timing a request in the broker, in its worst case: the
 * request is alone in an iteration of the loop, so that both its beginning and
 * its end are read from the clock. The limit is absolute, and the best of the
 * blocks is compared with it, which other processes disturbed least.
 */
#include "broker/base/meter.h"
#include "bench.h"

#define N_CALLS  16000
#define LIMIT_NS 20

static struct meter meter;

static double measure(void)
{
	uint64_t start_ns = now_ns();

	for (uint16_t i = 0; i < N_CALLS / 16; i++) {
		for (uint16_t kind = 1; kind <= 16; kind++) {
			meter.lap_ns = 0;
			meter_begin(&meter);
			meter_request(&meter, kind);
		}
	}
	return (double)(now_ns() - start_ns) / N_CALLS;
}

void meter_request_ns(const struct bench *bench, struct result *ret)
{
	struct samples samples = SAMPLES_NULL;

	pin(bench->server_cpu);
	ticks_init(&meter.ticks);
	/* If the kernel uses another clock, the row shows the cost of that. */
	while (meter.ticks.is_used && !meter.ticks.rate)
		ticks_sync(&meter.ticks);
	for (unsigned i = 0; i < bench->n_pairs; i++)
		samples_add(&samples, measure());
	absolute_result(&samples, samples_quantile(&samples, 0), LIMIT_NS, ret);
	samples_deinit(&samples);
}
