/*
 * NCCL's functions that we use. They are separate from nccl_api.h, and this
 * header includes nothing, so that a test can declare them a second time after
 * nccl.h. The compiler then reports a declaration that differs.
 */
#pragma once

ncclResult_t ncclGetVersion(int *version);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks,
				    ncclUniqueId id, int rank,
				    ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key,
			   ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *address, size_t size,
			      void **handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar,
				      ncclDataType_t type,
				      ncclScalarResidence_t residence,
				      ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

ncclResult_t ncclAllGather(const void *send, void *receive, size_t send_count,
			   ncclDataType_t type, ncclComm_t comm,
			   CUstream stream);
ncclResult_t ncclReduceScatter(const void *send, void *receive,
			       size_t receive_count, ncclDataType_t type,
			       ncclRedOp_t op, ncclComm_t comm,
			       CUstream stream);
ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count,
			   ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
			   CUstream stream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
