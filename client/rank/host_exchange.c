#include "client/rank/host_exchange.h"
#include "client/rank/await.h"
#include "client/rank/box_call.h"
#include "client/rank/comm.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define MS_NS INT64_C(1000000)

/* The number of rounds by which a rank puts more than it takes, so that other
 * ranks need not wait while it copies. */
#define AHEAD 2
/* The alignment of blocks in a slot, so that no two ranks use one cache
 * line. */
#define LINE UINT64_C(64)
/* Bytes of this rank's own input that are copied at a time. They stay in the
 * first-level cache. */
#define OWN_SIZE UINT64_C(4096)

_Static_assert(AHEAD <= BOX_SLOTS, "there is a slot for each");
_Static_assert(BOX_SLOT_SIZE / BOX_RANKS >= LINE, "each rank has a block");

/* An exchange that is under way. */
struct run {
	const struct exchange *exchange;
	struct fsdp_comm *comm;
	const struct board *board;
	struct box_call call; /* the call of this rank */
	uint32_t first;       /* the first round of this rank */
	uint64_t block;       /* bytes for one rank in a round */
	uint64_t n_rounds;    /* the greatest number known so far */
	uint64_t n_put, n_taken;
	uint64_t n_own;   /* rounds in which this rank has bytes */
	uint32_t longest; /* the rank with the most rounds, and its bytes */
	uint64_t longest_size;
	/* start of the time in which only others have bytes; 0: not yet */
	int64_t idle_ns;
};

/* --- waiting ------------------------------------------------------------- */

static uint64_t all_ranks(const struct board *board)
{
	return UINT64_MAX >> (64 - board->n_ranks);
}

static int fail_late(const struct run *run, enum box_counter counter,
		     uint32_t round, struct error *err)
{
	const char *what = round == run->first ? "started" : "continued";
	uint64_t ranks = boxes_missing(run->board, all_ranks(run->board),
				       counter, round);
	char names[AWAIT_TEXT];

	error_set(err, -ECONNABORTED, "%s has not %s %s within %d ms",
		  await_name_ranks(run->comm, ranks, names), what,
		  box_call_name(run->call.kind), run->comm->timeout_ms);
	return comm_fail_run(run->comm, err);
}

static int fail_left(const struct run *run, uint64_t ranks, struct error *err)
{
	char names[AWAIT_TEXT];

	error_set(err, -ECONNABORTED, "%s has left before %s",
		  await_name_ranks(run->comm, ranks, names),
		  box_call_name(run->call.kind));
	return comm_fail_run(run->comm, err);
}

/* Fail the run, because a collective that has begun cannot be undone. */
static int fail_interrupted(const struct run *run)
{
	struct error why = ERROR_NULL;
	char name[BOARD_NAME_TEXT];

	error_set(&why, -ECONNABORTED, "%s was interrupted in %s",
		  board_name_rank(run->board, run->comm->rank, name),
		  box_call_name(run->call.kind));
	comm_give_up(run->comm, &why);
	return -EINTR;
}

static int await_slowly(const struct run *run, uint32_t rank,
			enum box_counter counter, uint32_t round,
			struct error *err)
{
	const struct await await = {
		.goal = counter == BOX_PUT ? BOARD_PUT : BOARD_TAKEN,
		.number = round,
		.of = rank,
		.since_ns = bell_recent_ns(),
		.until_ns = INT64_MAX,
	};
	uint64_t ranks;
	int r = await_ranks(run->comm, &await, &ranks, err);

	switch (r) {
	case AWAIT_LATE:
		return fail_late(run, counter, round, err);
	case AWAIT_LEFT:
		return fail_left(run, ranks, err);
	case -EINTR:
		return fail_interrupted(run);
	default:
		return r;
	}
}

static int await(const struct run *run, uint32_t rank, enum box_counter counter,
		 uint32_t round, struct error *err)
{
	return box_has(run->board, rank, counter, round)
		       ? 0
		       : await_slowly(run, rank, counter, round, err);
}

