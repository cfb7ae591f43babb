/*
 * Collectives on the caller's tensors: broadcast, all-reduce, all-gather and
 * the other collectives of a process group, and messages between two ranks, for
 * the ranks of a communicator that are on one node. fsdp.h includes this header
 * and describes the conventions. (Groups of parameters, which the broker keeps
 * and shards, are in fsdp_comm.h.)
 *
 * A tensor is any contiguous host memory of the caller, aligned for its dtype,
 * also if the communicator is on devices. The ranks copy it through memory that
 * their run shares, piece by piece, and reduce it there. These calls send no
 * request to the broker (except the first one of a run), and make no system
 * call unless they must sleep; docs/collectives.md describes how they work.
 *
 * Calls
 *   - Every rank of the communicator must make the same calls in the same
 *     order, with the same dtype, reduction and root, and with matching sizes:
 *     a rank must give another as many elements as the other takes. If not, the
 *     communicator fails, with a message that names the two calls that differ.
 *   - A call returns when this rank has its results, and may write its inputs
 *     again. It copies only after all ranks have made the call, so it is a
 *     barrier, too, except that a rank may return before another has begun to
 *     copy.
 *   - In each step of a call, a rank may be late by the time-out of the
 *     communicator (fsdp_comm_options.timeout_ms); then the communicator fails.
 *     There is no time-out for a single call, since half a collective cannot be
 *     undone. For the same reason a call that is interrupted (-EINTR) fails the
 *     communicator.
 *   - One thread at a time may call collectives on a communicator. To run
 *     collectives in the background, call them from a thread of their own, in
 *     the common order, or join a second communicator for them; two threads may
 *     use two communicators of one connection at the same time.
 *
 * Errors
 *   -EINVAL        an argument is invalid; the call has no effect, and the
 *                  other ranks wait for a valid call of this rank
 *   -ECONNABORTED  the communicator has failed: two calls differ, or a rank has
 *                  died, has left or is late (see fsdp_comm.h)
 *   -EINTR         fsdp_connect_options.interrupted returned nonzero
 *   -EOPNOTSUPP    the ranks are on several nodes, or too many communicators
 *                  are running
 *   -ENOMEM        there is too little memory
 *   -EDQUOT        the first call of a run exceeds a quota (see fsdp_comm.h)
 */
#pragma once
#ifndef FSDP_API
#include "fsdp.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct fsdp_comm;

/*
 * How the tensors of all ranks are combined into one, element by element.
 * Elements are combined in the order of the ranks, so all ranks and all runs
 * get the same bits. Sums and products of f16, bf16 and f32 are computed in
 * f32, others in their dtype (integers wrap), and rounded once. FSDP_MEAN
 * divides the sum by the number of ranks (integers: towards zero). If one of
 * the elements is a NaN, their minimum and maximum are NaN. The sum of bools is
 * their "or", the product their "and"; they have no mean. Complex numbers have
 * only sums and means. 8-bit floats cannot be reduced. -EINVAL: the reduction
 * is not defined for the dtype.
 */
enum fsdp_reduction {
	FSDP_SUM = 0,
	FSDP_MEAN = 1,
	FSDP_PRODUCT = 2,
	FSDP_MIN = 3,
	FSDP_MAX = 4,
	FSDP_BAND = 5, /* bitwise; integers and bools */
	FSDP_BOR = 6,
	FSDP_BXOR = 7,
};

/*
 * The part of one rank. Functions take an array of n_ranks parts; part r
 * belongs to rank r. Parts may have different sizes and addresses: an array of
 * parts can describe slices of one tensor, or separate tensors. A part of 0
 * elements needs no memory.
 */
struct fsdp_part {
	void *data;     /* only read if the part is an input */
	uint64_t count; /* elements */
};

/* Copies `count` elements of `root` to all ranks, in place. */
FSDP_API int fsdp_broadcast(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			    void *data, uint64_t count, uint32_t root);

/* Stores the reduction of `in` of all ranks in `out` of all ranks. Both have
 * `count` elements. `out` may be `in`. */
FSDP_API int fsdp_all_reduce(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			     enum fsdp_reduction how, const void *in, void *out,
			     uint64_t count);

/* Does the same, but stores the reduction only in `out` of `root`; `out` of the
 * other ranks is not used, and may be NULL. */
FSDP_API int fsdp_reduce_to(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			    enum fsdp_reduction how, const void *in, void *out,
			    uint64_t count, uint32_t root);

