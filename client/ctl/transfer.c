/*
 * Threads that move pieces of jobs. One lock protects all lists and states,
 * because moving a piece takes some hundred times as long as the lock is held.
 */
#include "client/ctl/transfer.h"

#include "client/ctl/interrupt.h"
#include "client/ctl/progress.h"
#include "proto/error.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

/* The size of a piece, small enough to stay in the cache of a CPU until it is
 * digested, also together with the pages that the kernel clears for it. */
#define PIECE ((uint64_t)256 << 10)
/* Memory is unmapped in ranges that end at multiples of this, since each time
 * the kernel interrupts all CPUs that run one of the threads. */
#define UNMAP_STEP ((uint64_t)8 << 20)
/* To unmap less than this costs more than it saves. */
#define UNMAP_MIN ((uint64_t)1 << 20)
/* More threads would only wait for memory and for each other. */
#define MAX_THREADS 16
#define PAGE_SIZE   ((uintptr_t)4096)

struct job {
	/* the next job with pieces that no thread has taken */
	struct job *next;
	struct job *open_next, *open_prev; /* the list of unfinished jobs */
	struct transfer_job what;
	uint64_t n_pieces, n_taken, n_digested;
	unsigned int n_threads; /* that work on it now */
	bool is_digesting;
	XXH3_state_t *state;
	bool is_moved[]; /* for each piece */
};

struct transfer {
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	/* jobs with pieces that no thread has taken */
	struct job *first, **end;
	struct job *open; /* all unfinished jobs */
	bool is_stopping;
	struct error err; /* of the first job that failed */
	struct progress *progress;
	pthread_t threads[MAX_THREADS];
	unsigned int n_threads;
};

/* --- one piece ----------------------------------------------------------- */

static uint64_t piece_size(const struct job *job, uint64_t piece)
{
	uint64_t left = job->what.size - piece * PIECE;

	return left < PIECE ? left : PIECE;
}

/* Gives advice for the pages that are completely in this range. If it fails,
 * page faults map the memory and munmap() unmaps it, which is only slower. */
static void advise(const char *memory, uint64_t size, int advice)
{
	uintptr_t begin =
		((uintptr_t)memory + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1);
	uintptr_t end = ((uintptr_t)memory + size) & ~(PAGE_SIZE - 1);

	if (begin < end)
		(void)madvise((void *)begin, end - begin, advice);
}

/* Unmaps the memory of the last pieces that were digested, if `n` of them are
 * the end of a range. All threads do this; before the commit of a bundle one
 * thread would have to unmap all of it. */
static void unmap_digested(const struct job *job, uint64_t n)
{
	uint64_t end = n * PIECE, begin;

	if (n < job->n_pieces && end % UNMAP_STEP)
		return;
	if (end > job->what.size)
		end = job->what.size;
	begin = (end - 1) / UNMAP_STEP * UNMAP_STEP;
	if (end - begin >= UNMAP_MIN)
		advise((char *)job->what.memory + begin, end - begin,
		       MADV_DONTNEED);
}

static int move(const struct transfer_job *what, uint64_t at, uint64_t size,
		struct error *err)
{
	bool is_write = what->direction == TRANSFER_WRITE;
	char *memory = (char *)what->memory + at;
	uint64_t offset = what->offset + at;

	while (size) {
		ssize_t n =
			is_write ? pwrite(what->fd, memory, size, (off_t)offset)
				 : pread(what->fd, memory, size, (off_t)offset);

		if (n < 0 && errno == EINTR) {
			int r = interrupt_check(err);

			if (r < 0)
				return r;
			continue;
		}
		if (n < 0)
			return error_errno(err, -errno, "cannot %s %s",
					   is_write ? "write" : "read",
					   what->path);
		if (n == 0)
			return error_set(
				err, -EIO,
				"cannot read %s: it became shorter meanwhile; "
				"try again when no program writes it",
				what->path);
		memory += n;
		offset += (uint64_t)n;
		size -= (uint64_t)n;
	}
	return 0;
}

