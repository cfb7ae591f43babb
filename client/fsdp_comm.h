/*
 * Collectives of libfsdp: communicators, groups, gathers, reductions. fsdp.h
 * includes this header and describes the conventions.
 *
 * Parameters are sharded as in FSDP: every rank keeps a shard of each
 * parameter, an *unshard* gathers the whole parameters for a while, and
 * gradients are summed and split into shards. The broker keeps the memory and
 * plans which rank has which part. A limiter bounds how much memory is whole at
 * a time. The ranks do the work, or fsdp-worker does (enum fsdp_executor);
 * all ranks of a node share one whole copy.
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
 * the last step that all ranks committed. If the broker dies, the same happens,
 * except on host memory where the ranks do all work alone: there nobody notices
 * that it is restarted (docs/fsdp.md).
 *
 * The design follows PyTorch: parameter groups, sharding, divide factors and
 * reduction are those of FSDP2 (torch/distributed/fsdp/_fully_shard), and the
 * limiter is that of FSDP1. docs/fsdp.md lists every difference.
 *
 * On devices (fsdp_comm_options.device) each rank has one GPU, and NCCL moves
 * the bytes on streams of the library. The calls that end in _on order them
 * with streams of the caller. All ranks must issue their unshards and
 * reductions in one common order, because NCCL has only one order.
 *
 * The handles of a communicator and of its groups may be used by one thread at
 * a time; two threads may use two communicators of one connection. Their memory
 * is not mapped in a forked child.
 *
 * The first call by which ranks work together without the broker makes the
 * memory by which they do. It takes 1 MiB, and 2.1 MiB more for each rank, and
 * is charged to the user who made the communicator. -EDQUOT: the quota of that
 * user does not suffice; nothing has happened, and the call can be made again.
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
	 * a group that is larger is admitted alone. */
	FSDP_LIMITER_WINDOW = 0,
	/* The FSDP1 limiter: its free-event queue, event by event. */
	FSDP_LIMITER_FSDP1 = 1,
};

/*
 * The executor: the process that moves and adds the bytes. In the ranks' own
 * processes the work progresses in a rank's own calls; on devices, streams
 * order it. On host memory the ranks also gather and reduce; but fsdp-worker
 * gathers for them under FSDP_LIMITER_FSDP1, and reduces if n_inputs is above
 * 31. In fsdp-worker the work progresses without calls of the ranks. On devices
 * these need no NCCL then, and no CUDA context until they ask for an address.
 * The call waits on the host for a stream that is given, and the work has
 * finished when its wait returns.
 */
enum fsdp_executor {
	FSDP_EXECUTOR_RANK = 0,
	FSDP_EXECUTOR_WORKER = 1,
};

/* Registration of memory with NCCL, on devices whose executors are the ranks.
 */
enum fsdp_memory {
	FSDP_MEMORY_DEFAULT = 0, /* not registered: NCCL may copy it */
	/* Each chunk is registered once (ncclCommRegister()), before its first
	 * use: NCCL moves it without copies where it can. If NCCL refuses, the
	 * communicator fails. */
	FSDP_MEMORY_REGISTERED = 1,
};

struct fsdp_comm_options {
	size_t struct_size;
	struct fsdp_access access; /* of the groups' memory; all ranks must be
				    * able to write it. Mode 0: 0600, and the
				    * gid is ignored. */
	uint32_t n_shards;  /* ranks of one shard mesh (HSDP: the others hold
			     * replicas); divides the world; 0: all. rank =
			     * replica * n_shards + shard. */
	int32_t timeout_ms; /* how late other ranks may be, in joining and in
			     * every collective; 0: 60,000 */
	uint64_t ttl_ms;    /* how long groups are kept when the communicator
			     * has no rank; 0: 600,000 */
	enum fsdp_limiter limiter;
	uint32_t limit;       /* groups; 0: 2 */
	uint64_t limit_bytes; /* 0: no limit of bytes */
	uint32_t n_inputs;    /* gradient inputs that this rank may have at a
			       * time; 0: 1. More let backward run ahead. */
	/* The device of this rank. NULL or all 0: the communicator is on host
	 * memory, for all ranks. */
	const struct fsdp_device *device;
	/* For communicators on devices that span nodes: the number of ranks on
	 * this node (0: all), and the common NCCL id (FSDP_NCCL_ID_SIZE bytes;
	 * NULL: rank 0 makes it, and this node's broker distributes it). */
	uint32_t n_local;
	const uint8_t *nccl_id;
	/* The same for all ranks. On host memory the ranks gather (with
	 * FSDP_LIMITER_WINDOW) and reduce themselves with FSDP_EXECUTOR_RANK:
	 * those that wait do the work. Otherwise fsdp-worker does, also while
	 * none waits. */
	enum fsdp_executor executor;
	enum fsdp_memory memory; /* on devices; the same for all ranks */
};

