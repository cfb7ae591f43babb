#include "client/rank/host_reduce.h"
#include "client/rank/await.h"
#include "client/rank/comm.h"
#include "client/rank/host_group.h"
#include "client/rank/idle.h"
#include "client/rank/run_board.h"
#include "collective/host/reduce.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A flag of a cell on the board, in addition to enum reduce_flags. */
#define HAS_FACTOR (UINT32_C(1) << 31)

/* The limits of a call: it waits until `until_ns`, and reduces up to
 * `n_pieces`. */
struct allowance {
	int64_t until_ns;
	uint64_t n_pieces;
};

static struct allowance allow_until(int64_t until_ns)
{
	return (struct allowance){until_ns, UINT64_MAX};
}

int host_reduce_init(struct fsdp_comm *comm, uint32_t direct, uint32_t n_inputs,
		     struct error *err)
{
	struct reducer *reducer;
	int r;

	if (!(direct & COMM_DIRECT_REDUCE))
		return 0;
	if (!comm->verdict || n_inputs > BOARD_MAX_AHEAD)
		return error_set(err, -EPROTO,
				 "fsdpd asks ranks to reduce that have no "
				 "board, or too many inputs for it");
	reducer = calloc(1, sizeof(*reducer));
	if (!reducer)
		return error_nomem(err, "a communicator");
	r = inputs_init(&reducer->inputs, comm->n_shards * comm->n_replicas,
			n_inputs, err);
	if (r < 0) {
		free(reducer);
		return r;
	}
	reducer->kernels = kernels_best();
	comm->reducer = reducer;
	return 0;
}

void host_reduce_end_handles(struct fsdp_comm *comm)
{
	if (comm->reducer)
		inputs_end_handles(&comm->reducer->inputs,
				   comm->n_shards * comm->n_replicas);
}

void host_reduce_deinit(struct fsdp_comm *comm)
{
	if (!comm->reducer)
		return;
	inputs_deinit(&comm->reducer->inputs);
	free(comm->reducer);
	comm->reducer = NULL;
}

static struct handed_in *find_number(struct reducer *reducer, uint32_t number)
{
	return &reducer->list[number % BOARD_REDUCTIONS];
}

/* --- comparing ----------------------------------------------------------- */

static const char *name_group(const struct fsdp_comm *comm, uint64_t id)
{
	const struct fsdp_group *group = comm->groups;

	while (group && group->id != id)
		group = group->next;
	return group ? group->name : "another group";
}

/* Return the option in which two inputs differ, or NULL. */
static const char *find_difference(const struct board_input *mine,
				   const struct board_input *theirs)
{
	uint32_t flags = mine->flags ^ theirs->flags;

	if (flags & REDUCE_ACCUMULATE)
		return "whether to accumulate";
	if (flags & REDUCE_NO_ALL_REDUCE)
		return "whether to all-reduce";
	if (flags & REDUCE_FORCE_SUM)
		return "whether to force sums";
	if (flags || mine->factor != theirs->factor)
		return "the divide factor";
	if (mine->n_pieces != theirs->n_pieces)
		return "how they divide the work: their libraries have "
		       "different versions";
	return NULL;
}

static int compare(const struct fsdp_comm *comm, uint32_t rank,
		   const struct board_input *mine,
		   const struct board_input *theirs, struct error *err)
{
	const char *difference;

	if (mine->group != theirs->group)
		return error_set(err, -EINVAL,
				 "rank %u reduces '%s', but the ranks' next "
				 "reduction is of '%s', which rank %u began; "
				 "all must reduce in the same order",
				 comm->rank, name_group(comm, mine->group),
				 name_group(comm, theirs->group), rank);
	difference = find_difference(mine, theirs);
	if (!difference)
		return 0;
	return error_set(err, -EINVAL,
			 "rank %u reduces '%s' with other options than rank "
			 "%u: they differ in %s",
			 comm->rank, name_group(comm, mine->group), rank,
			 difference);
}

/* Compare with the ranks that have submitted already, before anything
 * changes. */
