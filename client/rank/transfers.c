#include "client/rank/transfers.h"
#include "client/fsdp_collective.h"
#include "client/rank/await.h"
#include "client/rank/comm.h"
#include "client/rank/run_board.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The limits of messages that are put aside for each other rank. It is an error
 * if there are more, because no correct program sends so much before the other
 * rank receives any of it. */
#define MAX_ASIDE   (UINT64_C(16) << 30)
#define MAX_N_ASIDE 16384

struct fsdp_transfer {
	struct fsdp_comm *comm;
	bool is_send, is_aside;
	bool has_begun; /* a piece was sent, or has come for it */
	uint32_t rank;  /* the other rank, or FSDP_ANY_RANK so far */
	struct mail_head head;
	uint8_t *data;
	uint64_t at; /* number of bytes that were copied */
	bool is_done;
	struct fsdp_transfer *next;
};

/* --- lists --------------------------------------------------------------- */

static void append(struct fsdp_transfer **list, struct fsdp_transfer *transfer)
{
	while (*list)
		list = &(*list)->next;
	transfer->next = NULL;
	*list = transfer;
}

static void unlink_from(struct fsdp_transfer **list,
			const struct fsdp_transfer *transfer)
{
	while (*list && *list != transfer)
		list = &(*list)->next;
	if (*list)
		*list = transfer->next;
}

static void free_transfer(struct fsdp_transfer *transfer)
{
	if (transfer && transfer->is_aside)
		free(transfer->data);
	free(transfer);
}

static void free_list(struct fsdp_transfer *list)
{
	while (list) {
		struct fsdp_transfer *next = list->next;

		free_transfer(list);
		list = next;
	}
}

void transfers_deinit(struct fsdp_comm *comm)
{
	struct transfers *all = comm->transfers;

	if (!all)
		return;
	for (uint32_t i = 0; i < FSDP_MAX_RANKS; i++) {
		if (all->coming[i] && all->coming[i]->is_aside)
			free_transfer(all->coming[i]);
	}
	free_list(all->begun);
	free_list(all->aside);
	free(all);
	comm->transfers = NULL;
}

/* --- matching ------------------------------------------------------------ */

static bool takes(const struct fsdp_transfer *transfer, uint32_t from,
		  uint64_t tag)
{
	return !transfer->is_send && !transfer->has_begun &&
	       transfer->head.tag == tag &&
	       (transfer->rank == from || transfer->rank == FSDP_ANY_RANK);
}

static struct fsdp_transfer *find_receive(const struct transfers *all,
					  uint32_t from, uint64_t tag)
{
	struct fsdp_transfer *transfer = all->begun;

	while (transfer && !takes(transfer, from, tag))
		transfer = transfer->next;
	return transfer;
}

/* Fail the communicator, because the message cannot be given to another
 * receive. */
static int fail_differs(struct fsdp_transfer *transfer, uint32_t from,
			const struct mail_head *head, struct error *err)
{
	error_set(err, -ECONNABORTED,
		  "rank %u sends rank %u %" PRIu64
		  " bytes of %s with tag %" PRIu64
		  ", but the receiver expects %" PRIu64 " bytes of %s",
		  from, transfer->comm->rank, head->size,
		  dtype_name(head->dtype), head->tag, transfer->head.size,
		  dtype_name(transfer->head.dtype));
	return comm_fail_run(transfer->comm, err);
}

/* Give a message to this receive. */
static int give(struct fsdp_transfer *transfer, uint32_t from,
		const struct mail_head *head, struct error *err)
{
	if (head->size != transfer->head.size ||
	    head->dtype != transfer->head.dtype)
		return fail_differs(transfer, from, head, err);
	transfer->rank = from;
	transfer->has_begun = true;
	return 0;
}

