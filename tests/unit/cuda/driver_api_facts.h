/*
 * Sizes, offsets and values of the CUDA driver's interface, as facts() of the
 * including file sees them. Before this file one of these files includes our
 * declarations, and the other one cuda.h.
 */
#pragma once
#include "cuda/driver_symbols.h"
/* DRIVER_API_CONSTANTS(X) lists all of our constants. */
#include "driver_api_constants.h"
#include <stddef.h>
#include <stdint.h>

struct fact {
	const char *name;
	long long value;
	const char *symbol; /* of a function; else NULL */
};

/* The table ends with a row without a name. */
const struct fact *driver_api_facts(void);
const struct fact *driver_api_toolkit_facts(void);

#define FACT_CONSTANT(name) {#name, (long long)(uintptr_t)(name), NULL},
#define FACT_SIZE(type)     {"size of " #type, sizeof(type), NULL},
#define FACT_OFFSET(type, member)                                              \
	{#type "." #member, offsetof(type, member), NULL},
#define FACT_SYMBOL(name) {"cu" #name, 0, DRIVER_SYMBOL_NAME(name)},

/* clang-format off */
#define DRIVER_API_FACTS                                                       \
	DRIVER_API_CONSTANTS(FACT_CONSTANT)                                    \
	DRIVER_SYMBOLS(FACT_SYMBOL)                                            \
	DRIVER_OPTIONAL_SYMBOLS(FACT_SYMBOL)                                   \
	FACT_SIZE(CUdevice)                                                    \
	FACT_SIZE(CUdeviceptr)                                                 \
	FACT_SIZE(CUmemGenericAllocationHandle)                                \
	FACT_SIZE(CUresult)                                                    \
	FACT_SIZE(CUdevice_attribute)                                          \
	FACT_SIZE(CUmemAllocationHandleType)                                   \
	FACT_SIZE(CUuuid)                                                      \
	FACT_SIZE(CUipcMemHandle)                                              \
	FACT_SIZE(CUipcEventHandle)                                            \
	FACT_SIZE(CUmemLocation)                                               \
	FACT_OFFSET(CUmemLocation, type)                                       \
	FACT_OFFSET(CUmemLocation, id)                                         \
	FACT_SIZE(CUmemAllocationProp)                                         \
	FACT_OFFSET(CUmemAllocationProp, type)                                 \
	FACT_OFFSET(CUmemAllocationProp, requestedHandleTypes)                 \
	FACT_OFFSET(CUmemAllocationProp, location)                             \
	FACT_OFFSET(CUmemAllocationProp, win32HandleMetaData)                  \
	FACT_OFFSET(CUmemAllocationProp, allocFlags.compressionType)           \
	FACT_OFFSET(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)      \
	FACT_OFFSET(CUmemAllocationProp, allocFlags.usage)                     \
	FACT_OFFSET(CUmemAllocationProp, allocFlags.reserved)                  \
	FACT_SIZE(CUmemAccessDesc)                                             \
	FACT_OFFSET(CUmemAccessDesc, location)                                 \
	FACT_OFFSET(CUmemAccessDesc, flags)                                    \
	{0}
/* clang-format on */
