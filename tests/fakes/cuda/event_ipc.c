/* Interprocess events: their pages, and the handles that name them. */
#include "tests/fakes/cuda/event_ipc.h"
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/event.h"
#include "tests/fakes/cuda/stream.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x54564541434b4146) /* "FAKCAEVT" */

struct share_work {
	struct work work;
	struct event_share *share; /* a reference */
	/* the record that the work makes or waits for */
	uint64_t n;
};

struct handle {
	uint64_t magic;
	int32_t maker;
	uint32_t serial;
};

_Static_assert(sizeof(struct handle) <= CU_IPC_HANDLE_SIZE, "it fits");

static void name_of(const struct handle *handle, char ret[LEDGER_NAME_SIZE])
{
	snprintf(ret, LEDGER_NAME_SIZE, "event.%d.%u", handle->maker,
		 handle->serial);
}

/* --- pages --------------------------------------------------------------- */

/* Consumes the descriptor, also on failure. */
static CUresult map(int fd, struct event_share **ret)
{
	struct event_share *share = calloc(1, sizeof(*share));
	void *at = MAP_FAILED;

	if (share)
		at = mmap(NULL, sizeof(struct event_page),
			  PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED) {
		free(share);
		return CUDA_ERROR_MAP_FAILED;
	}
	share->n_refs = 1;
	share->page = at;
	*ret = share;
	return CUDA_SUCCESS;
}

CUresult event_share_create(struct event_share **ret)
{
	static uint32_t last_serial;
	struct handle handle = {MAGIC, getpid(), ++last_serial};
	char name[LEDGER_NAME_SIZE];
	CUresult r;
	int fd;

	name_of(&handle, name);
	/* A dead process with the same id may have left a file. */
	ledger_unlink(name);
	fd = openat(ledger_dir(), name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
		    0666);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	(void)fchmod(fd, 0666); /* independent of the umask */
	if (ftruncate(fd, sizeof(struct event_page)) < 0) {
		close(fd);
		ledger_unlink(name);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	r = map(fd, ret);
	if (r) {
		ledger_unlink(name);
		return r;
	}
	(*ret)->page->magic = MAGIC;
	memcpy((*ret)->name, name, sizeof(name));
	return CUDA_SUCCESS;
}

void event_share_unref(struct event_share *share)
{
	if (--share->n_refs > 0)
		return;
	munmap(share->page, sizeof(*share->page));
	free(share);
}

void event_share_destroy(struct event_share *share)
{
	if (share->name[0]) {
		share->page->is_destroyed = true;
		ledger_unlink(share->name);
	}
	event_share_unref(share);
}

/* --- work ---------------------------------------------------------------- */

bool event_share_is_done(const struct event_share *share, uint64_t n)
{
	struct event_page *page = share->page;

	if (n == 0)
		n = page->n_recorded;
	return n == 0 || page->done[n % EVENT_RING] >= n;
}

static CUresult run_record(struct work *work)
{
	const struct share_work *record = (struct share_work *)work;
	_Atomic uint64_t *place =
		&record->share->page->done[record->n % EVENT_RING];
	uint64_t found = *place;

	while (found < record->n &&
	       !atomic_compare_exchange_weak(place, &found, record->n))
		;
	return CUDA_SUCCESS;
}

static CUresult run_wait(struct work *work)
{
	const struct share_work *wait = (struct share_work *)work;
	unsigned int us = 0;

	while (!event_share_is_done(wait->share, wait->n) &&
	       !stream_is_stopping(work->stream))
		stream_back_off(&us);
	return CUDA_SUCCESS;
}

static void end_work(struct work *work, bool is_done)
{
	(void)is_done;
	event_share_unref(((struct share_work *)work)->share);
	free(work);
}

static CUresult enqueue(struct event_share *share, struct stream *stream,
			uint64_t n, CUresult (*run)(struct work *work))
{
	struct share_work *work = calloc(1, sizeof(*work));

	if (!work)
		return CUDA_ERROR_OUT_OF_MEMORY;
	share->n_refs++;
	work->share = share;
	work->n = n;
	work->work.run = run;
	work->work.is_wait = run == run_wait;
	work->work.end = end_work;
	stream_enqueue(stream, &work->work);
	return CUDA_SUCCESS;
}

CUresult event_share_record(struct event_share *share, struct stream *stream)
{
	uint64_t n = atomic_fetch_add(&share->page->n_recorded, 1) + 1;

	return enqueue(share, stream, n, run_record);
}

CUresult event_share_wait(struct event_share *share, struct stream *stream)
{
	uint64_t n = share->page->n_recorded;

	return n ? enqueue(share, stream, n, run_wait) : CUDA_SUCCESS;
}

/* --- handles ------------------------------------------------------------- */

static CUresult handle_of(const struct event *event, CUipcEventHandle *ret)
{
	struct handle handle = {.magic = MAGIC};

	/* An event that was opened from a handle is refused, too. */
	if (!event->share || !event->share->name[0])
		return CUDA_ERROR_INVALID_HANDLE;
	if (sscanf(event->share->name, "event.%d.%u", &handle.maker,
		   &handle.serial) != 2)
		return CUDA_ERROR_UNKNOWN;
	memset(ret, 0, sizeof(*ret));
	memcpy(ret, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *ret, CUevent event_handle)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_IpcGetEventHandle, &context);
	const struct event *event;

	if (r)
		return r;
	event = event_find(event_handle);
	if (!ret || !event)
		return call_end(ret ? CUDA_ERROR_INVALID_HANDLE
				    : CUDA_ERROR_INVALID_VALUE);
	if (!device_has(FEATURE_IPC_EVENTS))
		return call_end(CUDA_ERROR_NOT_SUPPORTED);
	return call_end(handle_of(event, ret));
}

static CUresult open_handle(const struct handle *handle,
			    struct event_share **ret)
{
	char name[LEDGER_NAME_SIZE];
	CUresult r;
	int fd;

	if (handle->maker == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (handle->magic != MAGIC || !ledger_has_process(handle->maker))
		return CUDA_ERROR_INVALID_HANDLE;
	name_of(handle, name);
	fd = openat(ledger_dir(), name, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return CUDA_ERROR_INVALID_HANDLE;
	r = map(fd, ret);
	if (r == CUDA_SUCCESS && (*ret)->page->magic != MAGIC) {
		event_share_unref(*ret);
		r = CUDA_ERROR_INVALID_HANDLE;
	}
	return r;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle bytes)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_IpcOpenEventHandle, &context);
	struct event_share *share;
	struct handle handle;

	if (r)
		return r;
	if (!event)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if (!device_has(FEATURE_IPC_EVENTS))
		return call_end(CUDA_ERROR_NOT_SUPPORTED);
	memcpy(&handle, &bytes, sizeof(handle));
	r = open_handle(&handle, &share);
	if (r)
		return call_end(r);
	r = event_new(context, CU_EVENT_DISABLE_TIMING, share, event);
	if (r)
		event_share_unref(share);
	return call_end(r);
}
