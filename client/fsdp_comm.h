/*
 * Collectives of libfsdp: communicators, groups, gathers, reductions. Part of
 * fsdp.h, which includes it and has the conventions.
 *
 * Sharded parameters, FSDP style: every rank keeps a shard of each parameter,
 * an *unshard* makes the parameters whole for a while, and gradients are
 * summed and cut back into shards. The broker keeps the memory, plans who has
 * what, limits how much is whole at a time, and has fsdp-worker do the work;
 * the ranks of a node share one whole copy.
 *
 * Ranks are processes (or threads with a connection each) that join a
 * *communicator* by name. They register *groups* of parameters (a layer, say),
 * all the same ones in the same order, and call unshard and reduce in the same
 * order. Nothing here blocks but the calls that say so: work is begun, and
 * waited for by fsdp_wait().
 *
 *     fsdp_comm_join, fsdp_group_register
 *     every step:
 *         forward   fsdp_unshard, fsdp_wait, fsdp_param ..., fsdp_reshard
 *         backward  the same, and fsdp_input, fsdp_input_data ...,
 *                   fsdp_reduce, fsdp_wait
 *         update    fsdp_shard: write `next` from `current` and `grad`
 *         fsdp_commit, fsdp_wait
 *
 * If a rank dies or leaves, comes too late, or the worker or the broker dies,
 * the communicator has failed: every call on it, and every wait under way,
 * returns -ECONNABORTED with a sentence that says who and why.
 * fsdp_comm_leave() it and join the name again: groups are as the last step
 * that all ranks committed left them.
 *
 * Where it comes from: PyTorch FSDP2's parameter groups, its sharding, divide
 * factors and reduction (torch/distributed/fsdp/_fully_shard), and FSDP1's
 * limiter. docs/fsdp.md lists every difference.
 *
 * On devices (fsdp_comm_options.device) each rank has one GPU, and NCCL moves
 * the bytes: on streams of the library's, which the caller's follow by the
 * calls that end in _on. There the ranks must make their unshards and
 * reductions in one common order together, since NCCL has only one.
 *
 * A communicator's handle and those of its groups are for one thread at a
 * time; two communicators of one connection may be used by two threads. Their
 * memory is not mapped in a forked child.
 */
#pragma once
#include "fsdp.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fsdp_comm;  /* this process as one rank of a communicator */
struct fsdp_group; /* parameters that are unsharded and reduced together */

enum fsdp_limiter {
	/* At most `limit` groups and `limit_bytes` are whole or becoming so;
	 * one that is larger goes alone. */
	FSDP_LIMITER_WINDOW = 0,
	/* FSDP1's free-event queue, event by event. */
	FSDP_LIMITER_FAITHFUL = 1,
};

/*
 * Who moves and adds what is on devices. In the ranks' own processes it is
 * ordered by streams, and works in a rank's own calls. In fsdp-worker it is as
 * on host memory: it works without calls of the ranks, which need no NCCL, and
 * no CUDA context until they ask for an address; a stream that is given is
 * waited for on the host, and what was waited for is done.
 */
enum fsdp_home {
	FSDP_HOME_RANK = 0,
	FSDP_HOME_WORKER = 1,
};

/* What NCCL is told of the memory that it moves, on devices, where the ranks'
 * own processes do the work. */
enum fsdp_memory {
	FSDP_MEMORY_DEFAULT = 0, /* nothing: NCCL may copy on the way */
	/* Each chunk, once (ncclCommRegister()), before its first use: NCCL
	 * moves it without copies where it can. If it refuses, the communicator
	 * fails. */
	FSDP_MEMORY_REGISTERED = 1,
};

