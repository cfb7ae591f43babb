/*
 * Functions of the fake CUDA driver that the fake NCCL or a test needs, and
 * that are not in the driver's interface.
 */
#pragma once
#include "cuda/driver_api.h"
#include <stdbool.h>

#define FAKE_EXPORT __attribute__((visibility("default")))

/*
 * Enqueues work of a kind that the driver does not have, in order with all
 * other work. `fn` is called once, on the stream's thread, where it may access
 * device memory; an invalid access becomes the context's error. It must not
 * call the driver. If a driver would never run it (the context has an error, or
 * the process ends), it is called as well, so that it can free `data`. So it
 * must check fake_is_stopping() first, and in every loop that waits for other
 * processes.
 */
FAKE_EXPORT CUresult fake_stream_enqueue(CUstream stream, void (*fn)(void *),
					 void *data);
/* Only `fn` calls this, on the same thread. */
FAKE_EXPORT bool fake_is_stopping(void);

/* Returns the priority with which the stream was made: 0, or less for a higher
 * one. */
FAKE_EXPORT int fake_stream_priority(CUstream stream);

/* Returns the device of the calling thread's current context, numbered as on
 * the machine and not as in this process (CUDA_VISIBLE_DEVICES). */
FAKE_EXPORT CUresult fake_current_device(int *ret_number);

/*
 * Makes calls wait as NCCL does while it waits in a call of the driver for
 * streams, and ends that. Calls that allocate, free, map or unmap memory wait,
 * and copies for which the caller waits.
 */
FAKE_EXPORT void fake_hold_memory(bool is_held);

/* Counts a call of NCCL, for FAKECUDA_COUNT. */
FAKE_EXPORT void fake_count_nccl(void);

/*
 * These begin and end a capture of the stream by the program, in the mode that
 * concerns every thread (CU_STREAM_CAPTURE_MODE_GLOBAL). It makes no graph. The
 * end returns whether a call of any thread has made the capture invalid.
 */
FAKE_EXPORT void fake_capture_begin(CUstream stream);
FAKE_EXPORT CUresult fake_capture_end(void);

/* Marks the library as a fake. Its value has no meaning. */
extern FAKE_EXPORT const int fsdp_is_fake;
