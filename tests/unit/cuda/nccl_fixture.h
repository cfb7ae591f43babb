/*
 * Ranks on GPUs. They are actors (tests/lib/ranks.h), each with a device, a
 * stream and, once it has joined, a communicator.
 *
 * On a real machine with fewer devices than ranks, ranks share the devices and
 * tell NCCL that they are nodes of their own, so that it uses the loopback
 * interface. Tests that need the fakes say so.
 */
#pragma once
#include "cuda/context.h"
#include "cuda/nccl_comm.h"
#include "proto/error.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include "tests/lib/ranks.h"
#include <dirent.h>
#include <errno.h>
#include <string.h>

/* The limit of waits that end much earlier on a machine that works. */
#define TIMEOUT_MS 20000

/* The test passes this to its ranks, and a rank that makes an id passes it to
 * the others. */
struct mesh {
	uint8_t id[NCCL_ID_SIZE];
	uint32_t n_shards, n_replicas;
	uint32_t timeout_ms;
	char fault[64]; /* FAKENCCL_FAIL */
};

static struct mesh *mesh; /* shared */
static struct ranks ranks;

/* Variables of a rank. */
static struct {
	const struct device *device;
	CUstream stream;
	struct nccl_comm *comm; /* owned */
} self;

static inline void mesh_open(void)
{
	if (!getenv("FSDP_LIBNCCL"))
		setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	gpu_open();
	setenv("FAKECUDA_DEVICES", "8", 1);
	mesh = shared_memory(sizeof(*mesh));
}

/* If a test ended early, the kernel ends its ranks. */
static inline void mesh_close(void)
{
	ranks_stop(&ranks);
	if (getenv("FAKECUDA_DIR"))
		gpu_close();
}

static inline void need_fakes(void)
{
	if (!getenv("FSDP_LIBNCCL"))
		cr_skip_test("needs the fakes of the driver and of NCCL");
}

/* --- in a rank ----------------------------------------------------------- */

static inline void become_node(uint32_t rank)
{
	char text[32];

	snprintf(text, sizeof(text), "node-%u", rank);
	setenv("NCCL_HOSTID", text, 1);
}

static inline int rank_find_device(void)
{
	struct error err = ERROR_NULL;
	const struct device *devices;
	uint32_t n;
	int r = device_list(&devices, &n, &err);

	if (r < 0)
		return rank_say(r, err.msg);
	if (rank_self() >= n)
		become_node(rank_self());
	self.device = &devices[rank_self() % n];
	must(context_enter(self.device, NULL) == 0);
	must(cu.StreamCreate(&self.stream, CU_STREAM_NON_BLOCKING) == 0);
	context_leave();
	return 0;
}

static inline int rank_make_id(void)
{
	struct error err = ERROR_NULL;

	return rank_say(nccl_id_make(mesh->id, &err), err.msg);
}

static inline int rank_begin_open(void)
{
	struct error err = ERROR_NULL;
	const struct nccl_comm_options options = {
		.name = "run",
		.device = self.device,
		.id = mesh->id,
		.n_shards = mesh->n_shards,
		.n_replicas = mesh->n_replicas,
		.rank = rank_self(),
		.timeout_ms = mesh->timeout_ms,
	};

	return rank_say(nccl_comm_open(&options, &self.comm, &err), err.msg);
}

static inline int rank_wait(void)
{
	struct error err = ERROR_NULL;

	return rank_say(nccl_comm_wait(self.comm, &err), err.msg);
}

static inline int rank_wait_stream(void)
{
	struct error err = ERROR_NULL;

	return rank_say(nccl_comm_wait_stream(self.comm, self.stream, &err),
			err.msg);
}

static inline int rank_join(void)
{
	int r = rank_begin_open();

	return r < 0 ? r : rank_wait();
}

static inline int rank_close(void)
{
	struct error err = ERROR_NULL;

	return rank_say(nccl_comm_close(&self.comm, &err), err.msg);
}

static inline int rank_abort(void)
{
	struct error err = ERROR_NULL;

	return rank_say(nccl_comm_abort(&self.comm, &err), err.msg);
}

