/*
 * Collectives of libfsdp: communicators, groups, gathers, reductions. fsdp.h
 * includes this header and describes the conventions.
 *
 * Parameters are sharded as in FSDP: every rank keeps a shard of each
 * parameter, an *unshard* gathers the whole parameters for a while, and
 * gradients are summed and split into shards. The broker keeps the memory and
 * plans which rank has which part. A limiter bounds how much memory is used for
 * whole parameters at a time. The ranks do the work, or fsdp-worker does (enum
 * fsdp_executor); all ranks of a node share one whole copy.
 *
 * Ranks are processes (or threads with a connection each) that join a
 * *communicator* by name. All ranks register the same *groups* of parameters
 * (for example, layers) in the same order, and call unshard and reduce in the
 * same order. Calls return at once unless their description says that they
 * wait: they start work, and fsdp_wait() waits for it.
 *
 *     fsdp_comm_join, fsdp_group_register
 *     every step:
 *         forward   fsdp_unshard, fsdp_wait, fsdp_param ..., fsdp_reshard
 *         backward  the same, and fsdp_input, fsdp_input_data ...,
 *                   fsdp_reduce, fsdp_wait
 *         update    fsdp_shard: write `next` from `current` and `grad`
 *         fsdp_commit, fsdp_wait
 *
 * If a rank dies, leaves or is late, or if the worker dies, the communicator
 * has failed: every call on it, and every wait for it, returns -ECONNABORTED
 * with a message that names the process and the cause. Then call
 * fsdp_comm_leave() and join the name again: the groups have the contents of
 * the last step that all ranks committed. If the broker dies, the communicator
 * fails, too, except on host memory where the ranks do all work alone: they
 * continue while the broker is restarted (docs/fsdp.md).
 *
 * When the broker ends a run on devices, a thread of the library aborts NCCL
 * within some 0.1 s, so that streams which wait for other ranks go on. What
 * they compute after that is undefined, and cannot be committed.
 *
 * The design follows PyTorch: parameter groups, sharding, divide factors and
 * reduction are those of FSDP2 (torch/distributed/fsdp/_fully_shard), and the
 * limiter is that of FSDP1. docs/fsdp.md lists every difference.
 *
 * On devices (fsdp_comm_options.device) each rank has one GPU, and NCCL moves
 * the bytes on streams of the library. The calls that end in _on order them
 * with streams of the caller. All ranks must issue their unshards and
 * reductions in one common order, because NCCL executes them in one order.
 *
 * The handles of a communicator and of its groups may be used by one thread at
 * a time; two threads may use two communicators of one connection. Their memory
 * is not mapped in a forked child.
 *
 * The first call in which ranks work together without the broker allocates the
 * memory that they share for this: 1 MiB, and 2.1 MiB for each rank, charged to
 * the user who made the communicator. -EDQUOT: this exceeds the quota of that
 * user; the call has had no effect, and can be repeated.
 */
#pragma once
#include "fsdp.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fsdp_comm;  /* this process as one rank of a communicator */
struct fsdp_group; /* parameters that are unsharded and reduced together */

enum fsdp_limiter {
	/* At most `limit` groups and `limit_bytes` are whole or being gathered;
	 * a group that is larger than `limit_bytes` is admitted alone. */
	FSDP_LIMITER_WINDOW = 0,
	/* The limiter of FSDP1: a queue of free events, of which each unshard
	 * takes at most one. */
	FSDP_LIMITER_FSDP1 = 1,
};

/*
 * The executor: the process that moves and adds the bytes.
 */
enum fsdp_executor {
	/* The ranks. The work makes progress only in calls of a rank; on
	 * devices, streams order it. On host memory, fsdp-worker still gathers
	 * with FSDP_LIMITER_FSDP1, and reduces if n_inputs is above 31. */
	FSDP_EXECUTOR_RANK = 0,
	/* fsdp-worker. The work makes progress without calls of the ranks. On
	 * devices, ranks then need no NCCL, and no CUDA context until they ask
	 * for an address; a call with a stream waits for the stream on the
	 * host, and the work has finished when its wait returns. */
	FSDP_EXECUTOR_WORKER = 1,
};

