/*
 * Admission: the decision whether there may be more memory. It is arithmetic,
 * for each source by itself.
 *
 * Only the driver knows how much memory of a device is free, since other
 * processes use it, too. If it has no memory for a chunk, it is asked again a
 * few times, at short intervals: the memory of a killed process is freed some
 * time after its death. After that the request is refused, and the driver is
 * asked again after a longer pause.
 */
#include "broker/memory/pool_impl.h"
#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The rest of the fd store is for the catalog, the state table and other
 * files. */
#define MAX_CHUNKS (FDSTORE_MAX - 8)
/* The number of refusals in a row before a pause; the attempts are 10 to 160 ms
 * apart. */
#define PATIENCE     5
#define FIRST_TRY_MS 10
/* The length of the pause. */
#define PAUSE_MS 1000
/* A limit, since a driver that hangs must leave threads for the host's
 * memory. */
#define MAX_DEVICE_WORKS 2

/* The last id that is given. The ids above it are for chunks that are being
 * made, which get theirs when they are complete. */
#define LAST_CHUNK_ID (UINT32_MAX - TABLE_CHUNKS)

_Static_assert(MAX_CHUNKS < TABLE_CHUNKS, "every chunk has a table entry");

/* --- sources ------------------------------------------------------------- */

static struct pool_source *find_source(const struct pools *pools,
				       const struct device_uuid *device)
{
	const struct pool_source *source = &pools->host;

	while (source && memcmp(&source->device, device, sizeof(*device)) != 0)
		source = source->next;
	return (struct pool_source *)(uintptr_t)source;
}

struct pool_source *pool_source_get(struct pools *pools,
				    const struct device_uuid *device)
{
	struct pool_source *source = find_source(pools, device);

	if (source)
		return source;
	source = calloc(1, sizeof(*source));
	if (!source)
		return NULL;
	source->pools = pools;
	source->device = *device;
	source->next = pools->host.next;
	pools->host.next = source;
	return source;
}

void pool_sources_free(struct pools *pools)
{
	struct pool_source *source;

	while ((source = pools->host.next)) {
		pools->host.next = source->next;
		free(source);
	}
}

uint64_t pools_device_size(const struct pools *pools,
			   const struct device_uuid *device)
{
	const struct pool_source *source = find_source(pools, device);

	return source ? source->total_size : 0;
}

/* --- empty chunks -------------------------------------------------------- */

static bool is_idle_empty(const struct pool_source *source, uint32_t index)
{
	const struct chunk *chunk = &source->pools->chunks[index];

	return pool_has_chunk(source->pools, index) && !chunk->is_busy &&
	       !chunk->is_dying && chunk->pool->source == source &&
	       pool_is_empty(source->pools, index) &&
	       !pool_is_spared(source->pools, index);
}

/* Returns whether memory was just made for a parked request. The requests that
 * wait for memory are then tried again until that one has had its turn. */
static bool is_sparing(const struct pool_source *source)
{
	struct pools *pools = source->pools;

	for (uint32_t i = 1; i < TABLE_CHUNKS; i++) {
		if (pool_has_chunk(pools, i) && pool_is_spared(pools, i) &&
		    pools->chunks[i].pool->source == source) {
			pools_look_again(pools);
			return true;
		}
	}
	return false;
}

static uint64_t empty_size(const struct pool_source *source)
{
	uint64_t size = 0;
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		if (is_idle_empty(source, i))
			size += pool_chunk_size(source->pools, i);
	}
	return size;
}

/* Retires empty chunks until `size` bytes are being freed. */
static void retire_empty(struct pool_source *source, const struct pool *spare,
			 uint64_t size)
{
	struct pools *pools = source->pools;
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS && source->going_size < size; i++) {
		if (is_idle_empty(source, i) && pools->chunks[i].pool != spare)
			pool_mark_dying(pools, i);
	}
}

/* --- the host ------------------------------------------------------------ */

static bool read_available(uint64_t *ret)
{
	FILE *file = fopen("/proc/meminfo", "re");
	bool is_found = false;
	char line[128];

	if (!file)
		return false;
	while (!is_found && fgets(line, sizeof(line), file))
		is_found = sscanf(line, "MemAvailable: %" SCNu64, ret) == 1;
	fclose(file);
	*ret *= 1024;
	return is_found;
}

/* Returns the bytes of chunks that have no pages yet, but may get them without
 * admission. */
