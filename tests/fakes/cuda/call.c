/*
 * Entry points: the checks before each call, and the counters. Counts are
 * written into a shared mapping of a file, so that counting needs no system
 * call and survives any end of the process.
 */
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/capture.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/fake.h"
#include "tests/fakes/cuda/fault.h"
#include "tests/fakes/cuda/ledger.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/settings.h"
#include "tests/fakes/cuda/stream.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define LINE_SIZE 64 /* name, spaces, tab, digits, newline */

static const char *const names[N_COUNTS] = {
#define CALL_NAME(name) [CALL_##name] = #name,
	DRIVER_SYMBOLS(CALL_NAME) DRIVER_OPTIONAL_SYMBOLS(CALL_NAME)
#undef CALL_NAME
		[NOTE_CONTEXTS] = "contexts",
	[NOTE_QUEUES] = "queues",
	[NOTE_MPS] = "mps_clients",
	[NOTE_PINNED_IN] = "pinned_copies_in",
	[NOTE_NCCL] = "nccl_calls",
};

/* The counts have a lock of their own, because calls are counted before the
 * process's lock is taken. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int counts[N_COUNTS];
static char *lines; /* the mapped file; NULL if not open */
static pid_t owner; /* process to which the counts belong */
static __thread const char *current = "nothing";

const char *call_name(unsigned int call)
{
	return call < N_CALLS ? names[call] : NULL;
}

const char *call_current(void)
{
	return current;
}

static void write_line(unsigned int index)
{
	char line[LINE_SIZE + 1];

	snprintf(line, sizeof(line), "%-*s\t%10u\n", LINE_SIZE - 12,
		 names[index], counts[index]);
	for (int i = 0; i < LINE_SIZE; i++)
		lines[index * LINE_SIZE + i] = line[i];
}

static void open_file(void)
{
	char name[32];
	void *at;
	int fd;

	snprintf(name, sizeof(name), "calls.%d", (int)getpid());
	fd = openat(ledger_dir(), name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC,
		    0666);
	if (fd < 0 || ftruncate(fd, N_COUNTS * LINE_SIZE) < 0)
		settings_refuse("%s cannot be written: %m", name);
	at = mmap(NULL, N_COUNTS * LINE_SIZE, PROT_READ | PROT_WRITE,
		  MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		settings_refuse("%s cannot be mapped: %m", name);
	close(fd);
	/* a child that is forked after this has a file of its own */
	madvise(at, N_COUNTS * LINE_SIZE, MADV_DONTFORK);
	lines = at;
	for (unsigned int i = 0; i < N_COUNTS; i++)
		write_line(i);
}

/* Returns the number of this call among those of the process. */
static unsigned int count(unsigned int index)
{
	unsigned int n;

	pthread_mutex_lock(&lock);
	if (owner != getpid()) {
		owner = getpid();
		lines = NULL;
		for (int i = 0; i < N_COUNTS; i++)
			counts[i] = 0;
		if (settings()->does_count)
			open_file();
	}
	n = ++counts[index];
	if (lines)
		write_line(index);
	pthread_mutex_unlock(&lock);
	return n;
}

void call_note(enum call_note note)
{
	count(note);
}

void fake_count_nccl(void)
{
	current = "NCCL";
	call_note(NOTE_NCCL);
}

CUresult call_begin_bare(enum call call)
{
	CUresult r;

	current = names[call];
	if (process_is_forked())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (process.is_stopping)
		return CUDA_ERROR_DEINITIALIZED;
	if (stream_is_host_function())
		return CUDA_ERROR_NOT_PERMITTED;
	r = fault_inject(call, count(call));
	return r ? r : capture_check(call);
}

CUresult call_begin(enum call call)
{
	CUresult r = call_begin_bare(call);

	if (r)
		return r;
	process_lock();
	if (!process.is_initialised)
		return call_end(CUDA_ERROR_NOT_INITIALIZED);
	return CUDA_SUCCESS;
}

CUresult call_begin_context(enum call call, struct context **ret)
{
	CUresult r = call_begin(call);

	if (r)
		return r;
	r = context_current(ret);
	return r ? call_end(r) : r;
}

CUresult call_end(CUresult result)
{
	process_unlock();
	return result;
}