/* Whether memory is registered with NCCL, on devices where the ranks are the
 * executors. */
enum fsdp_memory {
	FSDP_MEMORY_DEFAULT = 0, /* not registered: NCCL may copy it */
	/* Each chunk is registered once (ncclCommRegister()), before its first
	 * use, so that NCCL avoids copies where it can. If NCCL refuses, the
	 * communicator fails. */
	FSDP_MEMORY_REGISTERED = 1,
};

struct fsdp_comm_options {
	size_t struct_size;
	/* Permissions of the groups' memory, which all ranks must be able to
	 * write. Mode 0: 0600, and the gid is ignored. */
	struct fsdp_access access;
	/* The number of ranks in one shard mesh, a divisor of n_ranks; 0: all.
	 * With several meshes (HSDP), each mesh holds a replica of all shards:
	 * rank = replica * n_shards + shard. */
	uint32_t n_shards;
	/* How late other ranks may be, in joining and in every collective; 0:
	 * 60,000. */
	int32_t timeout_ms;
	/* How long groups are kept when the communicator has no rank; 0:
	 * 600,000. */
	uint64_t ttl_ms;
	enum fsdp_limiter limiter;
	uint32_t limit;       /* groups; 0: 2 */
	uint64_t limit_bytes; /* 0: no limit of bytes */
	/* The number of gradient inputs that this rank may have at a time; 0:
	 * 1. With more, backward can continue while inputs are reduced. */
	uint32_t n_inputs;
	/* The device of this rank. NULL or all 0: the communicator is on host
	 * memory, for all ranks. */
	const struct fsdp_device *device;
	/* For communicators on devices that span nodes: the number of ranks on
	 * this node (0: all), and the common NCCL id (FSDP_NCCL_ID_SIZE bytes;
	 * NULL: rank 0 makes it, and this node's broker distributes it). */
	uint32_t n_local;
	const uint8_t *nccl_id;
	enum fsdp_executor executor; /* the same for all ranks */
	enum fsdp_memory memory;     /* on devices; the same for all ranks */
};

#define FSDP_NCCL_ID_SIZE 128

/*
 * Makes a new NCCL id, for one run of a communicator that spans nodes. Call it
 * on the node of rank 0, in a process that lives until all ranks have joined.
 * The job must distribute the id to the other ranks (by torchrun's store,
 * Slurm, MPI, or a file). -ENODEV: there is no NCCL, or no driver. -ENOSYS: the
 * version of one of them is not supported.
 */
FSDP_API int fsdp_nccl_id(uint8_t ret[FSDP_NCCL_ID_SIZE]);

/*
 * Joins as `rank` (from 0) of `n_ranks` (at most FSDP_MAX_RANKS), and waits
 * until all ranks have joined. All ranks must give the same options. `options`
 * may be NULL. -EEXIST: this rank has already joined (the message names its
 * process). -EINVAL: other ranks joined, or the kept groups were made, with
 * other numbers of ranks or shards. -ETIMEDOUT: a rank has not joined within
 * options.timeout_ms (the message names it). -ECONNABORTED: a rank that had
 * joined has died or left; join again. -EACCES: the caller may not write the
 * groups' memory.
 */
FSDP_API int fsdp_comm_join(struct fsdp_client *client, const char *name,
			    uint32_t n_ranks, uint32_t rank,
			    const struct fsdp_comm_options *options,
			    struct fsdp_comm **ret);

/* Returns the last step that all ranks committed; 0 before the first commit. */
FSDP_API uint64_t fsdp_comm_step(const struct fsdp_comm *comm);

