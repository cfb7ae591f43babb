/*
 * Gives catalog_adopt() any journal, as a new broker finds it in the catalog of
 * an earlier one. It must refuse the journal, or undo it without a write
 * outside of the catalog. A second adoption must then find nothing to undo.
 *
 * The first byte is the error in the journal's size; the rest is the journal.
 * If it is 255, the rest is a list of writes to the header instead, of
 * 10 bytes each: 2 of a position, in words modulo the header, and 8 of the
 * word.
 */
#include "broker/catalog/catalog.h"
#include "proto/error.h"
#include "shm/memfd.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IS_HEADER 255

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int adopt(int fd)
{
	struct error err = ERROR_NULL;
	struct catalog catalog;
	int r = catalog_adopt(&catalog, dup(fd), &err);

	if (r < 0) {
		if (r != err.code || !err.msg[0])
			abort();
		return r;
	}
	if (catalog.header->journal_size != 0)
		abort();
	catalog_close(&catalog);
	return 0;
}

static void write_journal(struct catalog *catalog, uint8_t wrong,
			  const uint8_t *data, size_t size)
{
	memcpy(catalog->base + LAYOUT_PAGE_SIZE, data, size);
	catalog->header->journal_size = size + wrong;
}

static void scribble(struct catalog_header *header, const uint8_t *data,
		     size_t size)
{
	for (; size >= 10; data += 10, size -= 10) {
		uint16_t position;

		memcpy(&position, data, sizeof(position));
		position %= sizeof(*header) / 8;
		memcpy((uint8_t *)header + position * 8, data + 2, 8);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct error err = ERROR_NULL;
	struct catalog catalog;
	int r;

	if (size < 1)
		return 0;
	if (catalog_create(&catalog, &err) < 0)
		abort();
	if (data[0] == IS_HEADER)
		scribble(catalog.header, data + 1, size - 1);
	else
		write_journal(&catalog, data[0], data + 1,
			      (size - 1) & ~UINT64_C(7));
	r = adopt(catalog.fd);
	if (r < 0 && r != -EUCLEAN && !(r == -EPROTO && data[0] == IS_HEADER))
		abort();
	/* The journal may have restored the header itself. */
	if (r == 0)
		(void)adopt(catalog.fd);
	catalog_close(&catalog);
	return 0;
}