static int fail_aside(struct fsdp_comm *comm, uint32_t from,
		      const struct mail_head *head, struct error *err)
{
	error_set(err, -ECONNABORTED,
		  "rank %u sends rank %u more messages than it receives: one "
		  "of %" PRIu64 " bytes with tag %" PRIu64
		  " arrived while %u others of %" PRIu64
		  " bytes waited; at most %d of %" PRIu64 " bytes may wait",
		  from, comm->rank, head->size, head->tag,
		  comm->transfers->waiting[from].n,
		  comm->transfers->waiting[from].size, MAX_N_ASIDE, MAX_ASIDE);
	return comm_fail_run(comm, err);
}

static int put_aside(struct fsdp_comm *comm, uint32_t from,
		     const struct mail_head *head, struct fsdp_transfer **ret,
		     struct error *err)
{
	struct waiting *waiting = &comm->transfers->waiting[from];
	struct fsdp_transfer *transfer;

	if (waiting->n == MAX_N_ASIDE || head->size > MAX_ASIDE - waiting->size)
		return fail_aside(comm, from, head, err);
	transfer = calloc(1, sizeof(*transfer));
	if (transfer)
		*transfer = (struct fsdp_transfer){
			.comm = comm,
			.is_aside = true,
			.has_begun = true,
			.rank = from,
			.head = *head,
			.data = malloc(head->size ? head->size : 1),
		};
	if (transfer && transfer->data) {
		waiting->n++;
		waiting->size += head->size;
		*ret = transfer;
		return 0;
	}
	free(transfer);
	error_set(err, -ECONNABORTED,
		  "rank %u cannot allocate memory for a message of %" PRIu64
		  " bytes with tag %" PRIu64
		  " from rank %u that it has not received yet",
		  comm->rank, head->size, head->tag, from);
	return comm_fail_run(comm, err);
}

/* Find the message of a new receive, if it has come already. */
static int look_aside(struct transfers *all, struct fsdp_transfer *transfer,
		      struct error *err)
{
	struct fsdp_transfer *it = all->aside;
	int r;

	while (it && !takes(transfer, it->rank, it->head.tag))
		it = it->next;
	if (!it)
		return 0;
	r = give(transfer, it->rank, &it->head, err);
	if (r < 0)
		return r;
	if (it->head.size)
		memcpy(transfer->data, it->data, it->head.size);
	transfer->is_done = true;
	all->waiting[it->rank].n--;
	all->waiting[it->rank].size -= it->head.size;
	unlink_from(&all->aside, it);
	free_transfer(it);
	return 0;
}

/* --- moving -------------------------------------------------------------- */

static uint64_t size_of_piece(const struct fsdp_transfer *transfer)
{
	uint64_t left = transfer->head.size - transfer->at;
	uint64_t max = mail_piece_size(&transfer->comm->board);

	return left < max ? left : max;
}

static void send_piece(struct fsdp_transfer *transfer)
{
	struct fsdp_comm *comm = transfer->comm;
	struct mail_counts *counts = &comm->transfers->counts;
	uint32_t number = counts->sent[transfer->rank] + 1;
	uint64_t size = size_of_piece(transfer);

	if (!transfer->has_begun)
		mail_set_head(&comm->board, comm->rank, transfer->rank, number,
			      &transfer->head);
	transfer->has_begun = true;
	if (size)
		memcpy(mail_piece(&comm->board, comm->rank, transfer->rank,
				  number),
		       transfer->data + transfer->at, size);
	transfer->at += size;
	transfer->is_done = transfer->at == transfer->head.size;
	failpoint("transfer.sent");
	mail_count_sent(&comm->board, comm->rank, counts, transfer->rank);
}

/* Send the first unfinished message to each rank. */
static bool send_all(struct fsdp_comm *comm)
{
	struct transfers *all = comm->transfers;
	uint64_t blocked = 0;
	bool has_moved = false;

	for (struct fsdp_transfer *it = all->begun; it; it = it->next) {
		while (it->is_send && !it->is_done &&
		       !(blocked >> it->rank & 1) &&
		       mail_has_room(&comm->board, comm->rank, &all->counts,
				     it->rank)) {
			send_piece(it);
			has_moved = true;
		}
		if (it->is_send && !it->is_done)
			blocked |= UINT64_C(1) << it->rank;
	}
	return has_moved;
}