static int compare_early(const struct fsdp_comm *comm, uint32_t number,
			 const struct board_input *mine, struct error *err)
{
	struct board_input theirs;
	int r = 0;

	for (uint32_t i = 0; i < comm->board.n_ranks && r == 0; i++) {
		if (i != comm->rank &&
		    board_input(&comm->board, i, number, &theirs))
			r = compare(comm, i, mine, &theirs, err);
	}
	return r;
}

/* --- one reduction ------------------------------------------------------- */

/* Fail the run, because the ranks have not done `what` in time. */
static int fail_late(struct fsdp_comm *comm, const struct fsdp_group *group,
		     uint64_t ranks, const char *what, struct error *err)
{
	char names[AWAIT_TEXT];

	error_set(err, -ECONNABORTED, "%s has not %s of '%s' within %d ms",
		  await_name_ranks(comm, ranks, names), what, group->name,
		  comm->timeout_ms);
	return comm_fail_run(comm, err);
}

static int fail_left(struct fsdp_comm *comm, const struct fsdp_group *group,
		     uint64_t ranks, struct error *err)
{
	char names[AWAIT_TEXT];

	error_set(err, -ECONNABORTED,
		  "%s has left before it handed in gradients of '%s'",
		  await_name_ranks(comm, ranks, names), group->name);
	return comm_fail_run(comm, err);
}