#define FSDP_NCCL_ID_SIZE 128

/*
 * Makes a new NCCL id, for one run of a communicator that spans nodes. Call it
 * on the node of rank 0, in a process that lives until all ranks have joined.
 * The job must distribute the id to the other ranks (by torchrun's store,
 * Slurm, MPI, or a file). -ENODEV: there is no NCCL, or no driver. -ENOSYS: its
 * version is unsupported.
 */
FSDP_API int fsdp_nccl_id(uint8_t ret[FSDP_NCCL_ID_SIZE]);

/*
 * Joins as `rank` of `n_ranks` (at most 64), and waits until all ranks have
 * joined. All ranks must give the same options. `options` may be NULL. -EEXIST:
 * that rank has already joined (the message names its process). -EINVAL: other
 * ranks joined, or the kept groups were made, with other numbers. -ETIMEDOUT:
 * a rank is missing (the message names it). -ECONNABORTED: a rank that had
 * joined has died or left; join again. -EACCES.
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
 * left, the communicator fails for ranks that continue. The groups are kept for
 * ttl_ms. `comm` may be NULL.
 *
 * On devices it waits for the library's streams, which may wait for yours, up
 * to the time-out of the communicator. -ETIMEDOUT: they are still working; the
 * rank has left, but its memory stays held until fsdp_close().
 */
FSDP_API int fsdp_comm_leave(struct fsdp_comm *comm);

/*
 * Waits until all ranks have called it as often as this one. On one node only;
 * it makes no system call unless the rank has to sleep, and orders the calls of
 * ranks and what they write in memory, but no streams. -ETIMEDOUT: a rank has
 * not come yet (the message names it); this rank has, and another call waits
 * on. -ECONNABORTED: a rank has died, has left, or is later than the
 * communicator's time-out. -EOPNOTSUPP: the ranks are on several nodes.
 */
FSDP_API int fsdp_barrier(struct fsdp_comm *comm, int32_t timeout_ms);

/* Removes a communicator that no rank is in, with its groups. -EBUSY, -ENOENT.
 */
FSDP_API int fsdp_comm_remove(struct fsdp_client *client, const char *name);

#define FSDP_MAX_RANKS  64
#define FSDP_MAX_PARAMS 1024

struct fsdp_param_spec {
	size_t struct_size;
	const char *name; /* unique in the group */
	struct fsdp_spec spec;
	int32_t shard_dim; /* negative: from the end. Beyond the first it must
			    * divide evenly among the shards. */
	bool is_frozen;    /* has no gradient; a commit leaves it unchanged */
};

enum fsdp_layout {
	/* The shards of each parameter are contiguous, so that a gather without
	 * a cast copies nothing. */
	FSDP_LAYOUT_IN_PLACE = 0,
	/* Each rank's shards of a bucket are contiguous, as they are sent over
	 * a wire. */
	FSDP_LAYOUT_FLAT = 1,
};

struct fsdp_policy {
	size_t struct_size;
	/*
	 * These three apply to floating-point parameters; others keep their
	 * dtype. Casts are between f16, bf16, f32 and f64: a parameter in an
	 * 8-bit float is refused in a group with another param_dtype (-EINVAL).
	 */
	enum fsdp_dtype param_dtype; /* of whole parameters; 0: as stored */
	/* Of the gradients in fsdp_input_data(); 0: the param dtype. A rank
	 * that adds many microbatches in its input, without reducing each,
	 * should use the reduce dtype here: sums in bf16 stop growing. */
	enum fsdp_dtype input_dtype;
	enum fsdp_dtype reduce_dtype; /* of the reduction; 0: of the input */
	enum fsdp_layout layout;
	double gather_cap_mb, reduce_cap_mb; /* of buckets; 0: 2,000 MiB */
	bool stays_unsharded; /* a root: not counted by the limiter */
	/* On devices: the shards, the gradients and the sums that wait for an
	 * all-reduce are in host memory, where the optimizer runs; the CPU may
	 * read and write at the addresses of fsdp_shard(). Gathers copy the
	 * shards in and reductions copy the gradients out, on the library's
	 * streams. Wait for reductions by fsdp_wait(): after a wait on a stream
	 * the CPU may still read old data. */
	bool offload;
};

