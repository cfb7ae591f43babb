#include "tests/fakes/nccl/comm.h"
#include "tests/fakes/cuda/fake.h"
#include "tests/fakes/nccl/collective.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_ANSWERS 2 /* number of replies "in progress" after it is ready */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *comms; /* all communicators that are alive */

/* --- handles ------------------------------------------------------------- */

static void add(ncclComm_t comm)
{
	pthread_mutex_lock(&lock);
	comm->next = comms;
	comms = comm;
	pthread_mutex_unlock(&lock);
}

static void remove_handle(ncclComm_t comm)
{
	struct ncclComm **at = &comms;

	pthread_mutex_lock(&lock);
	while (*at != comm)
		at = &(*at)->next;
	*at = comm->next;
	pthread_mutex_unlock(&lock);
}

static bool is_alive(ncclComm_t comm)
{
	struct ncclComm *at;

	pthread_mutex_lock(&lock);
	for (at = comms; at && at != comm; at = at->next)
		;
	pthread_mutex_unlock(&lock);
	return at;
}

ncclResult_t comm_enter(ncclComm_t comm, const char *function)
{
	ncclResult_t result;

	if (!is_alive(comm))
		return api_fail(ncclInvalidArgument,
				"%s: no communicator, or one that was "
				"destroyed or aborted",
				function);
	if (atomic_flag_test_and_set(&comm->is_entered))
		return api_fail(ncclInvalidUsage,
				"%s: another thread is in a call on this "
				"communicator",
				function);
	result = api_fault(function);
	if (result != ncclSuccess)
		comm_leave(comm);
	return result;
}

void comm_leave(ncclComm_t comm)
{
	atomic_flag_clear(&comm->is_entered);
}

static bool is_busy(ncclComm_t comm)
{
	return !atomic_load(&comm->is_joined) || comm->n_answers > 0 ||
	       comm->pending || comm->child ||
	       (atomic_load(&comm->is_finalizing) &&
		!board_has(&comm->join.board, COUNT_FINAL, 1));
}

ncclResult_t comm_enter_ready(ncclComm_t comm, const char *function)
{
	ncclResult_t result = comm_enter(comm, function);

	if (result != ncclSuccess)
		return result;
	result = (ncclResult_t)atomic_load(&comm->failure);
	if (result == ncclSuccess && is_busy(comm))
		result = api_fail(ncclInvalidArgument,
				  "%s: the communicator is used before the "
				  "previous operation returned ncclSuccess",
				  function);
	if (result == ncclSuccess && atomic_load(&comm->is_finalizing))
		result = api_fail(ncclInvalidArgument,
				  "%s: the communicator was finalized",
				  function);
	if (result != ncclSuccess)
		comm_leave(comm);
	return result;
}

void comm_ref(ncclComm_t comm)
{
	atomic_fetch_add(&comm->n_refs, 1);
}

void comm_unref(ncclComm_t comm)
{
	if (atomic_fetch_sub(&comm->n_refs, 1) > 1)
		return;
	if (comm->parent)
		comm_unref(comm->parent);
	join_deinit(&comm->join);
	free(comm);
}

void comm_fail(ncclComm_t comm, ncclResult_t result)
{
	int none = ncclSuccess;

	atomic_compare_exchange_strong(&comm->failure, &none, (int)result);
	if (atomic_load(&comm->is_joined))
		board_leave(&comm->join.board, comm->join.rank);
}

/* --- beginning ----------------------------------------------------------- */

/* Finds the ranks with the same colour. All ranks have written theirs. */
static void find_place(ncclComm_t comm)
{
	const struct join *parent = &comm->parent->join;
	const struct seat *seats = parent->board.file->seats;

	for (uint32_t i = 0; i < parent->n_ranks; i++) {
		if (seats[i].color != comm->color)
			continue;
		comm->join.n_ranks++;
		if (seats[i].key < comm->key ||
		    (seats[i].key == comm->key && i < parent->rank))
			comm->join.rank++;
	}
	join_id_derive(&parent->id, comm->split, comm->color, &comm->join.id);
}

/* Writes colour and key, and reads those of all others. All ranks must have
 * read the previous split before, because this overwrites it. */
static ncclResult_t meet_siblings(ncclComm_t comm)
{
	const struct join *parent = &comm->parent->join;
	struct board *board = &comm->parent->join.board;
	struct seat *seat = &board->file->seats[parent->rank];
	int r = board_wait(board, COUNT_SPLIT_READ, comm->split - 1,
			   join_is_stopped, &comm->join);

	if (r == 0) {
		seat->color = comm->color;
		seat->key = comm->key;
		board_tell(board, parent->rank, COUNT_SPLIT, comm->split);
		r = board_wait(board, COUNT_SPLIT, comm->split, join_is_stopped,
			       &comm->join);
	}
	if (r == BOARD_STOPPED)
		return ncclInProgress;
	if (r > 0)
		return api_fail(ncclRemoteError, "rank %d has left", r - 1);
	find_place(comm);
	board_tell(board, parent->rank, COUNT_SPLIT_READ, comm->split);
	return ncclSuccess;
}

