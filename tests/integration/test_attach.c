/*
 * Tests how a process attaches to a model on a device. It makes one request, a
 * few driver calls for each chunk, and no call for a single tensor. Other
 * threads of the process do not wait while the driver works.
 */
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include "tests/lib/stage.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMBERS 1000
#define MEMBER  16384 /* bytes */

/* The chunks are so small that the model needs several. */
#define CONFIG "[memory]\nchunk_min = 4M\nchunk_max = 4M\n"

static void open_counted(void)
{
	setenv("FAKECUDA_COUNT", "1", 1);
	stage_open_with(CONFIG);
}

static void open_waiting(void)
{
	setenv("FAKECUDA_SYNC", "1", 1);
	open_counted();
}

TestSuite(attach, .init = open_counted, .fini = stage_close, .timeout = 300);
TestSuite(attach_waiting, .init = open_waiting, .fini = stage_close,
	  .timeout = 300);

static void commit_model(const char *name, int n)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {MEMBER}};
	const struct fsdp_bundle_options options = {
		.access = {.gid = FSDP_GID_DEFAULT}, .device = gpu_name(0)};
	struct fsdp_bundle *bundle = NULL;
	struct fsdp_tensor *tensor;
	char member[32];
	const char *pointer = member;

	must(fsdp_bundle_begin(stage.client, name, &options, &bundle) == 0);
	for (int i = 0; i < n; i++) {
		(void)snprintf(member, sizeof(member), "%s%d", name, i);
		must(fsdp_bundle_alloc(bundle, &pointer, &spec, 1, &tensor) ==
		     0);
		fsdp_free(tensor);
	}
	must(fsdp_bundle_commit(bundle, NULL) == 0);
}

static uint64_t n_chunks(void)
{
	struct figures now;

	figures_read(stage.client, &now);
	return now.chunks;
}

/* --- in a process that has met no device yet ----------------------------- */

static int count_requests(const struct fsdp_peer *peer, void *data)
{
	if (peer->pid == (uint32_t)getpid())
		*(uint64_t *)data = peer->n_requests;
	return 0;
}

static uint64_t n_requests(void)
{
	uint64_t n = 0;

	must(fsdp_clients(stage.client, count_requests, &n) == 0);
	return n;
}

static void attach(const char *name, size_t n_wanted)
{
	struct fsdp_tensor **tensors = NULL;
	uint64_t before = n_requests();
	size_t n = 0;

	must(fsdp_bundle_get(stage.client, name, NULL, &tensors, &n) == 0);
	/* The two requests are the get, and the status request that counts
	 * them. */
	must(n_requests() - before == 2);
	must(n == n_wanted);
	for (size_t i = 0; i < n; i++) {
		must(fsdp_data(tensors[i]));
		fsdp_free(tensors[i]);
	}
	free(tensors);
}

/* Returns the number of driver calls of all kinds, and of contexts that were
 * made. */
static long count_all(void)
{
	char path[64], line[128];
	long n, all = 0;
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/calls.%d",
		       getenv("FAKECUDA_DIR"), (int)getpid());
	file = fopen(path, "re");
	must(file);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "%*s %ld", &n) == 1)
			all += n;
	(void)fclose(file);
	return all;
}

/* These calls import a chunk and map it, in a context. */
static const char *const CHUNK_CALLS[] = {
	"MemImportFromShareableHandle",
	"MemAddressReserve",
	"MemMap",
	"MemSetAccess",
	"CtxPushCurrent",
	"CtxPopCurrent",
	"ThreadExchangeStreamCaptureMode", /* set to relaxed, and restored */
	"ThreadExchangeStreamCaptureMode",
};
#define N_CHUNK_CALLS (sizeof(CHUNK_CALLS) / sizeof(*CHUNK_CALLS))

static int attach_and_count(void)
{
	/* the chunk of "one/" is not counted */
	const uint64_t n = n_chunks() - 1;
	long each[N_CHUNK_CALLS], before;

	attach("one/", 1);
	for (size_t i = 0; i < N_CHUNK_CALLS; i++)
		each[i] = gpu_count(getpid(), CHUNK_CALLS[i]);
	before = count_all();

	attach("model/", MEMBERS);
	must(n >= 4);
	must(count_all() - before == (long)(n * N_CHUNK_CALLS));
	for (size_t i = 0; i < N_CHUNK_CALLS - 2; i++)
		must(gpu_count(getpid(), CHUNK_CALLS[i]) - each[i] == (long)n);

	before = count_all();
	attach("model/", MEMBERS);
	must(count_all() == before);
	return 0;
}

/* --- the tests ----------------------------------------------------------- */

Test(attach, a_model_needs_one_request_and_eight_calls_per_chunk)
{
	need_fake("its calls are counted");
	commit_model("one/", 1);
	commit_model("model/", MEMBERS);
	cr_expect(zero(int, actor_run(&stage.producer, attach_and_count)));
}

/* The tensor has another access class, so a new chunk must be mapped. */
static void *alloc_elsewhere(void *data)
{
	const struct fsdp_spec bytes = {FSDP_U8, 1, {STAGE_SIZE}};
	const struct fsdp_access access = {FSDP_GID_DEFAULT, 0644};
	struct fsdp_device gpu = gpu_name(0);
	struct fsdp_tensor **ret = data;

	must(fsdp_alloc_on(stage.client, &gpu, &bytes, 1, &access, 0, ret) ==
	     0);
	return NULL;
}

Test(attach_waiting, a_thread_that_maps_no_memory_does_not_wait)
{
	struct fsdp_tensor *tensor, *again = NULL, *elsewhere = NULL;
	pthread_t thread;
	CUstream stream;
	long n;

	need_fake("whether it waits is set");
	tensor = alloc();
	cr_assert(zero(int, publish_on(tensor, "t/a", NULL)));
	stream = stream_make(gpu_nth(0));
	stream_hold(stream, &stage.shared->gate);
	n = gpu_count(getpid(), "MemSetAccess");
	must(pthread_create(&thread, NULL, alloc_elsewhere, &elsewhere) == 0);
	while (gpu_count(getpid(), "MemSetAccess") == n)
		sched_yield();

	/* The thread is in the driver now, and waits for the gate. */
	cr_expect(zero(int, get_on("t/a", NULL, 0, &again)));
	fsdp_free(again);
	fsdp_free(alloc());
	open_gate();
	must(pthread_join(thread, NULL) == 0);
	must(stream_finish(stream));
	fsdp_free(elsewhere);
	fsdp_free(tensor);
}
