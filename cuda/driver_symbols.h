/*
 * The only list of the driver's symbols. The table `cu` (driver.h), the loader
 * and the fake driver are generated from it. X(Init) stands for cuInit; the
 * loader looks up what the preprocessor makes of that name
 * (DRIVER_SYMBOL_NAME), such as cuMemFree_v2.
 */
#pragma once

/* Every driver from DRIVER_VERSION_MIN on has these. */
#define DRIVER_SYMBOLS(X)                                                      \
	X(Init)                                                                \
	X(DriverGetVersion)                                                    \
	X(GetErrorName)                                                        \
	X(GetErrorString)                                                      \
	X(DeviceGet)                                                           \
	X(DeviceGetCount)                                                      \
	X(DeviceGetName)                                                       \
	X(DeviceGetUuid)                                                       \
	X(DeviceTotalMem)                                                      \
	X(DeviceGetAttribute)                                                  \
	X(DevicePrimaryCtxRetain)                                              \
	X(DevicePrimaryCtxRelease)                                             \
	X(DevicePrimaryCtxGetState)                                            \
	X(CtxGetCurrent)                                                       \
	X(CtxPushCurrent)                                                      \
	X(CtxPopCurrent)                                                       \
	X(CtxGetDevice)                                                        \
	X(CtxGetStreamPriorityRange)                                           \
	X(CtxSynchronize)                                                      \
	X(MemGetAllocationGranularity)                                         \
	X(MemCreate)                                                           \
	X(MemRelease)                                                          \
	X(MemExportToShareableHandle)                                          \
	X(MemImportFromShareableHandle)                                        \
	X(MemGetAllocationPropertiesFromHandle)                                \
	X(MemRetainAllocationHandle)                                           \
	X(MemAddressReserve)                                                   \
	X(MemAddressFree)                                                      \
	X(MemMap)                                                              \
	X(MemUnmap)                                                            \
	X(MemSetAccess)                                                        \
	X(MemAlloc)                                                            \
	X(MemFree)                                                             \
	X(MemGetAddressRange)                                                  \
	X(PointerGetAttributes)                                                \
	X(IpcGetMemHandle)                                                     \
	X(IpcOpenMemHandle)                                                    \
	X(IpcCloseMemHandle)                                                   \
	X(MemHostAlloc)                                                        \
	X(MemFreeHost)                                                         \
	X(MemHostRegister)                                                     \
	X(MemHostUnregister)                                                   \
	X(MemHostGetDevicePointer)                                             \
	X(MemcpyHtoD)                                                          \
	X(MemcpyDtoH)                                                          \
	X(MemcpyHtoDAsync)                                                     \
	X(MemcpyDtoHAsync)                                                     \
	X(MemcpyDtoDAsync)                                                     \
	X(MemsetD8)                                                            \
	X(MemsetD8Async)                                                       \
	X(StreamCreate)                                                        \
	X(StreamCreateWithPriority)                                            \
	X(StreamDestroy)                                                       \
	X(StreamQuery)                                                         \
	X(StreamSynchronize)                                                   \
	X(StreamWaitEvent)                                                     \
	X(StreamGetCtx)                                                        \
	X(StreamIsCapturing)                                                   \
	X(ThreadExchangeStreamCaptureMode)                                     \
	X(LaunchHostFunc)                                                      \
	X(EventCreate)                                                         \
	X(EventRecord)                                                         \
	X(EventQuery)                                                          \
	X(EventSynchronize)                                                    \
	X(EventDestroy)                                                        \
	X(EventElapsedTime)                                                    \
	X(LibraryLoadData)                                                     \
	X(LibraryGetKernel)                                                    \
	X(KernelGetFunction)                                                   \
	X(LaunchKernel)

/* Some drivers lack these. Their members may be NULL; struct device then says
 * that the feature is missing. */
#define DRIVER_OPTIONAL_SYMBOLS(X)                                             \
	X(StreamWriteValue64)                                                  \
	X(StreamWaitValue64)                                                   \
	X(IpcGetEventHandle)                                                   \
	X(IpcOpenEventHandle)

/* The string to look up for X(name). It takes two steps, so that cu##name is
 * expanded before it becomes a string. */
#define DRIVER_SYMBOL_NAME(name)      DRIVER_SYMBOL_STRING(cu##name)
#define DRIVER_SYMBOL_STRING(symbol)  DRIVER_SYMBOL_STRING_(symbol)
#define DRIVER_SYMBOL_STRING_(symbol) #symbol
