/*
 * A communicator: its life, and what all calls on it have to check first.
 *
 * Its handle is a plain pointer; those that are alive are in a list, so that
 * one that has ended is found out and not used. It is freed with its last
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
	struct ncclComm *next; /* of those alive */
	atomic_uint n_refs;    /* the handle, the thread, each collective */
	pthread_t thread;
	struct join join;
	CUcontext context;
	atomic_flag is_entered; /* by a thread, in a call */

	atomic_int failure; /* ncclResult_t; stays */
	atomic_bool is_joined;
	unsigned int n_answers; /* "in progress", before `pending` goes out */
	struct collective *pending, **pending_end;
	uint64_t n_issued;   /* collectives that have a number */
	uint64_t n_enqueued; /* of those, on streams */
	_Atomic uint64_t n_run;
	atomic_bool is_finalizing;

	/* a split that is on its way */
	struct ncclComm *child;
	ncclComm_t *child_ret;
	uint64_t n_splits;

	/* of what such a split makes */
	struct ncclComm *parent; /* referenced */
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
 * Begin a call: the handle is alive, no other thread is in a call on it, and
 * the environment wants no fault of `function`. On success comm_leave() ends
 * it.
 */
ncclResult_t comm_enter(ncclComm_t comm, const char *function);
/* The same, and it is not busy, nor has it failed. */
ncclResult_t comm_enter_ready(ncclComm_t comm, const char *function);
void comm_leave(ncclComm_t comm);

/* From now on it has failed, for all ranks. */
void comm_fail(ncclComm_t comm, ncclResult_t result);

void comm_ref(ncclComm_t comm);
void comm_unref(ncclComm_t comm);

/* With the communicator. */
void registrations_drop(ncclComm_t comm);

/* After each collective: maybe it was the last before a finalize. */
void comm_settle(ncclComm_t comm);