static int move_piece(const struct job *job, uint64_t piece, struct error *err)
{
	const struct transfer_job *what = &job->what;
	uint64_t at = piece * PIECE, size = piece_size(job, piece);
	int r = interrupt_check(err);

	if (r < 0 || what->direction == TRANSFER_DIGEST)
		return r;
	/* This maps all pages at once instead of by one page fault each. */
	if (what->direction == TRANSFER_READ)
		advise((char *)what->memory + at, size, MADV_POPULATE_WRITE);
	return move(what, at, size, err);
}

static void digest_piece(const struct job *job, uint64_t piece)
{
	const char *memory = job->what.memory;

	XXH3_64bits_update(job->state, memory + piece * PIECE,
			   piece_size(job, piece));
	if (job->what.direction == TRANSFER_READ)
		unmap_digested(job, piece + 1);
}

/* --- threads, with the lock ---------------------------------------------- */

static void open_job(struct transfer *transfer, struct job *job)
{
	job->open_next = transfer->open;
	if (job->open_next)
		job->open_next->open_prev = job;
	transfer->open = job;
	*transfer->end = job;
	transfer->end = &job->next;
}

static void close_job(struct transfer *transfer, struct job *job)
{
	if (job->open_prev)
		job->open_prev->open_next = job->open_next;
	else
		transfer->open = job->open_next;
	if (job->open_next)
		job->open_next->open_prev = job->open_prev;
	XXH3_freeState(job->state);
	free(job);
	if (!transfer->open)
		pthread_cond_broadcast(&transfer->done);
}

/* Digests the pieces that are next in order, unless another thread does
 * that. */
static void digest(struct transfer *transfer, struct job *job)
{
	if (job->is_digesting)
		return;
	job->is_digesting = true;
	while (job->n_digested < job->n_pieces &&
	       job->is_moved[job->n_digested]) {
		uint64_t piece = job->n_digested;

		pthread_mutex_unlock(&transfer->lock);
		digest_piece(job, piece);
		pthread_mutex_lock(&transfer->lock);
		job->n_digested++;
	}
	job->is_digesting = false;
}

/* Finds the first job on which no thread works, or else the first job. A thread
 * alone on a job always moves the piece that must be digested next, so it
 * digests its own pieces. */
static struct job **choose(struct transfer *transfer)
{
	struct job **link = &transfer->first;

	while (*link && (*link)->n_threads)
		link = &(*link)->next;
	return *link ? link : &transfer->first;
}

/* Takes the next piece. A job leaves the list when all its pieces are taken. */
static struct job *take(struct transfer *transfer, uint64_t *ret_piece)
{
	struct job **link = choose(transfer), *job = *link;

	*ret_piece = job->n_taken++;
	job->n_threads++;
	if (job->n_taken == job->n_pieces) {
		*link = job->next;
		if (!job->next)
			transfer->end = link;
	}
	return job;
}

/* Stops working on a job. The last thread to leave it when it is done closes
 * it. */
static void leave(struct transfer *transfer, struct job *job)
{
	job->n_threads--;
	if (job->n_threads || job->n_digested < job->n_pieces)
		return;
	*job->what.ret_digest = XXH3_64bits_digest(job->state);
	close_job(transfer, job);
}

static void fail(struct transfer *transfer, const struct error *err)
{
	if (!transfer->err.code)
		transfer->err = *err;
	pthread_cond_broadcast(&transfer->done);
}

static void run_piece(struct transfer *transfer)
{
	struct error err = ERROR_NULL;
	uint64_t piece;
	struct job *job = take(transfer, &piece);
	int r;

	pthread_mutex_unlock(&transfer->lock);
	r = move_piece(job, piece, &err);
	pthread_mutex_lock(&transfer->lock);
	if (r < 0) {
		fail(transfer, &err);
		return;
	}
	if (transfer->progress)
		progress_add(transfer->progress, piece_size(job, piece));
	job->is_moved[piece] = true;
	digest(transfer, job);
	leave(transfer, job);
}

