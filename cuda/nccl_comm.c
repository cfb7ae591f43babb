/*
 * Opening takes two to four steps in sequence, since a communicator must be
 * ready before it is split: the world, then its parts.
 *
 * NCCL has no descriptor to wait on, so waits poll: at first without a pause,
 * because every group of calls on a non-blocking communicator is in progress
 * for some microseconds, and a sleep takes at least ten. Later a wait sleeps
 * between polls for a 32nd of the time that has passed already, and for at most
 * a millisecond.
 */
#include "cuda/nccl_comm.h"
#include "cuda/bounded.h"
#include "cuda/context.h"
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS_PER_MS  UINT64_C(1000000)
#define SPIN_NS    (100 * UINT64_C(1000))
#define MAX_NAP_NS NS_PER_MS

static void nap(uint64_t begin_ns)
{
	uint64_t passed_ns = bounded_now() - begin_ns;
	uint64_t ns = passed_ns / 32;
	struct timespec time = {0};

	if (passed_ns < SPIN_NS) {
		(void)sched_yield();
		return;
	}
	time.tv_nsec = (long)(ns < MAX_NAP_NS ? ns : MAX_NAP_NS);
	nanosleep(&time, NULL);
}

int nccl_id_make(uint8_t ret[NCCL_ID_SIZE], struct error *err)
{
	ncclUniqueId id;
	int r = nccl_load(err);

	if (r < 0)
		return r;
	r = nccl_error(err, nccl.GetUniqueId(&id),
		       "cannot make an id for NCCL");
	if (r < 0)
		return r;
	memcpy(ret, &id, sizeof(id));
	return 0;
}

/* --- waiting ------------------------------------------------------------- */

static uint32_t world_size(const struct nccl_comm_options *options)
{
	return options->n_shards * options->n_replicas;
}

static void begin_deadline(struct nccl_comm *comm)
{
	comm->deadline_ns = bounded_until(comm->options.timeout_ms);
}

static int late(const struct nccl_comm *comm, struct error *err)
{
	const struct nccl_comm_options *options = &comm->options;

	if (comm->stage < NCCL_STAGE_OPEN)
		return error_set(
			err, -ETIMEDOUT,
			"communicator '%s': rank %u waited %u ms for all %u "
			"ranks to connect; one has not joined, or cannot reach "
			"the rank that made the id (set NCCL_SOCKET_IFNAME to "
			"the network to use)",
			options->name, options->rank, options->timeout_ms,
			world_size(options));
	return error_set(err, -ETIMEDOUT,
			 "communicator '%s': rank %u waited %u ms for the "
			 "other ranks; one is late, or makes other calls",
			 options->name, options->rank, options->timeout_ms);
}

/* Returns 0, NCCL_COMM_BUSY, or the error of the part. */
static int ask(const struct nccl_comm *comm, ncclComm_t part, struct error *err)
{
	ncclResult_t state, result = nccl.CommGetAsyncError(part, &state);

	if (result == ncclSuccess)
		result = state;
	if (result == ncclInProgress)
		return NCCL_COMM_BUSY;
	return nccl_error(err, result, "communicator '%s', rank %u",
			  comm->options.name, comm->options.rank);
}

static int check_deadline(const struct nccl_comm *comm, struct error *err)
{
	if (comm->options.is_cancelled &&
	    atomic_load(comm->options.is_cancelled))
		return error_set(err, -ECANCELED, "communicator '%s' has ended",
				 comm->options.name);
	return bounded_now() < comm->deadline_ns ? NCCL_COMM_BUSY
						 : late(comm, err);
}

/* Waits until the part has finished the call that was just made on it. */
static int await_part(const struct nccl_comm *comm, ncclComm_t part,
		      struct error *err)
{
	uint64_t begin = bounded_now();
	int r;

	for (;;) {
		r = ask(comm, part, err);
		if (r == NCCL_COMM_BUSY)
			r = check_deadline(comm, err);
		if (r != NCCL_COMM_BUSY)
			return r;
		nap(begin);
	}
}

int nccl_comm_wait(struct nccl_comm *comm, struct error *err)
{
	uint64_t begin = bounded_now();
	int r;

	for (;;) {
		r = nccl_comm_poll(comm, err);
		if (r != NCCL_COMM_BUSY)
			return r;
		nap(begin);
	}
}