struct fsdp_comm_options {
	size_t struct_size;
	struct fsdp_access access; /* of the groups' memory; all ranks must be
				    * able to write it. Mode 0: 0600, and the
				    * gid does not matter. */
	uint32_t n_shards;  /* ranks of one shard mesh (HSDP: the others hold
			     * replicas); divides the world; 0: all. rank =
			     * replica * n_shards + shard. */
	int32_t timeout_ms; /* how late others may be, in joining and in every
			     * collective; 0: 60,000 */
	uint64_t ttl_ms;    /* groups are kept so long when nobody is in the
			     * communicator; 0: 600,000 */
	enum fsdp_limiter limiter;
	uint32_t limit;       /* groups; 0: 2 */
	uint64_t limit_bytes; /* 0: no limit of bytes */
	uint32_t n_inputs;    /* gradient inputs this rank may have at a time;
			       * 0: 1. More let backward run ahead. */
	/* On devices: this rank's. NULL or all 0: on host memory, as all. */
	const struct fsdp_device *device;
	/* On devices, of several nodes: how many of the ranks are on this one
	 * (0: all), and the NCCL id that all were given (FSDP_NCCL_ID_SIZE
	 * bytes; NULL: rank 0 makes it, and this node's broker spreads it). */
	uint32_t n_local;
	const uint8_t *nccl_id;
	enum fsdp_home home; /* on devices; the same for all ranks */
	enum fsdp_memory memory; /* on devices; the same for all ranks */
};

#define FSDP_NCCL_ID_SIZE 128

/*
 * A new NCCL id, for one run of a communicator that spans nodes: made where
 * rank 0 is, by a process that lives until all have joined, and brought to the
 * other ranks by what the job has (torchrun's store, Slurm, MPI, a file).
 * -ENODEV: there is no NCCL, or no driver; -ENOSYS: of the wrong version.
 */
FSDP_API int fsdp_nccl_id(uint8_t ret[FSDP_NCCL_ID_SIZE]);

/*
 * Join as `rank` of `n_ranks` (at most 64); waits until all have joined. All
 * must give the same options. `options` may be NULL. -EEXIST: that rank is
 * there already (the sentence names its process). -EINVAL: others joined, or
 * the kept groups were made, with other numbers. -ETIMEDOUT: names who is
 * missing. -ECONNABORTED: one that had joined has died or left; join again.
 * -EACCES.
 */
FSDP_API int fsdp_comm_join(struct fsdp_client *client, const char *name,
			    uint32_t n_ranks, uint32_t rank,
			    const struct fsdp_comm_options *options,
			    struct fsdp_comm **ret);

/* The last step that all ranks committed; 0: none yet. */
FSDP_API uint64_t fsdp_comm_step(const struct fsdp_comm *comm);

/*
 * Leave, and free the handle and its groups: every pointer into them ends.
 * Leave when all is done: a communicator that a rank has left has failed for
 * those who go on. The groups are kept for ttl_ms. NULL is fine.
 *
 * On devices it waits for the library's streams, which may wait for yours, for
 * the time-out of the communicator. -ETIMEDOUT: they still work; the
 * communicator is left, but its memory stays held until fsdp_close().
 */
FSDP_API int fsdp_comm_leave(struct fsdp_comm *comm);

/* End the groups of a communicator that nobody is in. -EBUSY, -ENOENT. */
FSDP_API int fsdp_comm_remove(struct fsdp_client *client, const char *name);

#define FSDP_MAX_RANKS  64
#define FSDP_MAX_PARAMS 1024

struct fsdp_param_spec {
	size_t struct_size;
	const char *name; /* of no other in the group */
	struct fsdp_spec spec;
	int32_t shard_dim; /* negative: from the end. Beyond the first it must
			    * divide evenly among the shards. */
	bool is_frozen;    /* has no gradient; a commit keeps it as it is */
};

enum fsdp_layout {
	/* Each parameter's shards lie behind one another, so that a gather
	 * without cast moves nothing. */
	FSDP_LAYOUT_IN_PLACE = 0,
	/* Each rank's shards of a bucket lie behind one another, as they go
	 * over a wire. */
	FSDP_LAYOUT_FLAT = 1,
};

struct fsdp_policy {
	size_t struct_size;
	/*
	 * These three are for floating-point parameters; others keep their
	 * dtype. Casts are between f16, bf16, f32 and f64: a parameter in an
	 * 8-bit float is refused in a group with another param_dtype (-EINVAL).
	 */
	enum fsdp_dtype param_dtype;  /* of whole parameters; 0: as stored */
	/* Of the gradients that fsdp_input_data() takes; 0: the param dtype. A
	 * rank that adds many microbatches in its input, without reducing each,
	 * wants the reduce dtype here: sums in bf16 stop growing. */
	enum fsdp_dtype input_dtype;
	enum fsdp_dtype reduce_dtype; /* of the reduction; 0: of the input */
	enum fsdp_layout layout;
	double gather_cap_mb, reduce_cap_mb; /* of buckets; 0: 2,000 MiB */
	bool stays_unsharded; /* a root: not counted by the limiter */
	/* On devices: the shards, the gradients and the sums that wait for an
	 * all-reduce are in host memory, where the optimizer runs; what
	 * fsdp_shard() gives is the CPU's to read and write. Gathers copy the
	 * shards in, reductions the gradients out, on the library's streams.
	 * Reductions are waited for by fsdp_wait(): what a stream waits for is
	 * not yet there for the CPU. */
	bool offload;
};

