/*
 * Sizes, offsets and values of NCCL's interface, as facts() of the including
 * file sees them. Before this file one of these files includes our
 * declarations, and the other one nccl.h.
 */
#pragma once
#include <stddef.h>

struct fact {
	const char *name;
	long long value;
};

/* The table ends with a row without a name. */
const struct fact *nccl_api_facts(void);
const struct fact *nccl_api_toolkit_facts(void);
/* NCCL_CONFIG_INITIALIZER, in the size of either declaration. */
const void *nccl_api_config(size_t *ret_size);
const void *nccl_api_toolkit_config(size_t *ret_size);

#define FACT_VALUE(name) {#name, (long long)(name)},
#define FACT_SIZE(type)  {"size of " #type, sizeof(type)},
#define FACT_OFFSET(member)                                                    \
	{"ncclConfig_t." #member, offsetof(ncclConfig_t, member)},

/* clang-format off */
#define NCCL_API_FACTS                                                         \
	FACT_VALUE(NCCL_UNIQUE_ID_BYTES)                                       \
	FACT_VALUE(NCCL_CONFIG_UNDEF_INT)                                      \
	FACT_VALUE(ncclSuccess)                                                \
	FACT_VALUE(ncclUnhandledCudaError)                                     \
	FACT_VALUE(ncclSystemError)                                            \
	FACT_VALUE(ncclInternalError)                                          \
	FACT_VALUE(ncclInvalidArgument)                                        \
	FACT_VALUE(ncclInvalidUsage)                                           \
	FACT_VALUE(ncclRemoteError)                                            \
	FACT_VALUE(ncclInProgress)                                             \
	FACT_VALUE(ncclInt8)                                                   \
	FACT_VALUE(ncclUint8)                                                  \
	FACT_VALUE(ncclInt32)                                                  \
	FACT_VALUE(ncclUint32)                                                 \
	FACT_VALUE(ncclInt64)                                                  \
	FACT_VALUE(ncclUint64)                                                 \
	FACT_VALUE(ncclFloat16)                                                \
	FACT_VALUE(ncclFloat32)                                                \
	FACT_VALUE(ncclFloat64)                                                \
	FACT_VALUE(ncclBfloat16)                                               \
	FACT_VALUE(ncclSum)                                                    \
	FACT_VALUE(ncclAvg)                                                    \
	FACT_VALUE(ncclNumOps)                                                 \
	FACT_VALUE(ncclMaxRedOp)                                               \
	FACT_VALUE(ncclScalarHostImmediate)                                    \
	FACT_SIZE(ncclUniqueId)                                                \
	FACT_SIZE(ncclResult_t)                                                \
	FACT_SIZE(ncclDataType_t)                                              \
	FACT_SIZE(ncclRedOp_t)                                                 \
	FACT_SIZE(ncclScalarResidence_t)                                       \
	FACT_SIZE(ncclConfig_t)                                                \
	FACT_OFFSET(size)                                                      \
	FACT_OFFSET(magic)                                                     \
	FACT_OFFSET(version)                                                   \
	FACT_OFFSET(blocking)                                                  \
	FACT_OFFSET(cgaClusterSize)                                            \
	FACT_OFFSET(minCTAs)                                                   \
	FACT_OFFSET(maxCTAs)                                                   \
	FACT_OFFSET(netName)                                                   \
	FACT_OFFSET(splitShare)                                                \
	FACT_OFFSET(trafficClass)                                              \
	FACT_OFFSET(commName)                                                  \
	FACT_OFFSET(collnetEnable)                                             \
	FACT_OFFSET(CTAPolicy)                                                 \
	FACT_OFFSET(shrinkShare)                                               \
	FACT_OFFSET(nvlsCTAs)                                                  \
	FACT_OFFSET(nChannelsPerNetPeer)                                       \
	FACT_OFFSET(nvlinkCentricSched)                                        \
	{NULL, 0}
/* clang-format on */