int nccl_comm_called(struct nccl_comm *comm, ncclResult_t result,
		     const char *what, struct error *err)
{
	if (result == ncclInProgress) {
		begin_deadline(comm);
		return nccl_comm_wait(comm, err);
	}
	return nccl_error(err, result, "communicator '%s', rank %u: %s",
			  comm->options.name, comm->options.rank, what);
}

/* Returns 0, NCCL_COMM_BUSY if the stream has work to do, or an error. */
static int ask_stream(CUstream stream, struct error *err)
{
	CUresult result = cu.StreamQuery(stream);

	if (result == CUDA_ERROR_NOT_READY)
		return NCCL_COMM_BUSY;
	return driver_error(err, result, "cannot wait for a collective");
}

/* A failed collective reports its error before its stream continues. So the
 * stream is queried before the communicator is polled. */
static int wait_stream(struct nccl_comm *comm, CUstream stream,
		       struct error *err)
{
	uint64_t begin = bounded_now();

	begin_deadline(comm);
	for (;;) {
		int streamed = ask_stream(stream, err);
		int polled = nccl_comm_poll(comm, err);

		if (polled < 0)
			return polled;
		if (streamed < 0 || (streamed == 0 && polled != NCCL_COMM_BUSY))
			return streamed;
		polled = check_deadline(comm, err);
		if (polled < 0)
			return polled;
		nap(begin);
	}
}

int nccl_comm_wait_stream(struct nccl_comm *comm, CUstream stream,
			  struct error *err)
{
	int r = nccl_comm_wait(comm, err);

	if (r == 0)
		r = context_enter(comm->options.device, err);
	if (r < 0)
		return r;
	r = wait_stream(comm, stream, err);
	context_leave();
	return r;
}

/* --- opening ------------------------------------------------------------- */

static int check_mesh(const struct nccl_comm_options *options,
		      struct error *err)
{
	if (options->n_shards > 0 && options->n_shards <= NCCL_MAX_RANKS &&
	    options->n_replicas > 0 &&
	    options->n_replicas <= NCCL_MAX_RANKS / options->n_shards &&
	    options->rank < world_size(options))
		return 0;
	return error_set(
		err, -EINVAL,
		"communicator '%s': rank %u in a mesh of %u shards and %u "
		"replicas; ranks count from 0, and a mesh has 1 to %d",
		options->name, options->rank, options->n_shards,
		options->n_replicas, NCCL_MAX_RANKS);
}

static int begun(struct nccl_comm *comm, ncclResult_t result, struct error *err)
{
	begin_deadline(comm);
	if (result == ncclInProgress)
		return 0;
	return nccl_error(err, result,
			  "communicator '%s': cannot open as rank %u of %u",
			  comm->options.name, comm->options.rank,
			  world_size(&comm->options));
}

static int begin_world(struct nccl_comm *comm, const uint8_t *bytes,
		       struct error *err)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;

	config.blocking = 0;
	memcpy(&id, bytes, sizeof(id));
	return begun(comm,
		     nccl.CommInitRankConfig(
			     &comm->world, (int)world_size(&comm->options), id,
			     (int)comm->options.rank, &config),
		     err);
}

static struct nccl_comm *comm_new(const struct nccl_comm_options *options)
{
	struct nccl_comm *comm = calloc(1, sizeof(*comm));
	char *name = strdup(options->name);

	if (!comm || !name) {
		free(comm);
		free(name);
		return NULL;
	}
	comm->options = *options;
	comm->options.id = NULL;
	comm->options.name = name;
	return comm;
}

static void comm_free(struct nccl_comm *comm)
{
	free((char *)comm->options.name);
	free(comm->registrations);
	free(comm);
}

static int open_new(const struct nccl_comm_options *options,
		    struct nccl_comm **ret, struct error *err)
{
	struct nccl_comm *comm = comm_new(options);
	int r;

	if (!comm)
		return error_nomem(err, "a communicator");
	r = begin_world(comm, options->id, err);
	if (r < 0)
		(void)nccl_comm_abort(&comm, NULL);
	*ret = comm;
	return r;
}

int nccl_comm_open(const struct nccl_comm_options *options,
		   struct nccl_comm **ret, struct error *err)
{
	int r = check_mesh(options, err);