/*
 * Registers a group, and waits until all ranks have registered the same.
 * `policy` may be NULL. -EINVAL: a rank registers a different group (the
 * message names the first parameter that differs), or a parameter cannot be
 * sharded or reduced in this way; the call fails for all ranks, and changes
 * nothing.
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
	int64_t start; /* index of its first element in the whole parameter,
			* along the shard dimension */
	uint64_t numel;
	const void *current; /* as last committed; NULL before a commit */
	void *next; /* the rank must write all of it before a commit; it holds
		     * the version before `current`, or is undefined */
	void *grad; /* the gradient after the last reduction that fsdp_wait()
		     * waited for. NULL: the parameter is frozen, or no such
		     * reduction changed gradients
		     * (fsdp_reduce_options.no_all_reduce) */
};

/* Returns pointers that are valid until the next commit is complete, or until
 * this rank leaves. */
FSDP_API int fsdp_shard(struct fsdp_group *group, size_t param,
			struct fsdp_shard *ret) FSDP_SIZED(3);

/* Work that fsdp_wait() can wait for. */
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
 * On host memory a group whose parameters are whole as they lie (docs/fsdp.md)
 * is unsharded without a system call: ranks may come in any order, the window
 * does not count it, and this call returns the errors.
 *
 * If the ranks are the executors (FSDP_EXECUTOR_RANK), this call returns the
 * errors. Otherwise the request is one-way, and fsdp_wait() returns them.
 * -EINVAL: the ranks unshard in different orders. -ENODATA: there was no commit
 * yet.
 */
FSDP_API int fsdp_unshard(struct fsdp_group *group, struct fsdp_work *ret);

/*
 * Waits until the work is complete; returns at once if it is. -ETIMEDOUT: it is
 * not complete yet (the message says what it waits for); it may be waited for
 * again.
 */
FSDP_API int fsdp_wait(const struct fsdp_work *work, int32_t timeout_ms);
/*
 * Is the work complete? Returns 0 if it is, and then fsdp_wait() need not be
 * called; -EAGAIN if it is not (the message says what it waits for), or what
 * fsdp_wait() would return. It waits for no other rank. On host memory, where
 * the ranks gather and reduce (fsdp_comm_options.executor), it does one piece
 * on the way, if there is one: of a gather it copies at most 256 KiB, of a
 * reduction it reads and writes some 512 KiB at most. So a rank that calls it
 * between its own work has the work done before it must wait. It asks the
 * broker where only the broker knows.
 */
FSDP_API int fsdp_test(const struct fsdp_work *work);
/* Does the same as fsdp_wait() on devices for `stream`: the stream waits for
 * the work, while the call waits only until the work may begin. NULL:
 * fsdp_wait(). */
FSDP_API int fsdp_wait_on(const struct fsdp_work *work, void *stream,
			  int32_t timeout_ms);

/* A whole parameter, read-only and contiguous, valid until this rank reshards
 * the group. -EINVAL: the group is not unsharded, or the unshard was not waited
 * for. */
struct fsdp_param {
	size_t struct_size;
	enum fsdp_dtype dtype;
	uint32_t n_dims;
	int64_t shape[FSDP_MAX_DIMS];
	uint64_t numel;
	const void *data;
};
FSDP_API int fsdp_param(struct fsdp_group *group, size_t param,
			struct fsdp_param *ret) FSDP_SIZED(3);

/*
 * Tells the broker that this rank no longer needs the whole parameters. When
 * all ranks have resharded, their memory is freed. With `n_mesh` (a divisor of
 * the shards) it is kept instead, as shards over that smaller mesh, and the
 * next unshard copies nothing. With 0 the request is one-way: the call does not
 * wait for the broker. -EINVAL: the group is not unsharded, or the mesh does
 * not fit.
 */
FSDP_API int fsdp_reshard(struct fsdp_group *group, uint32_t n_mesh);
/* Does the same on devices, once `stream` has finished all work that it was
 * given before. NULL: this rank's work has finished. */
FSDP_API int fsdp_reshard_on(struct fsdp_group *group, uint32_t n_mesh,
			     void *stream);