static int await_all(const struct run *run, enum box_counter counter,
		     uint32_t round, struct error *err)
{
	int r = 0;

	for (uint32_t i = 0; i < run->board->n_ranks && r == 0; i++)
		r = await(run, i, counter, round, err);
	return r;
}

/* --- calls --------------------------------------------------------------- */

static uint64_t size_for(const struct exchange *exchange, uint32_t rank)
{
	if (exchange->is_shared)
		return exchange->to >> rank & 1 ? exchange->give[0].size : 0;
	return exchange->give[rank].size;
}

static void describe(struct run *run)
{
	const struct exchange *exchange = run->exchange;
	struct box_call *call = &run->call;

	call->number = ++run->comm->exchanges.number;
	call->kind = exchange->kind;
	call->dtype = exchange->dtype;
	call->how = exchange->how;
	call->root = exchange->root;
	call->size = 0;
	for (uint32_t i = 0; i < run->board->n_ranks; i++) {
		call->sizes[i] = size_for(exchange, i);
		if (call->sizes[i] > call->size)
			call->size = call->sizes[i];
	}
}

/* The results of shares need one round more than their bytes. */
static uint64_t count_rounds(const struct run *run, uint64_t size)
{
	return (size ? (size - 1) / run->block + 1 : 1) +
	       (run->exchange->has_shares ? 1 : 0);
}

/* Wait until all ranks have made their calls, and compare them. */
static int meet(struct run *run, struct error *err)
{
	struct box_call theirs;
	uint64_t n;
	int r = await_all(run, BOX_PUT, run->first, err);

	if (r < 0)
		return r;

	for (uint32_t i = 0; i < run->board->n_ranks && r == 0; i++) {
		box_get_call(run->board, i, run->first, &theirs);
		r = box_call_compare(run->comm, &run->call, i, &theirs,
				     run->exchange->take[i].size, err);
		n = count_rounds(run, theirs.size);
		if (n > run->n_rounds) {
			run->n_rounds = n;
			run->longest = i;
			run->longest_size = theirs.size;
		}
	}
	return r < 0 ? comm_fail_run(run->comm, err) : 0;
}

/* --- bytes --------------------------------------------------------------- */

/* Return how many bytes of `bytes` belong to round `i`. */
static uint64_t size_of_round(const struct run *run, const struct bytes *bytes,
			      uint64_t i)
{
	uint64_t at = i * run->block;
	uint64_t left = at < bytes->size ? bytes->size - at : 0;

	return left < run->block ? left : run->block;
}

static void fill(const struct run *run, uint8_t *slot,
		 const struct bytes *bytes, uint64_t i)
{
	uint64_t size = size_of_round(run, bytes, i);

	if (size)
		memcpy(slot, bytes->data + i * run->block, size);
}

/* Fill the blocks of a slot for the other ranks. */
static void fill_blocks(const struct run *run, uint8_t *slot, uint64_t i)
{
	for (uint32_t to = 0; to < run->board->n_ranks; to++) {
		if (to != run->comm->rank)
			fill(run, slot + to * run->block,
			     &run->exchange->give[to], i);
	}
}

/* Return the address of the bytes that a rank has put for this rank. */
static const uint8_t *block_of(const struct run *run, uint32_t from,
			       uint32_t round)
{
	uint8_t *slot = box_slot(run->board, from, round);

	return run->exchange->is_shared ? slot
					: slot + run->comm->rank * run->block;
}

static void take_own(const struct run *run, uint64_t i)
{
	const struct exchange *exchange = run->exchange;
	uint32_t rank = run->comm->rank;
	const struct bytes *take = &exchange->take[rank];
	const struct bytes *give =
		&exchange->give[exchange->is_shared ? 0 : rank];
	uint64_t size = size_of_round(run, take, i);

	if (size && take->data != give->data)
		memmove(take->data + i * run->block,
			give->data + i * run->block, size);
}

static int copy(const struct run *run, uint64_t i, uint32_t round,
		struct error *err)
{
	const struct exchange *exchange = run->exchange;
	uint32_t n = run->board->n_ranks, own = run->comm->rank;
	int r;

