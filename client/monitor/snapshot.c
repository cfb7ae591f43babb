#include "client/monitor/snapshot.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void *snapshot_append(void *array, size_t *n, size_t size)
{
	char **items = array;
	char *grown = reallocarray(*items, *n + 1, size);

	if (!grown)
		return NULL;
	*items = grown;
	grown += (*n)++ * size;
	return memset(grown, 0, size);
}

static void copy_text(char *to, size_t size, const char *from)
{
	size_t n = strnlen(from, size - 1);

	memcpy(to, from, n);
	to[n] = '\0';
}

/* --- copying ------------------------------------------------------------- */

static int add_value(const char *name, uint64_t value, void *data)
{
	struct snapshot *snapshot = data;
	struct snapshot_value *item;

	item = snapshot_append(&snapshot->values, &snapshot->n_values,
			       sizeof(*item));
	if (!item)
		return -ENOMEM;
	copy_text(item->name, sizeof(item->name), name);
	item->value = value;
	return 0;
}

static uint64_t *copy_numbers(const uint64_t *numbers, uint32_t n)
{
	uint64_t *copy = calloc(n, sizeof(*copy));

	return copy ? memcpy(copy, numbers, n * sizeof(*copy)) : NULL;
}

static int add_histogram(const struct fsdp_histogram *histogram, void *data)
{
	struct snapshot *snapshot = data;
	struct snapshot_histogram *item;

	if (!snapshot->limits_ns) {
		snapshot->limits_ns = copy_numbers(histogram->limits_ns,
						   histogram->n_buckets);
		snapshot->n_buckets = histogram->n_buckets;
	}
	item = snapshot_append(&snapshot->histograms, &snapshot->n_histograms,
			       sizeof(*item));
	if (!item || !snapshot->limits_ns)
		return -ENOMEM;
	item->kind = histogram->kind;
	copy_text(item->name, sizeof(item->name), histogram->name);
	item->n = histogram->n;
	item->sum_ns = histogram->sum_ns;
	item->counts = copy_numbers(histogram->counts, histogram->n_buckets);
	return item->counts ? 0 : -ENOMEM;
}

static int add_chunk(const struct fsdp_chunk *chunk, void *data)
{
	struct snapshot *snapshot = data;
	struct fsdp_chunk *item;

	item = snapshot_append(&snapshot->chunks, &snapshot->n_chunks,
			       sizeof(*item));
	if (!item)
		return -ENOMEM;
	*item = *chunk;
	return 0;
}

static int add_account(const struct fsdp_account *account, void *data)
{
	struct snapshot *snapshot = data;
	struct fsdp_account *item;

	item = snapshot_append(&snapshot->accounts, &snapshot->n_accounts,
			       sizeof(*item));
	if (!item)
		return -ENOMEM;
	*item = *account;
	return 0;
}

static int add_comm(const struct fsdp_comm_entry *comm, void *data)
{
	struct snapshot *snapshot = data;
	struct fsdp_comm_entry *item;

	item = snapshot_append(&snapshot->comms, &snapshot->n_comms,
			       sizeof(*item));
	if (!item)
		return -ENOMEM;
	*item = *comm;
	item->name = strdup(comm->name);
	item->note = strdup(comm->note);
	return item->name && item->note ? 0 : -ENOMEM;
}

/* --- reading ------------------------------------------------------------- */

int snapshot_read_counters(struct fsdp_client *client, struct snapshot *ret)
{
	int r;

	*ret = SNAPSHOT_NULL;
	r = fsdp_status(client, add_value, ret, &ret->note);
	if (r == 0)
		r = fsdp_histograms(client, add_histogram, ret);
	return r;
}

int snapshot_read(struct fsdp_client *client, struct snapshot *ret)
{
	int r = snapshot_read_counters(client, ret);

	if (r == 0)
		r = fsdp_chunks(client, add_chunk, ret);
	if (r == 0)
		r = fsdp_accounts(client, add_account, ret);
	if (r == 0)
		r = fsdp_comms(client, add_comm, ret);
	return r;
}

void snapshot_deinit(struct snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->n_histograms; i++)
		free(snapshot->histograms[i].counts);
	for (size_t i = 0; i < snapshot->n_comms; i++) {
		free((void *)(uintptr_t)snapshot->comms[i].name);
		free((void *)(uintptr_t)snapshot->comms[i].note);
	}
	free(snapshot->values);
	free(snapshot->note);
	free(snapshot->limits_ns);
	free(snapshot->histograms);
	free(snapshot->chunks);
	free(snapshot->accounts);
	free(snapshot->comms);
	*snapshot = SNAPSHOT_NULL;
}

uint64_t snapshot_value(const struct snapshot *snapshot, const char *name)
{
	for (size_t i = 0; i < snapshot->n_values; i++)
		if (strcmp(snapshot->values[i].name, name) == 0)
			return snapshot->values[i].value;
	return 0;
}