/*
 * Gets memory for this rank's whole gradients. They are contiguous, in the
 * input dtype; the contents are undefined. The call waits for one of the rank's
 * n_inputs and for memory. A rank has one input of a group at a time. Until it
 * is reduced, the rank may add more microbatches to it, with each value rounded
 * to the input dtype. -ETIMEDOUT, -EBUSY.
 */
FSDP_API int fsdp_input(struct fsdp_group *group, int32_t timeout_ms);

/* Returns the gradient of a parameter in the input; NULL: the parameter is
 * frozen, or there is no input. */
FSDP_API void *fsdp_input_data(struct fsdp_group *group, size_t param);

/*
 * These copy bytes from the host to this rank's memory of the group and back,
 * at any address from fsdp_shard(), fsdp_param() or fsdp_input_data(), for
 * programs without CUDA code. They return when the copy is complete. Memory
 * that is read must have been waited for; `next` shards, gradients and inputs
 * can be written. -ERANGE: the range is outside of these.
 */
FSDP_API int fsdp_group_put(struct fsdp_group *group, void *to,
			    const void *from, uint64_t size);
FSDP_API int fsdp_group_get(struct fsdp_group *group, void *to,
			    const void *from, uint64_t size);

struct fsdp_reduce_options {
	size_t struct_size;
	bool accumulates;   /* add to the shard's gradient, do not replace it */
	bool no_all_reduce; /* replicas: keep the sums of this microbatch in
			     * each; the next reduction with an all-reduce
			     * includes them. The gradients do not change. */
	bool is_sum_forced; /* sum first, then divide, without averaging */
	bool has_factor;
	double factor; /* has_factor: divide by this, not by the world; > 0 */
	/* On devices: the gradients are written when this stream has finished
	 * all work that it was given before the call. NULL: they are written
	 * now. */
	void *stream;
};

/*
 * Starts to sum the inputs of all ranks, divide the sums, and store in each
 * rank its shard. The pointers of fsdp_input_data() become invalid. All ranks
 * must give the same options, and reduce in the same order. `options` may be
 * NULL. -EINVAL: options or order differ, the factor is invalid, or there is no
 * input.
 */
FSDP_API int fsdp_reduce(struct fsdp_group *group,
			 const struct fsdp_reduce_options *options,
			 struct fsdp_work *ret);

/*
 * Commits a step: this rank has written all its `next` shards of every group.
 * When all ranks have committed this step (any number above the last), all
 * `next` shards become `current` at once, and a later run continues from them.
 * Frozen parameters are carried over. -EBUSY: this rank has a group unsharded,
 * or a group is being reduced. The rank must not use its groups until
 * fsdp_wait() returns.
 */
FSDP_API int fsdp_commit(struct fsdp_comm *comm, uint64_t step,
			 struct fsdp_work *ret);
/*
 * The same on devices, of shards that `stream` is still to write: comes back at
 * once, and fsdp_wait() waits for the stream, within its time-out and the
 * communicator's, before it says that this rank has committed; what is wrong
 * with the commit is said there. NULL: they are written.
 */
FSDP_API int fsdp_commit_on(struct fsdp_comm *comm, uint64_t step, void *stream,
			    struct fsdp_work *ret);

/* --- inspection ---------------------------------------------------------- */

enum fsdp_comm_state {
	FSDP_COMM_KEPT = 1,    /* it has no rank; its groups are kept */
	FSDP_COMM_JOINING = 2, /* some ranks have not joined yet */
	FSDP_COMM_RUNNING = 3,
	FSDP_COMM_FAILED = 4, /* some ranks have not left yet */
};

struct fsdp_comm_entry {
	size_t struct_size;
	const char *name;
	uint32_t uid;
	enum fsdp_comm_state state;
	uint32_t n_ranks, n_shards, n_joined, n_groups;
	uint64_t step;
	uint64_t n_bytes; /* of kept shards */
	uint64_t ttl_left_ms;
	uint32_t n_in_flight, n_limited; /* unshards; unshards that wait */
	uint64_t bytes_in_flight;
	const char *note; /* "", or why it failed */
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

/* A parameter of a registered group's plan; offsets are for rank 0, in bytes.
 */
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
	/* These are of the whole plan. */
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
/* Lists the groups of one communicator (NULL: of all). */
FSDP_API int fsdp_groups(struct fsdp_client *client, const char *comm,
			 fsdp_group_fn *fn, void *data);
FSDP_API int fsdp_group_plan(struct fsdp_client *client, const char *comm,
			     const char *group, fsdp_plan_fn *fn, void *data);

#ifdef __cplusplus
}
#endif