/*
 * Register a group; waits until all ranks have registered the same. `policy`
 * may be NULL. -EINVAL: a rank registers something else (the sentence names
 * the first parameter that differs), or cannot be cut or reduced so; nothing
 * changed, and all ranks are told.
 */
FSDP_API int fsdp_group_register(struct fsdp_comm *comm, const char *name,
				 const struct fsdp_param_spec *params, size_t n,
				 const struct fsdp_policy *policy,
				 struct fsdp_group **ret);

/* This rank's part of a parameter: contiguous, `shape` with the shard dimension
 * cut (to 0 for a rank that has nothing of it), `numel` elements. */
struct fsdp_shard {
	size_t struct_size;
	enum fsdp_dtype dtype;
	uint32_t n_dims;
	int64_t shape[FSDP_MAX_DIMS];
	int64_t start; /* along the shard dimension: what its first index is in
			* the whole parameter */
	uint64_t numel;
	const void *current; /* as last committed; NULL: nothing was yet */
	void *next; /* to be written, all of it, before a commit; holds what
		     * was before `current`, or anything */
	void *grad; /* as fsdp_wait() last said that it is reduced. NULL: it is
		     * frozen, or no reduction was waited for that changes
		     * gradients (fsdp_reduce_options.no_all_reduce) */
};

/* Pointers are valid until the next commit is through, or until leaving. */
FSDP_API int fsdp_shard(struct fsdp_group *group, size_t param,
			struct fsdp_shard *ret) FSDP_SIZED(3);

/* What fsdp_wait() waits for. */
struct fsdp_work {
	struct fsdp_comm *comm;
	struct fsdp_group *group; /* NULL: a commit */
	uint32_t kind;
	uint64_t sequence;
};

/*
 * Begin to make the group's parameters whole, from the committed shards. It
 * goes on as soon as the limiter and the memory allow. Unsharding what this
 * rank has unsharded, or is about to, is the same work again.
 *
 * What the broker refuses is told here where the ranks' own processes do the
 * work (FSDP_HOME_RANK, on devices), and else by fsdp_wait(), since the request
 * is sent without waiting for its answer: -EINVAL: the ranks unshard in
 * different orders. -ENODATA: nothing was committed yet.
 */
FSDP_API int fsdp_unshard(struct fsdp_group *group, struct fsdp_work *ret);

/*
 * Wait until the work is done. -ETIMEDOUT: not yet; the sentence says what it
 * waits for, and it may be waited for again. Waiting for what is done is fine.
 */
FSDP_API int fsdp_wait(const struct fsdp_work *work, int32_t timeout_ms);
/* The same on devices, for `stream`: it waits for the work, while the call waits
 * only until that may begin. NULL: fsdp_wait(). */
FSDP_API int fsdp_wait_on(const struct fsdp_work *work, void *stream,
			  int32_t timeout_ms);

/* A whole parameter, read-only and contiguous, valid until this rank reshards
 * the group. -EINVAL: it is not unsharded, or was not waited for. */
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
 * This rank needs the whole parameters no more. When all ranks have said so,
 * their memory goes back; with `n_mesh` (a divisor of the shards) it is kept
 * instead as shards over that smaller mesh, and the next unshard moves
 * nothing. 0: not; then the broker is told, but not waited for. -EINVAL: not
 * unsharded, or the mesh does not fit.
 */
FSDP_API int fsdp_reshard(struct fsdp_group *group, uint32_t n_mesh);
/* The same on devices, once `stream` has done all that it was given before.
 * NULL: this rank has done. */
FSDP_API int fsdp_reshard_on(struct fsdp_group *group, uint32_t n_mesh,
			     void *stream);

