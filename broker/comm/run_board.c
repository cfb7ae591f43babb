#include "broker/comm/run_board.h"
#include "broker/comm/comm.h"
#include "broker/comm/group.h"
#include "broker/comm/run_record.h"
#include "broker/engine/engine.h"
#include "broker/tensor/room.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

_Static_assert(BOARD_RANKS >= PLAN_MAX_RANKS && BOARD_GROUPS >= COMM_MAX_GROUPS,
	       "a board has room for all");

static void name_file(uint64_t run, char ret[FDSTORE_NAME_SIZE])
{
	snprintf(ret, FDSTORE_NAME_SIZE, "board%" PRIu64, run);
}

static struct fdstore *fdstore_of(const struct comm *comm)
{
	return &comm->comms->store->base->fdstore;
}

/* Boards leave half of the descriptors that outlive the broker to memory. */
static bool may_keep_one_more(const struct comms *comms)
{
	uint32_t n = 0;

	for (const struct comm *comm = comms->first; comm; comm = comm->next)
		n += comm->is_board_kept;
	return n < RUN_BOARDS_KEPT;
}

/* Put the board into the fd store. If that is not possible now, the run ends
 * with the broker, unless it is possible when another rank asks for the board.
 * A board is not kept for a run that ends with the broker anyway. */
static void keep(struct comm *comm)
{
	char name[FDSTORE_NAME_SIZE];

	if (!comm->run || comm->is_board_kept ||
	    !run_record_is_sound(run_record_of(comm)))
		return;
	name_file(comm->id, name);
	comm->is_board_kept = may_keep_one_more(comm->comms) &&
			      fdstore_put(fdstore_of(comm), comm->board.fd,
					  name, NULL) == FDSTORE_OK;
	failpoint("board.stored");
	catalog_set(&comm->comms->store->catalog, run_record_of(comm)->is_shown,
		    true);
}

/* --- charges ------------------------------------------------------------- */

/* Ranks write to the file without a request, so its greatest possible memory is
 * charged when it is made. */
static struct room room_of(const struct comm *comm)
{
	struct store *store = comm->comms->store;
	struct room room = {
		.store = store,
		.account = accounts_get(&store->base->accounts, comm->uid),
		.charge = board_memory(comm->n_ranks),
	};

	assert(room.account); /* the run was charged */
	return room;
}

static int charge(const struct comm *comm, struct error *err)
{
	struct room room = room_of(comm);
	struct error cause = ERROR_NULL;
	int r = room_take(&room, NULL, &cause);

	if (r == POOL_OK)
		return 0;
	if (r == POOL_WAIT)
		return RUN_BOARD_WAIT;
	return error_set(err, cause.code,
			 "cannot make the memory by which the ranks of "
			 "communicator '%s' work together: %s",
			 comm->name, cause.msg);
}

static void refund(const struct comm *comm)
{
	struct room room = room_of(comm);

	room_refund(&room);
	wake_room(&room.store->base->wake);
}

uint64_t run_boards_memory(const struct comms *comms, const uint32_t *uid)
{
	uint64_t size = 0;

	for (const struct comm *comm = comms->first; comm; comm = comm->next) {
		if (comm->board.page && (!uid || comm->uid == *uid))
			size += board_memory(comm->n_ranks);
	}
	return size;
}

/* --- the file ------------------------------------------------------------ */

static int make(struct comm *comm, struct error *err)
{
	int r = charge(comm, err);

	if (r != 0)
		return r;
	r = board_create(&comm->board, comm->n_ranks, comm->id, err);
	if (r < 0)
		refund(comm);
	for (uint32_t i = 0; r == 0 && i < comm->n_ranks; i++) {
		board_set_name(&comm->board, i, comm->ranks[i].pid,
			       comm->ranks[i].command);
		if (comm->ranks[i].has_left)
			run_board_note_left(comm, i);
	}
	return r;
}

void run_board_note_left(struct comm *comm, uint32_t rank)
{
	if (comm->board.page)
		board_leave(&comm->board, rank);
}

int run_board_fd(struct comm *comm, int *ret_fd, struct error *err)
{
	int r = 0;

	if (comm->n_ranks < comm->n_world)
		return error_set(err, -EOPNOTSUPP,
				 "communicator '%s' spans several nodes, which "
				 "do not share memory",
				 comm->name);
	if (!comm->verdict)
		return error_set(err, -EOPNOTSUPP,
				 "more than %d communicators are running, and "
				 "'%s' joined after them",
				 TABLE_RUNS - 1, comm->name);
	if (!comm->board.page)
		r = make(comm, err);
	if (r != 0)
		return r;
	keep(comm);
	*ret_fd = comm->board.fd;
	return 0;
}

int run_board_adopt(struct comm *comm, struct error *err)
{
	char name[FDSTORE_NAME_SIZE];
	int fd, r;

	if (!run_record_of(comm)->is_shown)
		return 0;
	name_file(comm->id, name);
	fd = fdstore_take(fdstore_of(comm), name);
	if (fd < 0)
		return error_set(err, -ENOENT, "its board was not kept");
	comm->is_board_kept = true;
	r = board_adopt(&comm->board, fd, comm->n_ranks, comm->id, err);
	if (r < 0)
		return r;
	account_charge_adopted(room_of(comm).account, ACCOUNT_BYTES,
			       board_memory(comm->n_ranks));
	for (struct group *group = comm->first_group; group;
	     group = group->next)
		group->n_reductions = board_reduced(&comm->board, group->index);
	return 0;
}

void run_boards_drop_strays(struct store *store)
{
	fdstore_drop_rest(&store->base->fdstore, "board");
}

static void count_reductions(struct group *group)
{
	const struct comm *comm = group->comm;
	struct engine *engine = comm->comms->engine;
	uint32_t n = board_reduced(&comm->board, group->index) -
		     (uint32_t)group->n_reductions;

	group->n_reductions += n;
	engine->n_reductions += n;
	engine->bytes_reduced += n * group->plan.input_size * comm->n_ranks;
}

/* Count the gathers of a group. (gather_look.h counts them by rank, over all
 * runs.) */
static void count_gathers(struct group *group)
{
	group->n_gathered += board_gathered(&group->comm->board, group->index) -
			     (uint32_t)group->n_gathered;
}

/* This function is called often enough that counters which wrap are counted
 * correctly. If the broker takes part in the reductions, it counts them
 * itself. */
void run_board_count(struct comm *comm)
{
	struct group *group = comm->board.page ? comm->first_group : NULL;

	for (; group; group = group->next) {
		if (!group->is_ready)
			continue;
		count_gathers(group);
		if (comm->direct & COMM_DIRECT_REDUCE)
			count_reductions(group);
	}
}

void run_boards_count(struct comms *comms)
{
	for (struct comm *comm = comms->first; comm; comm = comm->next)
		run_board_count(comm);
}

void run_board_ring(struct comm *comm)
{
	if (!comm->board.page)
		return;
	bell_ring_always(&comm->board.page->barriers);
	bell_ring_always(&comm->board.page->reductions);
	bell_ring_always(&comm->board.page->gathering);
	boxes_ring_always(&comm->board);
}

/* A board that was never made has no fd; its field is 0. */
void run_board_close(struct comm *comm)
{
	char name[FDSTORE_NAME_SIZE];

	name_file(comm->id, name);
	if (comm->is_board_kept)
		fdstore_remove(fdstore_of(comm), name);
	comm->is_board_kept = false;
	if (!comm->board.page)
		return;
	board_close(&comm->board);
	refund(comm);
}
