/* Functions without a communicator: version, errors, and injected faults. */
#include "tests/fakes/nccl/api.h"
#include "tests/fakes/cuda/fake.h"
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TEXT_SIZE  512
#define MAX_FAULTS 8

const int fsdp_is_fake = 1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[TEXT_SIZE];

static struct fault {
	char function[32];
	int countdown;
	char what[16]; /* a result, "kill" or "hang" */
} faults[MAX_FAULTS];

/* Returns NULL if the fake is to behave like a plain library
 * (tests/fakes/cuda/settings.h). */
static const char *setting(const char *name)
{
	return getenv("FAKECUDA_PLAIN") ? NULL : getenv(name);
}

__attribute__((constructor)) static void read_faults(void)
{
	const char *text = setting("FAKENCCL_FAIL");

	for (int i = 0; text && *text && i < MAX_FAULTS; i++) {
		struct fault *fault = &faults[i];

		if (sscanf(text, "%31[^:]:%d:%15[^,]", fault->function,
			   &fault->countdown, fault->what) != 3) {
			fprintf(stderr, "FAKENCCL_FAIL: '%s'?\n", text);
			abort();
		}
		text = strchr(text, ',');
		text = text ? text + 1 : NULL;
	}
}

/* Calls of other threads, and queries of the state, are not counted. */
static void note_call(const char *function)
{
	if (strcmp(function, "Run") != 0 && strcmp(function, "Meet") != 0 &&
	    strcmp(function, "CommGetAsyncError") != 0)
		fake_count_nccl();
}

ncclResult_t api_fault(const char *function)
{
	const struct fault *found = NULL;

	note_call(function);
	pthread_mutex_lock(&lock);
	for (struct fault *fault = faults; fault < faults + MAX_FAULTS; fault++)
		if (strcmp(fault->function, function) == 0 &&
		    --fault->countdown == 0)
			found = fault;
	pthread_mutex_unlock(&lock);
	if (!found)
		return ncclSuccess;
	if (strcmp(found->what, "kill") == 0)
		raise(SIGKILL);
	while (strcmp(found->what, "hang") == 0)
		pause();
	return api_fail((ncclResult_t)atoi(found->what),
			"%s fails since FAKENCCL_FAIL says so", function);
}

bool api_is_deaf(void)
{
	return setting("FAKENCCL_DEAF") != NULL;
}

void api_delay(void)
{
	static _Thread_local unsigned int seed;
	const char *text = setting("FAKENCCL_DELAY_US");
	long max = text ? atol(text) : 0;
	struct timespec time;

	if (max <= 0)
		return;
	if (seed == 0) {
		clock_gettime(CLOCK_MONOTONIC, &time);
		seed = (unsigned int)time.tv_nsec | 1;
	}
	time.tv_sec = 0;
	time.tv_nsec = rand_r(&seed) % (max * 1000);
	nanosleep(&time, NULL);
}

ncclResult_t api_fail(ncclResult_t result, const char *format, ...)
{
	va_list args;

	pthread_mutex_lock(&lock);
	va_start(args, format);
	vsnprintf(last_error, sizeof(last_error), format, args);
	va_end(args);
	pthread_mutex_unlock(&lock);
	return result;
}

/* The lines of the real library end in the same way. */
const char *ncclGetLastError(ncclComm_t comm)
{
	static _Thread_local char text[TEXT_SIZE + 1];

	(void)comm;
	pthread_mutex_lock(&lock);
	snprintf(text, sizeof(text), "%s\n", last_error);
	pthread_mutex_unlock(&lock);
	return text;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	switch (result) {
	case ncclSuccess:
		return "no error";
	case ncclUnhandledCudaError:
		return "unhandled cuda error";
	case ncclSystemError:
		return "unhandled system error";
	case ncclInternalError:
		return "internal error";
	case ncclInvalidArgument:
		return "invalid argument";
	case ncclInvalidUsage:
		return "invalid usage";
	case ncclRemoteError:
		return "remote process exited or there was a network error";
	case ncclInProgress:
		return "NCCL operation in progress";
	}
	return "unknown result code";
}

ncclResult_t ncclGetVersion(int *version)
{
	const char *text = setting("FAKENCCL_VERSION");

	*version = text ? atoi(text) : NCCL_API_VERSION;
	return ncclSuccess;
}