	*ret = NULL;
	if (r == 0)
		r = nccl_load(err);
	if (r == 0)
		r = context_enter(options->device, err);
	if (r < 0)
		return r;
	r = open_new(options, ret, err);
	context_leave();
	return r;
}

/* Begins a split. The ranks of a part have the same order as in the world. */
static int begin_split(struct nccl_comm *comm, enum nccl_stage stage,
		       ncclComm_t *part, struct error *err)
{
	int shard = (int)(comm->options.rank % comm->options.n_shards);
	int replica = (int)(comm->options.rank / comm->options.n_shards);
	bool is_of_replicas = stage == NCCL_STAGE_REPLICAS;
	ncclResult_t result;
	int r = context_enter(comm->options.device, err);

	if (r < 0)
		return r;
	result = nccl.CommSplit(comm->world, is_of_replicas ? shard : replica,
				is_of_replicas ? replica : shard, part, NULL);
	comm->stage = stage;
	r = begun(comm, result, err);
	context_leave();
	return r < 0 ? r : NCCL_COMM_BUSY;
}

/* Continues after the world has finished a step of opening. */
static int next_stage(struct nccl_comm *comm, struct error *err)
{
	switch (comm->stage) {
	case NCCL_STAGE_WORLD:
		return begin_split(comm, NCCL_STAGE_GATHERS, &comm->gathers,
				   err);
	case NCCL_STAGE_GATHERS:
		if (comm->options.n_replicas > 1)
			return begin_split(comm, NCCL_STAGE_REDUCTIONS,
					   &comm->reductions, err);
		comm->reductions = comm->world;
		break;
	case NCCL_STAGE_REDUCTIONS:
		return begin_split(comm, NCCL_STAGE_REPLICAS, &comm->replicas,
				   err);
	case NCCL_STAGE_REPLICAS:
	case NCCL_STAGE_OPEN:
		break;
	}
	comm->stage = NCCL_STAGE_OPEN;
	return 0;
}

/* Lists the open parts: first those that move data, and last the world, which
 * can be one of them. */
static uint32_t list_parts(struct nccl_comm *comm,
			   ncclComm_t *ret[NCCL_MAX_PARTS])
{
	uint32_t n = 0;

	if (comm->gathers)
		ret[n++] = &comm->gathers;
	if (comm->replicas)
		ret[n++] = &comm->replicas;
	if (comm->reductions && comm->reductions != comm->world)
		ret[n++] = &comm->reductions;
	if (comm->world)
		ret[n++] = &comm->world;
	return n;
}

/* The world is checked first, because the part of a split exists only when the
 * world is ready. */
static int poll_parts(struct nccl_comm *comm, struct error *err)
{
	ncclComm_t *parts[NCCL_MAX_PARTS];
	int r = ask(comm, comm->world, err);
	uint32_t n;

	if (r == 0)
		r = next_stage(comm, err);
	if (r != 0)
		return r;
	n = list_parts(comm, parts);
	for (uint32_t i = 0; i + 1 < n && r == 0; i++)
		r = ask(comm, *parts[i], err);
	return r;
}

int nccl_comm_poll(struct nccl_comm *comm, struct error *err)
{
	int r;

	if (!comm || comm->is_ending)
		return error_set(err, -ECONNABORTED,
				 "the communicator was aborted");
	r = poll_parts(comm, err);
	return r == NCCL_COMM_BUSY ? check_deadline(comm, err) : r;
}

/* --- registrations ------------------------------------------------------- */

static struct nccl_registration *find(struct nccl_comm *comm,
				      CUdeviceptr address)
{
	if (!comm || comm->is_ending)
		return NULL;
	for (uint32_t i = 0; i < comm->n_registrations; i++)
		if (comm->registrations[i].address == address)
			return &comm->registrations[i];
	return NULL;
}

/* Lists the parts that move data: any chunk may contain whole parameters and
 * gradients. */
static uint32_t list_movers(struct nccl_comm *comm,
			    ncclComm_t *ret[NCCL_MAX_PARTS])
{
	uint32_t n = list_parts(comm, ret);

	return comm->reductions == comm->world ? n : n - 1;
}

