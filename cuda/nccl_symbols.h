/* NCCL's functions that we call, in the order of nccl_api.h. All libraries from
 * NCCL_VERSION_MIN on have them. */
#pragma once

#define NCCL_SYMBOLS(X)                                                        \
	X(GetVersion)                                                          \
	X(GetErrorString)                                                      \
	X(GetLastError)                                                        \
	X(GetUniqueId)                                                         \
	X(CommInitRankConfig)                                                  \
	X(CommSplit)                                                           \
	X(CommGetAsyncError)                                                   \
	X(CommFinalize)                                                        \
	X(CommDestroy)                                                         \
	X(CommAbort)                                                           \
	X(CommRegister)                                                        \
	X(CommDeregister)                                                      \
	X(RedOpCreatePreMulSum)                                                \
	X(RedOpDestroy)                                                        \
	X(AllGather)                                                           \
	X(ReduceScatter)                                                       \
	X(AllReduce)                                                           \
	X(GroupStart)                                                          \
	X(GroupEnd)
