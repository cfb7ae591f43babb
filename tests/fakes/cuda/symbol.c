/* This file finds symbols by name, for libraries that look them up as the CUDA
 * runtime does. */
#include "cuda/driver_symbols.h"
#include "tests/fakes/cuda/api.h"
#include "tests/fakes/cuda/fake.h"
#include <string.h>

#define FOUND     0 /* CUdriverProcAddressQueryResult */
#define NOT_FOUND 1

FAKE_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function,
					 int version, uint64_t flags,
					 int *status);

#define ROW(name) {"cu" #name, (void (*)(void))cu##name},
static const struct {
	const char *name;
	void (*function)(void);
} rows[] = {DRIVER_SYMBOLS(ROW) DRIVER_OPTIONAL_SYMBOLS(ROW){
	"cuGetProcAddress", (void (*)(void))cuGetProcAddress_v2}};
#undef ROW

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
			     uint64_t flags, int *status)
{
	(void)version;
	(void)flags;
	if (!symbol || !function)
		return CUDA_ERROR_INVALID_VALUE;
	*function = NULL;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		if (strcmp(rows[i].name, symbol) == 0)
			memcpy(function, &rows[i].function, sizeof(*function));
	}
	if (status)
		*status = *function ? FOUND : NOT_FOUND;
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
