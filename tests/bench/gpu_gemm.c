/*
 * Rows gpu_gather_by_gemm and gpu_gemm_by_gather: a gather of ours while the
 * device multiplies matrices, and the multiplications at the same time, each
 * compared with the same work alone. Both share the device's units and its
 * memory, so one may gain what the other loses.
 *
 * cuBLAS is opened at run time, and not in the table's process, which forks.
 * Machines without cuBLAS, or with an unknown version of it, do not have these
 * rows.
 */
#include "child.h"
#include "daemon.h"
#include "gpu_rank.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SIZE      (UINT64_C(64) << 20) /* of the whole parameters */
#define SIDE      4096                 /* of the matrices */
#define MAX_GEMMS 2000

/* The work that runs. For the gather, the time is that of the call; for GEMMs,
 * that of the device. */
enum { GATHER = 1, GEMMS = 2 };

/* --- cuBLAS -------------------------------------------------------------- */

/* These values are from cublas_api.h and library_types.h. */
#define CUBLAS_OP_N         0
#define CUBLAS_COMPUTE_32F  68
#define CUBLAS_GEMM_DEFAULT (-1)
#define CUDA_R_16BF         14

static struct {
	int (*create)(void **handle);
	int (*set_stream)(void *handle, CUstream stream);
	int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k,
		    const void *alpha, const void *a, int type_a, int ld_a,
		    const void *b, int type_b, int ld_b, const void *beta,
		    void *c, int type_c, int ld_c, int compute, int algorithm);
} blas;