static int begin_message(struct fsdp_comm *comm, uint32_t from,
			 struct error *err)
{
	struct transfers *all = comm->transfers;
	struct fsdp_transfer *transfer;
	struct mail_head head;
	int r;

	mail_get_head(&comm->board, from, comm->rank,
		      all->counts.received[from] + 1, &head);
	transfer = find_receive(all, from, head.tag);
	r = transfer ? give(transfer, from, &head, err)
		     : put_aside(comm, from, &head, &transfer, err);
	if (r == 0)
		all->coming[from] = transfer;
	return r;
}

/* End a message. If it was put aside, a receive for it may have been begun in
 * the meantime. */
static int end_message(struct fsdp_comm *comm, uint32_t from, struct error *err)
{
	struct transfers *all = comm->transfers;
	struct fsdp_transfer *transfer = all->coming[from], *receive;

	all->coming[from] = NULL;
	transfer->is_done = true;
	if (!transfer->is_aside)
		return 0;
	append(&all->aside, transfer);
	receive = find_receive(all, from, transfer->head.tag);
	return receive ? look_aside(all, receive, err) : 0;
}

static int receive_piece(struct fsdp_comm *comm, uint32_t from,
			 struct error *err)
{
	struct transfers *all = comm->transfers;
	uint32_t number = all->counts.received[from] + 1;
	int r = all->coming[from] ? 0 : begin_message(comm, from, err);
	struct fsdp_transfer *transfer = all->coming[from];
	uint64_t size;

	if (r < 0)
		return r;
	size = size_of_piece(transfer);
	if (size)
		memcpy(transfer->data + transfer->at,
		       mail_piece(&comm->board, from, comm->rank, number),
		       size);
	transfer->at += size;
	failpoint("transfer.received");
	mail_count_received(&comm->board, comm->rank, &all->counts, from);
	return transfer->at == transfer->head.size
		       ? end_message(comm, from, err)
		       : 0;
}

/* Return those of the other ranks that are here, or have left a message. All
 * messages of a rank have come before it leaves. */
static uint64_t find_senders(const struct fsdp_comm *comm, uint64_t others)
{
	uint64_t left = board_left(&comm->board, others);
	uint64_t senders = others & ~left;

	for (; left; left &= left - 1) {
		uint32_t rank = (uint32_t)__builtin_ctzll(left);

		if (mail_has_come(&comm->board, comm->rank,
				  &comm->transfers->counts, rank))
			senders |= UINT64_C(1) << rank;
	}
	return senders;
}

/* Find the ranks from which a message is expected, and those to which one must
 * be sent. */
static void find_open(struct fsdp_comm *comm, struct mail_wait *ret)
{
	const struct transfers *all = comm->transfers;
	uint64_t others = (UINT64_MAX >> (64 - comm->board.n_ranks)) &
			  ~(UINT64_C(1) << comm->rank);
	uint64_t senders = find_senders(comm, others);

	*ret = (struct mail_wait){.counts = &all->counts};
	for (const struct fsdp_transfer *it = all->begun; it; it = it->next) {
		if (it->is_done)
			continue;
		if (it->is_send)
			ret->to |= UINT64_C(1) << it->rank;
		else if (it->rank != FSDP_ANY_RANK)
			ret->from |= UINT64_C(1) << it->rank;
		else
			ret->from |= senders ? senders : others;
	}
}

/* Move all transfers as far as possible without waiting. */
static int move_all(struct fsdp_comm *comm, struct error *err)
{
	struct transfers *all = comm->transfers;
	bool has_moved = send_all(comm);
	struct mail_wait open;
	int r = 0;

	find_open(comm, &open);
	for (uint32_t i = 0; i < comm->board.n_ranks && r == 0; i++) {
		while (r == 0 && (open.from >> i & 1) &&
		       mail_has_come(&comm->board, comm->rank, &all->counts,
				     i)) {
			r = receive_piece(comm, i, err);
			has_moved = true;
			find_open(comm, &open);
		}
	}
	if (has_moved)
		all->moved_ns = bell_recent_ns();
	return r;
}