/* The thread of each communicator. */
static void *run(void *data)
{
	ncclComm_t comm = data;
	ncclResult_t result = ncclSuccess;

	api_delay();
	if (comm->parent)
		result = meet_siblings(comm);
	if (result == ncclSuccess)
		result = join_meet(&comm->join);
	if (result == ncclSuccess) {
		atomic_store(&comm->is_joined, true);
		join_watch(&comm->join);
	} else if (result != ncclInProgress) {
		comm_fail(comm, result);
	}
	comm_unref(comm);
	return NULL;
}

/* Returns the GPU that is current in this thread. */
static ncclResult_t find_gpu(ncclComm_t comm)
{
	if (cuCtxGetCurrent(&comm->context) != CUDA_SUCCESS || !comm->context ||
	    fake_current_device(&comm->join.gpu) != CUDA_SUCCESS)
		return api_fail(ncclUnhandledCudaError,
				"no context is current in this thread");
	return ncclSuccess;
}

static struct ncclComm *allocate(void)
{
	struct ncclComm *comm = calloc(1, sizeof(*comm));

	if (!comm) {
		api_fail(ncclSystemError, "out of memory");
		return NULL;
	}
	atomic_init(&comm->n_refs, 1);
	atomic_flag_clear(&comm->is_entered);
	comm->pending_end = &comm->pending;
	comm->n_answers = N_ANSWERS;
	if (join_init(&comm->join) == ncclSuccess)
		return comm;
	free(comm);
	return NULL;
}

/* The thread blocks all signals, since they are for the program. */
static ncclResult_t start(ncclComm_t comm)
{
	sigset_t all, old;
	int r;

	comm_ref(comm);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&comm->thread, NULL, run, comm);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0)
		return ncclSuccess;
	comm_unref(comm);
	return api_fail(ncclSystemError, "pthread_create: %s", strerror(r));
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	ncclResult_t result = api_fault("GetUniqueId");

	if (result == ncclSuccess)
		join_id_make(id);
	return result;
}

static ncclResult_t check_config(const ncclConfig_t *config)
{
	if (!config || config->magic != NCCL_CONFIG_MAGIC)
		return api_fail(ncclInvalidArgument,
				"the configuration does not begin with "
				"NCCL_CONFIG_INITIALIZER");
	if (config->blocking != 0)
		return api_fail(ncclInvalidUsage, "this double knows only "
						  "communicators that do not "
						  "block");
	return ncclSuccess;
}

static ncclResult_t init(ncclComm_t comm, int n_ranks, const ncclUniqueId *id,
			 int rank)
{
	ncclResult_t result = find_gpu(comm);

	if (result != ncclSuccess)
		return result;
	memcpy(&comm->join.id, id, sizeof(comm->join.id));
	comm->join.rank = (uint32_t)rank;
	comm->join.n_ranks = (uint32_t)n_ranks;
	if (n_ranks < 1 || n_ranks > BOARD_MAX_RANKS || rank < 0 ||
	    rank >= n_ranks)
		return api_fail(ncclInvalidArgument, "rank %d of %d", rank,
				n_ranks);
	if (comm->join.id.magic != JOIN_MAGIC)
		return api_fail(ncclInvalidArgument,
				"this is no id of ncclGetUniqueId()");
	return start(comm);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int n_ranks,
				    ncclUniqueId id, int rank,
				    ncclConfig_t *config)
{
	ncclResult_t result = api_fault("CommInitRankConfig");
	struct ncclComm *comm;

	if (result == ncclSuccess)
		result = check_config(config);
	if (result != ncclSuccess)
		return result;
	comm = allocate();
	if (!comm)
		return ncclSystemError;
	result = init(comm, n_ranks, &id, rank);
	if (result != ncclSuccess) {
		comm_unref(comm);
		return result;
	}
	add(comm);
	*ret = comm;
	return ncclInProgress;
}

static ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t *ret)
{
	struct ncclComm *child = allocate();
	ncclResult_t result;

	if (!child)
		return ncclSystemError;
	comm_ref(comm);
	child->parent = comm;
	child->split = ++comm->n_splits;
	child->color = color;
	child->key = key;
	child->context = comm->context;
	child->join.gpu = comm->join.gpu;
	result = start(child);
	if (result != ncclSuccess) {
		comm_unref(child);
		return result;
	}
	comm->child = child;
	comm->child_ret = ret;
	return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *ret,
			   ncclConfig_t *config)
{
	ncclResult_t result = comm_enter_ready(comm, "CommSplit");

	if (result != ncclSuccess)
		return result;
	if (config)
		result = check_config(config);
	if (result == ncclSuccess && color < 0)
		result = api_fail(ncclInvalidArgument, "colour %d", color);
	if (result == ncclSuccess)
		result = split(comm, color, key, ret);
	comm_leave(comm);
	return result;
}

