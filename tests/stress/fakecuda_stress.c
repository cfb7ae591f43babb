/*
 * Many threads use the fake driver at once, each with its own streams, memory
 * and events, and all of them with the legacy stream. They must read what they
 * wrote, in order.
 */
#include "cuda/driver_api.h"
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define N_THREADS 6
#define N_ROUNDS  200
#define N_WORDS   256

#define OK(call) must((call), __LINE__)

static CUcontext context;
static CUfunction add;

static void must(CUresult r, int line)
{
	const char *name = "?";

	if (r == CUDA_SUCCESS)
		return;
	cuGetErrorName(r, &name);
	fprintf(stderr, "line %d: %s\n", line, name);
	abort();
}

struct job {
	CUstream first, second;
	CUevent event;
	CUdeviceptr device;
	uint32_t *host;
};

static void open_job(struct job *job, unsigned int round)
{
	void *at;

	OK(cuStreamCreate(&job->first, round % 2 ? CU_STREAM_NON_BLOCKING
						 : CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&job->second, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&job->event, CU_EVENT_DISABLE_TIMING));
	OK(cuMemAlloc(&job->device, N_WORDS * sizeof(*job->host)));
	OK(cuMemHostAlloc(&at, N_WORDS * sizeof(*job->host), 0));
	job->host = at;
}

static void close_job(struct job *job)
{
	OK(cuStreamDestroy(job->first));
	OK(cuStreamDestroy(job->second));
	OK(cuEventDestroy(job->event));
	OK(cuMemFree(job->device));
	OK(cuMemFreeHost(job->host));
}

/* Copy up in one stream, add in the other, and copy down again in the first. */
static void run_job(struct job *job, uint32_t value)
{
	size_t size = N_WORDS * sizeof(*job->host);
	uint64_t n = N_WORDS;
	uint32_t one = 1;
	void *params[] = {&job->device, &n, &one};

	for (int i = 0; i < N_WORDS; i++)
		job->host[i] = value;
	OK(cuMemcpyHtoDAsync(job->device, job->host, size, job->first));
	OK(cuEventRecord(job->event, job->first));
	OK(cuStreamWaitEvent(job->second, job->event, 0));
	OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, job->second, params, NULL));
	OK(cuEventRecord(job->event, job->second));
	OK(cuStreamWaitEvent(job->first, job->event, 0));
	OK(cuMemcpyDtoHAsync(job->host, job->device, size, job->first));
	OK(cuStreamSynchronize(job->first));
	for (int i = 0; i < N_WORDS; i++) {
		if (job->host[i] != value + 1) {
			fprintf(stderr, "%u instead of %u\n", job->host[i],
				value + 1);
			abort();
		}
	}
}

static void *run(void *data)
{
	unsigned int number = *(unsigned int *)data;
	struct job job;

	OK(cuCtxPushCurrent(context));
	for (unsigned int round = 0; round < N_ROUNDS; round++) {
		open_job(&job, round);
		run_job(&job, number * N_ROUNDS + round);
		if (round % 8 == 0)
			OK(cuMemsetD8(job.device, 0, 4));
		if (round % 16 == 0)
			OK(cuCtxSynchronize());
		OK(cuStreamSynchronize(NULL));
		close_job(&job);
	}
	return NULL;
}

/* The fake driver kept its state of the machine in this folder. */
static void remove_dir(const char *path)
{
	DIR *dir = opendir(path);

	for (struct dirent *entry; dir && (entry = readdir(dir));)
		(void)unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	(void)rmdir(path);
}

int main(void)
{
	char dir[] = "/dev/shm/fsdp-stress-XXXXXX";
	unsigned int numbers[N_THREADS];
	pthread_t threads[N_THREADS];
	CUlibrary library;
	CUkernel kernel;

	if (!mkdtemp(dir))
		return 1;
	setenv("FAKECUDA_DIR", dir, 1);
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxPushCurrent(context));
	OK(cuLibraryLoadData(&library, "any", NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "fake_add"));
	OK(cuKernelGetFunction(&add, kernel));
	for (unsigned int i = 0; i < N_THREADS; i++) {
		numbers[i] = i;
		if (pthread_create(&threads[i], NULL, run, &numbers[i]) != 0)
			return 1;
	}
	for (unsigned int i = 0; i < N_THREADS; i++)
		pthread_join(threads[i], NULL);
	remove_dir(dir);
	return 0;
}