/* Stores `in` of rank r, `count` elements, in out[r] of all ranks. `in` may be
 * the memory of this rank's own part of `out`. */
FSDP_API int fsdp_all_gather(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			     const void *in, uint64_t count,
			     const struct fsdp_part *out);

/* Does the same, but stores the inputs only in `out` of `root`; `out` of the
 * other ranks is not used, and may be NULL. */
FSDP_API int fsdp_gather_to(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			    const void *in, uint64_t count,
			    const struct fsdp_part *out, uint32_t root);

/* Stores in[r] of `root` in `out` of rank r, `count` elements. `in` of the
 * other ranks is not used, and may be NULL. */
FSDP_API int fsdp_scatter_from(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			       const struct fsdp_part *in, void *out,
			       uint64_t count, uint32_t root);

/* Stores the reduction of in[r] of all ranks in `out` of rank r, `count`
 * elements. `out` may be the memory of this rank's own part of `in`. */
FSDP_API int fsdp_reduce_scatter(struct fsdp_comm *comm, enum fsdp_dtype dtype,
				 enum fsdp_reduction how,
				 const struct fsdp_part *in, void *out,
				 uint64_t count);

/* Stores in[r] of rank s in out[s] of rank r, for all r and s. `out` must not
 * overlap `in`. */
FSDP_API int fsdp_all_to_all(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			     const struct fsdp_part *in,
			     const struct fsdp_part *out);

/*
 * Reduces `n` tensors of this process, of `count` elements each, in their
 * order, without a communicator. The result has the same bits as that of the
 * calls above. This function is for memory that the ranks share
 * (fsdp_ticket_redeem_mut()). The tensors must be aligned for their dtype, and
 * `out` must not overlap them. `n` is 1 to FSDP_MAX_RANKS.
 */
FSDP_API int fsdp_fold(enum fsdp_dtype dtype, enum fsdp_reduction how,
		       const void *const *in, uint32_t n, void *out,
		       uint64_t count);

/* --- messages ------------------------------------------------------------ */

/*
 * Messages between two ranks. fsdp_send() and fsdp_receive() begin a transfer
 * and do not wait; fsdp_transfer_wait() waits for one. Each of these calls also
 * continues all other transfers that this rank has begun on the communicator,
 * so transfers may be waited for in any order; without such calls a transfer
 * makes no progress. Messages and collectives may be called in any order.
 *
 * Messages from one rank to another with one tag are received in the order in
 * which they were sent, each by the receive of that tag that was begun first.
 * Messages of different tags may be received in another order: if a receive
 * waits for a later message of a rank, earlier ones without a receive are
 * stored in memory of the process, up to 16 GiB and 16,384 messages of each
 * rank. A receive must have the dtype and size of its message; otherwise the
 * communicator fails, with an error that names both.
 *
 * The memory at `data` must stay valid, and that of a send unchanged, until the
 * wait has returned 0 or the communicator has failed. Transfers that are not
 * complete are freed when the communicator is left or the connection is closed.
 */
struct fsdp_transfer;

#define FSDP_ANY_RANK UINT32_MAX

/* Begins to send `count` elements to rank `to`, which must be another rank. */
FSDP_API int fsdp_send(struct fsdp_comm *comm, enum fsdp_dtype dtype,
		       const void *data, uint64_t count, uint32_t to,
		       uint64_t tag, struct fsdp_transfer **ret);

/* Begins to receive `count` elements from rank `from`, or from FSDP_ANY_RANK:
 * from any rank that has not left, or has sent the message before it left. */
FSDP_API int fsdp_receive(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			  void *data, uint64_t count, uint32_t from,
			  uint64_t tag, struct fsdp_transfer **ret);

/*
 * Waits until the data of a receive is complete, or that of a send may be
 * overwritten. Then it frees the transfer, and stores the other rank in
 * `*ret_rank` (unless it is NULL). A complete send does not mean that the other
 * rank has received the message. -ETIMEDOUT: the transfer is not complete (the
 * message names the rank that it waits for); wait for it again. -EINTR: the
 * wait was interrupted; wait again. -ECONNABORTED: a rank has died, has left,
 * or has made no progress for the communicator's time-out while this call
 * waited.
 */
FSDP_API int fsdp_transfer_wait(struct fsdp_transfer *transfer,
				int32_t timeout_ms, uint32_t *ret_rank);

#ifdef __cplusplus
}
#endif
