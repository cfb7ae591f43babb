/*
 * A communicator connects the GPUs of a world of ranks by NCCL. Each set of
 * n_shards ranks shares shards, and the n_replicas sets are copies of each
 * other (HSDP): rank = replica * n_shards + shard.
 *
 * No call blocks without limit: NCCL is configured as non-blocking, and every
 * wait for other ranks lasts at most `timeout_ms`. When a rank dies, leaves or
 * is late, all others abort and open a new communicator, with a new id and the
 * remaining ranks. Ending an NCCL communicator may wait for other ranks and for
 * the device, and so for streams that wait for something else. This wait has a
 * limit, too; after it the communicator is left as it is.
 *
 * A communicator has several parts, because NCCL executes the work of one of
 * its own communicators in the order of the calls, even on several streams.
 * Gathers have a part of their own, so that a gather can overtake a reduction
 * that still waits for its gradients.
 *
 * Calls for one communicator come from one thread at a time, and all ranks make
 * the same calls in the same order, over all of its parts.
 *
 * A world has one id. Any one rank makes it, and must live until all have
 * joined; the parts are splits of the world. So only one id has to be sent to
 * other nodes.
 */
#pragma once
#include "cuda/device.h"
#include "cuda/nccl.h"
#include "proto/error.h"
#include <stdatomic.h>

#define NCCL_ID_SIZE   NCCL_UNIQUE_ID_BYTES
#define NCCL_MAX_RANKS 4096
#define NCCL_MAX_PARTS 4

struct bounded;

/* Makes a new id. It loads NCCL, and fails like nccl_load(). */
int nccl_id_make(uint8_t ret[NCCL_ID_SIZE], struct error *err);

struct nccl_comm_options {
	const char *name;            /* for error sentences; copied */
	const struct device *device; /* borrowed */
	const uint8_t *id;           /* NCCL_ID_SIZE bytes */
	uint32_t n_shards, n_replicas, rank;
	uint32_t timeout_ms; /* limit of each wait for other ranks */
	/* Any thread can set this; waits then end with -ECANCELED. Borrowed;
	 * may be NULL. */
	const atomic_bool *is_cancelled;
};

struct nccl_registration {
	CUdeviceptr address;
	/* NCCL's handles, for each part that moves data */
	void *handles[NCCL_MAX_PARTS];
};

enum nccl_stage {
	NCCL_STAGE_WORLD,      /* the world is being opened */
	NCCL_STAGE_GATHERS,    /* the gathers are being split off */
	NCCL_STAGE_REDUCTIONS, /* with replicas: likewise the reductions */
	NCCL_STAGE_REPLICAS,   /* with replicas: likewise the replicas */
	NCCL_STAGE_OPEN,
};

/* A part that is being ended. */
struct nccl_ending {
	struct nccl_comm *comm;
	ncclComm_t part;
	struct bounded *call; /* NULL if it has ended */
};

struct nccl_comm {
	/* without the id; the name is owned */
	struct nccl_comm_options options;
	enum nccl_stage stage;
	uint64_t deadline_ns; /* time limit of the current step */
	ncclComm_t world;
	ncclComm_t gathers; /* ranks of one replica */
	/* ranks of one replica; the world if there is only one replica */
	ncclComm_t reductions;
	/* ranks of one shard; NULL if there is only one replica */
	ncclComm_t replicas;
	struct nccl_registration *registrations;
	uint32_t n_registrations;
	bool is_ending; /* abort or close was called */
	struct nccl_ending endings[NCCL_MAX_PARTS];
	struct error closed; /* result of the thread that closes it */
};

/*
 * Begins to open a communicator; nccl_comm_poll() continues until it is ready.
 * The device's primary context is made if there is none. Returns -EINVAL if the
 * mesh is invalid, or fails like nccl_load().
 */
int nccl_comm_open(const struct nccl_comm_options *options,
		   struct nccl_comm **ret, struct error *err);

#define NCCL_COMM_BUSY 1
/*
 * Continues what is under way, and looks for errors. Returns 0 if the
 * communicator is ready, NCCL_COMM_BUSY, or an error after which the caller
 * calls nccl_comm_abort(): -ETIMEDOUT, -ECONNABORTED (another rank has gone, or
 * the communicator was aborted, or it is NULL), ...
 */
int nccl_comm_poll(struct nccl_comm *comm, struct error *err);
/* Polls until the communicator is no longer busy. */
int nccl_comm_wait(struct nccl_comm *comm, struct error *err);

/*
 * Waits until the stream has done all its work, for `timeout_ms` at most, and
 * looks for errors meanwhile. The thread sleeps between polls. Returns
 * -ETIMEDOUT or an error of nccl_comm_poll(). A caller that waits for the
 * stream by other means (events, timelines) must call nccl_comm_poll() now and
 * then.
 */
int nccl_comm_wait_stream(struct nccl_comm *comm, CUstream stream,
			  struct error *err);

/*
 * Registers a chunk of memory that will be sent from or received into, if it is
 * not registered yet. This only saves copies of NCCL: if it fails, the memory
 * can be used even so, unless nccl_comm_poll() reports an error. Returns
 * -EINVAL if the memory is not within one chunk.
 */
int nccl_comm_register(struct nccl_comm *comm, CUdeviceptr address,
		       uint64_t size, struct error *err);
/* Deregisters memory before it is unmapped. The work that uses it must be
 * complete. It does nothing if the memory is not registered. */
int nccl_comm_deregister(struct nccl_comm *comm, CUdeviceptr address,
			 struct error *err);

/* Checks the result of a call that the caller made on a part: if `result` is
 * "in progress", it waits until the call is finished. `what` names the call in
 * errors. */
int nccl_comm_called(struct nccl_comm *comm, ncclResult_t result,
		     const char *what, struct error *err);

/*
 * Closes the communicator. All work must be complete, and all ranks must call
 * this at the same time. If they do not, it is aborted, and the error says so.
 * *comm becomes NULL, unless NCCL is late.
 */
int nccl_comm_close(struct nccl_comm **comm, struct error *err);

#define NCCL_END_MS 5000
/*
 * Aborts the communicator. Collectives on streams end, with any result. *comm
 * may be NULL, and becomes NULL. Returns -ETIMEDOUT if NCCL has not ended
 * within NCCL_END_MS. The end then continues on its own, and what NCCL uses
 * must stay: the communicator, its streams, and registered memory. The caller
 * may call this again to see whether it has ended; all other calls return
 * -ECONNABORTED.
 */
int nccl_comm_abort(struct nccl_comm **comm, struct error *err);
