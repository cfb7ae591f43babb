/*
 * Gives one test the GPUs of a machine; those of the fake driver belong to its
 * folder (gpu_open()).
 *
 * A loaded driver does not survive fork(), so actors must be started before the
 * first machine_gpu().
 */
#pragma once
#include "cuda/context.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static inline const struct device *machine_gpu(uint32_t i)
{
	const struct device *devices;
	struct error err = ERROR_NULL;
	uint32_t n;

	if (device_list(&devices, &n, &err) < 0) {
		fprintf(stderr, "%s\n", err.msg);
		abort();
	}
	need_gpus(n, i + 1);
	return &devices[i];
}

/* Checks a condition, also in actors and in functions that return no value. */
#define MUST(condition)                                                        \
	do                                                                     \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__,     \
				#condition);                                   \
			abort();                                               \
		}                                                              \
	while (0)

/* --- streams ------------------------------------------------------------- */

static inline CUstream gpu_stream(const struct device *device)
{
	CUstream stream;

	MUST(context_enter(device, NULL) == 0);
	MUST(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	context_leave();
	return stream;
}

static inline void gpu_run(const struct device *device, CUstream stream,
			   CUhostFn fn, void *data)
{
	MUST(context_enter(device, NULL) == 0);
	MUST(cu.LaunchHostFunc(stream, fn, data) == CUDA_SUCCESS);
	context_leave();
}

static inline CUresult gpu_query(const struct device *device, CUstream stream)
{
	CUresult result;

	MUST(context_enter(device, NULL) == 0);
	result = cu.StreamQuery(stream);
	context_leave();
	return result;
}

static inline CUresult gpu_sync(const struct device *device, CUstream stream)
{
	CUresult result;

	MUST(context_enter(device, NULL) == 0);
	result = cu.StreamSynchronize(stream);
	context_leave();
	return result;
}

/* For gpu_run(): block the stream until a process posts. */
static inline void gate_pass(void *sem)
{
	while (sem_wait(sem) < 0)
		;
}

/* Map memory that actors started later share. */
static inline void *shared_memory(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	MUST(at != MAP_FAILED);
	return at;
}
