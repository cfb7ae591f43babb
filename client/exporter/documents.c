#include "client/exporter/documents.h"
#include "client/exporter/history.h"
#include "client/exporter/lists.h"
#include "client/exporter/text.h"
#include "client/monitor/document.h"
#include "client/monitor/prometheus.h"
#include "client/monitor/snapshot.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

char *documents_metrics(const struct snapshot *snapshot, size_t *ret_size)
{
	char *text = NULL;
	FILE *file = open_memstream(&text, ret_size);

	if (!file)
		return NULL;
	prometheus_write(file, snapshot);
	if (fclose(file) == 0)
		return text;
	free(text);
	return NULL;
}

/* --- parts of the state -------------------------------------------------- */

static json_t *counters_json(const struct snapshot *snapshot)
{
	json_t *object = json_object();

	for (size_t i = 0; object && i < snapshot->n_values; i++)
		json_object_set_new(object, snapshot->values[i].name,
				    text_number(snapshot->values[i].value));
	return object;
}

static json_t *requests_json(const struct snapshot *snapshot)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < snapshot->n_histograms; i++) {
		const struct snapshot_histogram *it = &snapshot->histograms[i];

		if (it->kind != FSDP_HISTOGRAM_REQUEST)
			continue;
		json_array_append_new(
			array, json_pack("{s:o, s:o, s:f, s:f, s:f}", "kind",
					 document_text(it->name), "count",
					 text_number(it->n), "sum_s",
					 (double)it->sum_ns * 1e-9, "median_s",
					 history_quantile(NULL, snapshot,
							  it->name, 0.5),
					 "p99_s",
					 history_quantile(NULL, snapshot,
							  it->name, 0.99)));
	}
	return array;
}

static json_t *chunks_json(const struct snapshot *snapshot)
{
	static const char *const shared[] = {"no", "donated", "legacy"};
	json_t *array = json_array();

	for (size_t i = 0; array && i < snapshot->n_chunks; i++) {
		const struct fsdp_chunk *it = &snapshot->chunks[i];

		json_array_append_new(
			array,
			json_pack("{s:i, s:o, s:o, s:o, s:i, s:o, s:i, s:o, "
				  "s:s, s:o, s:b}",
				  "chunk", (int)it->chunk, "size",
				  text_number(it->size), "used",
				  text_number(it->used), "reserved",
				  text_number(it->reserved), "blocks",
				  (int)it->n_blocks, "uid",
				  text_number(it->uid), "mode", (int)it->mode,
				  "device", text_device(&it->device), "shared",
				  shared[it->shared % 3], "bundle",
				  text_number(it->bundle), "sealed",
				  it->is_sealed));
	}
	return array;
}

static json_t *accounts_json(const struct snapshot *snapshot)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < snapshot->n_accounts; i++) {
		const struct fsdp_account *it = &snapshot->accounts[i];

		json_array_append_new(
			array,
			json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
				  "uid", text_number(it->uid), "bytes",
				  text_number(it->n_bytes), "max_bytes",
				  text_number(it->max_bytes), "device_bytes",
				  text_number(it->n_device_bytes), "tensors",
				  text_number(it->n_slots), "max_tensors",
				  text_number(it->max_slots), "sessions",
				  text_number(it->n_sessions), "waiting",
				  text_number(it->n_waiting)));
	}
	return array;
}

static json_t *comms_json(const struct snapshot *snapshot)
{
	static const char *const states[] = {"", "kept", "joining", "running",
					     "failed"};
	json_t *array = json_array();

	for (size_t i = 0; array && i < snapshot->n_comms; i++) {
		const struct fsdp_comm_entry *it = &snapshot->comms[i];

		json_array_append_new(
			array,
			json_pack("{s:o, s:o, s:s, s:i, s:i, s:i, s:o, s:o, "
				  "s:i, s:i, s:o, s:o}",
				  "name", document_text(it->name), "uid",
				  text_number(it->uid), "state",
				  states[it->state % 5], "ranks",
				  (int)it->n_ranks, "joined", (int)it->n_joined,
				  "groups", (int)it->n_groups, "step",
				  text_number(it->step), "bytes",
				  text_number(it->n_bytes), "in_flight",
				  (int)it->n_in_flight, "limited",
				  (int)it->n_limited, "bytes_in_flight",
				  text_number(it->bytes_in_flight), "note",
				  document_text(it->note)));
	}
	return array;
}

/* --- the state ----------------------------------------------------------- */

static json_int_t wall_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (json_int_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static char *print(json_t *document)
{
	char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;

	json_decref(document);
	return text;
}

char *documents_status(struct fsdp_client *client,
		       const struct snapshot *snapshot,
		       const struct history *history, int *ret_code)
{
	json_t *sessions = NULL, *channels = NULL, *tensors = NULL;
	json_t *limbo = NULL;

	*ret_code = lists_sessions(client, &sessions);
	if (*ret_code == 0)
		*ret_code = lists_channels(client, &channels);
	if (*ret_code == 0)
		*ret_code = lists_tensors(client, snapshot, &tensors);
	if (*ret_code == 0)
		*ret_code = lists_limbo(client, snapshot, &limbo);
	if (*ret_code < 0) {
		json_decref(sessions);
		json_decref(channels);
		json_decref(tensors);
		json_decref(limbo);
		return NULL;
	}
	return print(json_pack(
		"{s:b, s:I, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
		"s:o, s:o}",
		"up", 1, "at_ms", wall_ms(), "step_ms", HISTORY_STEP_MS, "note",
		document_text(snapshot->note), "counters",
		counters_json(snapshot), "requests", requests_json(snapshot),
		"chunks", chunks_json(snapshot), "users",
		accounts_json(snapshot), "communicators", comms_json(snapshot),
		"sessions", sessions, "channels", channels, "tensors", tensors,
		"limbo", limbo, "history", history_json(history)));
}

char *documents_away(const char *cause, const struct history *history)
{
	return print(json_pack("{s:b, s:I, s:i, s:o, s:o}", "up", 0, "at_ms",
			       wall_ms(), "step_ms", HISTORY_STEP_MS, "error",
			       document_text(cause), "history",
			       history_json(history)));
}
