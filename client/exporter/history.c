#include "client/exporter/history.h"
#include <stdlib.h>
#include <string.h>

/* The upper limit of a bucket in seconds. The last bucket has none, so its
 * lower limit is returned. */
static double limit_s(const struct snapshot *snapshot, uint32_t bucket)
{
	if (bucket + 1 == snapshot->n_buckets && bucket > 0)
		bucket--;
	return (double)snapshot->limits_ns[bucket] * 1e-9;
}

/* Add up the counts of a bucket in all histograms of requests with that name
 * (NULL: all names). */
static uint64_t sum_bucket(const struct snapshot *snapshot, uint32_t bucket,
			   const char *name)
{
	uint64_t n = 0;

	for (size_t i = 0; i < snapshot->n_histograms; i++) {
		const struct snapshot_histogram *it = &snapshot->histograms[i];

		if (it->kind == FSDP_HISTOGRAM_REQUEST &&
		    (!name || strcmp(it->name, name) == 0))
			n += it->counts[bucket];
	}
	return n;
}

static uint64_t grown(uint64_t before, uint64_t after)
{
	return after > before ? after - before : 0;
}

static uint64_t count_between(const struct snapshot *before,
			      const struct snapshot *after, uint32_t bucket,
			      const char *name)
{
	uint64_t n = sum_bucket(after, bucket, name);

	if (!before || before->n_buckets != after->n_buckets)
		return n;
	return grown(sum_bucket(before, bucket, name), n);
}

double history_quantile(const struct snapshot *before,
			const struct snapshot *after, const char *name,
			double q)
{
	uint64_t all = 0, n = 0;

	for (uint32_t i = 0; i < after->n_buckets; i++)
		all += count_between(before, after, i, name);
	if (all == 0)
		return 0;
	for (uint32_t i = 0; i < after->n_buckets; i++) {
		n += count_between(before, after, i, name);
		if ((double)n >= q * (double)all)
			return limit_s(after, i);
	}
	return 0;
}

static double rate(const struct snapshot *before, const struct snapshot *after,
		   const char *name, double seconds)
{
	return (double)grown(snapshot_value(before, name),
			     snapshot_value(after, name)) /
	       seconds;
}

static void fill_rates(struct history_sample *sample,
		       const struct snapshot *before,
		       const struct snapshot *after, double seconds)
{
	sample->requests_per_s = rate(before, after, "requests", seconds);
	sample->published_per_s = rate(before, after, "published", seconds);
	sample->collective_bytes_per_s =
		rate(before, after, "bytes_gathered", seconds) +
		rate(before, after, "bytes_reduced", seconds);
	sample->median_s = history_quantile(before, after, NULL, 0.5);
	sample->p99_s = history_quantile(before, after, NULL, 0.99);
	sample->busy =
		1 - rate(before, after, "loop_waiting_ns", seconds) * 1e-9;
	if (sample->busy < 0)
		sample->busy = 0;
}

static struct history_sample *append(struct history *history, uint64_t at_ms)
{
	struct history_sample *sample = &history->samples[history->next];

	history->next = (history->next + 1) % HISTORY_SAMPLES;
	if (history->n < HISTORY_SAMPLES)
		history->n++;
	*sample = (struct history_sample){.at_ms = at_ms};
	return sample;
}

void history_add(struct history *history, struct snapshot *snapshot,
		 uint64_t at_ms, uint64_t now_ms)
{
	struct history_sample *sample = append(history, at_ms);
	uint64_t epoch = snapshot_value(snapshot, "epoch");

	sample->is_up = true;
	sample->used_bytes = snapshot_value(snapshot, "bytes_live");
	sample->device_used_bytes =
		snapshot_value(snapshot, "device_bytes_live");
	sample->limbo = snapshot_value(snapshot, "slots_limbo");
	sample->sessions = snapshot_value(snapshot, "sessions");
	sample->parked = snapshot_value(snapshot, "waiters");
	/* The counters of another broker began at 0, so there are no rates. */
	if (history->last_ms && history->last_ms < now_ms &&
	    history->last_epoch == epoch)
		fill_rates(sample, &history->last, snapshot,
			   (double)(now_ms - history->last_ms) / 1000);
	snapshot_deinit(&history->last);
	history->last = *snapshot;
	*snapshot = SNAPSHOT_NULL;
	history->last_ms = now_ms;
	history->last_epoch = epoch;
}

void history_add_gap(struct history *history, uint64_t at_ms)
{
	(void)append(history, at_ms);
	history->last_ms = 0;
}

void history_deinit(struct history *history)
{
	snapshot_deinit(&history->last);
}

static json_t *sample_json(const struct history_sample *sample)
{
	if (!sample->is_up)
		return json_pack("{s:I, s:b}", "at_ms",
				 (json_int_t)sample->at_ms, "up", 0);
	return json_pack(
		"{s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, "
		"s:I, s:I, s:I}",
		"at_ms", (json_int_t)sample->at_ms, "up", 1, "requests_per_s",
		sample->requests_per_s, "published_per_s",
		sample->published_per_s, "collective_bytes_per_s",
		sample->collective_bytes_per_s, "median_s", sample->median_s,
		"p99_s", sample->p99_s, "busy", sample->busy, "used_bytes",
		(json_int_t)sample->used_bytes, "device_used_bytes",
		(json_int_t)sample->device_used_bytes, "limbo",
		(json_int_t)sample->limbo, "sessions",
		(json_int_t)sample->sessions, "parked",
		(json_int_t)sample->parked);
}

json_t *history_json(const struct history *history)
{
	uint32_t n = history ? history->n : 0;
	uint32_t first = n < HISTORY_SAMPLES ? 0 : history->next;
	json_t *array = json_array();

	for (uint32_t i = 0; array && i < n; i++) {
		const struct history_sample *sample =
			&history->samples[(first + i) % HISTORY_SAMPLES];

		if (json_array_append_new(array, sample_json(sample)) < 0) {
			json_decref(array);
			array = NULL;
		}
	}
	return array;
}