/* --- on the way ---------------------------------------------------------- */

/* The child's handle is valid from here on, as in the real library. */
static ncclResult_t ask_child(ncclComm_t comm)
{
	struct ncclComm *child = comm->child;
	ncclResult_t failure = (ncclResult_t)atomic_load(&child->failure);

	if (failure != ncclSuccess) {
		comm_fail(comm, failure);
		return failure;
	}
	if (!atomic_load(&child->is_joined))
		return ncclInProgress;
	*comm->child_ret = child;
	comm->child = NULL;
	add(child);
	return ncclSuccess;
}

static ncclResult_t ask(ncclComm_t comm)
{
	ncclResult_t result = (ncclResult_t)atomic_load(&comm->failure);
	int r;

	if (result != ncclSuccess)
		return result;
	if (!atomic_load(&comm->is_joined))
		return ncclInProgress;
	if (comm->n_answers > 0) {
		comm->n_answers--;
		return ncclInProgress;
	}
	result = collective_connect(comm);
	if (result != ncclSuccess)
		return result;
	collective_issue(comm);
	if (comm->child)
		return ask_child(comm);
	if (!atomic_load(&comm->is_finalizing))
		return (ncclResult_t)atomic_load(&comm->failure);
	if (board_has(&comm->join.board, COUNT_FINAL, 1))
		return ncclSuccess;
	r = board_find_left(&comm->join.board, COUNT_FINAL, 1);
	if (r == 0)
		return ncclInProgress;
	comm_fail(comm, ncclRemoteError);
	return api_fail(ncclRemoteError, "rank %d has left", r - 1);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *ret)
{
	ncclResult_t result = comm_enter(comm, "CommGetAsyncError");

	if (result != ncclSuccess)
		return result;
	*ret = ask(comm);
	comm_leave(comm);
	return ncclSuccess;
}

/* --- ending -------------------------------------------------------------- */

void comm_settle(ncclComm_t comm)
{
	if (atomic_load(&comm->is_finalizing) &&
	    atomic_load(&comm->n_run) == comm->n_issued)
		board_tell(&comm->join.board, comm->join.rank, COUNT_FINAL, 1);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	ncclResult_t result = comm_enter_ready(comm, "CommFinalize");

	if (result != ncclSuccess)
		return result;
	atomic_store(&comm->is_finalizing, true);
	comm->n_answers = N_ANSWERS;
	comm_settle(comm);
	comm_leave(comm);
	return ncclInProgress;
}

static void nap(void)
{
	const struct timespec time = {.tv_nsec = 200000};

	nanosleep(&time, NULL);
}

/* The real library synchronises with its device: its kernels end when they are
 * told to, but earlier work on their streams may not. */
static void await_streams(const struct ncclComm *comm)
{
	if (atomic_load(&comm->n_run) >= comm->n_enqueued)
		return;
	fake_hold_memory(true);
	while (atomic_load(&comm->n_run) < comm->n_enqueued)
		nap();
	fake_hold_memory(false);
}

/* The real library joins a thread that serves processes of the same node. */
static void await_peers(ncclComm_t comm)
{
	const struct join *join = &comm->join;

	board_go(&comm->join.board, join->rank);
	while (!board_is_alone(&join->board, join->rank))
		nap();
}

/* Its collectives may still be on streams. They find that it has stopped. */
static void end(ncclComm_t comm)
{
	if (comm->child)
		end(comm->child);
	join_stop(&comm->join);
	pthread_join(comm->thread, NULL);
	if (atomic_load(&comm->is_joined))
		board_go(&comm->join.board, comm->join.rank);
	await_streams(comm);
	collective_drop(comm->pending);
	registrations_drop(comm);
	comm_unref(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	ncclResult_t result = comm_enter(comm, "CommDestroy");

	if (result != ncclSuccess)
		return result;
	if (!atomic_load(&comm->is_finalizing) || is_busy(comm))
		result = api_fail(ncclInvalidUsage,
				  "CommDestroy: it was not finalized, or that "
				  "is not done yet");
	else if (comm->registrations)
		result = api_fail(ncclInvalidUsage,
				  "CommDestroy: buffers are still registered");
	comm_leave(comm);
	if (result == ncclSuccess) {
		remove_handle(comm);
		await_peers(comm);
		end(comm);
	}
	return result;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	ncclResult_t result = comm_enter(comm, "CommAbort");

	if (result != ncclSuccess)
		return result;
	comm_leave(comm);
	remove_handle(comm);
	end(comm);
	return ncclSuccess;
}
