/*
 * The driver's functions that we use. They are separate from driver_api.h, and
 * this header includes nothing, so that a test can declare them a second time
 * after cuda.h. The compiler then reports a declaration that differs.
 */
#pragma once

/* These need no context, and can be called before cuInit(). */
CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetErrorString(CUresult error, const char **text);

/* Devices. These need no context. */
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetName(char *name, int size, CUdevice device);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
			      CUdevice device);

/* Contexts. Each thread has its own current context. */
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags,
				    int *is_active);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxPushCurrent(CUcontext context);
CUresult cuCtxPopCurrent(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
/* The greatest priority is the lowest number. */
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
CUresult cuCtxSynchronize(void);

/* VMM: the memory, which needs no context, and its mappings. */
CUresult cuMemGetAllocationGranularity(size_t *granularity,
				       const CUmemAllocationProp *prop,
				       CUmemAllocationGranularity_flags which);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *prop, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
/* `shareable` is an int * for a POSIX fd. */
CUresult cuMemExportToShareableHandle(void *shareable,
				      CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType type,
				      unsigned long long flags);
/* `shareable` is the fd itself, as a pointer. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
					void *shareable,
					CUmemAllocationHandleType type);
CUresult
cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
				       CUmemGenericAllocationHandle handle);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
				     void *address);
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size,
			     size_t alignment, CUdeviceptr hint,
			     unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, size_t size);
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
		  CUmemGenericAllocationHandle handle,
		  unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr address, size_t size);
CUresult cuMemSetAccess(CUdeviceptr address, size_t size,
			const CUmemAccessDesc *access, size_t n);

/* Device memory of cuMemAlloc(), attributes of pointers, and legacy IPC. */
CUresult cuMemAlloc(CUdeviceptr *address, size_t size);
CUresult cuMemFree(CUdeviceptr address);
CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size,
			      CUdeviceptr address);
CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes,
				void **values, CUdeviceptr address);
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address);
CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle,
			    unsigned int flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr address);

/* Host memory that devices can access. */
CUresult cuMemHostAlloc(void **pages, size_t size, unsigned int flags);
CUresult cuMemFreeHost(void *pages);
CUresult cuMemHostRegister(void *pages, size_t size, unsigned int flags);
CUresult cuMemHostUnregister(void *pages);
CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *pages,
				   unsigned int flags);

/* Copies and fills. */
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size);
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size);
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size,
			   CUstream stream);
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size,
			   CUstream stream);
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size,
			   CUstream stream);
CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t n);
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n,
			 CUstream stream);

/* Streams. */
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags,
				    int priority);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
/* Sets the mode of this thread, and returns the previous mode in `mode`. */
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address,
			      cuuint64_t value, unsigned int flags);
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address,
			     cuuint64_t value, unsigned int flags);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data);

/* Events. Drivers before 12.8 lack the newer cuEventElapsedTime_v2; all have
 * this one. */
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventDestroy(CUevent event);
CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end);
CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event);
CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle);

/* Kernels. A library does not belong to a context. */
CUresult cuLibraryLoadData(CUlibrary *library, const void *image,
			   CUjit_option *jit_options, void **jit_values,
			   unsigned int n_jit_options, CUlibraryOption *options,
			   void **values, unsigned int n_options);
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library,
			    const char *name);
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel);
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x,
			unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared_size,
			CUstream stream, void **parameters, void **extra);
