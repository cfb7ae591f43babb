/*
 * The plan of a group: where every parameter lies, for every rank.
 *
 * A pure function of the parameters, the policy and the mesh. Its hash is
 * compared over all ranks before the group is used. Everything else (broker,
 * worker, and in other processes libfsdp by what the broker tells it) takes
 * its offsets from here.
 *
 * Four kinds of memory, sizes in bytes, each a range of its own:
 *
 *   shards  what the group keeps: for every replica, every entry, every rank a
 *           zero-padded chunk in the stored dtype. There are two, the committed
 *           one and the next.
 *   full    what an unshard makes: for every replica all parameters whole, in
 *           the param dtype. Not needed where `is_in_place`: then the shards,
 *           seen as a whole, are the parameters already.
 *   input   one rank's gradients, whole, in the input dtype, trainable only.
 *   grads   the reduced gradients: for every rank of every replica its chunks
 *           in the stored dtype, trainable only; and, with replicas,
 *   partial the sums within one replica that were not reduced over the
 *           replicas yet, in the reduce dtype; laid out as grads.
 *
 * The chunk of entry e and shard s in replica g begins in the shards at
 *
 *     g * shards_size + e.shard_offset + s * e.shard_stride
 *
 * and likewise in grads and partial. Two layouts differ in these numbers only:
 *
 * PLAN_IN_PLACE: entry by entry, each with all its ranks' chunks behind one
 *     another: a parameter cut along its first dimension is then whole as it
 *     lies, and a gather without cast moves nothing.
 * PLAN_FLAT: bucket by bucket, in it rank by rank, in it entry by entry: a
 *     rank's shard of a bucket is one flat range, as it goes over a wire.
 *
 * On devices (`is_per_rank`) every rank's chunks of all entries are one range,
 * shards_size / n_shards long, since they lie in that rank's own memory: the
 * strides are all that length. The layout then says how a bucket travels:
 * PLAN_IN_PLACE entry by entry, straight to where it is whole; PLAN_FLAT in
 * one piece, which is then taken apart (wire.h).
 *
 * Offsets of entries (in PLAN_FLAT: of chunks) are multiples of PLAN_ALIGN;
 * what lies between is zero and visible to nobody.
 */
#pragma once
#include "collective/shard.h"
#include "proto/tensor.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

#define PLAN_ALIGN 64
#define PLAN_MAX_RANKS                                                         \
	64 /* on a node: of host memory, shards times replicas                 \
	    */
#define PLAN_MAX_WORLD  4096 /* the same on devices, over all nodes */
#define PLAN_MAX_PARAMS 1024
#define PLAN_MAX_CAPS   16

enum plan_layout {
	PLAN_IN_PLACE = 0,
	PLAN_FLAT = 1,
};

struct plan_param {
	const char *name;
	struct tensor_type type; /* contiguous; the stored dtype */
	int32_t shard_dim;       /* may be negative */
	bool is_frozen;          /* has no gradient */
};

struct plan_policy {
	uint32_t param_dtype;  /* of unsharded parameters; 0: as stored */
	uint32_t input_dtype;  /* of gradients' inputs; 0: the param dtype */
	uint32_t reduce_dtype; /* of the reduction; 0: the input's dtype */
	enum plan_layout layout;
	/* Caps of gather and reduce buckets, MiB (bucket.h). */
	double gather_caps_mb[PLAN_MAX_CAPS], reduce_caps_mb[PLAN_MAX_CAPS];
	uint32_t n_gather_caps, n_reduce_caps;
	bool stays_unsharded; /* a root: not in the limiter's count */
	bool is_per_rank;     /* on devices */
	bool is_offloaded;    /* with that: all but whole parameters and inputs
			       * is in host memory. Nothing lies elsewhere. */
};

struct plan_entry {
	struct shard shard;
	uint32_t dtype;        /* stored; of the reduced gradient too */
	uint32_t full_dtype;   /* unsharded */
	uint32_t input_dtype;  /* of the gradient's input; 0: frozen */
	uint32_t reduce_dtype; /* 0: frozen */
	uint32_t gather_bucket;
	uint32_t reduce_bucket; /* BUCKET_NONE: frozen */
	uint64_t shard_offset, shard_stride;
	uint64_t full_offset;  /* in one replica's `full` */
	uint64_t input_offset; /* frozen: 0, as are the next four */
	uint64_t grad_offset, grad_stride;
	uint64_t partial_offset, partial_stride;
};

struct plan_bucket {
	uint32_t n_entries;
	uint64_t size; /* bytes on the wire: all ranks' padded chunks, in the
			  full or the reduce dtype, without alignment */
};

struct plan {
	uint32_t n_shards, n_replicas; /* S, R */
	struct plan_policy policy;
	uint32_t n_entries;
	struct plan_entry *entries; /* owned, in the order of the parameters */
	uint32_t n_gather_buckets, n_reduce_buckets;
	struct plan_bucket *gather_buckets, *reduce_buckets; /* owned */
	bool is_in_place; /* no entry needs a copy to be whole */
	/* Of one replica; 0 for partial where there is one replica only. The
	 * full one is there also where the plan is in place. Each times the
	 * replicas is at most 2^62. */
	uint64_t shards_size, full_size, input_size, grads_size, partial_size;
	uint64_t hash; /* of everything that must agree; never 0 */
};

/*
 * -EINVAL with a sentence that names the parameter: no parameters, two of one
 * name, a shape that cannot be cut so, a param dtype between integers and
 * floats, a trainable parameter whose reduce dtype cannot be reduced, a cap
 * that is none, a mesh of more than PLAN_MAX_RANKS, a cast of an 8-bit float. A
 * param, input or reduce dtype is left aside for parameters that are not
 * floating point, as in FSDP2. -EOVERFLOW, -ENOMEM.
 */
int plan_make(const struct plan_param *params, uint32_t n_params,
	      const struct plan_policy *policy, uint32_t n_shards,
	      uint32_t n_replicas, struct plan *ret, struct error *err);
void plan_deinit(struct plan *plan);

/*
 * Does `mine` say the same as `theirs`? 0, or -EINVAL with a sentence that
 * names the first parameter (or the policy's field) that differs and how.
 * `whose`: "rank 0", for the sentence. Both sides have passed plan_make();
 * a plan's hash is equal where this gives 0, and on the same mesh only there.
 */
int plan_compare(const struct plan_param *mine, uint32_t n_mine,
		 const struct plan_policy *my_policy,
		 const struct plan_param *theirs, uint32_t n_theirs,
		 const struct plan_policy *their_policy, const char *whose,
		 struct error *err);

/* May a mesh of `n` ranks hold the group after its use (reshard to a smaller
 * mesh)? `n` must divide S, and every padded parameter. -EINVAL. */
int plan_check_mesh(const struct plan *plan, uint32_t n, struct error *err);