/*
 * Leaves the communicator, and frees the handle and its groups; all pointers
 * into them become invalid. Leave when all work is complete: once a rank has
 * left, the communicator fails for ranks that continue. The broker keeps the
 * groups for ttl_ms. `comm` may be NULL.
 *
 * On devices it waits for the library's streams, which may wait for the
 * caller's, up to the time-out of the communicator. If fsdp-worker does the
 * work, and the stream of a commit has not written the shards yet, it waits for
 * all work of this process on the device. -ETIMEDOUT: they are still working;
 * the rank has left, but its memory stays held until fsdp_close(). Gradients
 * that were handed in with a stream stay held until it has written them.
 */
FSDP_API int fsdp_comm_leave(struct fsdp_comm *comm);

/*
 * Waits until all ranks have entered this barrier. Writes to memory that a rank
 * made before the barrier are visible to all ranks after it; streams are not
 * ordered. It makes no system call unless the rank has to sleep. -ETIMEDOUT: a
 * rank has not entered the barrier yet (the message names it); this rank has,
 * and its next call waits for the same barrier. -ECONNABORTED: a rank has died,
 * has left, or is later than the communicator's time-out. -EOPNOTSUPP: the
 * ranks are on several nodes.
 */
FSDP_API int fsdp_barrier(struct fsdp_comm *comm, int32_t timeout_ms);

/* Removes a communicator with its groups. -EBUSY: a rank has not left it.
 * -ENOENT: there is no such communicator. */
FSDP_API int fsdp_comm_remove(struct fsdp_client *client, const char *name);

#define FSDP_MAX_RANKS  64
#define FSDP_MAX_PARAMS 1024

struct fsdp_param_spec {
	size_t struct_size;
	const char *name; /* unique in the group */
	struct fsdp_spec spec;
	/* The dimension along which it is sharded; a negative number counts
	 * from the end. The size of a dimension other than the first must be a
	 * multiple of the number of shards. */
	int32_t shard_dim;
	bool is_frozen; /* it has no gradient; a commit does not change it */
};

enum fsdp_layout {
	/* The shards of each parameter are contiguous, so that a gather without
	 * a cast copies nothing. */
	FSDP_LAYOUT_IN_PLACE = 0,
	/* The shards of each rank in a bucket are contiguous, as they are sent
	 * over a network. */
	FSDP_LAYOUT_FLAT = 1,
};

struct fsdp_policy {
	size_t struct_size;
	/*
	 * These three apply to floating-point parameters; others keep their
	 * dtype. Values can be cast between f16, bf16, f32 and f64 only.
	 * -EINVAL: a parameter is an 8-bit float, and param_dtype is another
	 * dtype.
	 */
	enum fsdp_dtype param_dtype; /* of whole parameters; 0: as stored */
	/* Of the gradients in fsdp_input_data(); 0: the param dtype. A rank
	 * that adds many microbatches in its input before it reduces them
	 * should use the reduce dtype here, because a long sum in bf16 loses
	 * small values. */
	enum fsdp_dtype input_dtype;
	enum fsdp_dtype reduce_dtype; /* of the reduction; 0: of the input */
	enum fsdp_layout layout;
	/* The maximum size of buckets in MiB; 0: 2,000. */
	double gather_cap_mb, reduce_cap_mb;
	/* For a root group, which is needed until the end of a step: it does
	 * not count towards the limiter's `limit`. */
	bool stays_unsharded;
	/* On devices: the shards, the gradients and the sums that wait for an
	 * all-reduce are in host memory, where the optimizer runs; the CPU may
	 * read and write at the addresses of fsdp_shard(). Gathers copy the
	 * shards in and reductions copy the gradients out, on the library's
	 * streams. Wait for reductions by fsdp_wait(): after a wait on a stream
	 * the CPU may still read old data. */
	bool offload;
};

/*
 * Registers a group of `n` parameters (at most FSDP_MAX_PARAMS), and waits
 * until all ranks have registered the same group. `policy` may be NULL.
 * -EINVAL: a rank registers a different group (the message names the first
 * parameter that differs), or a parameter cannot be sharded or reduced in this
 * way; the call fails for all ranks, and changes nothing.
 */