static void *run(void *data)
{
	struct transfer *transfer = data;

	pthread_mutex_lock(&transfer->lock);
	while (!transfer->is_stopping) {
		if (transfer->first && !transfer->err.code)
			run_piece(transfer);
		else
			pthread_cond_wait(&transfer->work, &transfer->lock);
	}
	pthread_mutex_unlock(&transfer->lock);
	return NULL;
}

/* --- outside ------------------------------------------------------------- */

static unsigned int count_cpus(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
							     : 1;

	return n > MAX_THREADS ? MAX_THREADS : (unsigned int)n;
}

int transfer_start(struct progress *progress, struct transfer **ret,
		   struct error *err)
{
	struct transfer *transfer = calloc(1, sizeof(*transfer));
	unsigned int n = count_cpus();

	if (!transfer)
		return error_nomem(err, "a transfer");
	transfer->progress = progress;
	transfer->end = &transfer->first;
	pthread_mutex_init(&transfer->lock, NULL);
	pthread_cond_init(&transfer->work, NULL);
	pthread_cond_init(&transfer->done, NULL);
	while (transfer->n_threads < n &&
	       pthread_create(&transfer->threads[transfer->n_threads], NULL,
			      run, transfer) == 0)
		transfer->n_threads++;
	if (transfer->n_threads == 0) {
		transfer_stop(transfer);
		return error_set(err, -EAGAIN,
				 "cannot start a thread to move data: the "
				 "limit of processes is reached; raise it "
				 "(ulimit -u), or end some processes");
	}
	*ret = transfer;
	return 0;
}

int transfer_add(struct transfer *transfer, const struct transfer_job *what,
		 struct error *err)
{
	uint64_t n_pieces = (what->size + PIECE - 1) / PIECE;
	struct job *job;
	int r;

	if (what->size == 0) {
		*what->ret_digest = XXH3_64bits(NULL, 0);
		return 0;
	}
	job = calloc(1, sizeof(*job) + n_pieces);
	if (job)
		job->state = XXH3_createState();
	if (!job || !job->state) {
		free(job);
		return error_nomem(err, "a transfer");
	}
	XXH3_64bits_reset(job->state);
	job->what = *what;
	job->n_pieces = n_pieces;
	pthread_mutex_lock(&transfer->lock);
	open_job(transfer, job);
	r = transfer->err.code;
	if (r < 0)
		error_set(err, r, "%s", transfer->err.msg);
	pthread_cond_broadcast(&transfer->work);
	pthread_mutex_unlock(&transfer->lock);
	return r;
}

int transfer_wait(struct transfer *transfer, struct error *err)
{
	int r;

	pthread_mutex_lock(&transfer->lock);
	while (transfer->open && !transfer->err.code)
		pthread_cond_wait(&transfer->done, &transfer->lock);
	r = transfer->err.code;
	if (r < 0)
		error_set(err, r, "%s", transfer->err.msg);
	pthread_mutex_unlock(&transfer->lock);
	return r;
}

void transfer_stop(struct transfer *transfer)
{
	if (!transfer)
		return;
	pthread_mutex_lock(&transfer->lock);
	transfer->is_stopping = true;
	pthread_cond_broadcast(&transfer->work);
	pthread_mutex_unlock(&transfer->lock);
	for (unsigned int i = 0; i < transfer->n_threads; i++)
		pthread_join(transfer->threads[i], NULL);
	while (transfer->open)
		close_job(transfer, transfer->open);
	pthread_cond_destroy(&transfer->work);
	pthread_cond_destroy(&transfer->done);
	pthread_mutex_destroy(&transfer->lock);
	free(transfer);
}
