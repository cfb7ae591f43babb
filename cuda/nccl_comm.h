/*
 * Communicators of NCCL: the GPUs of a world of ranks. Each set of n_shards
 * ranks shares shards, and the n_replicas sets are copies of each other (HSDP):
 * rank = replica * n_shards + shard.
 *
 * No call blocks without limit: NCCL is configured not to block, and every wait
 * for other ranks lasts at most `timeout_ms`. When a rank dies, leaves or is
 * late, all others abort and open a new communicator, with a new id and the
 * remaining ranks. Ending an NCCL communicator may wait for the device, and so
 * for streams that wait for something else, and for other ranks: that has a
 * limit too, and after it the communicator stays as it is.
 *
 * A communicator has parts, because NCCL executes the work of one of its own
 * communicators in the order of the calls, even on several streams: gathers
 * have a part of their own, so that a gather can overtake a reduction that
 * still waits for its gradients.
 *
 * Calls for one communicator come from one thread at a time, and all ranks make
 * the same calls in the same order, over all of its parts.
 *
 * A world has one id, made by any one rank, which must live until all have
 * joined; the parts are splits of it. So only one id has to be sent to other
 * nodes.
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

/* A new id. NCCL is loaded (nccl_load()'s errors). */
int nccl_id_make(uint8_t ret[NCCL_ID_SIZE], struct error *err);

struct nccl_comm_options {
	const char *name;            /* for sentences; copied */
	const struct device *device; /* borrowed */
	const uint8_t *id;           /* NCCL_ID_SIZE bytes */
	uint32_t n_shards, n_replicas, rank;
	uint32_t timeout_ms; /* of every wait for other ranks */
	/* Set by any thread: waits end with -ECANCELED. Borrowed; NULL: never
	 */
	const atomic_bool *is_cancelled;
};

struct nccl_registration {
	CUdeviceptr address;
	void *handles[NCCL_MAX_PARTS]; /* NCCL's, of the parts that move data */
};

enum nccl_stage {
	NCCL_STAGE_WORLD,      /* the world is on its way */
	NCCL_STAGE_GATHERS,    /* its first split is */
	NCCL_STAGE_REDUCTIONS, /* with replicas: its second split is */
	NCCL_STAGE_REPLICAS,   /* with replicas: its third split is */
	NCCL_STAGE_OPEN,
};

/* A part that is on its way to its end. */
struct nccl_ending {
	struct nccl_comm *comm;
	ncclComm_t part;
	struct bounded *call; /* NULL: it has ended */
};

struct nccl_comm {
	struct nccl_comm_options options; /* without id; the name is owned */
	enum nccl_stage stage;
	uint64_t deadline_ns; /* of what is under way */
	ncclComm_t world;
	ncclComm_t gathers;    /* of one replica */
	ncclComm_t reductions; /* likewise; with one replica: the world */
	ncclComm_t replicas;   /* of one shard; NULL with one replica */
	struct nccl_registration *registrations;
	uint32_t n_registrations;
	bool is_ending; /* abort or close was called */
	struct nccl_ending endings[NCCL_MAX_PARTS];
	struct error closed; /* what the thread that closes it says */
};

/*
 * Begin to open it; nccl_comm_poll() goes on with it, until it is ready. The
 * device's primary context is made if there is none. -EINVAL: a mesh that is
 * none; nccl_load()'s errors.
 */
int nccl_comm_open(const struct nccl_comm_options *options,
		   struct nccl_comm **ret, struct error *err);

#define NCCL_COMM_BUSY 1
/*
 * Go on with what is under way, and look for errors of any time: 0 (ready),
 * NCCL_COMM_BUSY, or what is the end of it, to be followed by
 * nccl_comm_abort(): -ETIMEDOUT, -ECONNABORTED (another rank has gone; or it
 * was aborted: NULL), ...
 */
int nccl_comm_poll(struct nccl_comm *comm, struct error *err);
/* The same, until it is no longer busy. */
int nccl_comm_wait(struct nccl_comm *comm, struct error *err);

/*
 * Wait until the stream has done all its work, for `timeout_ms` at most, and
 * look for errors meanwhile. The host's thread sleeps now and then; -ETIMEDOUT
 * and the others as above. Where the stream is waited for by other means
 * (events, timelines), nccl_comm_poll() is to be called now and then.
 */
int nccl_comm_wait_stream(struct nccl_comm *comm, CUstream stream,
			  struct error *err);

/*
 * Tell NCCL of a chunk of memory that will be sent from or received into; one
 * that it was told of is not registered again. This saves NCCL copies, no more:
 * where it fails the memory can be used all the same, unless nccl_comm_poll()
 * says that the communicator is at its end. -EINVAL: not within one chunk.
 */
int nccl_comm_register(struct nccl_comm *comm, CUdeviceptr address,
		       uint64_t size, struct error *err);
/* Before the memory is unmapped; work that uses it is done. No-op for memory
 * that is not registered. */
int nccl_comm_deregister(struct nccl_comm *comm, CUdeviceptr address,
			 struct error *err);

/* For a caller that calls NCCL on its parts: `result` is what NCCL returned; if
 * that is "in progress", wait until it is not. `what` names the call in errors.
 */
int nccl_comm_called(struct nccl_comm *comm, ncclResult_t result,
		     const char *what, struct error *err);

/*
 * End it in good order: all work is done, and all ranks do the same now. If
 * they do not, it is aborted, and the error says so. *comm becomes NULL, unless
 * NCCL is late.
 */
int nccl_comm_close(struct nccl_comm **comm, struct error *err);

#define NCCL_END_MS 5000
/*
 * End it at once; collectives that are on streams end, with any result. NULL
 * is fine, and is what *comm becomes. -ETIMEDOUT: NCCL has not come to an end
 * within NCCL_END_MS; then it goes on by itself, and what it knows must stay:
 * the communicator, its streams, memory that is registered. May be called again
 * to see whether it has ended; any other call says -ECONNABORTED.
 */
int nccl_comm_abort(struct nccl_comm **comm, struct error *err);
