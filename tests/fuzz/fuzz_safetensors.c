/*
 * Reads safetensors headers. The tensors of an accepted header fill the data
 * exactly, and every size follows from dtype and shape. The first 8 bytes are
 * the size of the data; the rest is the JSON.
 */
#include "client/ctl/safetensors.h"
#include "proto/name.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct safetensors *file, uint64_t begin,
		  uint64_t data_size)
{
	uint64_t at = begin;

	for (size_t i = 0; i < file->n_entries; i++) {
		const struct safetensors_entry *entry = &file->entries[i];
		uint64_t span;

		if (name_check(entry->name, NULL) < 0 ||
		    tensor_type_check(&entry->type, &span, NULL) < 0 ||
		    span != entry->size || entry->offset != at)
			abort();
		at += entry->size;
	}
	if (at - begin != data_size)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct safetensors file;
	uint64_t data_size;

	if (size < sizeof(data_size))
		return 0;
	memcpy(&data_size, data, sizeof(data_size));
	data_size >>= 2; /* no file is larger than an off_t */
	data += sizeof(data_size);
	size -= sizeof(data_size);
	if (safetensors_parse((const char *)data, size, data_size, &file,
			      NULL) < 0)
		return 0;
	check(&file, 8 + size, data_size);
	safetensors_deinit(&file);
	return 0;
}