static void *open_library(void)
{
	static const char *const names[] = {"libcublas.so.13",
					    "libcublas.so.12"};
	const char *path = getenv("FSDP_LIBCUBLAS");
	void *library = NULL;

	if (path)
		return dlopen(path, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; i < 2 && !library; i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	return library;
}

/* Returns false with the reason in `ret_why`. */
static bool load(char ret_why[256])
{
	static const char *const names[] = {
		"cublasCreate_v2", "cublasSetStream_v2", "cublasGemmEx"};
	void **const at[] = {(void **)&blas.create, (void **)&blas.set_stream,
			     (void **)&blas.gemm};
	void *library = open_library();

	if (!library) {
		(void)snprintf(ret_why, 256, "there is no cuBLAS: %s",
			       dlerror());
		return false;
	}
	for (size_t i = 0; i < 3; i++) {
		*at[i] = dlsym(library, names[i]);
		if (*at[i])
			continue;
		(void)snprintf(ret_why, 256, "the cuBLAS here has no %s",
			       names[i]);
		return false;
	}
	return true;
}

struct answer {
	bool has;
	char why[256];
};

static void ask(int sock_fd, void *data)
{
	struct answer *answer = data;

	answer->has = load(answer->why);
	message_send(sock_fd, answer, sizeof(*answer));
}

static bool has_cublas(const struct gpu *gpu)
{
	struct answer answer = {0};
	struct child child;

	child_start(&child, gpu->bench->client_cpu, ask, &answer);
	message_receive(child.sock_fd, &answer, sizeof(answer));
	child_wait(&child);
	if (!answer.has)
		gpu_leave_out("gemm", answer.why);
	return answer.has;
}

/* --- a rank -------------------------------------------------------------- */

/* The ranks share this memory. The times are those of rank 0. */
static struct shared {
	struct gpu_mesh mesh;
	uint32_t what;    /* GATHER or GEMMS or both */
	uint32_t n_gemms; /* number of the GEMMs */
	double gather_ns, gemm_ns;
} * shared;

/* Variables of a rank's process. */
static struct {
	void *blas;
	CUstream stream;
	CUevent begin, end;
	CUdeviceptr matrices[3];
} multiplier;

static void must_blas(int status, const char *what)
{
	if (status != 0)
		die("%s: cuBLAS says %d", what, status);
}

static void open_multiplier(uint32_t rank)
{
	const size_t size = (size_t)SIDE * SIDE * 2;
	char why[256];

	if (multiplier.blas)
		return;
	(void)gpu_enter(rank);
	if (!load(why))
		die("%s", why);
	multiplier.stream = gpu_stream();
	for (int i = 0; i < 3; i++) {
		gpu_must(cu.MemAlloc(&multiplier.matrices[i], size),
			 "allocate a matrix");
		gpu_must(cu.MemsetD8(multiplier.matrices[i], 0, size),
			 "fill a matrix");
	}
	gpu_must(cu.EventCreate(&multiplier.begin, CU_EVENT_DEFAULT),
		 "make an event");
	gpu_must(cu.EventCreate(&multiplier.end, CU_EVENT_DEFAULT),
		 "make an event");
	must_blas(blas.create(&multiplier.blas), "open");
	must_blas(blas.set_stream(multiplier.blas, multiplier.stream),
		  "set the stream");
}

static void begin_gemms(void)
{
	const void *a = (const void *)multiplier.matrices[0];
	const void *b = (const void *)multiplier.matrices[1];
	void *c = (void *)multiplier.matrices[2];
	const float one = 1, zero = 0;

	gpu_must(cu.EventRecord(multiplier.begin, multiplier.stream),
		 "note the begin of GEMMs");
	for (uint32_t i = 0; i < shared->n_gemms; i++)
		must_blas(blas.gemm(multiplier.blas, CUBLAS_OP_N, CUBLAS_OP_N,
				    SIDE, SIDE, SIDE, &one, a, CUDA_R_16BF,
				    SIDE, b, CUDA_R_16BF, SIDE, &zero, c,
				    CUDA_R_16BF, SIDE, CUBLAS_COMPUTE_32F,
				    CUBLAS_GEMM_DEFAULT),
			  "multiply");
	gpu_must(cu.EventRecord(multiplier.end, multiplier.stream),
		 "note the end of GEMMs");
}

/* Returns the time of one GEMM. */
static double end_gemms(void)
{
	float ms;

	gpu_must(cu.EventSynchronize(multiplier.end), "wait for GEMMs");
	gpu_must(cu.EventElapsedTime(&ms, multiplier.begin, multiplier.end),
		 "ask how long GEMMs took");
	return (double)ms * 1000000 / shared->n_gemms;
}

static void iterate(void *rank, uint32_t number,
		    const struct stage_order *order)
{
	double gather_ns, gemm_ns = 0;
	uint64_t start;

	open_multiplier(number);
	if (shared->what & GEMMS)
		begin_gemms();
	start = now_ns();
	if (shared->what & GATHER)
		gpu_rank_iterate(rank, order);
	gather_ns = (double)(now_ns() - start);
	if (shared->what & GEMMS)
		gemm_ns = end_gemms();
	if (number != 0)
		return;
	shared->gather_ns = gather_ns;
	shared->gemm_ns = gemm_ns;
}

/* --- the rows ------------------------------------------------------------ */

static void run(struct party *party, struct stage_order *order, uint32_t what)
{
	shared->what = what;
	order->verb = STAGE_RUN;
	party_order(party, order);
}

/* This many GEMMs take as long as three gathers alone, because a gather is
 * slower at the same time as GEMMs. */
static void choose_gemms(struct party *party, struct stage_order *order)
{
	double n;

	shared->n_gemms = 1;
	run(party, order, GATHER | GEMMS); /* this round opens all libraries */
	run(party, order, GEMMS);
	run(party, order, GATHER);
	n = 3 * shared->gather_ns;
	run(party, order, GEMMS);
	n /= shared->gemm_ns;
	shared->n_gemms = n < 1 ? 1 : n > MAX_GEMMS ? MAX_GEMMS : (uint32_t)n;
}

static void print(const struct gpu *gpu, const char *name, struct pairs *pairs,
		  uint64_t size)
{
	struct gpu_line line = {
		.name = name,
		.variant = "64 MiB, 4096^3 bf16",
		.unit = "us",
		.size = size,
		.bus_factor = (GPU_N_RANKS - 1.0) / GPU_N_RANKS,
	};

	pairs_result(pairs, 1000, &line.result);
	pairs_deinit(pairs);
	gpu_print(gpu, &line);
}

static void measure(const struct gpu *gpu, struct party *party)
{
	struct stage_order order = {.verb = STAGE_PREPARE,
				    .collective = ALL_GATHER,
				    .size = SIZE,
				    .n_iterations = 1};
	struct pairs gathers = PAIRS_NULL, gemms = PAIRS_NULL;
	unsigned n = gpu->bench->is_quick ? 5 : 11;

	party_order(party, &order);
	choose_gemms(party, &order);
	for (unsigned i = 0; i < n; i++) {
		run(party, &order, GATHER);
		samples_add(&gathers.floor, shared->gather_ns);
		run(party, &order, GEMMS);
		samples_add(&gemms.floor, shared->gemm_ns);
		run(party, &order, GATHER | GEMMS);
		samples_add(&gathers.ours, shared->gather_ns);
		samples_add(&gemms.ours, shared->gemm_ns);
		pairs_close(&gathers);
		pairs_close(&gemms);
	}
	order.verb = STAGE_RELEASE;
	party_order(party, &order);
	print(gpu, "gpu_gather_by_gemm", &gathers, SIZE);
	print(gpu, "gpu_gemm_by_gather", &gemms, 0);
}

void gpu_gemm(const struct gpu *gpu)
{
	struct daemon daemon;
	struct party party = {0};

	if (!has_cublas(gpu))
		return;
	if (gpu->is_fake) {
		gpu_leave_out("gemm", "cuBLAS cannot use a fake");
		return;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("map memory: %m");
	daemon_start(&daemon, gpu->bench,
		     &(struct daemon_options){.is_unpinned = true});
	shared->mesh = (struct gpu_mesh){
		.gpu = gpu, .socket = daemon.socket, .iterate = iterate};
	party_start(&party, gpu->bench, "ranks", GPU_N_RANKS, ANYWHERE,
		    gpu_rank_serve, &shared->mesh);
	measure(gpu, &party);
	party_stop(&party);
	munmap(shared, sizeof(*shared));
	daemon_stop(&daemon);
}