/* --- beginning ----------------------------------------------------------- */

static int reserve(struct fsdp_comm *comm, struct error *err)
{
	if (!comm->transfers)
		comm->transfers = calloc(1, sizeof(*comm->transfers));
	return comm->transfers ? 0 : error_nomem(err, "transfers");
}

static int check(struct fsdp_comm *comm, enum fsdp_dtype dtype,
		 const void *data, uint64_t count, uint32_t rank,
		 struct error *err)
{
	int r = comm_check(comm, err);

	if (r == 0)
		r = run_board_open(comm, err);
	if (r == 0)
		r = comm_check_run(comm, err);
	if (r < 0)
		return r;
	if (!dtype_size(dtype))
		return error_set(err, -EINVAL, "there is no dtype %d",
				 (int)dtype);
	if (rank != FSDP_ANY_RANK &&
	    (rank >= comm->board.n_ranks || rank == comm->rank))
		return error_set(
			err, -EINVAL,
			"rank %u cannot send to or receive from rank %u: there "
			"are %u ranks, which count from 0, and a rank cannot "
			"exchange messages with itself",
			comm->rank, rank, comm->board.n_ranks);
	if (count > INT64_MAX / dtype_size(dtype) || (count && !data))
		return error_set(err, -EINVAL,
				 "`data` is NULL, or cannot have %" PRIu64
				 " elements",
				 count);
	return reserve(comm, err);
}

static int begin(const struct fsdp_transfer *transfer,
		 struct fsdp_transfer **ret, struct error *err)
{
	struct transfers *all = transfer->comm->transfers;
	struct fsdp_transfer *begun = malloc(sizeof(*begun));
	int r = 0;

	if (!begun)
		return error_nomem(err, "a transfer");
	*begun = *transfer;
	append(&all->begun, begun);
	if (!begun->is_send)
		r = look_aside(all, begun, err);
	if (r == 0)
		r = move_all(begun->comm, err);
	/* A failure here is one of the communicator, which frees the
	 * transfer. */
	if (r < 0)
		return r;
	*ret = begun;
	return 0;
}

int fsdp_send(struct fsdp_comm *comm, enum fsdp_dtype dtype, const void *data,
	      uint64_t count, uint32_t to, uint64_t tag,
	      struct fsdp_transfer **ret)
{
	struct error *err = error_of_thread();
	struct fsdp_transfer transfer = {
		.comm = comm,
		.is_send = true,
		.rank = to,
		.head = {.tag = tag,
			 .size = count * dtype_size(dtype),
			 .dtype = dtype},
		.data = (uint8_t *)data,
	};
	int r = check(comm, dtype, data, count, to, err);

	if (r == 0 && to == FSDP_ANY_RANK)
		r = error_set(err, -EINVAL,
			      "cannot send to FSDP_ANY_RANK: it is for "
			      "receiving only; pass the number of a rank");
	return r < 0 ? r : begin(&transfer, ret, err);
}

int fsdp_receive(struct fsdp_comm *comm, enum fsdp_dtype dtype, void *data,
		 uint64_t count, uint32_t from, uint64_t tag,
		 struct fsdp_transfer **ret)
{
	struct error *err = error_of_thread();
	struct fsdp_transfer transfer = {
		.comm = comm,
		.rank = from,
		.head = {.tag = tag,
			 .size = count * dtype_size(dtype),
			 .dtype = dtype},
		.data = data,
	};
	int r = check(comm, dtype, data, count, from, err);

	return r < 0 ? r : begin(&transfer, ret, err);
}

/* --- waiting ------------------------------------------------------------- */

static const char *verb(const struct fsdp_transfer *transfer)
{
	return transfer->is_send ? "received" : "sent";
}

