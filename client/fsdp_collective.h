/*
 * Collectives on the caller's tensors: broadcast, all-reduce, all-gather and
 * the rest of what a process group offers, and messages between two ranks, for
 * the ranks of a communicator that are on one node. Included by fsdp.h. (Groups
 * of parameters, which the broker keeps and shards, are in fsdp_comm.h.)
 *
 * A tensor is any contiguous host memory of the caller, aligned for its dtype,
 * also where the communicator is on devices. The ranks copy it through memory
 * that their run shares, piece by piece, and reduce it there: no call of these
 * talks to the broker, and none makes a system call unless it must sleep.
 * docs/collectives.md has how.
 *
 * Calls
 *   - Every rank of the communicator makes the same calls in the same order,
 *     with the same dtype, reduction and root, and with sizes that fit: what a
 *     rank gives another is as much as the other takes. If not, the
 *     communicator fails, and every rank is told which two calls differ.
 *   - A call returns when this rank has what it is to have, and may write its
 *     inputs again. It begins when all ranks have made it, so it is a barrier,
 *     too, except that a rank may return before another has begun to copy.
 *   - A rank may be late by the time-out of the communicator
 *     (fsdp_comm_options.timeout_ms), in each step of a call; then the
 *     communicator fails. There is no time-out for a single call, since half a
 *     collective cannot be taken back. For the same reason a call that is
 *     interrupted (-EINTR) fails the communicator.
 *   - The calls of a communicator are made by one thread at a time. To have
 *     some run while others do, call them from a thread of their own, in the
 *     common order, or join a second communicator for them; two threads may use
 *     two communicators of one connection at the same time.
 *
 * Errors: -EINVAL: an argument is wrong in itself (nothing has happened then,
 * and the others wait for this rank's right call); -ECONNABORTED: the
 * communicator has failed, by a call that differs, or since a rank has died,
 * has left or is late, as fsdp_comm.h says; -EINTR; -EOPNOTSUPP: the ranks are
 * on several nodes, or too many communicators are running; -ENOMEM; -EDQUOT: in
 * the first call of a run, as fsdp_comm.h says.
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
 * How the tensors of all ranks become one, element by element. Elements are
 * taken in the order of the ranks, so all ranks get the same bits, and each run
 * does: sums and products of f16, bf16 and f32 are made in f32, others in their
 * dtype (integers wrap), and rounded once. FSDP_MEAN divides the sum by the
 * number of ranks (integers: towards zero). A NaN is the minimum and maximum of
 * anything. A bool is 0 or 1: its sum is "or", its product "and", and it has no
 * mean. Complex numbers have only sums and means. 8-bit floats have none of
 * these. -EINVAL: it is not defined for the dtype.
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
 * The part of one rank, in an array with one for each rank. Parts may have
 * different sizes, and lie anywhere: an array of parts can be one tensor that
 * is cut, or a list of tensors. A part of 0 elements needs no memory.
 */
struct fsdp_part {
	void *data; /* of an input it is only read */
	uint64_t count;
};

/* `count` elements of `root` go to all, in place. */
FSDP_API int fsdp_broadcast(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			    void *data, uint64_t count, uint32_t root);

/* All get the reduction of all. `out` may be `in`. */
FSDP_API int fsdp_all_reduce(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			     enum fsdp_reduction how, const void *in, void *out,
			     uint64_t count);

/* `root` gets it; `out` of the others is not used, and may be NULL. `out` may
 * be `in`. */
FSDP_API int fsdp_reduce_to(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			    enum fsdp_reduction how, const void *in, void *out,
			    uint64_t count, uint32_t root);

/* All get the inputs of all: out[r] is of rank r. `in` may be the memory of
 * this rank's own part. */
FSDP_API int fsdp_all_gather(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			     const void *in, uint64_t count,
			     const struct fsdp_part *out);

/* `root` gets them; `out` of the others is not used, and may be NULL. */
FSDP_API int fsdp_gather_to(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			    const void *in, uint64_t count,
			    const struct fsdp_part *out, uint32_t root);

/* Rank r gets in[r] of `root`; `in` of the others is not used, and may be NULL.
 */
FSDP_API int fsdp_scatter_from(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			       const struct fsdp_part *in, void *out,
			       uint64_t count, uint32_t root);

/* Rank r gets the reduction of in[r] of all. `out` may be the memory of this
 * rank's own part. */
FSDP_API int fsdp_reduce_scatter(struct fsdp_comm *comm, enum fsdp_dtype dtype,
				 enum fsdp_reduction how,
				 const struct fsdp_part *in, void *out,
				 uint64_t count);

/* Rank r gets in[r] of each rank: out[s] is of rank s. `out` overlaps `in`
 * nowhere. */
FSDP_API int fsdp_all_to_all(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			     const struct fsdp_part *in,
			     const struct fsdp_part *out);

/*
 * Reduces `n` tensors of this process, of `count` elements each, in their
 * order, with the bits of the calls above, but without a communicator: for
 * memory that the ranks share (fsdp_ticket_redeem_mut()). They are aligned for
 * their dtype, and `out` overlaps none of them. `n` is 1 to FSDP_MAX_RANKS.
 */
FSDP_API int fsdp_fold(enum fsdp_dtype dtype, enum fsdp_reduction how,
		       const void *const *in, uint32_t n, void *out,
		       uint64_t count);

/* --- messages ------------------------------------------------------------ */

/*
 * Messages between two ranks. A call begins a transfer and does not wait; the
 * wait for any transfer also carries on all others that were begun on the
 * communicator, so the order of the waits is free. A transfer goes on only in
 * such calls of its rank. They have nothing to do with the order of
 * collectives.
 *
 * Messages from one rank to another with one tag are received in the order in
 * which they were sent, each by the receive of that tag that was begun first.
 * Messages of different tags overtake each other: one that no receive has asked
 * for, while a later one of the same rank is waited for, is put aside in memory
 * of the process; for each other rank up to 16 GiB and 16,384 messages. A
 * receive must have the dtype and size of its message; else the communicator
 * fails, with both in its message.
 *
 * `data` must stay as it is until the wait has returned 0. When the
 * communicator has failed it is not touched any more. Transfers that were not
 * waited for until the end are freed when the communicator is left or the
 * connection is closed.
 */
struct fsdp_transfer;

#define FSDP_ANY_RANK UINT32_MAX

/* Begins to send `count` elements to rank `to`, which is not this one. */
FSDP_API int fsdp_send(struct fsdp_comm *comm, enum fsdp_dtype dtype,
		       const void *data, uint64_t count, uint32_t to,
		       uint64_t tag, struct fsdp_transfer **ret);

/* Begins to receive from that rank, or from FSDP_ANY_RANK. */
FSDP_API int fsdp_receive(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			  void *data, uint64_t count, uint32_t from,
			  uint64_t tag, struct fsdp_transfer **ret);

/*
 * Waits until `data` may be written again, or is there; then the transfer is
 * freed, and `ret_rank` (NULL: not wanted) is the other rank. That a send is
 * complete does not mean that the other has received it. -ETIMEDOUT: it is not
 * complete (the message says whom it waits for); it may be waited for again.
 * -EINTR: the same. -ECONNABORTED: a rank has died, has left, or has done
 * nothing for the communicator's time-out while this call waited.
 */
FSDP_API int fsdp_transfer_wait(struct fsdp_transfer *transfer,
				int32_t timeout_ms, uint32_t *ret_rank);

#ifdef __cplusplus
}
#endif