FSDP_API int fsdp_group_register(struct fsdp_comm *comm, const char *name,
				 const struct fsdp_param_spec *params, size_t n,
				 const struct fsdp_policy *policy,
				 struct fsdp_group **ret);

/* This rank's part of a parameter. It is contiguous and has `numel` elements;
 * `shape` has the shard dimension cut (to 0 for a rank without a part). */
struct fsdp_shard {
	size_t struct_size;
	enum fsdp_dtype dtype;
	uint32_t n_dims;
	int64_t shape[FSDP_MAX_DIMS];
	/* The index of its first element in the whole parameter, along the
	 * shard dimension. */
	int64_t start;
	uint64_t numel;
	const void *current; /* as last committed; NULL before a commit */
	/* The rank must write all of it before a commit. It contains the
	 * version before `current`, or is undefined. */
	void *next;
	/* The gradient after the last reduction that fsdp_wait() waited for.
	 * NULL: the parameter is frozen, or no such reduction changed gradients
	 * (fsdp_reduce_options.no_all_reduce). */
	void *grad;
};

/* Describes this rank's shard of parameter `param` (from 0). The pointers are
 * valid until the next commit is complete, or until this rank leaves. */
FSDP_API int fsdp_shard(struct fsdp_group *group, size_t param,
			struct fsdp_shard *ret) FSDP_SIZED(3);

/* Work that fsdp_wait() can wait for. The fields belong to the library. */
struct fsdp_work {
	struct fsdp_comm *comm;
	struct fsdp_group *group; /* NULL: a commit */
	uint32_t kind;
	uint64_t sequence;
};

/*
 * Starts to gather the group's whole parameters from the committed shards. The
 * gather proceeds as soon as the limiter and the memory allow. If this rank has
 * the group unsharded or is unsharding it, the call returns that same work.
 *
 * On host memory a group that needs no copy (FSDP_LAYOUT_IN_PLACE, sharded
 * along the first dimension, without a cast; see docs/fsdp.md) is unsharded
 * without a system call: ranks may unshard it in any order, and the limiter's
 * window does not count it.
 *
 * If the ranks gather (enum fsdp_executor), this call returns the errors.
 * Otherwise the request is one-way, and fsdp_wait() returns them. -EINVAL: the
 * ranks unshard in different orders. -ENODATA: no step has been committed yet.
 */
FSDP_API int fsdp_unshard(struct fsdp_group *group, struct fsdp_work *ret);

/*
 * Waits until the work is complete; returns at once if it is. -ETIMEDOUT: it is
 * not complete yet (the message says what it waits for); call this again.
 */
FSDP_API int fsdp_wait(const struct fsdp_work *work, int32_t timeout_ms);
/*
 * Tests, without waiting for other ranks, whether the work is complete. Returns
 * 0 if it is, and then fsdp_wait() need not be called; -EAGAIN if it is not
 * (the message says what it waits for); otherwise the error that fsdp_wait()
 * would return. On host memory, where the ranks do the work
 * (FSDP_EXECUTOR_RANK), each call also does one piece of it: it copies at most
 * 256 KiB of a gather, or reads and writes at most some 512 KiB of a reduction.
 * So a rank that calls it during its own computation has less to wait for.
 * Elsewhere it may send a request to the broker.
 */
FSDP_API int fsdp_test(const struct fsdp_work *work);
/* On devices: makes `stream` wait for the work; the call itself waits only
 * until the work may begin. With a `stream` of NULL it does the same as
 * fsdp_wait(). */
FSDP_API int fsdp_wait_on(const struct fsdp_work *work, void *stream,
			  int32_t timeout_ms);

/* A whole parameter. `data` is read-only and contiguous, and valid until this
 * rank reshards the group. */