static int64_t max_ns(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* Wait until all ranks have submitted. */
static int await_inputs(struct fsdp_comm *comm, const struct handed_in *mine,
			uint32_t number, int64_t until_ns, struct error *err)
{
	const struct await await = {
		.goal = BOARD_INPUTS,
		.number = number,
		.since_ns = max_ns(mine->since_ns, comm->reducer->done_ns),
		.until_ns = until_ns,
	};
	char names[AWAIT_TEXT];
	uint64_t ranks;
	int r = await_ranks(comm, &await, &ranks, err);

	switch (r) {
	case AWAIT_PENDING:
		return error_set(err, -ETIMEDOUT,
				 "'%s' is not reduced yet: %s has not handed "
				 "in its gradients",
				 mine->group->name,
				 await_name_ranks(comm, ranks, names));
	case AWAIT_LATE:
		return fail_late(comm, mine->group, ranks,
				 "handed in gradients", err);
	case AWAIT_LEFT:
		return fail_left(comm, mine->group, ranks, err);
	default:
		return r;
	}
}

static int refuse_wait(const struct handed_in *mine, struct error *err)
{
	return error_set(err, -ETIMEDOUT, "'%s' is still being reduced",
			 mine->group->name);
}

/* Wait until the pieces that other ranks have taken are done. */
static int await_pieces(struct fsdp_comm *comm, const struct handed_in *mine,
			uint32_t number, int64_t until_ns, struct error *err)
{
	const struct await await = {
		.goal = BOARD_REDUCED,
		.number = number,
		.n_pieces = mine->input.n_pieces,
		.since_ns = mine->waits_ns,
		.until_ns = until_ns,
	};
	uint64_t ranks;
	int r = await_ranks(comm, &await, &ranks, err);

	switch (r) {
	case AWAIT_PENDING:
		return refuse_wait(mine, err);
	/* A rank of this library does not leave while it works on a piece, so
	 * one that has left is treated as late. */
	case AWAIT_LEFT:
	case AWAIT_LATE:
		return fail_late(comm, mine->group, ranks,
				 "done its part of the reduction", err);
	default:
		return r;
	}
}

/* Find the inputs of all ranks, and check that their options are equal. */
static int find_inputs(struct fsdp_comm *comm, struct handed_in *mine,
		       uint32_t number, struct error *err)
{
	struct board_input theirs;
	int r = 0;

	for (uint32_t i = 0; i < comm->board.n_ranks && r == 0; i++) {
		if (i == comm->rank) {
			mine->reduce.inputs[i] = mine->memory->data;
			continue;
		}
		if (!board_input(&comm->board, i, number, &theirs))
			return error_set(err, -EPROTO,
					 "rank %u handed in no gradients", i);
		r = compare(comm, i, &mine->input, &theirs, err);
		if (r == 0)
			r = inputs_find(comm, mine->group, i, &theirs.input,
					&mine->reduce.inputs[i], err);
	}
	return r;
}

/* Reduce pieces, but no more than there are. If a rank writes that the same
 * piece must be done again, other ranks thus do not work without end. */
static void take_pieces(struct fsdp_comm *comm, const struct handed_in *mine,
			uint32_t number, struct allowance *allowance)
{
	struct pieces *pieces = board_pieces(&comm->board, number);
	uint64_t n_tasks = reduce_count_tasks(&mine->reduce);
	uint32_t n = mine->input.n_pieces, n_left = n, i;

	board_work_on(&comm->board, comm->rank, number);
	while (n_left-- > 0 && allowance->n_pieces > 0 && comm_is_alive(comm) &&
	       (i = pieces_take(pieces, number, n)) != PIECES_NONE) {
		allowance->n_pieces--;
		failpoint("host_reduce.taken");
		if (i < n_tasks)
			reduce_run(&mine->reduce, i);
		failpoint("host_reduce.written");
		if (pieces_end_one(pieces, number, n))
			bell_ring(&comm->board.page->reductions);
		failpoint("host_reduce.counted");
	}
	board_work_on(&comm->board, comm->rank, 0);
}

static bool is_done(const struct fsdp_comm *comm, const struct handed_in *mine,
		    uint32_t number)
{
	return pieces_are_done(board_pieces(&comm->board, number), number,
			       mine->input.n_pieces);
}

/* Work on a reduction within the limits. If other ranks finish it in the
 * meantime, they need not keep their inputs. */
static int work_on(struct fsdp_comm *comm, struct handed_in *mine,
		   uint32_t number, struct allowance *allowance,
		   struct error *err)
{
	struct error why = ERROR_NULL;
	int r;

	if (is_done(comm, mine, number))
		return 0;
	r = find_inputs(comm, mine, number, &why);
	if (r == 0)
		take_pieces(comm, mine, number, allowance);
	if (r == 0 || is_done(comm, mine, number))
		return 0;
	*err = why;
	if (r == -ECONNABORTED || r == -EINTR)
		return r;
	return comm_fail_run(comm, err);
}

static void end_one(struct fsdp_comm *comm, const struct handed_in *mine)
{
	struct reducer *reducer = comm->reducer;

	reducer->done++;
	reducer->done_ns = bell_recent_ns();
	if (comm->rank == 0)
		board_count_reduced(&comm->board, mine->group->index);
	inputs_free(&reducer->inputs, mine->memory);
	group_note_reduced(mine->group, mine->sequence);
}

/* Work on the first reduction that is not done. */
static int do_next(struct fsdp_comm *comm, struct allowance *allowance,
		   struct error *err)
{
	uint32_t number = comm->reducer->done + 1;
	struct handed_in *mine = find_number(comm->reducer, number);
	int r = await_inputs(comm, mine, number, allowance->until_ns, err);

	if (r == 0)
		r = work_on(comm, mine, number, allowance, err);
	/* There may still be pieces that no rank has begun. */
	if (r == 0 && !allowance->n_pieces && !is_done(comm, mine, number))
		r = refuse_wait(mine, err);
	/* A rank that submits late gets the full time-out for its pieces. */
	if (r == 0 && !mine->waits_ns)
		mine->waits_ns = bell_recent_ns();
	if (r == 0)
		r = await_pieces(comm, mine, number, allowance->until_ns, err);
	if (r == 0)
		end_one(comm, mine);
	return r;
}

/* --- handing in ---------------------------------------------------------- */

static int take_input(struct fsdp_group *group, int64_t until_ns,
		      struct error *err)
{
	struct fsdp_comm *comm = group->comm;
	struct allowance allowance = allow_until(until_ns);
	struct inputs *inputs = &comm->reducer->inputs;
	int r;

	for (;;) {
		r = inputs_take(comm, group, until_ns, &group->input, err);
		if (r != -EBUSY || comm->reducer->done == comm->reducer->number)
			return r;
		r = do_next(comm, &allowance, err);
		if (r == -ETIMEDOUT)
			return error_set(
				err, r,
				"all inputs that rank %u may have (%u) are "
				"still being reduced; wait for a reduction",
				comm->rank, inputs->n_max);
		if (r < 0)
			return r;
	}
}

int host_reduce_input(struct fsdp_group *group, int32_t timeout_ms,
		      struct error *err)
{
	int r = comm_check_run(group->comm, err);

	if (r == 0)
		r = idle_heed_inputs(group->comm, err);
	if (r < 0)
		return r;
	if (!host_group_has_gradients(group->host))
		return error_set(err, -EINVAL,
				 "group '%s' has no gradients: all of its "
				 "parameters are frozen",
				 group->name);
	return take_input(group, await_until(timeout_ms), err);
}

static uint32_t cell_flags(const struct fsdp_reduce_options *options)
{
	return (options->accumulates ? REDUCE_ACCUMULATE : 0u) |
	       (options->no_all_reduce ? REDUCE_NO_ALL_REDUCE : 0u) |
	       (options->is_sum_forced ? REDUCE_FORCE_SUM : 0u) |
	       (options->has_factor ? HAS_FACTOR : 0u);
}

/* Return the flags. The first reduction overwrites the gradients, since their
 * contents are undefined before. */
static uint32_t host_flags(const struct host_group *host,
			   const struct fsdp_reduce_options *options)
{
	uint32_t flags = host->has_partial ? HOST_REDUCE_PARTIAL_IN : 0u;

	if (options->no_all_reduce && host->plan.n_replicas > 1)
		flags |= HOST_REDUCE_PARTIAL_OUT;
	if (options->accumulates && host->has_grads)
		flags |= HOST_REDUCE_ACCUMULATE;
	return flags;
}

/* Describe the input that the rank will submit. */
static int describe(struct fsdp_group *group,
		    const struct fsdp_reduce_options *o, struct handed_in *ret,
		    struct error *err)
{
	const struct reduce_options options = {
		.flags = host_flags(group->host, o),
		.has_factor = o->has_factor,
		.is_sum_forced = o->is_sum_forced,
		.factor = o->factor,
	};
	uint64_t n_tasks;
	int r = reduce_init(&ret->reduce, group->host->layout,
			    group->comm->reducer->kernels, &options, err);

	if (r < 0)
		return error_wrap(err, r, "cannot reduce '%s'", group->name);
	reduce_share(&ret->reduce);
	n_tasks = reduce_count_tasks(&ret->reduce);
	ret->group = group;
	ret->memory = group->input;
	ret->input = (struct board_input){
		.group = group->id,
		.flags = cell_flags(o),
		.input = {group->input->slot, group->input->generation},
		.n_pieces = n_tasks ? (uint32_t)n_tasks : 1,
	};
	if (o->has_factor)
		memcpy(&ret->input.factor, &o->factor, sizeof(o->factor));
	return 0;
}

/* Find the memory for this rank's gradients and partial sums. */
static int find_outputs(struct fsdp_group *group, struct reduce *reduce,
			struct error *err)
{
	const uint32_t partial =
		HOST_REDUCE_PARTIAL_IN | HOST_REDUCE_PARTIAL_OUT;
	int r = 0;

	/* Without elements there are no partial sums. */
	if ((reduce->flags & partial) && group->host->plan.partial_size)
		r = inputs_find_partial(group, err);
	if (r < 0)
		return r;
	reduce->grads = group->grads ? group->grads->data : NULL;
	reduce->partial =
		group->host->partial ? group->host->partial->data : NULL;
	return 0;
}

static void hand_in(struct fsdp_group *group, struct handed_in *mine)
{
	struct fsdp_comm *comm = group->comm;
	struct reducer *reducer = comm->reducer;
	struct host_group *host = group->host;

	host->has_partial = mine->reduce.flags & HOST_REDUCE_PARTIAL_OUT;
	host->has_grads |= !host->has_partial;
	mine->sequence = ++host->n_reductions;
	mine->since_ns = bell_recent_ns();
	mine->waits_ns = 0;
	group->input = NULL;
	board_hand_in(&comm->board, comm->rank, ++reducer->number,
		      &mine->input);
}

int host_reduce_begin(struct fsdp_group *group,
		      const struct fsdp_reduce_options *options,
		      struct fsdp_work *ret, struct error *err)
{
	struct fsdp_comm *comm = group->comm;
	uint32_t number = comm->reducer->number + 1;
	struct handed_in *mine = find_number(comm->reducer, number);
	int r = comm_check_run(comm, err);

	if (r == 0)
		r = run_board_open(comm, err);
	if (r == 0)
		r = describe(group, options, mine, err);
	if (r == 0)
		r = compare_early(comm, number, &mine->input, err);
	if (r == 0)
		r = find_outputs(group, &mine->reduce, err);
	if (r < 0)
		return r;
	hand_in(group, mine);
	*ret = (struct fsdp_work){.comm = comm,
				  .group = group,
				  .kind = WORK_REDUCE,
				  .sequence = mine->sequence};
	return 0;
}

/* --- waiting ------------------------------------------------------------- */

static bool is_pending(struct reducer *reducer, const struct fsdp_group *group,
		       uint64_t sequence)
{
	for (uint32_t i = reducer->done; i != reducer->number; i++) {
		const struct handed_in *it = find_number(reducer, i + 1);

		if (it->group == group && it->sequence == sequence)
			return true;
	}
	return false;
}

/* Work within the limits until the reduction is done. */
static int do_until(struct fsdp_group *group, uint64_t sequence,
		    struct allowance *allowance, struct error *err)
{
	struct fsdp_comm *comm = group->comm;
	int r = comm_check_run(comm, err);

	if (r == 0)
		r = idle_heed_inputs(comm, err);
	if (r == 0 && !is_pending(comm->reducer, group, sequence))
		r = error_set(err, -EINVAL,
			      "rank %u has begun no reduction %" PRIu64
			      " of '%s'",
			      comm->rank, sequence, group->name);
	while (r == 0 && is_pending(comm->reducer, group, sequence))
		r = do_next(comm, allowance, err);
	return r;
}

int host_reduce_wait(struct fsdp_group *group, uint64_t sequence,
		     int32_t timeout_ms, struct error *err)
{
	struct allowance allowance = allow_until(await_until(timeout_ms));

	return do_until(group, sequence, &allowance, err);
}

int host_reduce_test(struct fsdp_group *group, uint64_t sequence,
		     struct error *err)
{
	struct allowance allowance = {bell_now_ns(), 1};
	int r = do_until(group, sequence, &allowance, err);

	if (r == -ETIMEDOUT)
		err->code = -EAGAIN;
	return r == -ETIMEDOUT ? -EAGAIN : r;
}

/* Check that no other rank has begun one more reduction. */
static int check_others(const struct fsdp_comm *comm, struct error *err)
{
	uint32_t number = comm->reducer->number + 1;
	struct board_input theirs;
	uint32_t i = 0;

	while (i < comm->board.n_ranks &&
	       !board_input(&comm->board, i, number, &theirs))
		i++;
	if (i == comm->board.n_ranks)
		return 0;
	return error_set(err, -EINVAL,
			 "rank %u commits, but the ranks' next step is to "
			 "reduce '%s', which rank %u began",
			 comm->rank, name_group(comm, theirs.group), i);
}

int host_reduce_check_commit(struct fsdp_comm *comm, struct error *err)
{
	struct reducer *reducer = comm->reducer;
	struct allowance allowance = allow_until(bell_now_ns());
	int r = 0;

	if (!reducer)
		return 0;
	r = run_board_open(comm, err);
	if (r == 0)
		r = idle_heed_inputs(comm, err);
	while (r == 0 && reducer->done != reducer->number)
		r = do_next(comm, &allowance, err);
	if (r == -ETIMEDOUT)
		return error_set(
			err, -EBUSY,
			"gradients of '%s' that rank %u handed in are being "
			"reduced; wait for them before the commit",
			find_number(reducer, reducer->done + 1)->group->name,
			comm->rank);
	return r < 0 ? r : check_others(comm, err);
}
