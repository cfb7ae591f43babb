#include "client/rank/box_call.h"
#include "client/rank/comm.h"
#include "client/rank/host_exchange.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define TEXT 96

const char *box_call_name(uint32_t kind)
{
	static const char *const names[] = {
		[EXCHANGE_BROADCAST] = "a broadcast",
		[EXCHANGE_ALL_REDUCE] = "an all-reduce",
		[EXCHANGE_REDUCE] = "a reduce",
		[EXCHANGE_ALL_GATHER] = "an all-gather",
		[EXCHANGE_GATHER] = "a gather",
		[EXCHANGE_SCATTER] = "a scatter",
		[EXCHANGE_REDUCE_SCATTER] = "a reduce-scatter",
		[EXCHANGE_ALL_TO_ALL] = "an all-to-all",
		[EXCHANGE_LARGE_ALL_REDUCE] = "a large all-reduce",
		[EXCHANGE_LARGE_REDUCE] = "a large reduce",
	};

	return kind < sizeof(names) / sizeof(*names) && names[kind]
		       ? names[kind]
		       : "an unknown call";
}

/* Write text like "an all-reduce (sum of f32)" or "a broadcast (f32, rank 0)"
 * to `ret`. */
static const char *describe(const struct box_call *call, char ret[TEXT])
{
	char root[24] = "";
	bool is_reduced = call->how != EXCHANGE_NONE;

	if (call->root != EXCHANGE_NONE)
		(void)snprintf(root, sizeof(root), ", rank %u", call->root);
	(void)snprintf(ret, TEXT, "%s (%s%s%s%s)", box_call_name(call->kind),
		       is_reduced ? fold_name(call->how) : "",
		       is_reduced ? " of " : "", dtype_name(call->dtype), root);
	return ret;
}

static bool is_same(const struct box_call *a, const struct box_call *b)
{
	return a->kind == b->kind && a->dtype == b->dtype && a->how == b->how &&
	       a->root == b->root;
}

static int refuse_size(const struct fsdp_comm *comm, const struct box_call *own,
		       uint32_t rank, uint64_t theirs, uint64_t size,
		       struct error *err)
{
	uint32_t width = dtype_size(own->dtype);
	char text[TEXT];

	return error_set(err, -EINVAL,
			 "in %s rank %u gives rank %u %" PRIu64
			 " elements, which takes %" PRIu64
			 "; the sizes must be the same",
			 describe(own, text), rank, comm->rank, theirs / width,
			 size / width);
}

int box_call_compare(const struct fsdp_comm *comm, const struct box_call *own,
		     uint32_t rank, const struct box_call *theirs,
		     uint64_t size, struct error *err)
{
	char mine[TEXT], other[TEXT];

	if (!is_same(own, theirs))
		return error_set(err, -EINVAL,
				 "rank %u calls %s, but rank %u calls %s; all "
				 "must make the same calls in the same order",
				 comm->rank, describe(own, mine), rank,
				 describe(theirs, other));
	if (own->number != theirs->number)
		return error_set(err, -EPROTO,
				 "rank %u is in call %u, but rank %u in call "
				 "%u; their libraries have different versions, "
				 "or one has overwritten the board",
				 comm->rank, own->number, rank, theirs->number);
	if (theirs->sizes[comm->rank] != size)
		return refuse_size(comm, own, rank, theirs->sizes[comm->rank],
				   size, err);
	return 0;
}