struct fsdp_param {
	size_t struct_size;
	enum fsdp_dtype dtype;
	uint32_t n_dims;
	int64_t shape[FSDP_MAX_DIMS];
	uint64_t numel;
	const void *data;
};
/* Describes parameter `param` (from 0). -EINVAL: the group is not unsharded, or
 * the unshard was not waited for. */
FSDP_API int fsdp_param(struct fsdp_group *group, size_t param,
			struct fsdp_param *ret) FSDP_SIZED(3);

/*
 * Declares that this rank no longer needs the whole parameters. When all ranks
 * have resharded, their memory is freed. With an `n_mesh` above 0 (a divisor of
 * the number of shards) it is kept instead, as shards over that smaller mesh,
 * and the next unshard copies nothing. With 0 the request is one-way: the call
 * does not wait for the broker. -EINVAL: the group is not unsharded, or
 * `n_mesh` does not divide the number of shards.
 */
FSDP_API int fsdp_reshard(struct fsdp_group *group, uint32_t n_mesh);
/* On devices: does the same when `stream` has finished all work that it was
 * given before. NULL: this rank's work has finished. */
FSDP_API int fsdp_reshard_on(struct fsdp_group *group, uint32_t n_mesh,
			     void *stream);

/*
 * Allocates an input: memory for this rank's whole gradients. They are
 * contiguous, in the input dtype; the contents are undefined. The call waits up
 * to `timeout_ms` for memory, and for the reduction of an earlier input if the
 * rank has n_inputs. A rank has one input of a group at a time. Until it is
 * reduced, the rank may add more microbatches to it, with each value rounded to
 * the input dtype. -ETIMEDOUT: there is no memory yet, or earlier inputs are
 * still being reduced. -EBUSY: the rank has an input of this group, or has
 * n_inputs that it has not reduced.
 */
FSDP_API int fsdp_input(struct fsdp_group *group, int32_t timeout_ms);

/* Returns the address of a parameter's gradient in the input; NULL if the
 * parameter is frozen, or there is no input. */
FSDP_API void *fsdp_input_data(struct fsdp_group *group, size_t param);

/*
 * fsdp_group_put() copies bytes from the host to this rank's memory of the
 * group, and fsdp_group_get() copies them back, for programs without CUDA code.
 * The address in the group's memory is in the range of a pointer of
 * fsdp_shard(), fsdp_param() or fsdp_input_data(). Both return when the copy is
 * complete. Wait for the work that writes the memory before reading it; only
 * `next` shards, gradients and inputs can be written. -ERANGE: the bytes are
 * outside of these ranges.
 */
FSDP_API int fsdp_group_put(struct fsdp_group *group, void *to,
			    const void *from, uint64_t size);
FSDP_API int fsdp_group_get(struct fsdp_group *group, void *to,
			    const void *from, uint64_t size);

struct fsdp_reduce_options {
	size_t struct_size;
	bool accumulates; /* add to the shard's gradient, do not replace it */
	/* With replicas: each replica keeps the sums of this microbatch, and
	 * the next reduction with an all-reduce includes them. The gradients do
	 * not change. */
	bool no_all_reduce;
	bool is_sum_forced; /* sum first and then divide; do not average */
	bool has_factor;
	double factor; /* if has_factor: divide by this, not by n_ranks; > 0 */
	/* On devices: the gradients are written when this stream has finished
	 * all work that it was given before the call. NULL: they are written
	 * now. */
	void *stream;
};

/*
 * Starts to sum the inputs of all ranks, to divide the sums, and to store each
 * rank's shard of them in its gradient. The pointers of fsdp_input_data()
 * become invalid. All ranks must give the same options, and reduce in the same
 * order. `options` may be NULL. -EINVAL: options or order differ, the factor is
 * invalid, or there is no input.
 */
FSDP_API int fsdp_reduce(struct fsdp_group *group,
			 const struct fsdp_reduce_options *options,
			 struct fsdp_work *ret);

