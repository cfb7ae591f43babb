/*
 * Tests the fake driver: several processes on one machine, faults, and its
 * reports to tests.
 */
#include "tests/unit/fakes/cuda/fakecuda_fixture.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* The test and the actor share this memory. */
static struct shared {
	CUipcMemHandle memory;
	CUipcEventHandle event;
	CUresult result;
	uint64_t value;
	_Atomic uint64_t words[512] __attribute__((aligned(4096)));
} * shared;
static int socks[2];
static struct actor actor;

/* Variables of the actor. */
static CUmemGenericAllocationHandle handle;
static CUdeviceptr at;
static CUstream stream;
static CUevent event;

static void set_up(void)
{
	gpu_open();
	setenv("FAKECUDA_MEM_MB", "16", 1);
	shared = shared_memory(sizeof(*shared));
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, socks) == 0);
}

static void tear_down(void)
{
	actor_kill(&actor);
	gpu_close();
}

TestSuite(fakecuda_process, .init = set_up, .fini = tear_down, .timeout = 300);

/* Let the actor run the function. Starts it first if necessary. */
static void act(actor_fn *fn)
{
	if (!actor.pid)
		actor_start(&actor, NULL);
	cr_assert(zero(int, actor_run(&actor, fn)));
}

/* Returns the MiB that can be allocated. */
static uint64_t available(void)
{
	CUdeviceptr memory;
	uint64_t n = 16;

	while (n > 0 && cuMemAlloc(&memory, n * MIB) != CUDA_SUCCESS)
		n--;
	if (n > 0)
		OK(cuMemFree(memory));
	return n;
}

/* --- VMM ----------------------------------------------------------------- */