static uint64_t find_others(const struct fsdp_transfer *transfer,
			    uint64_t awaited)
{
	return transfer->rank == FSDP_ANY_RANK ? awaited
					       : UINT64_C(1) << transfer->rank;
}

static int fail_late(const struct fsdp_transfer *transfer, uint64_t awaited,
		     struct error *err)
{
	const struct fsdp_comm *comm = transfer->comm;
	char names[AWAIT_TEXT];

	error_set(err, -ECONNABORTED,
		  "%s has not %s a message of tag %" PRIu64
		  " %s rank %u within %d ms",
		  await_name_ranks(comm, find_others(transfer, awaited), names),
		  verb(transfer), transfer->head.tag,
		  transfer->is_send ? "from" : "to", comm->rank,
		  comm->timeout_ms);
	return comm_fail_run(transfer->comm, err);
}

static int fail_left(struct fsdp_comm *comm, uint64_t left, struct error *err)
{
	char names[AWAIT_TEXT];

	error_set(err, -ECONNABORTED,
		  "%s has left while rank %u waits to send to it or receive "
		  "from it",
		  await_name_ranks(comm, left, names), comm->rank);
	return comm_fail_run(comm, err);
}

static int refuse_pending(const struct fsdp_transfer *transfer,
			  uint64_t awaited, struct error *err)
{
	char names[AWAIT_TEXT];

	return error_set(
		err, -ETIMEDOUT,
		"%s has not %s all of a message of tag %" PRIu64 " yet",
		await_name_ranks(transfer->comm, find_others(transfer, awaited),
				 names),
		verb(transfer), transfer->head.tag);
}

static int await_mail(const struct fsdp_transfer *transfer, int64_t since_ns,
		      int64_t until_ns, struct error *err)
{
	struct fsdp_comm *comm = transfer->comm;
	int64_t moved_ns = comm->transfers->moved_ns;
	struct mail_wait open;
	const struct await await = {
		.goal = BOARD_MAIL,
		.mail = &open,
		.since_ns = since_ns > moved_ns ? since_ns : moved_ns,
		.until_ns = until_ns,
	};
	uint64_t ranks;
	int r;

	find_open(comm, &open);
	r = await_ranks(comm, &await, &ranks, err);
	switch (r) {
	case AWAIT_PENDING:
		return refuse_pending(transfer, ranks, err);
	case AWAIT_LATE:
		return fail_late(transfer, ranks, err);
	case AWAIT_LEFT:
		/* A receive from any rank can get its message from another. */
		find_open(comm, &open);
		return ranks & (open.from | open.to)
			       ? fail_left(comm, ranks, err)
			       : 0;
	default:
		return r;
	}
}

static int finish(struct fsdp_transfer *transfer, int32_t timeout_ms,
		  struct error *err)
{
	struct fsdp_comm *comm = transfer->comm;
	int64_t since_ns = bell_recent_ns(), until_ns = await_until(timeout_ms);
	int r = 0;

	while (r == 0 && !transfer->is_done) {
		r = comm_check(comm, err);
		if (r == 0)
			r = comm_check_run(comm, err);
		if (r == 0)
			r = move_all(comm, err);
		if (r == 0 && !transfer->is_done)
			r = await_mail(transfer, since_ns, until_ns, err);
	}
	return r;
}

int fsdp_transfer_wait(struct fsdp_transfer *transfer, int32_t timeout_ms,
		       uint32_t *ret_rank)
{
	struct error *err = error_of_thread();
	struct transfers *all;
	int r;

	if (!transfer)
		return error_set(err, -EINVAL,
				 "there is no transfer: it is "
				 "NULL");
	all = transfer->comm->transfers;
	r = finish(transfer, timeout_ms, err);
	if (r < 0)
		return r;
	if (ret_rank)
		*ret_rank = transfer->rank;
	unlink_from(&all->begun, transfer);
	free(transfer);
	return 0;
}