	take_own(run, i);
	/* Each rank begins with the next rank, so that the ranks do not all
	 * read from the same one. */
	for (uint32_t k = 1; k < n; k++) {
		uint32_t from = (own + k) % n;
		const struct bytes *take = &exchange->take[from];
		uint64_t size = size_of_round(run, take, i);

		if (!size)
			continue;
		r = await(run, from, BOX_PUT, round, err);
		if (r < 0)
			return r;
		memcpy(take->data + i * run->block, block_of(run, from, round),
		       size);
	}
	return 0;
}

/* Fold the blocks of a round that all ranks have put. This rank's own block is
 * not in its slot. The input may be unaligned, or be where the result goes;
 * then it is copied first. */
static void fold_blocks(const struct run *run, uint32_t round,
			const uint8_t *own, uint8_t *out, uint64_t size)
{
	const struct fold *fold = run->exchange->fold;
	uint32_t n_ranks = run->board->n_ranks;
	bool is_copied = own == out || (uintptr_t)own % fold->width;
	_Alignas(LINE) uint8_t copied[OWN_SIZE];
	const void *in[FSDP_MAX_RANKS];

	for (uint64_t at = 0, n; at < size; at += n) {
		n = is_copied && size - at > OWN_SIZE ? OWN_SIZE : size - at;
		for (uint32_t from = 0; from < n_ranks; from++)
			in[from] = block_of(run, from, round) + at;
		in[run->comm->rank] = is_copied ? copied : own + at;
		if (is_copied)
			memcpy(copied, own + at, n);
		fold_run(fold, out + at, in, n_ranks, n);
	}
}

/* Fold what all ranks have put in the slots, of which each rank gives the same
 * bytes to all others. */
static void fold_slots(const struct run *run, uint32_t round, uint8_t *out,
		       uint64_t size)
{
	const void *in[FSDP_MAX_RANKS];

	for (uint32_t from = 0; from < run->board->n_ranks; from++)
		in[from] = block_of(run, from, round);
	fold_run(run->exchange->fold, out, in, run->board->n_ranks, size);
}

static int fold(const struct run *run, uint64_t i, uint32_t round,
		struct error *err)
{
	const struct exchange *exchange = run->exchange;
	uint64_t size = size_of_round(run, &exchange->take[0], i);
	uint64_t at = i * run->block;
	int r;

	if (!size)
		return 0;
	r = await_all(run, BOX_PUT, round, err);
	if (r < 0)
		return r;
	if (exchange->is_shared)
		fold_slots(run, round, exchange->result + at, size);
	else
		fold_blocks(run, round,
			    exchange->give[run->comm->rank].data + at,
			    exchange->result + at, size);
	return 0;
}

/* --- shares -------------------------------------------------------------- */

/* Fold this rank's share of a round, into the block of its slot that is for
 * itself. The next round that it puts tells the others that it is there. */
static int fold_share(struct run *run, uint64_t i, uint32_t round,
		      struct error *err)
{
	uint32_t rank = run->comm->rank;
	const struct bytes *own = &run->exchange->give[rank];
	uint8_t *slot = box_slot(run->board, rank, round);
	uint64_t size = size_of_round(run, own, i);
	int r = i == 0 ? meet(run, err) : await_all(run, BOX_PUT, round, err);

	if (r == 0 && size)
		fold_blocks(run, round, own->data + i * run->block,
			    slot + rank * run->block, size);
	return r;
}

/* Copy the folded shares of all ranks to the result. */
static int collect(const struct run *run, uint64_t i, uint32_t round,
		   struct error *err)
{
	const struct exchange *exchange = run->exchange;
	uint32_t n = run->board->n_ranks;

	for (uint32_t k = 0; k < n && exchange->result; k++) {
		uint32_t from = (run->comm->rank + k) % n;
		const struct bytes *share = &exchange->give[from];
		uint64_t size = size_of_round(run, share, i);
		uint64_t at = (uint64_t)(share->data - exchange->give[0].data) +
			      i * run->block;
		int r;

		if (!size)
			continue;
		r = await(run, from, BOX_PUT, round + 1, err);
		if (r < 0)
			return r;
		memcpy(exchange->result + at,
		       box_slot(run->board, from, round) + from * run->block,
		       size);
	}
	return 0;
}