static uint64_t promised_size(const struct pool_source *host)
{
	const struct pools *pools = host->pools;
	uint64_t resident = 0;
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		const struct chunk *chunk = &pools->chunks[i];
		struct stat status;

		if (chunk->fd >= 0 && chunk->pool->source == host &&
		    fstat(chunk->fd, &status) == 0)
			resident += (uint64_t)status.st_blocks * 512;
	}
	return host->total_size - min_u64(resident, host->total_size);
}

struct room {
	/* The bytes that may still be made; negative if the limit is already
	 * exceeded. */
	int64_t size;
	uint64_t max;
	uint64_t available, promised; /* only for the host */
};

static struct room measure_host(const struct pool_source *host)
{
	const struct config *config = &host->pools->base->config;
	struct room room = {
		.size = (int64_t)(config->memory_max - host->total_size),
		.max = config->memory_max,
		.promised = promised_size(host),
	};
	int64_t by_available;

	/* If MemAvailable is unknown, memory_max is the only limit. */
	if (!read_available(&room.available))
		return room;
	by_available = (int64_t)(room.available - config->memory_reserve -
				 room.promised);
	if (by_available < room.size)
		room.size = by_available;
	return room;
}

static int explain_host(const struct pool_source *host, const struct room *room,
			uint64_t need, struct error *err)
{
	/* Memory that is available did not lower the size. */
	bool is_by_limit =
		room->size == (int64_t)(room->max - host->total_size);

	error_set(err, -ENOMEM,
		  "out of memory: %" PRIu64
		  " MiB more are needed; chunks have %" PRIu64
		  " of memory_max's %" PRIu64 " MiB, and %" PRIu64
		  " MiB are available, of which %" PRIu64
		  " are promised and %" PRIu64
		  " reserved: release tensors, or %s",
		  need / MIB, host->total_size / MIB, room->max / MIB,
		  room->available / MIB, room->promised / MIB,
		  host->pools->base->config.memory_reserve / MIB,
		  is_by_limit ? "raise memory_max"
			      : "end other processes, or lower memory_reserve");
	return POOL_FULL;
}

/* --- devices ------------------------------------------------------------- */

static struct room measure_device(const struct pool_source *source,
				  const struct device *device)
{
	uint64_t max = devices_memory_max(source->pools->devices, device);

	return (struct room){
		.size = (int64_t)(max - source->total_size),
		.max = max,
	};
}

static int explain_device(const struct pool_source *source,
			  const struct device *device, const struct room *room,
			  uint64_t need, struct error *err)
{
	const char *refusal = source->try_position ? source->refusal.msg : "";
	char text[DEVICE_TEXT_SIZE];

	device_format(&device->uuid, text);
	error_set(err, -ENOMEM,
		  "out of memory on device %s: %" PRIu64 " MiB more are "
		  "needed; chunks have %" PRIu64 " of device_memory_max's "
		  "%" PRIu64 " MiB, and the device has %" PRIu64
		  ": release tensors, or raise device_memory_max%s%s",
		  text, need / MIB, source->total_size / MIB, room->max / MIB,
		  device->memory / MIB, *refusal ? "; " : "", refusal);
	return POOL_FULL;
}

bool pool_has_thread(const struct pools *pools)
{
	const struct pool_source *source = pools->host.next;
	uint32_t n = 0;

	for (; source; source = source->next)
		n += source->n_works;
	return n < MAX_DEVICE_WORKS;
}

/* Lets requests ask the driver again after the pause, or after the delay before
 * the next attempt. */
static void on_try(void *data, uint32_t unused)
{
	struct pool_source *source = data;

	(void)unused;
	if (source->n_refusals > PATIENCE)
		source->n_refusals = 0;
	wake_room(&source->pools->base->wake);
}

void pool_note_refusal(struct pool_source *source, const struct error *cause)
{
	struct pools *pools = source->pools;
	struct deadline deadline = {
		.at_ms = now_ms() + PAUSE_MS,
		.fn = on_try,
		.data = source,
		.position = &source->try_position,
	};

	source->refusal = *cause;
	if (source->n_refusals++ < PATIENCE)
		deadline.at_ms = now_ms() + ((uint64_t)FIRST_TRY_MS
					     << (source->n_refusals - 1));
	if (source->try_position || pools->base->loop.is_stopping)
		return;
	/* If memory runs out, the next request asks the driver again. */
	(void)deadlines_add(&pools->base->deadlines, &deadline, NULL);
}