/*
 * Get memory to write this rank's gradients into: whole, in the input dtype,
 * contiguous; it holds anything. Waits for one of the rank's n_inputs and for
 * room. A rank has one input of a group at a time; until it is reduced, the rank
 * may add more microbatches to it, each value rounded to the input dtype.
 * -ETIMEDOUT, -EBUSY.
 */
FSDP_API int fsdp_input(struct fsdp_group *group, int32_t timeout_ms);

/* The gradient of a parameter in it; NULL: frozen, or there is no input. */
FSDP_API void *fsdp_input_data(struct fsdp_group *group, size_t param);

/*
 * Bytes of the host into this rank's memory of the group and back, at any
 * address that fsdp_shard(), fsdp_param() or fsdp_input_data() gave: for
 * programs without CUDA code of their own.
 * They come back when the bytes are there. What is read was waited for; written
 * are `next` shards, gradients and inputs. -ERANGE: outside of these.
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
	bool is_sum_forced; /* sum, then divide: no averaging on the way */
	bool has_factor;
	double factor; /* has_factor: divide by this, not by the world; > 0 */
	/* On devices: the gradients are written when this stream has done all
	 * that it was given before the call. NULL: they are written. */
	void *stream;
};

/*
 * Sum the inputs of all ranks, divide, and leave each rank its shard. Ends
 * fsdp_input_data()'s pointers. All ranks must give the same options, and
 * reduce in the same order. -EINVAL: they do not, a factor that is none, no
 * input. `options` may be NULL.
 */
FSDP_API int fsdp_reduce(struct fsdp_group *group,
			 const struct fsdp_reduce_options *options,
			 struct fsdp_work *ret);

/*
 * This rank has written all its `next` shards of every group: when all ranks
 * have said so for this step (any number above the last), they become
 * `current` at once, and that is what a new start goes on from. Frozen
 * parameters are carried over. -EBUSY: a group is unsharded here, or being
 * reduced. Until fsdp_wait() the rank must leave its groups alone.
 */
FSDP_API int fsdp_commit(struct fsdp_comm *comm, uint64_t step,
			 struct fsdp_work *ret);
/* The same on devices: waits until `stream` has written them. NULL: they are
 * written. */
FSDP_API int fsdp_commit_on(struct fsdp_comm *comm, uint64_t step, void *stream,
			    struct fsdp_work *ret);

/* --- inspection --------------------------------------------------------------
 */

enum fsdp_comm_state {
	FSDP_COMM_KEPT = 1,    /* nobody is in it; its groups are kept */
	FSDP_COMM_JOINING = 2, /* not all ranks are there yet */
	FSDP_COMM_RUNNING = 3,
	FSDP_COMM_FAILED = 4, /* survivors have not left yet */
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
	uint32_t n_in_flight, n_limited; /* unshards; and those that wait */
	uint64_t bytes_in_flight;
	const char *note; /* "", or why it failed */
	uint32_t n_local; /* of the ranks, on this node */
	bool is_on_devices;
	enum fsdp_home home; /* on devices, of one that runs */
};

struct fsdp_group_entry {
	size_t struct_size;
	const char *comm, *name;
	uint32_t n_params, n_gather_buckets, n_reduce_buckets;
	uint64_t step, hash;
	uint64_t shards_bytes, full_bytes;
	bool is_unsharded;
	uint64_t n_gathers, n_reductions; /* of all runs */
};

/* One parameter of a registered group's plan; offsets are bytes, of rank 0. */
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
	/* of the whole plan */
	uint64_t hash;
	uint32_t n_shards, n_replicas;
	enum fsdp_layout layout;
	bool is_in_place;
};

typedef int fsdp_comm_fn(const struct fsdp_comm_entry *entry, void *data);
typedef int fsdp_group_fn(const struct fsdp_group_entry *entry, void *data);
typedef int fsdp_plan_fn(const struct fsdp_plan_entry *entry, void *data);

/* Communicators the caller may read. */
FSDP_API int fsdp_comms(struct fsdp_client *client, fsdp_comm_fn *fn,
			void *data);
/* Groups of one communicator (NULL: of all). */
FSDP_API int fsdp_groups(struct fsdp_client *client, const char *comm,
			 fsdp_group_fn *fn, void *data);
FSDP_API int fsdp_group_plan(struct fsdp_client *client, const char *comm,
			     const char *group, fsdp_plan_fn *fn, void *data);

#ifdef __cplusplus
}
#endif