/* --- rounds -------------------------------------------------------------- */

static int put(struct run *run, struct error *err)
{
	const struct exchange *exchange = run->exchange;
	struct fsdp_comm *comm = run->comm;
	uint64_t i = run->n_put++;
	uint32_t round = run->first + (uint32_t)i;
	uint8_t *slot = box_slot(run->board, comm->rank, round);
	int r = 0;

	if (exchange->has_shares && i > 0)
		r = fold_share(run, i - 1, round - 1, err);
	if (r == 0)
		r = await_all(run, BOX_TAKEN, round - BOX_SLOTS, err);
	if (r < 0)
		return r;
	if (i == 0)
		box_set_call(run->board, comm->rank, round, &run->call);
	if (exchange->is_shared)
		fill(run, slot, &exchange->give[0], i);
	else
		fill_blocks(run, slot, i);
	failpoint("exchange.filled");
	comm->exchanges.round = round;
	box_set(run->board, comm->rank, BOX_PUT, round);
	return 0;
}

static int take_round(const struct run *run, uint64_t i, uint32_t round,
		      struct error *err)
{
	if (run->exchange->has_shares)
		return collect(run, i, round, err);
	return run->exchange->fold ? fold(run, i, round, err)
				   : copy(run, i, round, err);
}

static int take(struct run *run, struct error *err)
{
	uint64_t i = run->n_taken++;
	uint32_t round = run->first + (uint32_t)i;
	int r = 0;

	if (i == 0 && !run->exchange->has_shares)
		r = meet(run, err);
	if (r == 0)
		r = take_round(run, i, round, err);
	if (r < 0)
		return r;
	failpoint("exchange.copied");
	box_set(run->board, run->comm->rank, BOX_TAKEN, round);
	return 0;
}

/* Check the run and the time-out in a round in which this rank has no bytes and
 * waits for none. The number of such rounds is a value of another rank, so they
 * need both checks. */
static int check_idle(struct run *run, struct error *err)
{
	int64_t now_ns = bell_now_ns();
	char name[AWAIT_TEXT];

	if (!run->idle_ns)
		run->idle_ns = now_ns;
	if (now_ns < run->idle_ns + run->comm->timeout_ms * MS_NS)
		return comm_check_run(run->comm, err);
	error_set(
		err, -ECONNABORTED,
		"%s has not finished %s of %" PRIu64
		" bytes within %d ms after rank %u had its whole result",
		await_name_ranks(run->comm, UINT64_C(1) << run->longest, name),
		box_call_name(run->call.kind), run->longest_size,
		run->comm->timeout_ms, run->comm->rank);
	return comm_fail_run(run->comm, err);
}

/* Return the number of rounds in which this rank gives or takes bytes. */
static uint64_t count_own_rounds(const struct run *run)
{
	uint64_t size = run->call.size;

	for (uint32_t i = 0; i < run->board->n_ranks; i++) {
		if (run->exchange->take[i].size > size)
			size = run->exchange->take[i].size;
	}
	return count_rounds(run, size);
}

int host_exchange_run(const struct exchange *exchange, struct error *err)
{
	struct fsdp_comm *comm = exchange->comm;
	struct run run = {
		.exchange = exchange,
		.comm = comm,
		.board = &comm->board,
		.first = comm->exchanges.round + 1,
		.block = exchange->is_shared
				 ? BOX_SLOT_SIZE
				 : BOX_SLOT_SIZE / comm->board.n_ranks &
					   ~(LINE - 1),
	};
	int r = 0;

	describe(&run);
	run.n_rounds = count_rounds(&run, run.call.size);
	run.n_own = count_own_rounds(&run);
	while (r == 0 && run.n_taken < run.n_rounds) {
		if (run.n_put < run.n_rounds && run.n_put < run.n_taken + AHEAD)
			r = put(&run, err);
		else
			r = take(&run, err);
		if (r == 0 && run.n_taken > run.n_own)
			r = check_idle(&run, err);
	}
	return r;
}
