/*
 * The part of NCCL's interface that we use. We declare it ourselves, so that a
 * build needs no toolkit. Names, values and layouts are those of nccl.h 2.28;
 * if that header is present, unit/test_nccl_api compares the two. Older and
 * newer libraries read the configuration by the size field in it.
 *
 * This header must not be included together with nccl.h, and is not installed.
 * Nothing here is linked: cuda/nccl.h finds the library at run time.
 */
#pragma once
#include "cuda/driver_api.h"
#include <limits.h>
#include <stddef.h>

/* version of the nccl.h that this header follows */
#define NCCL_API_VERSION     22809
#define NCCL_UNIQUE_ID_BYTES 128

typedef struct ncclComm *ncclComm_t;

typedef struct {
	char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
	ncclSuccess = 0,
	ncclUnhandledCudaError = 1,
	ncclSystemError = 2,
	ncclInternalError = 3,
	ncclInvalidArgument = 4,
	ncclInvalidUsage = 5,
	ncclRemoteError = 6,
	ncclInProgress = 7,
} ncclResult_t;

typedef enum {
	ncclInt8 = 0,
	ncclUint8 = 1,
	ncclInt32 = 2,
	ncclUint32 = 3,
	ncclInt64 = 4,
	ncclUint64 = 5,
	ncclFloat16 = 6,
	ncclFloat32 = 7,
	ncclFloat64 = 8,
	ncclBfloat16 = 9,
} ncclDataType_t;

typedef enum {
	ncclSum = 0,
	ncclAvg = 4,
	/* operations from here on are made by ncclRedOpCreatePreMulSum() */
	ncclNumOps = 5,
	ncclMaxRedOp = 0x7fffffff,
} ncclRedOp_t;

typedef enum {
	ncclScalarHostImmediate = 1,
} ncclScalarResidence_t;

typedef struct {
	size_t size;
	unsigned int magic, version;
	int blocking, cgaClusterSize, minCTAs, maxCTAs;
	const char *netName;
	int splitShare, trafficClass;
	const char *commName;
	int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs;
	int nChannelsPerNetPeer, nvlinkCentricSched;
} ncclConfig_t;

#define NCCL_CONFIG_MAGIC     0xcafebeef
#define NCCL_CONFIG_UNDEF_INT INT_MIN

/* All fields are undefined, so the library uses its defaults. */
#define NCCL_CONFIG_INITIALIZER                                                \
	{                                                                      \
		.size = sizeof(ncclConfig_t), .magic = NCCL_CONFIG_MAGIC,      \
		.version = NCCL_API_VERSION,                                   \
		.blocking = NCCL_CONFIG_UNDEF_INT,                             \
		.cgaClusterSize = NCCL_CONFIG_UNDEF_INT,                       \
		.minCTAs = NCCL_CONFIG_UNDEF_INT,                              \
		.maxCTAs = NCCL_CONFIG_UNDEF_INT, .netName = NULL,             \
		.splitShare = NCCL_CONFIG_UNDEF_INT,                           \
		.trafficClass = NCCL_CONFIG_UNDEF_INT, .commName = NULL,       \
		.collnetEnable = NCCL_CONFIG_UNDEF_INT,                        \
		.CTAPolicy = NCCL_CONFIG_UNDEF_INT,                            \
		.shrinkShare = NCCL_CONFIG_UNDEF_INT,                          \
		.nvlsCTAs = NCCL_CONFIG_UNDEF_INT,                             \
		.nChannelsPerNetPeer = NCCL_CONFIG_UNDEF_INT,                  \
		.nvlinkCentricSched = NCCL_CONFIG_UNDEF_INT,                   \
	}

#include "cuda/nccl_functions.h"