/* Deregisters from the first `n` parts, and returns the first failure. */
static ncclResult_t deregister_parts(struct nccl_comm *comm,
				     const struct nccl_registration *it,
				     uint32_t n)
{
	ncclComm_t *parts[NCCL_MAX_PARTS];
	ncclResult_t first = ncclSuccess, result;

	(void)list_movers(comm, parts);
	for (uint32_t i = 0; i < n; i++) {
		result = nccl.CommDeregister(*parts[i], it->handles[i]);
		if (first == ncclSuccess)
			first = result;
	}
	return first;
}

static ncclResult_t register_parts(struct nccl_comm *comm, CUdeviceptr address,
				   uint64_t size, struct nccl_registration *ret)
{
	ncclComm_t *parts[NCCL_MAX_PARTS];
	uint32_t n = list_movers(comm, parts);

	*ret = (struct nccl_registration){.address = address};
	for (uint32_t i = 0; i < n; i++) {
		ncclResult_t result =
			nccl.CommRegister(*parts[i], (void *)(uintptr_t)address,
					  size, &ret->handles[i]);

		if (result != ncclSuccess) {
			(void)deregister_parts(comm, ret, i);
			return result;
		}
	}
	return ncclSuccess;
}

int nccl_comm_register(struct nccl_comm *comm, CUdeviceptr address,
		       uint64_t size, struct error *err)
{
	struct nccl_registration *grown;
	ncclResult_t result;
	int r = nccl_comm_wait(comm, err);

	if (r < 0 || find(comm, address))
		return r;
	grown = reallocarray(comm->registrations, comm->n_registrations + 1,
			     sizeof(*grown));
	if (!grown)
		return error_nomem(err, "a registration with NCCL");
	comm->registrations = grown;
	r = context_enter(comm->options.device, err);
	if (r < 0)
		return r;
	result = register_parts(comm, address, size,
				&grown[comm->n_registrations]);
	context_leave();
	if (result == ncclSuccess)
		comm->n_registrations++;
	return nccl_error(
		err, result,
		"communicator '%s': cannot register %llu bytes at 0x%llx",
		comm->options.name, (unsigned long long)size, address);
}

static int drop_registration(struct nccl_comm *comm,
			     struct nccl_registration *registration,
			     struct error *err)
{
	ncclComm_t *parts[NCCL_MAX_PARTS];
	CUdeviceptr address = registration->address;
	ncclResult_t result =
		deregister_parts(comm, registration, list_movers(comm, parts));

	*registration = comm->registrations[--comm->n_registrations];
	return nccl_error(err, result,
			  "communicator '%s': cannot deregister 0x%llx",
			  comm->options.name, address);
}

int nccl_comm_deregister(struct nccl_comm *comm, CUdeviceptr address,
			 struct error *err)
{
	struct nccl_registration *registration = find(comm, address);
	int r;

	if (!registration)
		return 0;
	r = context_enter(comm->options.device, err);
	if (r < 0)
		return r;
	r = drop_registration(comm, registration, err);
	context_leave();
	return r;
}

/* --- ending -------------------------------------------------------------- */

/*
 * ncclCommAbort() and ncclCommDestroy() wait for the work that the device got
 * before the communicator's kernels, such as waits for events of other streams,
 * and for processes of this node that are connected with this one. So both are
 * called on threads.
 */
static void begin_ending(struct nccl_ending *ending, void (*fn)(void *data))
{
	/* An unlimited wait is better than a communicator that is never
	 * ended. */
	if (bounded_start(fn, ending, &ending->call, NULL) < 0) {
		ending->call = NULL;
		fn(ending);
	}
}

/* Returns whether all of them have ended. */
static bool await_endings(struct nccl_comm *comm, uint64_t until_ns)
{
	bool have_ended = true;

	for (uint32_t i = 0; i < NCCL_MAX_PARTS; i++) {
		struct nccl_ending *ending = &comm->endings[i];

		if (ending->call && !bounded_await(ending->call, until_ns))
			have_ended = false;
		else
			ending->call = NULL;
	}
	return have_ended;
}

static int say_stuck(const struct nccl_comm *comm, struct error *err)
{
	char text[DEVICE_TEXT_SIZE];

	device_format(&comm->options.device->uuid, text);
	return error_set(
		err, -ETIMEDOUT,
		"communicator '%s': NCCL has not released %s within %u ms: a "
		"stream waits for work that has not finished, or another rank "
		"has not left; its memory stays until this process ends",
		comm->options.name, text, NCCL_END_MS);
}