/* Allocate device memory of this rank, which is freed with the process. */
static inline CUdeviceptr rank_allocate(size_t size)
{
	CUdeviceptr address;

	must(context_enter(self.device, NULL) == 0);
	must(cu.MemAlloc(&address, size) == CUDA_SUCCESS);
	must(cu.MemsetD8(address, 0xee, size) == CUDA_SUCCESS);
	must(cu.CtxSynchronize() == CUDA_SUCCESS);
	context_leave();
	return address;
}

static inline void rank_put(CUdeviceptr to, const void *from, size_t size)
{
	must(context_enter(self.device, NULL) == 0);
	must(cu.MemcpyHtoD(to, from, size) == CUDA_SUCCESS);
	must(cu.CtxSynchronize() == CUDA_SUCCESS);
	context_leave();
}

static inline void rank_get(void *to, CUdeviceptr from, size_t size)
{
	must(context_enter(self.device, NULL) == 0);
	must(cu.MemcpyDtoH(to, from, size) == CUDA_SUCCESS);
	context_leave();
}

/*
 * Let the stream of this rank wait until rank_let_go(), which must be called
 * once. That function makes no call of the driver, because such a call would
 * block, too, while NCCL blocks in one.
 */
static _Atomic uint64_t *gate;

static inline void rank_hold(CUstream stream)
{
	CUdeviceptr address;
	void *page;

	must(context_enter(self.device, NULL) == 0);
	must(cu.MemHostAlloc(&page, sizeof(*gate), CU_MEMHOSTALLOC_DEVICEMAP) ==
	     CUDA_SUCCESS);
	must(cu.MemHostGetDevicePointer(&address, page, 0) == CUDA_SUCCESS);
	gate = page;
	atomic_store(gate, 0);
	must(cu.StreamWaitValue64(stream, address, 1,
				  CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
	context_leave();
}

static inline int rank_let_go(void)
{
	atomic_store(gate, 1);
	return 0;
}

static inline CUstream rank_make_stream(void)
{
	CUstream stream;

	must(context_enter(self.device, NULL) == 0);
	must(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	context_leave();
	return stream;
}

static inline bool rank_is_done(CUstream stream)
{
	CUresult result;

	must(context_enter(self.device, NULL) == 0);
	result = cu.StreamQuery(stream);
	context_leave();
	must(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
	return result == CUDA_SUCCESS;
}

static inline int rank_count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	must(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* --- in the test --------------------------------------------------------- */

static inline void mesh_start(uint32_t n_shards, uint32_t n_replicas)
{
	int r;

	mesh->n_shards = n_shards;
	mesh->n_replicas = n_replicas;
	mesh->timeout_ms = TIMEOUT_MS;
	ranks_start(&ranks, n_shards * n_replicas);
	r = ranks_run(&ranks, rank_find_device);
	if (r == -ENODEV && !getenv("FSDP_LIBCUDA"))
		cr_skip_test("there is no GPU");
	cr_assert(zero(int, r));
	cr_assert(zero(int, rank_run(&ranks, 0, rank_make_id)));
}

static inline void mesh_join(uint32_t n_shards, uint32_t n_replicas)
{
	mesh_start(n_shards, n_replicas);
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
}

/* Check that the sentence of the rank's last failure contains `part`. */
static inline void expect_said(uint32_t rank, const char *part)
{
	const char *sentence = ranks.notes[rank].sentence;

	cr_expect(strstr(sentence, part) != NULL, "no \"%s\" in: %s", part,
		  sentence);
}

/* Let the fake fail from the rank's next call of NCCL on. The fake reads its
 * environment when the rank loads it, which has not happened yet. */
static inline int become_faulty(void)
{
	return setenv("FAKENCCL_FAIL", mesh->fault, 1);
}

static inline void set_fault(uint32_t rank, const char *fault)
{
	snprintf(mesh->fault, sizeof(mesh->fault), "%s", fault);
	cr_assert(zero(int, rank_run(&ranks, rank, become_faulty)));
}
