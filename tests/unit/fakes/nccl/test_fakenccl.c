/*
 * Tests the refusals of the fake NCCL, so that code that passes our tests is
 * correct with the real library, too.
 */
#include "tests/lib/fake_nccl.h"
#include "tests/unit/cuda/nccl_fixture.h"
#include <pthread.h>
#include <stdatomic.h>

static void fakes_open(void)
{
	need_fakes();
	mesh_open();
}

TestSuite(fakenccl, .init = fakes_open, .fini = mesh_close, .timeout = 300);

#define SIZE (UINT64_C(2) << 20)
#define N    64 /* elements */

static CUdeviceptr memory;

static int allocate(void)
{
	memory = rank_allocate(SIZE);
	return 0;
}

static void begin(uint32_t n_ranks)
{
	mesh_join(n_ranks, 1);
	cr_assert(zero(int, ranks_run(&ranks, allocate)));
}

/* Returns 0 in a rank if the call was refused with this error. Reports any
 * other result. */
static int expect(ncclResult_t result, ncclResult_t wanted, const char *part)
{
	char text[300];

	if (result == wanted &&
	    (wanted == ncclSuccess || strstr(nccl.GetLastError(NULL), part)))
		return 0;
	snprintf(text, sizeof(text), "%d and not %d: %s", result, wanted,
		 nccl.GetLastError(NULL));
	return rank_say(-EPROTO, text);
}

static ncclComm_t comm(void)
{
	return self.comm->world;
}

static void *at(uint64_t i)
{
	return (void *)(uintptr_t)(memory + i * sizeof(float));
}

static ncclResult_t all_gather(uint64_t from, uint64_t to)
{
	return nccl.AllGather(at(from), at(to), N, ncclFloat32, comm(),
			      self.stream);
}

static ncclResult_t reduce_scatter(uint64_t from, uint64_t to)
{
	return nccl.ReduceScatter(at(from), at(to), N, ncclFloat32, ncclSum,
				  comm(), self.stream);
}

static ncclResult_t all_reduce(uint64_t from, uint64_t to)
{
	return nccl.AllReduce(at(from), at(to), N, ncclFloat32, ncclSum, comm(),
			      self.stream);
}

/* --- beginnings ---------------------------------------------------------- */

static int refuses_strange_configurations(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	ncclComm_t ret;
	int r;

	memcpy(&id, mesh->id, sizeof(id));
	must(context_enter(self.device, NULL) == 0);
	r = expect(nccl.CommInitRankConfig(&ret, 1, id, 0, &config),
		   ncclInvalidUsage, "do not block");
	config.blocking = 0;
	config.magic = 0;
	if (r == 0)
		r = expect(nccl.CommInitRankConfig(&ret, 1, id, 0, &config),
			   ncclInvalidArgument, "NCCL_CONFIG_INITIALIZER");
	config.magic = NCCL_CONFIG_MAGIC;
	if (r == 0)
		r = expect(nccl.CommInitRankConfig(&ret, 1, id, 1, &config),
			   ncclInvalidArgument, "rank 1 of 1");
	memset(&id, 0, sizeof(id));
	if (r == 0)
		r = expect(nccl.CommInitRankConfig(&ret, 1, id, 0, &config),
			   ncclInvalidArgument, "no id");
	context_leave();
	return r;
}

static int refuses_to_begin_without_context(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	ncclComm_t ret;

	memcpy(&id, mesh->id, sizeof(id));
	config.blocking = 0;
	return expect(nccl.CommInitRankConfig(&ret, 1, id, 0, &config),
		      ncclUnhandledCudaError, "no context");
}

Test(fakenccl, an_invalid_start_is_refused)
{
	mesh_start(1, 1);
	cr_expect(zero(int, ranks_run(&ranks, refuses_strange_configurations)));
	cr_expect(
		zero(int, ranks_run(&ranks, refuses_to_begin_without_context)));
}

/* Join as rank 0 of 2 in rank 0, but as rank 1 of 3 in rank 2. */
static int join_as_rank_1(void)
{
	struct error err = ERROR_NULL;
	const struct nccl_comm_options options = {
		.name = "run",
		.device = self.device,
		.id = mesh->id,
		.n_shards = rank_self() == 2 ? 3 : 2,
		.n_replicas = 1,
		.rank = rank_self() == 0 ? 0 : 1,
		.timeout_ms = TIMEOUT_MS,
	};
	int r = nccl_comm_open(&options, &self.comm, &err);

	if (r == 0)
		r = nccl_comm_wait(self.comm, &err);
	return rank_say(r, err.msg);
}