static int make_chunk(void)
{
	int fd;

	use_device(0);
	handle = vmm_new(CHUNK);
	at = vmm_map_at(handle, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	poke(at, 42);
	fd = vmm_fd(handle);
	send_fd(socks[1], fd);
	close(fd);
	return 0;
}

Test(fakecuda_process, a_descriptor_keeps_the_memory)
{
	CUmemGenericAllocationHandle imported;
	CUdeviceptr mine;
	int fd;

	act(make_chunk);
	use_device(0);
	fd = receive_fd(socks[0]);
	actor_kill(&actor);
	cr_expect(eq(u64, available(), 14), "the descriptor keeps it");
	OK(vmm_import(fd, &imported));
	close(fd);
	mine = vmm_map_at(imported, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
	OK(cuMemRelease(imported));
	cr_expect(eq(u64, available(), 14), "the mapping keeps it");
	cr_expect(eq(u64, peek(mine), 42));
	vmm_unmap_at(mine, CHUNK);
	cr_expect(eq(u64, available(), 16));
}

Test(fakecuda_process, shared_memory_has_separate_access_in_each_process)
{
	CUmemGenericAllocationHandle imported;
	CUdeviceptr mine;

	act(make_chunk);
	use_device(0);
	OK(vmm_import(receive_fd(socks[0]), &imported));
	mine = vmm_map_at(imported, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
	cr_expect(eq(u64, peek(mine), 42));
	OK(vmm_access(mine, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	poke(mine, 43);
	OK(vmm_access(mine, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ));
	cr_expect(eq(u64, peek(mine), 43));
}

static int make_much(void)
{
	use_device(0);
	(void)vmm_new(12 * MIB);
	return 0;
}

Test(fakecuda_process,
     processes_share_the_memory_of_a_device_and_free_it_at_death)
{
	CUmemGenericAllocationHandle big;

	act(make_much);
	use_device(0);
	EXPECT_RESULT(vmm_try(6 * MIB, &big), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_RESULT(cuMemAlloc(&at, 6 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_RESULT(vmm_try(4 * MIB, &handle), CUDA_SUCCESS);
	actor_kill(&actor);
	EXPECT_RESULT(vmm_try(12 * MIB, &big), CUDA_SUCCESS);
}

Test(fakecuda_process, a_context_may_use_memory)
{
	setenv("FAKECUDA_CONTEXT_MB", "5", 1);
	use_device(0);
	cr_expect(eq(u64, available(), 11));
	OK(cuDevicePrimaryCtxRelease(0));
	setenv("FAKECUDA_CONTEXT_MB", "0", 1);
}

Test(fakecuda_process, memory_of_a_hidden_device_is_refused)
{
	act(make_chunk);
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	OK(cuInit(0));
	EXPECT_RESULT(vmm_import(receive_fd(socks[0]), &handle),
		      CUDA_ERROR_NOT_SUPPORTED);
}

Test(fakecuda_process,
     without_descriptors_allocation_fails_and_usage_is_unchanged)
{
	struct rlimit old, few;
	int fd;

	use_device(0);
	handle = vmm_new(CHUNK);
	fd = open("/dev/null", O_RDONLY);
	MUST(getrlimit(RLIMIT_NOFILE, &old) == 0);
	few = old;
	few.rlim_cur = (rlim_t)fd;
	MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_ERROR_OPERATING_SYSTEM);
	EXPECT_RESULT(vmm_try(16 * MIB, &handle), CUDA_ERROR_OUT_OF_MEMORY);
	close(fd);
	few.rlim_cur++; /* enough to open the folder, but not a file in it */
	MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
	EXPECT_RESULT(vmm_try(16 * MIB, &handle), CUDA_ERROR_OUT_OF_MEMORY);
	MUST(setrlimit(RLIMIT_NOFILE, &old) == 0);
	cr_expect(eq(u64, available(), 14));
}

/* --- legacy handles ------------------------------------------------------ */

static int make_legacy(void)
{
	use_device(0);
	OK(cuMemAlloc(&at, 4096));
	poke(at, 7);
	OK(cuIpcGetMemHandle(&shared->memory, at));
	shared->result = cuIpcOpenMemHandle(&at, shared->memory,
					    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	return 0;
}

static CUresult open_legacy(CUdeviceptr *ret)
{
	return cuIpcOpenMemHandle(ret, shared->memory,
				  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

Test(fakecuda_process,
     a_legacy_handle_is_mapped_once_and_only_by_other_processes)
{
	CUdeviceptr first, second;

	act(make_legacy);
	EXPECT_RESULT(shared->result, CUDA_ERROR_INVALID_CONTEXT);
	use_device(0);
	OK(open_legacy(&first));
	OK(open_legacy(&second));
	cr_expect(eq(u64, first, second));
	cr_expect(eq(u64, peek(first), 7));
	EXPECT_RESULT(cuIpcGetMemHandle(&shared->memory, first),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuIpcCloseMemHandle(first + 8), CUDA_ERROR_INVALID_VALUE);
	OK(cuIpcCloseMemHandle(first));
	cr_expect(eq(u64, peek(first), 7));
	OK(cuIpcCloseMemHandle(first));
	EXPECT_RESULT(cuIpcCloseMemHandle(first), CUDA_ERROR_INVALID_VALUE);
}

Test(fakecuda_process, open_legacy_memory_outlives_the_process_that_made_it)
{
	CUdeviceptr mine, again;

	act(make_legacy);
	use_device(0);
	OK(open_legacy(&mine));
	actor_kill(&actor);
	cr_expect(eq(u64, peek(mine), 7));
	OK(open_legacy(&again));
	cr_expect(eq(u64, again, mine));
	OK(cuIpcCloseMemHandle(mine));
	OK(cuIpcCloseMemHandle(mine));
	EXPECT_RESULT(open_legacy(&again), CUDA_ERROR_INVALID_VALUE);
	cr_expect(eq(u64, available(), 16));
}

static int keep_legacy_open(void)
{
	use_device(0);
	OK(open_legacy(&at));
	return 0;
}

Test(fakecuda_process,
     legacy_memory_of_a_dead_process_stays_open_but_is_not_opened_anew)
{
	struct actor other = {0};
	CUdeviceptr mine;

	actor_start(&other, NULL);
	act(make_legacy);
	cr_assert(zero(int, actor_run(&other, keep_legacy_open)));
	actor_kill(&actor);
	use_device(0);
	EXPECT_RESULT(open_legacy(&mine), CUDA_ERROR_INVALID_VALUE);
	cr_assert(zero(int, actor_run(&other, keep_legacy_open)));
	actor_kill(&other);
}

/* The next allocation has the same size, so it has the same address. */
static int replace_legacy(void)
{
	CUipcMemHandle old = shared->memory;

	OK(cuMemFree(at));
	OK(cuMemAlloc(&at, 4096));
	poke(at, 8);
	OK(cuIpcGetMemHandle(&shared->memory, at));
	return memcmp(&old, &shared->memory, sizeof(old));
}

static int make_legacy_to_free(void)
{
	CUdeviceptr mine;

	use_device(0);
	OK(cuMemAlloc(&mine, 4096));
	poke(mine, 7);
	OK(cuIpcGetMemHandle(&shared->memory, mine));
	at = mine;
	return 0;
}

Test(fakecuda_process,
     memory_freed_while_open_is_overwritten_and_can_be_replaced)
{
	CUdeviceptr old, new;

	act(make_legacy_to_free);
	use_device(0);
	OK(open_legacy(&old));
	act(replace_legacy);
	cr_expect(eq(u64, peek(old), UINT64_C(0xdbdbdbdbdbdbdbdb)));
	OK(open_legacy(&new));
	cr_expect(ne(u64, old, new));
	cr_expect(eq(u64, peek(new), 8));
}

Test(fakecuda_process, vmm_has_no_legacy_handles)
{
	CUipcMemHandle none;

	use_device(0);
	at = vmm_map_at(vmm_new(CHUNK), CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
	EXPECT_RESULT(cuIpcGetMemHandle(&none, at), CUDA_ERROR_INVALID_VALUE);
}

/* --- order --------------------------------------------------------------- */

static CUdeviceptr register_words(void)
{
	CUdeviceptr words;

	OK(cuMemHostRegister((void *)shared->words, 4096,
			     CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&words, (void *)shared->words, 0));
	return words;
}

static int make_event(void)
{
	use_device(0);
	stream = new_stream();
	OK(cuEventCreate(&event,
			 CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	OK(cuIpcGetEventHandle(&shared->event, event));
	OK(cuStreamWaitValue64(stream, register_words(), 1, 0));
	OK(cuEventRecord(event, stream));
	return 0;
}

static int destroy_event(void)
{
	OK(cuEventDestroy(event));
	return 0;
}

Test(fakecuda_process, an_event_orders_two_processes)
{
	CUipcEventHandle again;
	struct words words;
	CUevent mine;

	act(make_event);
	use_device(0);
	words = new_words();
	stream = new_stream();
	OK(cuIpcOpenEventHandle(&mine, shared->event));
	EXPECT_RESULT(cuEventQuery(mine), CUDA_ERROR_NOT_READY);
	EXPECT_RESULT(cuIpcGetEventHandle(&again, mine),
		      CUDA_ERROR_INVALID_HANDLE);
	OK(cuStreamWaitEvent(stream, mine, 0));
	look(stream, &words);
	EXPECT_RESULT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	arrive(&words);
	shared->words[0] = 1;
	OK(cuEventSynchronize(mine));
	OK(cuStreamSynchronize(stream));
	cr_expect(eq(u64, words.host[3], 1));
	EXPECT_RESULT(cuEventQuery(mine), CUDA_SUCCESS);
	act(destroy_event);
	EXPECT_RESULT(cuEventQuery(mine), CUDA_ERROR_INVALID_HANDLE);
	EXPECT_RESULT(cuEventDestroy(mine), CUDA_SUCCESS);
	EXPECT_RESULT(cuIpcOpenEventHandle(&mine, shared->event),
		      CUDA_ERROR_INVALID_HANDLE);
}

static int record_event(void)
{
	use_device(0);
	OK(cuIpcOpenEventHandle(&event, shared->event));
	stream = new_stream();
	OK(cuStreamWaitValue64(stream, register_words(), 1, 0));
	OK(cuEventRecord(event, stream));
	return 0;
}

Test(fakecuda_process, an_opened_event_can_be_recorded_by_its_importer)
{
	CUevent mine, other;

	actor_start(&actor, NULL);
	use_device(0);
	OK(cuEventCreate(&mine,
			 CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	OK(cuIpcGetEventHandle(&shared->event, mine));
	EXPECT_RESULT(cuIpcOpenEventHandle(&other, shared->event),
		      CUDA_ERROR_INVALID_CONTEXT);
	EXPECT_RESULT(cuEventQuery(mine), CUDA_SUCCESS);
	act(record_event);
	EXPECT_RESULT(cuEventQuery(mine), CUDA_ERROR_NOT_READY);
	shared->words[0] = 1;
	EXPECT_RESULT(cuEventSynchronize(mine), CUDA_SUCCESS);
	OK(cuEventCreate(&other, CU_EVENT_DISABLE_TIMING));
	EXPECT_RESULT(cuIpcGetEventHandle(&shared->event, other),
		      CUDA_ERROR_INVALID_HANDLE);
}

/* Wait for word 0, then write word 1. */
static int answer(void)
{
	CUdeviceptr words;

	use_device(0);
	words = register_words();
	OK(cuStreamWaitValue64(NULL, words, 1, 0));
	OK(cuStreamWriteValue64(NULL, words + 8, 1, 0));
	return 0;
}

Test(fakecuda_process, words_in_memory_order_two_processes)
{
	CUdeviceptr words;

	act(answer);
	use_device(0);
	words = register_words();
	OK(cuStreamWriteValue64(NULL, words, 1, 0));
	OK(cuStreamWaitValue64(NULL, words + 8, 1, 0));
	EXPECT_RESULT(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	cr_expect(eq(u64, shared->words[1], 1));
}

/* --- the machine --------------------------------------------------------- */

static int try_context(void)
{
	CUcontext context;

	OK(cuInit(0));
	shared->result = cuDevicePrimaryCtxRetain(&context, 0);
	return 0;
}

Test(fakecuda_process, an_exclusive_device_allows_one_process)
{
	CUcontext context;

	setenv("FAKECUDA_COMPUTE_MODE", "exclusive_process", 1);
	act(try_context);
	EXPECT_RESULT(shared->result, CUDA_SUCCESS);
	OK(cuInit(0));
	EXPECT_RESULT(cuDevicePrimaryCtxRetain(&context, 0),
		      CUDA_ERROR_DEVICE_UNAVAILABLE);
	EXPECT_RESULT(cuDevicePrimaryCtxRetain(&context, 1), CUDA_SUCCESS);
	actor_kill(&actor);
	EXPECT_RESULT(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
}

Test(fakecuda_process, a_prohibited_device_allows_no_process)
{
	CUcontext context;

	setenv("FAKECUDA_COMPUTE_MODE", "prohibited", 1);
	OK(cuInit(0));
	EXPECT_RESULT(cuDevicePrimaryCtxRetain(&context, 0),
		      CUDA_ERROR_DEVICE_UNAVAILABLE);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_SUCCESS);
}

static void make_file(const char *name, const char *text)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", getenv("FAKECUDA_DIR"), name);
	file = fopen(path, "we");
	MUST(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

Test(fakecuda_process, a_device_can_be_lost_for_all_processes_at_any_time)
{
	CUcontext second;
	struct words words;

	use_device(0);
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	words = new_words();
	OK(cuStreamWaitValue64(NULL, words.device, 1, 0));
	make_file("lost.0", "");
	EXPECT_RESULT(cuMemAlloc(&at, 64), CUDA_ERROR_UNKNOWN);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_ERROR_UNKNOWN);
	make_file("lost.0", "214");
	EXPECT_RESULT(cuMemAlloc(&at, 64), CUDA_ERROR_ECC_UNCORRECTABLE);
	OK(cuCtxPushCurrent(second));
	EXPECT_RESULT(cuMemAlloc(&at, 64), CUDA_SUCCESS);
}

static int call_and_leave(void)
{
	CUresult r = cuInit(0);
	int n;

	if (r == CUDA_SUCCESS)
		r = cuDeviceGetCount(&n);
	_exit((int)r);
}

static int status_of(pid_t pid)
{
	int status;

	MUST(waitpid(pid, &status, 0) == pid);
	return status;
}

Test(fakecuda_process, a_forked_child_has_no_driver)
{
	pid_t pid;

	use_device(0);
	pid = fork();
	if (pid == 0)
		call_and_leave();
	cr_expect(eq(int, status_of(pid), CUDA_ERROR_NOT_INITIALIZED << 8));
	EXPECT_RESULT(cuCtxSynchronize(), CUDA_SUCCESS);
}

/* --- faults -------------------------------------------------------------- */

Test(fakecuda_process, the_nth_call_fails_as_configured)
{
	setenv("FAKECUDA_FAIL",
	       "cuMemCreate:2:2,MemCreate:4+:800,cuInit:1:46,"
	       "MemRelease:2:sleep=1",
	       1);
	EXPECT_RESULT(cuInit(0), CUDA_ERROR_DEVICE_UNAVAILABLE);
	OK(cuInit(0));
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_SUCCESS);
	EXPECT_RESULT(cuMemRelease(handle), CUDA_SUCCESS);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_SUCCESS);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_ERROR_NOT_PERMITTED);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_ERROR_NOT_PERMITTED);
	EXPECT_RESULT(cuMemRelease(handle), CUDA_SUCCESS);
}

Test(fakecuda_process, contexts_and_devices_fail_as_configured)
{
	CUcontext second;
	int n;

	setenv("FAKECUDA_FAIL",
	       "StreamQuery:1:fault=719,MemAlloc:1:sticky=700,CtxGetDevice:1:"
	       "lost",
	       1);
	use_device(0);
	EXPECT_RESULT(cuStreamQuery(NULL), CUDA_ERROR_LAUNCH_FAILED);
	EXPECT_RESULT(cuStreamQuery(NULL), CUDA_ERROR_LAUNCH_FAILED);
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuCtxPopCurrent(NULL));
	OK(cuCtxPushCurrent(second));
	EXPECT_RESULT(cuStreamQuery(NULL), CUDA_SUCCESS);
	EXPECT_RESULT(cuMemAlloc(&at, 8), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_RESULT(cuStreamQuery(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_SUCCESS);
	EXPECT_RESULT(cuCtxPopCurrent(NULL), CUDA_SUCCESS);
	EXPECT_RESULT(cuCtxGetDevice(&n), CUDA_ERROR_UNKNOWN);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_ERROR_UNKNOWN);
}

/* Run it in a child, because the program ends. Returns the signal that ended
 * it. */
static int signal_of(const char *name, const char *value)
{
	pid_t pid = fork();

	if (pid == 0) {
		setenv(name, value, 1);
		if (freopen("/dev/null", "w", stderr) == NULL)
			_exit(1);
		call_and_leave();
	}
	return status_of(pid) & 0x7f;
}

Test(fakecuda_process, the_nth_call_kills_and_invalid_settings_are_refused)
{
	static const struct {
		const char *name, *value;
		int signal;
	} cases[] = {
		{"FAKECUDA_FAIL", "cuDeviceGetCount:1:kill", SIGKILL},
		{"FAKECUDA_FAIL", "cuDeviceGetCount:2:kill", 0},
		{"FAKECUDA_FAIL", "cuDeviceGetCuont:1:kill", SIGABRT},
		{"FAKECUDA_FAIL", "cuDeviceGetCount:1", SIGABRT},
		{"FAKECUDA_FAIL", "cuDeviceGetCount:x:1", SIGABRT},
		{"FAKECUDA_FAIL", "cuDeviceGetCount:1:explode", SIGABRT},
		{"FAKECUDA_DEVICES", "17", SIGABRT},
		{"FAKECUDA_DEVICES", "two", SIGABRT},
		{"FAKECUDA_WITHOUT", "vmm,wings", SIGABRT},
		{"FAKECUDA_COMPUTE_MODE", "best", SIGABRT},
		{"FAKECUDA_DEVISES", "1", SIGABRT},
		{"FAKECUDA_DIR", "/no/such/folder", SIGABRT},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		cr_expect(eq(int, signal_of(cases[i].name, cases[i].value),
			     cases[i].signal),
			  "%s=%s", cases[i].name, cases[i].value);
}

/* --- what tests are told ------------------------------------------------- */

static int be_broker(void)
{
	OK(cuInit(0));
	for (int i = 0; i < 3; i++)
		OK(cuMemRelease(vmm_new(CHUNK)));
	return 0;
}

Test(fakecuda_process, counts_of_calls_and_contexts_outlive_the_process)
{
	pid_t pid;

	setenv("FAKECUDA_COUNT", "1", 1);
	setenv("CUDA_MPS_PIPE_DIRECTORY", getenv("FAKECUDA_DIR"), 1);
	act(be_broker);
	cr_expect(eq(long, gpu_count(actor.pid, "MemCreate"), 3));
	cr_expect(eq(long, gpu_count(actor.pid, "contexts"), 0));
	cr_expect(eq(long, gpu_count(actor.pid, "mps_clients"), 0));
	pid = actor.pid;
	actor_kill(&actor);
	cr_expect(eq(long, gpu_count(pid, "MemRelease"), 3));
	make_file("control", ""); /* the daemon of MPS makes such a file, too */
	use_device(1);
	cr_expect(eq(long, gpu_count(getpid(), "contexts"), 1));
	cr_expect(eq(long, gpu_count(getpid(), "mps_clients"), 1));
}

/* End the process without freeing these objects. */
static void leak(void)
{
	expect_exit();
	use_device(0);
	(void)new_stream();
	at = vmm_map_at(vmm_new(CHUNK), CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
	OK(cuMemAlloc(&at, 8));
	OK(cuMemFree(at));
	exit(0);
}

Test(fakecuda_process, leaks_are_reported_at_exit)
{
	char said[1024] = "";
	int ends[2];
	pid_t pid;

	setenv("FAKECUDA_LEAKS", "1", 1);
	MUST(pipe(ends) == 0);
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		leak();
	}
	close(ends[1]);
	(void)status_of(pid);
	MUST(read(ends[0], said, sizeof(said) - 1) > 0);
	cr_expect(eq(str, said,
		     "fakecuda: leaked: 1 streams\n"
		     "fakecuda: leaked: 1 VMM allocations\n"
		     "fakecuda: leaked: 1 VMM mappings\n"
		     "fakecuda: leaked: 1 address reservations\n"));
}
