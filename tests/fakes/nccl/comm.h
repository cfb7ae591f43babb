/*
 * A communicator: its life, and the checks at the beginning of all calls on it.
 *
 * Its handle is a plain pointer. Those that are alive are in a list, so that
 * the use of one that has ended is detected. It is freed with its last
 * collective, which may be on a stream long after an abort.
 */
#pragma once
#include "cuda/driver_api.h"
#include "tests/fakes/nccl/join.h"

#define COMM_MAX_OPS 16

struct collective;

struct registration {
	struct registration *next;
	void *address;
	size_t size;
};

struct ncclComm {
	struct ncclComm *next; /* next in the list of those alive */
	/* references of the handle, the thread, and each collective */
	atomic_uint n_refs;
	pthread_t thread;
	struct join join;
	CUcontext context;
	atomic_flag is_entered; /* set while a thread is in a call */

	atomic_int failure; /* ncclResult_t; is never reset */
	atomic_bool is_joined;
	/* number of replies "in progress" before `pending` is enqueued */
	unsigned int n_answers;
	struct collective *pending, **pending_end;
	bool is_connected[BOARD_N_KINDS]; /* for this kind of collective */
	uint64_t n_issued;                /* collectives that got a number */
	uint64_t n_enqueued; /* those of them that are on streams */
	_Atomic uint64_t n_run;
	atomic_bool is_finalizing;

	/* the split that is in progress */
	struct ncclComm *child;
	ncclComm_t *child_ret;
	uint64_t n_splits;

	/* These are for the result of a split. */
	struct ncclComm *parent; /* a reference */
	uint64_t split;
	int color, key;

	struct registration *registrations;
	struct {
		bool is_used;
		ncclDataType_t type;
		double factor;
	} ops[COMM_MAX_OPS];
};

/*
 * Begins a call. The handle must be alive, no other thread in a call on it, and
 * the environment must not demand a fault of `function`. On success, the caller
 * ends the call by comm_leave().
 */
ncclResult_t comm_enter(ncclComm_t comm, const char *function);
/* Does the same. The communicator must neither be busy nor have failed. */
ncclResult_t comm_enter_ready(ncclComm_t comm, const char *function);
void comm_leave(ncclComm_t comm);

/* Marks it as failed, for all ranks. */
void comm_fail(ncclComm_t comm, ncclResult_t result);

void comm_ref(ncclComm_t comm);
void comm_unref(ncclComm_t comm);

/* Called at the end of the communicator. */
void registrations_drop(ncclComm_t comm);

/* Called after each collective, which may be the last before a finalize. */
void comm_settle(ncclComm_t comm);