Test(fakenccl, ranks_must_agree_on_the_number_of_ranks)
{
	mesh_start(3, 1);
	actor_kill(&ranks.actors[1]);
	ranks_begin(&ranks, join_as_rank_1);
	ranks_end(&ranks);
	cr_expect(eq(int, ranks.notes[0].code, -EINVAL));
	expect_said(0, "rank 1 speaks of 3 ranks, rank 0 of 2");
	expect_said(2, "rank 1 speaks of 3 ranks, rank 0 of 2");
}

static int refuses_use_before_it_is_ready(void)
{
	int r = rank_begin_open();

	if (r == 0)
		r = allocate();
	if (r == 0)
		r = expect(all_gather(0, 0), ncclInvalidArgument,
			   "before the previous operation");
	(void)nccl_comm_abort(&self.comm, NULL);
	return r;
}

Test(fakenccl, a_communicator_is_refused_before_it_is_ready)
{
	mesh_start(2, 1);
	cr_expect(
		zero(int, rank_run(&ranks, 0, refuses_use_before_it_is_ready)));
}

/* --- memory and streams -------------------------------------------------- */

/* Run this as rank 1 of 2. */
static int refuses_wrong_overlaps(void)
{
	int r = expect(all_gather(0, 0), ncclInvalidArgument, "overlap");

	if (r == 0)
		r = expect(all_gather(N + 1, 0), ncclInvalidArgument,
			   "overlap");
	if (r == 0)
		r = expect(reduce_scatter(0, 0), ncclInvalidArgument,
			   "overlap");
	if (r == 0)
		r = expect(reduce_scatter(0, 2 * N - 1), ncclInvalidArgument,
			   "overlap");
	if (r == 0)
		r = expect(all_reduce(0, 1), ncclInvalidArgument, "overlap");
	return r;
}

Test(fakenccl, input_and_output_must_not_overlap_unless_in_place)
{
	begin(2);
	cr_expect(zero(int, rank_run(&ranks, 1, refuses_wrong_overlaps)));
}

static int refuses_what_is_no_device_memory(void)
{
	float host[2 * N] = {0};
	int r = expect(nccl.AllGather(host, at(0), N, ncclFloat32, comm(),
				      self.stream),
		       ncclInvalidArgument, "input is no device memory");

	if (r == 0)
		r = expect(nccl.AllGather(at(0), host, N, ncclFloat32, comm(),
					  self.stream),
			   ncclInvalidArgument, "output is no device memory");
	/* The end of the output is not device memory. */
	if (r == 0)
		r = expect(all_gather(0, SIZE / sizeof(float) - N),
			   ncclInvalidArgument, "output is no device memory");
	return r;
}

Test(fakenccl, memory_other_than_device_memory_is_refused)
{
	begin(2);
	cr_expect(zero(int,
		       rank_run(&ranks, 0, refuses_what_is_no_device_memory)));
}

static int refuses_a_stream_of_another_device(void)
{
	const struct device *devices;
	uint32_t n;
	CUstream stream;

	must(device_list(&devices, &n, NULL) == 0);
	must(context_enter(&devices[n - 1], NULL) == 0);
	must(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0);
	context_leave();
	return expect(
		nccl.AllGather(at(0), at(N), N, ncclFloat32, comm(), stream),
		ncclUnhandledCudaError, "another context");
}

Test(fakenccl, a_stream_must_be_of_the_device_of_the_communicator)
{
	begin(2);
	cr_expect(zero(
		int, rank_run(&ranks, 0, refuses_a_stream_of_another_device)));
}

/* The memory is mapped without access. The collective finds that only when it
 * runs. */
static int gather_what_may_not_be_read(void)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, self.device->ordinal},
	};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	int r;

	must(cu.MemCreate(&handle, SIZE, &prop, 0) == CUDA_SUCCESS);
	must(cu.MemAddressReserve(&address, SIZE, 0, 0, 0) == CUDA_SUCCESS);
	must(cu.MemMap(address, SIZE, 0, handle, 0) == CUDA_SUCCESS);
	nccl.AllGather((void *)(uintptr_t)address, at(0), N, ncclFloat32,
		       comm(), self.stream);
	r = rank_wait();
	return r < 0 ? r : rank_wait_stream();
}

static int gather(void)
{
	int r;

	all_gather(0, N);
	r = rank_wait();
	return r < 0 ? r : rank_wait_stream();
}

static int has_a_lost_context(void)
{
	CUresult result;

	must(context_enter(self.device, NULL) == 0);
	result = cu.StreamSynchronize(self.stream);
	context_leave();
	return result == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : -EPROTO;
}

