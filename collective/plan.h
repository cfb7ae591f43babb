/*
 * The plan of a group says where each parameter is in memory, for each rank.
 *
 * It is a pure function of the parameters, the policy and the mesh. All ranks
 * compare its hash before the group is used. The broker, the worker and (by the
 * broker's replies) libfsdp in other processes take all offsets from the plan.
 *
 * There are five ranges of memory, whose sizes are in bytes:
 *
 *   shards  what the group keeps: for each replica, entry and rank one
 *           zero-padded chunk in the stored dtype. There are two such ranges,
 *           the committed one and the next one.
 *   full    what an unshard produces: for each replica all whole parameters, in
 *           the param dtype. It is not needed if `is_in_place`, because the
 *           shards as a whole already are the parameters.
 *   input   the whole gradients of one rank, in the input dtype; for trainable
 *           parameters only.
 *   grads   the reduced gradients: for each rank of each replica its chunks in
 *           the stored dtype; for trainable parameters only.
 *   partial with replicas: the sums within one replica that were not reduced
 *           over the replicas yet, in the reduce dtype and the layout of grads.
 *
 * The chunk of entry e and shard s in replica g begins in the shards at
 *
 *     g * shards_size + e.shard_offset + s * e.shard_stride
 *
 * and in grads and partial by the same formula. The two layouts differ only in
 * these numbers:
 *
 * PLAN_IN_PLACE: The order is by entry, and then by rank. A parameter that is
 *     cut along its first dimension is then contiguous, and a gather without a
 *     cast copies nothing.
 * PLAN_FLAT: The order is by bucket, then by rank, and then by entry. A rank's
 *     shard of a bucket is then one contiguous range, as it is sent.
 *
 * On devices (`is_per_rank`) the chunks of a rank are in its own memory: they
 * are one range of shards_size / n_shards bytes, and all strides have this
 * value. The layout then decides how a bucket is sent: with PLAN_IN_PLACE each
 * entry is gathered directly to its offset in the whole parameters; with
 * PLAN_FLAT the bucket is gathered as one buffer, from which the entries are
 * copied (wire.h).
 *
 * Offsets of entries (with PLAN_FLAT: of chunks) are multiples of PLAN_ALIGN.
 * The bytes between them are zero, and no rank sees them.
 */
#pragma once
#include "collective/shard.h"
#include "proto/tensor.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

#define PLAN_ALIGN 64
/* Shards times replicas: on a node in host memory, and on devices of all
 * nodes. */
#define PLAN_MAX_RANKS  64
#define PLAN_MAX_WORLD  4096
#define PLAN_MAX_PARAMS 1024
#define PLAN_MAX_CAPS   16

enum plan_layout {
	PLAN_IN_PLACE = 0,
	PLAN_FLAT = 1,
};

struct plan_param {
	const char *name;
	struct tensor_type type; /* contiguous, with the stored dtype */
	int32_t shard_dim;       /* may be negative */
	bool is_frozen;          /* if so, it has no gradient */
};

struct plan_policy {
	uint32_t param_dtype; /* of unsharded parameters; 0 means as stored */
	/* of gradients as input; 0 means the param dtype */
	uint32_t input_dtype;
	uint32_t reduce_dtype; /* of the reduction; 0 means the input dtype */
	enum plan_layout layout;
	/* Caps of gather and reduce buckets in MiB (bucket.h). */
	double gather_caps_mb[PLAN_MAX_CAPS], reduce_caps_mb[PLAN_MAX_CAPS];
	uint32_t n_gather_caps, n_reduce_caps;
	bool stays_unsharded; /* a root, which the limiter does not count */
	bool is_per_rank; /* for ranks with memory of their own, on devices */
	/* if is_per_rank: only whole parameters and inputs are on the devices;
	 * all else is in host memory. No offset depends on it. */
	bool is_offloaded;
};

struct plan_entry {
	struct shard shard;
	uint32_t dtype; /* stored dtype, also that of the reduced gradient */
	uint32_t full_dtype;   /* dtype of the unsharded parameter */
	uint32_t input_dtype;  /* dtype of the gradient as input; 0 if frozen */
	uint32_t reduce_dtype; /* 0 if frozen */
	uint32_t gather_bucket;
	uint32_t reduce_bucket; /* BUCKET_NONE if frozen */
	uint64_t shard_offset, shard_stride;
	uint64_t full_offset;  /* in `full` of one replica */
	uint64_t input_offset; /* 0 if frozen, as are the next four */
	uint64_t grad_offset, grad_stride;
	uint64_t partial_offset, partial_stride;
};

struct plan {
	uint32_t n_shards, n_replicas; /* S and R */
	struct plan_policy policy;
	uint32_t n_entries;
	struct plan_entry *entries; /* owned, in the order of the parameters */
	uint32_t n_gather_buckets, n_reduce_buckets;
	bool is_in_place; /* no entry is copied to become whole */
	/* The sizes for one replica. partial_size is 0 if there is only one
	 * replica. full_size is set also if the plan is in place. Each size
	 * times the replicas is at most 2^62. */
	uint64_t shards_size, full_size, input_size, grads_size, partial_size;
	uint64_t hash; /* of all fields on which ranks must agree; never 0 */
};

/*
 * Computes a plan. Returns -EINVAL if there are no parameters, or two with one
 * name; if a shape cannot be divided among the ranks; if a dtype of the policy
 * needs a cast that is not between f16, bf16, f32 and f64; if a trainable
 * parameter has a reduce dtype that cannot be reduced; if a cap is invalid; or
 * if the mesh has more than PLAN_MAX_RANKS ranks (on devices PLAN_MAX_WORLD).
 * The sentence names the parameter. As in FSDP2, the param, input and reduce
 * dtypes do not apply to parameters that are not floating point. Can also
 * return -EOVERFLOW and -ENOMEM.
 */
int plan_make(const struct plan_param *params, uint32_t n_params,
	      const struct plan_policy *policy, uint32_t n_shards,
	      uint32_t n_replicas, struct plan *ret, struct error *err);
void plan_deinit(struct plan *plan);

/*
 * Compares two registrations, which both have passed plan_make(). Returns 0 if
 * they are equal, or -EINVAL with a sentence that says which parameter, or
 * which field of the policy, is the first to differ, and how. `whose` names the
 * other side in the sentence ("rank 0"). On the same mesh, the hashes of the
 * plans are equal if and only if this returns 0.
 */
int plan_compare(const struct plan_param *mine, uint32_t n_mine,
		 const struct plan_policy *my_policy,
		 const struct plan_param *theirs, uint32_t n_theirs,
		 const struct plan_policy *their_policy, const char *whose,
		 struct error *err);

/* Checks that a mesh of `n` ranks can hold the group after its use (reshard to
 * a smaller mesh): `n` must divide S, and each padded parameter. Returns
 * -EINVAL if not. */
int plan_check_mesh(const struct plan *plan, uint32_t n, struct error *err);
