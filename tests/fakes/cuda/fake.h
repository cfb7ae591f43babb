/*
 * What the NCCL double, or a test, needs of the CUDA driver double and the
 * driver's own interface does not have.
 */
#pragma once
#include "cuda/driver_api.h"
#include <stdbool.h>

#define FAKE_EXPORT __attribute__((visibility("default")))

/*
 * Enqueue work of the double's own kind, in order with all other work. `fn` is
 * called once, on the stream's thread, where device memory can be touched;
 * what it touches wrongly becomes the context's error. It must not call the
 * driver.
 *
 * Where a driver would never run it (the context has an error, or the process
 * ends), it is called too, so that it can free `data`: look at
 * fake_is_stopping() first, and in every loop that waits for others.
 */
FAKE_EXPORT CUresult fake_stream_enqueue(CUstream stream, void (*fn)(void *),
					 void *data);
/* Only in `fn`, on the thread that it is called on. */
FAKE_EXPORT bool fake_is_stopping(void);

/* What the stream was made with: 0, or less for a higher one. */
FAKE_EXPORT int fake_stream_priority(CUstream stream);

/* The device of the calling thread's current context, numbered as on the
 * machine and not as in this process (CUDA_VISIBLE_DEVICES). */
FAKE_EXPORT CUresult fake_current_device(int *ret_number);

/* NCCL was called: FAKECUDA_COUNT counts that, too. */
FAKE_EXPORT void fake_count_nccl(void);

/*
 * The program captures the stream, from here to the end, in the mode that
 * concerns every thread (CU_STREAM_CAPTURE_MODE_GLOBAL); that makes no graph.
 * The end says whether a call of some thread has spoilt it.
 */
FAKE_EXPORT void fake_capture_begin(CUstream stream);
FAKE_EXPORT CUresult fake_capture_end(void);

/* Says that this is a double; what it points to is of no meaning. */
extern FAKE_EXPORT const int fsdp_is_fake;