void pool_forget_refusals(struct pool_source *source)
{
	source->n_refusals = 0;
	deadlines_remove(&source->pools->base->deadlines,
			 &source->try_position);
}

/* Waits for the driver, which has just refused. Meanwhile empty chunks of the
 * broker are freed, since that may help. */
static int wait_for_driver(struct pool_source *source,
			   const struct device *device, uint64_t need,
			   struct error *err)
{
	struct room room = measure_device(source, device);

	retire_empty(source, NULL, UINT64_MAX);
	if (source->going_size > 0 || source->n_refusals <= PATIENCE)
		return POOL_WAIT;
	return explain_device(source, device, &room, need, err);
}

/* --- admission ----------------------------------------------------------- */

/* Frees empty chunks of other pools first, then those of this pool, which are
 * too small for the request. */
static int make_room(const struct pool *pool, struct pool_source *source,
		     const struct device *device, const struct room *room,
		     uint64_t need, struct error *err)
{
	uint64_t missing = (uint64_t)((int64_t)need - room->size);

	/* The result is only certain when no work is in progress, since chunks
	 * being made or freed may count twice meanwhile. */
	if (missing > source->going_size + empty_size(source)) {
		if (source->n_works > 0 || is_sparing(source))
			return POOL_WAIT;
		return device ? explain_device(source, device, room, need, err)
			      : explain_host(source, room, need, err);
	}
	retire_empty(source, pool, missing);
	retire_empty(source, NULL, missing);
	return POOL_WAIT;
}

int pool_admit(struct pool *pool, const struct device *device, uint64_t need,
	       uint64_t want, uint64_t *ret_size, struct error *err)
{
	struct pool_source *source = pool->source;
	struct room room;

	if (source->try_position)
		return wait_for_driver(source, device, need, err);
	if (device && !pool_has_thread(source->pools))
		return POOL_WAIT;
	room = device ? measure_device(source, device) : measure_host(source);
	if ((int64_t)need <= room.size) {
		*ret_size = (int64_t)want <= room.size ? want : need;
		return POOL_OK;
	}
	return make_room(pool, source, device, &room, need, err);
}

int pool_admit_donated(struct pool_source *source, const struct device *device,
		       uint64_t size, struct error *err)
{
	struct room room = measure_device(source, device);

	if ((int64_t)size <= room.size)
		return POOL_OK;
	return make_room(NULL, source, device, &room, size, err);
}

/* Returns whether a chunk of this uid is being freed. Marks an empty one as
 * dying. */
static bool has_going(struct pools *pools, uint32_t uid)
{
	const struct chunk *chunk;
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		chunk = &pools->chunks[i];
		if (!pool_has_chunk(pools, i) || chunk->pool->access.uid != uid)
			continue;
		if (is_idle_empty(chunk->pool->source, i))
			pool_mark_dying(pools, i);
		if (pool_is_spared(pools, i))
			pools_look_again(pools);
		if (pool_is_going(chunk) || pool_is_spared(pools, i))
			return true;
	}
	return false;
}

int pool_charge_chunk(struct pools *pools, struct account *account,
		      struct error *err)
{
	int r = account_charge(&pools->base->accounts, account, ACCOUNT_CHUNKS,
			       1, err);

	if (r == -EDQUOT && has_going(pools, account->uid))
		return POOL_WAIT;
	return r;
}

int pool_admit_count(struct pools *pools, struct error *err)
{
	struct pool_source *source = &pools->host;
	uint32_t n = pools->n_chunks + pools->n_timelines + pools->n_channels;

	if (pools->catalog->header->next_chunk_id > LAST_CHUNK_ID)
		return error_set(
			err, -ENOSPC,
			"cannot make a chunk of memory: all %u numbers "
			"of chunks have been used, and a number that "
			"is used again could show a client the wrong "
			"memory; stop fsdpd and its supervisor, and "
			"start them again (all tensors end)",
			LAST_CHUNK_ID);
	if (n < MAX_CHUNKS)
		return POOL_OK;
	for (; source; source = source->next) {
		retire_empty(source, NULL, 1);
		if (source->going_size > 0 || is_sparing(source))
			return POOL_WAIT;
	}
	return error_set(err, -ENFILE,
			 "there are %" PRIu32 " chunks of memory, and each "
			 "costs a descriptor that must survive a restart: "
			 "release tensors, or use fewer access classes and "
			 "bundles",
			 n);
}
