/*
 * A libcuda like the toolkit's stub, with which programs can be linked: it has
 * all symbols, but is not a driver.
 */
#include "cuda/driver_api.h"
#include "cuda/driver_symbols.h"

__attribute__((visibility("default"))) int stub(void);

int stub(void)
{
	return CUDA_ERROR_STUB_LIBRARY;
}

#define ALIAS(symbol) __asm__(".globl " symbol "\n.set " symbol ", stub");
#define STUB(name)    ALIAS(DRIVER_SYMBOL_NAME(name))
DRIVER_SYMBOLS(STUB)