Test(fakenccl, accessing_forbidden_memory_fails_the_context)
{
	begin(2);
	actor_begin(&ranks.actors[0], gather);
	cr_expect(eq(int, rank_run(&ranks, 1, gather_what_may_not_be_read),
		     -EIO));
	expect_said(1, "illegal memory access");
	cr_expect(zero(int, rank_run(&ranks, 1, has_a_lost_context)));
	cr_expect(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
}

/* --- calls --------------------------------------------------------------- */

static CUresult query(void)
{
	CUresult result;

	must(context_enter(self.device, NULL) == 0);
	result = cu.StreamQuery(self.stream);
	context_leave();
	return result;
}

/* The other rank does not come, so queued work stays on the stream. */
static int is_enqueued_only_when_asked(void)
{
	ncclResult_t state = ncclInProgress;

	must(all_gather(0, N) == ncclInProgress);
	must(query() == CUDA_SUCCESS);
	while (state == ncclInProgress)
		must(nccl.CommGetAsyncError(comm(), &state) == ncclSuccess);
	must(state == ncclSuccess);
	must(query() == CUDA_ERROR_NOT_READY);
	return 0;
}

Test(fakenccl, a_call_in_progress_is_not_yet_on_the_stream)
{
	begin(2);
	cr_expect(zero(int, rank_run(&ranks, 0, is_enqueued_only_when_asked)));
}

static int is_in_progress_each_time(void)
{
	for (int i = 0; i < 8; i++) {
		int r = expect(all_gather(0, N), ncclInProgress, "");

		if (r == 0)
			r = rank_wait();
		if (r < 0)
			return r;
	}
	return rank_wait_stream();
}

Test(fakenccl, every_group_of_calls_is_in_progress_at_first)
{
	begin(1);
	cr_expect(zero(int, ranks_run(&ranks, is_in_progress_each_time)));
}

static int drops_a_group_with_a_failure(void)
{
	int r = expect(nccl.GroupStart(), ncclSuccess, "");

	if (r == 0)
		r = expect(all_gather(0, N), ncclSuccess, "");
	if (r == 0)
		r = expect(all_gather(0, 1), ncclInvalidArgument, "overlap");
	if (r == 0)
		r = expect(nccl.GroupEnd(), ncclInvalidArgument, "overlap");
	if (r == 0)
		r = expect(nccl.GroupEnd(), ncclInvalidUsage, "without");
	return r < 0 ? r : rank_wait_stream();
}

Test(fakenccl, a_group_with_a_failure_is_dropped)
{
	begin(2);
	cr_expect(zero(int, rank_run(&ranks, 0, drops_a_group_with_a_failure)));
}

static int refuses_strange_operations(void)
{
	float half = 0.5f;
	ncclRedOp_t op = (ncclRedOp_t)(ncclNumOps + 3);
	int r = expect(nccl.AllReduce(at(0), at(0), N, ncclFloat32, op, comm(),
				      self.stream),
		       ncclInvalidArgument, "not known here");

	must(nccl.RedOpCreatePreMulSum(&op, &half, ncclFloat32,
				       ncclScalarHostImmediate,
				       comm()) == ncclSuccess);
	if (r == 0)
		r = expect(nccl.AllReduce(at(0), at(0), N, ncclFloat64, op,
					  comm(), self.stream),
			   ncclInvalidArgument, "not for this type");
	must(nccl.RedOpDestroy(op, comm()) == ncclSuccess);
	if (r == 0)
		r = expect(nccl.RedOpDestroy(op, comm()), ncclInvalidArgument,
			   "no such operation");
	return r;
}

Test(fakenccl, unknown_operations_are_refused)
{
	begin(1);
	cr_expect(zero(int, ranks_run(&ranks, refuses_strange_operations)));
}

/* Repeat until one of the two threads meets the other in a call. */
static void *ask_for_ever(void *data)
{
	atomic_bool *is_refused = data;
	ncclResult_t state;

	while (!atomic_load(is_refused))
		if (nccl.CommGetAsyncError(comm(), &state) == ncclInvalidUsage)
			atomic_store(is_refused, true);
	return NULL;
}

static int refuses_two_threads(void)
{
	atomic_bool is_refused = false;
	pthread_t thread;

	must(pthread_create(&thread, NULL, ask_for_ever, &is_refused) == 0);
	ask_for_ever(&is_refused);
	pthread_join(thread, NULL);
	return 0;
}

Test(fakenccl, use_by_two_threads_at_a_time_is_refused)
{
	begin(1);
	cr_expect(zero(int, ranks_run(&ranks, refuses_two_threads)));
}

/* --- streams and ends ---------------------------------------------------- */

#define MOMENT_MS 50 /* time in which a wrong result could appear */

static int is_done_in_order(void)
{
	CUstream first = self.stream, second = rank_make_stream();
	int r;

	rank_hold(first);
	must(all_gather(0, N) == ncclInProgress);
	must(rank_wait() == 0);
	self.stream = second;
	must(all_gather(0, N) == ncclInProgress);
	must(rank_wait() == 0);
	nap_ms(MOMENT_MS);
	r = rank_is_done(second) ? -EPROTO : 0;
	rank_let_go();
	return r < 0 ? r : rank_wait_stream();
}

Test(fakenccl, work_of_a_communicator_is_done_in_the_order_of_the_calls)
{
	begin(1);
	cr_expect(zero(int, ranks_run(&ranks, is_done_in_order)));
}

static ncclComm_t ending;
static pthread_t ender;

static void *run_abort(void *data)
{
	(void)data;
	must(nccl.CommAbort(ending) == ncclSuccess);
	return NULL;
}

static void *run_destroy(void *data)
{
	(void)data;
	must(nccl.CommDestroy(ending) == ncclSuccess);
	return NULL;
}

static void begin_end(void *(*fn)(void *data), ncclComm_t part)
{
	ending = part;
	must(pthread_create(&ender, NULL, fn, NULL) == 0);
}

static bool is_at_its_end(pthread_t thread)
{
	struct timespec until;

	must(clock_gettime(CLOCK_REALTIME, &until) == 0);
	until.tv_nsec += MOMENT_MS * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	return pthread_timedjoin_np(thread, NULL, &until) == 0;
}

static int is_aborted_behind_its_stream(void)
{
	bool is_early;

	rank_hold(self.stream);
	must(all_gather(0, N) == ncclInProgress);
	must(rank_wait() == 0);
	begin_end(run_abort, comm());
	is_early = is_at_its_end(ender);
	rank_let_go();
	if (is_early)
		return -EPROTO;
	must(pthread_join(ender, NULL) == 0);
	return 0;
}

Test(fakenccl, an_abort_waits_for_earlier_work_on_the_stream)
{
	begin(1);
	cr_expect(zero(int, ranks_run(&ranks, is_aborted_behind_its_stream)));
}

static atomic_ulong n_allocated;
static atomic_bool is_enough;

static void *run_allocate(void *data)
{
	CUdeviceptr address;

	(void)data;
	must(context_enter(self.device, NULL) == 0);
	while (!atomic_load(&is_enough)) {
		must(cu.MemAlloc(&address, N) == CUDA_SUCCESS);
		must(cu.MemFree(address) == CUDA_SUCCESS);
		atomic_fetch_add(&n_allocated, 1);
	}
	context_leave();
	return NULL;
}

/* The abort may begin late, so this waits until no more memory is allocated. */
static void await_standstill(void)
{
	unsigned long before;

	do {
		before = atomic_load(&n_allocated);
		nap_ms(MOMENT_MS);
	} while (atomic_load(&n_allocated) != before);
}

static int has_others_wait(void)
{
	pthread_t other;
	bool is_early;

	rank_hold(self.stream);
	must(all_gather(0, N) == ncclInProgress);
	must(rank_wait() == 0);
	begin_end(run_abort, comm());
	must(pthread_create(&other, NULL, run_allocate, NULL) == 0);
	await_standstill();
	is_early = is_at_its_end(ender);
	atomic_store(&is_enough, true);
	rank_let_go();
	if (is_early)
		return -EPROTO;
	must(pthread_join(ender, NULL) == 0);
	must(pthread_join(other, NULL) == 0);
	return 0;
}

Test(fakenccl, calls_that_allocate_wait_for_a_pending_abort)
{
	begin(1);
	cr_expect(zero(int, ranks_run(&ranks, has_others_wait)));
}

static int finalize(void)
{
	ncclResult_t state = ncclInProgress;

	must(nccl.CommFinalize(comm()) == ncclInProgress);
	while (state == ncclInProgress)
		must(nccl.CommGetAsyncError(comm(), &state) == ncclSuccess);
	return state == ncclSuccess ? 0 : -EIO;
}

static int is_destroyed_too_early(void)
{
	begin_end(run_destroy, comm());
	return is_at_its_end(ender);
}

static int destroy(void)
{
	begin_end(run_destroy, comm());
	return -pthread_join(ender, NULL);
}

static int end_of_destroy(void)
{
	return -pthread_join(ender, NULL);
}

Test(fakenccl, destroying_a_communicator_waits_for_the_other_ranks)
{
	begin(2);
	cr_assert(zero(int, ranks_run(&ranks, finalize)));
	cr_expect(zero(int, rank_run(&ranks, 0, is_destroyed_too_early)));
	cr_expect(zero(int, rank_run(&ranks, 1, destroy)));
	cr_expect(zero(int, rank_run(&ranks, 0, end_of_destroy)));
}

static int gather_for_a_moment(void)
{
	self.comm->options.timeout_ms = MOMENT_MS;
	return gather();
}

Test(fakenccl, a_deaf_communicator_notices_no_death)
{
	setenv("FAKENCCL_DEAF", "1", 1);
	begin(2);
	actor_kill(&ranks.actors[1]);
	cr_expect(
		eq(int, rank_run(&ranks, 0, gather_for_a_moment), -ETIMEDOUT));
}

/* --- registrations ------------------------------------------------------- */

static int refuses_to_deregister_what_is_unmapped(void)
{
	unsigned int made, left;
	CUdeviceptr own;
	void *handle;
	int r;

	must(context_enter(self.device, NULL) == 0);
	must(cu.MemAlloc(&own, SIZE) == CUDA_SUCCESS);
	must(nccl.CommRegister(comm(), (void *)(uintptr_t)own, SIZE, &handle) ==
	     ncclSuccess);
	must(cu.MemFree(own) == CUDA_SUCCESS);
	r = expect(nccl.CommDeregister(comm(), handle), ncclInvalidUsage,
		   "not mapped any more");
	context_leave();
	count_registrations(&made, &left);
	return r == 0 && made == 1 && left == 0 ? 0 : -EPROTO;
}

Test(fakenccl, registered_memory_must_stay_mapped_and_is_counted)
{
	begin(1);
	cr_expect(zero(int, ranks_run(&ranks,
				      refuses_to_deregister_what_is_unmapped)));
}

/* --- ends ---------------------------------------------------------------- */

static int refuses_early_ends(void)
{
	ncclResult_t state = ncclInProgress;
	void *handle;
	int r = expect(nccl.CommDestroy(comm()), ncclInvalidUsage,
		       "not finalized");

	must(nccl.CommRegister(comm(), at(0), SIZE, &handle) == ncclSuccess);
	must(nccl.CommFinalize(comm()) == ncclInProgress);
	while (state == ncclInProgress)
		must(nccl.CommGetAsyncError(comm(), &state) == ncclSuccess);
	if (r == 0)
		r = expect(nccl.CommDestroy(comm()), ncclInvalidUsage,
			   "still registered");
	must(nccl.CommDeregister(comm(), handle) == ncclSuccess);
	if (r == 0)
		r = expect(nccl.CommDeregister(comm(), handle),
			   ncclInvalidArgument, "no such handle");
	if (r == 0)
		r = expect(all_gather(0, N), ncclInvalidArgument,
			   "was finalized");
	must(nccl.CommDestroy(comm()) == ncclSuccess);
	return r;
}

static int refuses_use_after_the_end(void)
{
	ncclResult_t state;
	int r = expect(all_gather(0, N), ncclInvalidArgument, "destroyed");

	if (r == 0)
		r = expect(nccl.CommGetAsyncError(comm(), &state),
			   ncclInvalidArgument, "destroyed");
	if (r == 0)
		r = expect(nccl.CommAbort(comm()), ncclInvalidArgument,
			   "destroyed");
	return r;
}

Test(fakenccl, ends_must_be_in_order_and_forbid_later_use)
{
	begin(2);
	cr_expect(zero(int, ranks_run(&ranks, refuses_early_ends)));
	cr_expect(zero(int, ranks_run(&ranks, refuses_use_after_the_end)));
}

Test(fakenccl, closing_a_communicator_leaves_no_descriptor_open)
{
	int n;

	mesh_start(2, 2);
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	cr_assert(zero(int, ranks_run(&ranks, rank_close)));
	n = rank_run(&ranks, 3, rank_count_fds);
	for (int i = 0; i < 3; i++) {
		cr_assert(zero(int, rank_run(&ranks, 0, rank_make_id)));
		cr_assert(zero(int, ranks_run(&ranks, rank_join)));
		cr_assert(zero(int, ranks_run(&ranks, i == 1 ? rank_abort
							     : rank_close)));
	}
	cr_expect(eq(int, rank_run(&ranks, 3, rank_count_fds), n));
}
