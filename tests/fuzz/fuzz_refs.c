/*
 * Reads a ref-counter file that its client has filled with anything. The
 * broker's functions must stay in the file and in the table, and must end.
 *
 * The input is a list of writes of 12 bytes each: 4 of a position in the file,
 * in words, and 8 of the word. Positions count modulo the size of the file.
 */
#include "proto/error.h"
#include "shm/refs.h"
#include "shm/table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BATCH 64
/* A client cannot have more bits set than there are slots. */
#define MAX_ROUNDS (TABLE_SLOTS / BATCH + 2)

static void scribble(int fd, const uint8_t *data, size_t size)
{
	struct stat stat;

	if (fstat(fd, &stat) < 0)
		abort();
	for (; size >= 12; data += 12, size -= 12) {
		uint32_t position;
		off_t offset;

		memcpy(&position, data, sizeof(position));
		offset = (off_t)(position * 8ull % (uint64_t)stat.st_size);
		if (pwrite(fd, data + 4, 8, offset) != 8)
			abort();
	}
}

static void look(const struct refs *refs, uint32_t slot)
{
	struct refs_peek peek = {0};
	uint64_t value;

	if (slot >= TABLE_SLOTS)
		abort();
	if (refs_delta(refs, slot) != refs_peek_delta(refs, slot, &peek))
		abort();
	(void)refs_fence(refs, slot, &value);
	(void)refs_used(refs, slot);
}

static void take_all(struct refs *refs)
{
	uint32_t slots[BATCH], n, round = 0;

	do {
		n = refs_take_pending(refs, slots, BATCH);
		if (n > BATCH || ++round > MAX_ROUNDS)
			abort();
		for (uint32_t i = 0; i < n; i++)
			look(refs, slots[i]);
	} while (n == BATCH);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct error err = ERROR_NULL;
	struct refs refs, again;

	if (refs_create(&refs, &err) < 0)
		abort();
	scribble(refs.fd, data, size);
	take_all(&refs);
	/* After a restart the client sends its file. */
	if (refs_open(&again, dup(refs.fd), REFS_BROKER, &err) == 0) {
		take_all(&again);
		refs_close(&again);
	} else if (!err.msg[0]) {
		abort();
	}
	refs_close(&refs);
	return 0;
}
