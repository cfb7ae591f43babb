/*
 * Reads .npy headers. The size of an accepted array is that of its file, and
 * the header that we write for it is read as the same.
 */
#include "client/ctl/npy.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char header[NPY_HEADER_SIZE];
	struct npy npy, again;
	uint64_t file_size;
	size_t n;

	if (size < sizeof(uint32_t))
		return 0;
	/* The file may be longer than the part that is parsed. */
	file_size = size - sizeof(uint32_t) + (data[0] | data[1] << 8);
	data += sizeof(uint32_t);
	size -= sizeof(uint32_t);
	if (npy_parse(data, size, file_size, &npy, NULL) < 0)
		return 0;
	if (npy.offset + npy.size != file_size)
		abort();
	n = npy_make_header(&npy.type, header);
	if (npy_parse((uint8_t *)header, n, n + npy.size, &again, NULL) < 0 ||
	    again.type.dtype != npy.type.dtype ||
	    again.type.n_dims != npy.type.n_dims ||
	    memcmp(again.type.shape, npy.type.shape, sizeof(npy.type.shape)))
		abort();
	return 0;
}