static void run_abort(void *data)
{
	struct nccl_ending *ending = data;
	const struct device *device = ending->comm->options.device;
	bool has_context = context_enter(device, NULL) == 0;

	nccl.CommAbort(ending->part);
	if (has_context)
		context_leave();
}

static void begin_abort(struct nccl_comm *comm, uint32_t i, ncclComm_t *part)
{
	comm->endings[i] = (struct nccl_ending){.comm = comm, .part = *part};
	*part = NULL;
	begin_ending(&comm->endings[i], run_abort);
}

/* While the world is being split, NCCL may still write the part's handle, so
 * the world is aborted first. Then all parts are aborted in parallel, so that
 * one that waits for its device does not keep another from ending its
 * kernels. */
static int abort_parts(struct nccl_comm *comm, uint64_t until_ns)
{
	ncclComm_t *parts[NCCL_MAX_PARTS];
	uint32_t n;

	if (comm->stage < NCCL_STAGE_OPEN && comm->world) {
		begin_abort(comm, 0, &comm->world);
		if (!await_endings(comm, until_ns))
			return -ETIMEDOUT;
	}
	if (comm->reductions == comm->world)
		comm->reductions = NULL;
	n = list_parts(comm, parts);
	for (uint32_t i = 0; i < n; i++)
		begin_abort(comm, i, parts[i]);
	return await_endings(comm, until_ns) ? 0 : -ETIMEDOUT;
}

int nccl_comm_abort(struct nccl_comm **ret, struct error *err)
{
	struct nccl_comm *comm = *ret;
	uint64_t until_ns = bounded_until(NCCL_END_MS);

	if (!comm)
		return 0;
	comm->is_ending = true;
	if (!await_endings(comm, until_ns) || abort_parts(comm, until_ns) < 0)
		return say_stuck(comm, err);
	comm_free(comm);
	*ret = NULL;
	return 0;
}

static int close_part(const struct nccl_comm *comm, ncclComm_t *part,
		      struct error *err)
{
	ncclResult_t result = nccl.CommFinalize(*part);
	int r;

	if (result == ncclInProgress)
		r = await_part(comm, *part, err);
	else
		r = nccl_error(err, result, "finalize");
	if (r == 0)
		r = nccl_error(err, nccl.CommDestroy(*part), "cannot destroy");
	if (r == 0)
		*part = NULL;
	return r;
}

/* Closes the parts before the communicator from which they were split. */
static int close_parts(struct nccl_comm *comm, struct error *err)
{
	ncclComm_t *parts[NCCL_MAX_PARTS];
	uint32_t n;
	int r = 0;

	while (r == 0 && comm->n_registrations > 0)
		r = drop_registration(comm, comm->registrations, err);
	n = list_parts(comm, parts);
	if (comm->reductions == comm->world)
		comm->reductions = NULL;
	for (uint32_t i = 0; i < n && r == 0; i++)
		r = close_part(comm, parts[i], err);
	return r;
}

static void run_close(void *data)
{
	struct nccl_ending *ending = data;
	struct nccl_comm *comm = ending->comm;
	struct error *err = &comm->closed;

	err->code = context_enter(comm->options.device, err);
	if (err->code < 0)
		return;
	err->code = close_parts(comm, err);
	context_leave();
}

int nccl_comm_close(struct nccl_comm **ret, struct error *err)
{
	struct nccl_comm *comm = *ret;
	struct error stuck;
	int r = nccl_comm_wait(comm, err);

	if (r == 0) {
		begin_deadline(comm);
		comm->is_ending = true;
		comm->endings[0] = (struct nccl_ending){.comm = comm};
		begin_ending(&comm->endings[0], run_close);
		if (!await_endings(comm,
				   comm->deadline_ns + NCCL_END_MS * NS_PER_MS))
			return say_stuck(comm, err);
		r = comm->closed.code;
		if (r < 0 && err)
			*err = comm->closed;
	}
	if (nccl_comm_abort(ret, &stuck) < 0)
		return error_set(err, -ETIMEDOUT, "%s", stuck.msg);
	return r < 0 ? error_wrap(err, r, "close") : 0;
}