/*
 * Commits a step, after this rank has written all its `next` shards of every
 * group. When all ranks have committed this step (any number above the last),
 * all `next` shards become `current` at once, and a later run continues from
 * them. The library copies frozen parameters. The rank must not use its groups
 * until fsdp_wait() returns. -EBUSY: this rank has a group unsharded, or a
 * group is being reduced. -ETIMEDOUT: a device has not done this rank's gathers
 * and reductions within the communicator's time-out; call this again.
 */
FSDP_API int fsdp_commit(struct fsdp_comm *comm, uint64_t step,
			 struct fsdp_work *ret);
/*
 * On devices: does the same for shards that `stream` still writes. The call
 * returns at once. fsdp_wait() waits for the stream, within its time-out and
 * the communicator's, and only then sends the commit; it also returns the
 * errors of the commit. NULL: the shards are written.
 */
FSDP_API int fsdp_commit_on(struct fsdp_comm *comm, uint64_t step, void *stream,
			    struct fsdp_work *ret);

/* --- inspection ---------------------------------------------------------- */

enum fsdp_comm_state {
	FSDP_COMM_KEPT = 1,    /* it has no rank; its groups are kept */
	FSDP_COMM_JOINING = 2, /* some ranks have not joined yet */
	FSDP_COMM_RUNNING = 3,
	FSDP_COMM_FAILED = 4, /* some ranks have not left it yet */
};

struct fsdp_comm_entry {
	size_t struct_size;
	const char *name;
	uint32_t uid;
	enum fsdp_comm_state state;
	uint32_t n_ranks, n_shards, n_joined, n_groups;
	uint64_t step;
	uint64_t n_bytes; /* of its shards */
	uint64_t ttl_left_ms;
	/* Unshards that are whole or being gathered, and unshards that wait. */
	uint32_t n_in_flight, n_limited;
	uint64_t bytes_in_flight;
	const char *note; /* "", or the cause of the failure */
	uint32_t n_local; /* ranks on this node */
	bool is_on_devices;
	enum fsdp_executor executor; /* on devices, while it runs */
};

struct fsdp_group_entry {
	size_t struct_size;
	const char *comm, *name;
	uint32_t n_params, n_gather_buckets, n_reduce_buckets;
	uint64_t step, hash;
	uint64_t shards_bytes, full_bytes;
	bool is_unsharded;
	uint64_t n_gathers, n_reductions; /* in all runs */
};

/* A parameter in the plan of a registered group. Offsets and sizes are in
 * bytes; offsets are those of rank 0. */
struct fsdp_plan_entry {
	size_t struct_size;
	const char *name;
	enum fsdp_dtype dtype, full_dtype;
	enum fsdp_dtype input_dtype, reduce_dtype; /* 0: frozen */
	uint32_t n_dims;
	int64_t shape[FSDP_MAX_DIMS];
	uint32_t shard_dim;
	uint32_t gather_bucket, reduce_bucket;
	uint64_t shard_offset, shard_stride, full_offset, input_offset,
		grad_offset;
	uint64_t chunk_bytes;
	/* These describe the whole plan. */
	uint64_t hash;
	uint32_t n_shards, n_replicas;
	enum fsdp_layout layout;
	bool is_in_place;
};

typedef int fsdp_comm_fn(const struct fsdp_comm_entry *entry, void *data);
typedef int fsdp_group_fn(const struct fsdp_group_entry *entry, void *data);
typedef int fsdp_plan_fn(const struct fsdp_plan_entry *entry, void *data);

/* Lists the communicators that the caller may read. */
FSDP_API int fsdp_comms(struct fsdp_client *client, fsdp_comm_fn *fn,
			void *data);
/* Lists the groups of communicator `comm` (NULL: of all). */
FSDP_API int fsdp_groups(struct fsdp_client *client, const char *comm,
			 fsdp_group_fn *fn, void *data);
/* Lists the parameters of one group. */
FSDP_API int fsdp_group_plan(struct fsdp_client *client, const char *comm,
			     const char *group, fsdp_plan_fn *fn, void *data);

#ifdef __cplusplus
}
#endif
