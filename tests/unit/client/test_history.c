/*
 * Tests the exporter's last minutes: rates and durations between two samples.
 */
#include "client/exporter/history.h"
#include "tests/lib/check.h"
#include <stdlib.h>
#include <string.h>

#define N_BUCKETS 4

static struct history history;
static uint64_t wall_ms = UINT64_C(1795843200000);

static void fini(void)
{
	history_deinit(&history);
}

TestSuite(history, .fini = fini, .timeout = 300);

static void add_value(struct snapshot *snapshot, const char *name,
		      uint64_t value)
{
	struct snapshot_value *it = snapshot_append(
		&snapshot->values, &snapshot->n_values, sizeof(*it));

	strcpy(it->name, name);
	it->value = value;
}

/* Add requests of one kind: `fast` take less than 1 us, `slow` less than 1
 * ms. */
static struct snapshot make(uint64_t epoch, uint64_t fast, uint64_t slow)
{
	static const uint64_t limits_ns[N_BUCKETS] = {1000, 1000000, 1000000000,
						      UINT64_MAX};
	struct snapshot snapshot = SNAPSHOT_NULL;
	struct snapshot_histogram *it;

	add_value(&snapshot, "epoch", epoch);
	add_value(&snapshot, "requests", fast + slow);
	add_value(&snapshot, "bytes_live", 4096);
	snapshot.n_buckets = N_BUCKETS;
	snapshot.limits_ns = malloc(sizeof(limits_ns));
	memcpy(snapshot.limits_ns, limits_ns, sizeof(limits_ns));
	it = snapshot_append(&snapshot.histograms, &snapshot.n_histograms,
			     sizeof(*it));
	it->kind = FSDP_HISTOGRAM_REQUEST;
	strcpy(it->name, "ping");
	it->counts = calloc(N_BUCKETS, sizeof(*it->counts));
	it->counts[0] = fast;
	it->counts[1] = slow;
	return snapshot;
}

static void add(uint64_t epoch, uint64_t fast, uint64_t slow, uint64_t now_ms)
{
	struct snapshot snapshot = make(epoch, fast, slow);

	history_add(&history, &snapshot, wall_ms, now_ms);
	cr_expect(zero(sz, snapshot.n_values), "it was taken");
}

static const struct history_sample *last(void)
{
	return &history.samples[(history.next + HISTORY_SAMPLES - 1) %
				HISTORY_SAMPLES];
}

Test(history, durations_are_those_since_the_previous_sample)
{
	add(1, 1000, 0, 5000);
	cr_expect(zero(dbl, last()->median_s), "nothing is before the first");
	add(1, 1010, 90, 10000);
	cr_expect(epsilon_eq(dbl, last()->median_s, 1e-3, 1e-9));
	cr_expect(epsilon_eq(dbl, last()->requests_per_s, 20, 1e-9));
	cr_expect(eq(u64, last()->used_bytes, 4096));
	add(1, 1010, 90, 15000);
	cr_expect(zero(dbl, last()->p99_s), "there were none");
}

Test(history, a_wall_clock_that_is_set_changes_no_rate)
{
	add(1, 1000, 0, 5000);
	wall_ms -= 3600000;
	add(1, 1100, 0, 10000);
	cr_expect(epsilon_eq(dbl, last()->requests_per_s, 20, 1e-9));
	cr_expect(eq(u64, last()->at_ms, wall_ms));
	wall_ms += 7200000;
	add(1, 1200, 0, 15000);
	cr_expect(epsilon_eq(dbl, last()->requests_per_s, 20, 1e-9));
}

Test(history, a_quantile_is_the_limit_of_its_bucket)
{
	struct snapshot snapshot = make(1, 98, 2);

	cr_expect(epsilon_eq(dbl, history_quantile(NULL, &snapshot, NULL, 0.5),
			     1e-6, 1e-12));
	cr_expect(epsilon_eq(dbl, history_quantile(NULL, &snapshot, NULL, 0.99),
			     1e-3, 1e-12));
	cr_expect(zero(dbl, history_quantile(NULL, &snapshot, "get", 0.5)));
	snapshot_deinit(&snapshot);
}

/* The counters of a new broker begin at 0. */
Test(history, the_first_sample_of_another_broker_has_no_rate)
{
	add(1, 1000, 0, 5000);
	add(2, 3000, 0, 10000);
	cr_expect(zero(dbl, last()->requests_per_s));
	add(2, 3500, 0, 15000);
	cr_expect(epsilon_eq(dbl, last()->requests_per_s, 100, 1e-9));
}

Test(history, the_first_sample_after_a_gap_has_no_rate)
{
	add(1, 1000, 0, 5000);
	history_add_gap(&history, 10000);
	cr_expect(not(last()->is_up));
	add(1, 9000, 0, 15000);
	cr_expect(last()->is_up);
	cr_expect(zero(dbl, last()->requests_per_s));
}

Test(history, the_oldest_samples_are_dropped)
{
	json_t *array;

	for (wall_ms = 1; wall_ms <= HISTORY_SAMPLES + 3; wall_ms++)
		add(1, wall_ms, 0, wall_ms * 1000);
	array = history_json(&history);
	cr_assert(eq(sz, json_array_size(array), HISTORY_SAMPLES));
	cr_expect(eq(i64,
		     json_integer_value(json_object_get(
			     json_array_get(array, 0), "at_ms")),
		     4));
	json_decref(array);
}
