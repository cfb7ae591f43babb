#include "tests/fakes/nccl/board.h"
#include "tests/fakes/nccl/api.h"
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Offset at which the memory of the ranks begins. */
#define ROOMS (UINT64_C(1) << 20)

_Static_assert(sizeof(struct board_file) <= ROOMS, "the board's file");

static int map(struct board *board, uint32_t n_ranks)
{
	void *file = mmap(NULL, sizeof(*board->file), PROT_READ | PROT_WRITE,
			  MAP_SHARED, board->fd, 0);

	if (file == MAP_FAILED)
		return -errno;
	board->file = file;
	board->n_ranks = n_ranks;
	return 0;
}

int board_open(struct board *board, uint32_t n_ranks, int fd)
{
	int r;

	*board = (struct board){.fd = fd};
	r = map(board, n_ranks);
	if (r < 0)
		board_close(board);
	return r;
}

int board_create(struct board *board, uint32_t n_ranks)
{
	uint64_t size = ROOMS + n_ranks * BOARD_ROOM;
	int fd = memfd_create("fake-nccl", MFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)size) < 0) {
		int r = -errno;

		close(fd);
		return r;
	}
	return board_open(board, n_ranks, fd);
}

void board_close(struct board *board)
{
	if (board->file)
		munmap(board->file, sizeof(*board->file));
	if (board->fd >= 0)
		close(board->fd);
	*board = BOARD_NULL;
}

void board_ring(struct board *board)
{
	atomic_fetch_add(&board->file->bell, 1);
	syscall(SYS_futex, &board->file->bell, FUTEX_WAKE, INT_MAX, NULL, NULL,
		0);
}

void board_tell(struct board *board, uint32_t rank, enum board_count which,
		uint64_t value)
{
	atomic_store(&board->file->seats[rank].counts[which], value);
	board_ring(board);
}

void board_leave(struct board *board, uint32_t rank)
{
	atomic_store(&board->file->seats[rank].has_left, true);
	board_ring(board);
}

void board_go(struct board *board, uint32_t rank)
{
	atomic_store(&board->file->seats[rank].is_gone, true);
	if (api_is_deaf())
		board_ring(board);
	else
		board_leave(board, rank);
}

bool board_is_alone(const struct board *board, uint32_t rank)
{
	for (uint32_t i = 0; i < board->n_ranks; i++)
		if (i != rank && !atomic_load(&board->file->seats[i].is_gone))
			return false;
	return true;
}

bool board_has(const struct board *board, enum board_count which,
	       uint64_t value)
{
	for (uint32_t i = 0; i < board->n_ranks; i++)
		if (atomic_load(&board->file->seats[i].counts[which]) < value)
			return false;
	return true;
}

/* The rank may have reached the value just before it left, so its state is read
 * in this order. */
int board_find_left(const struct board *board, enum board_count which,
		    uint64_t value)
{
	for (uint32_t i = 0; i < board->n_ranks; i++) {
		struct seat *seat = &board->file->seats[i];

		if (atomic_load(&seat->has_left) &&
		    atomic_load(&seat->counts[which]) < value)
			return (int)i + 1;
	}
	return 0;
}

int board_wait(struct board *board, enum board_count which, uint64_t value,
	       board_stop_fn *is_stopped, const void *data)
{
	/* A rank that stops need not ring the bell. */
	const struct timespec patience = {.tv_nsec = 50000000};
	int left;

	for (;;) {
		uint32_t bell = atomic_load(&board->file->bell);

		if (is_stopped(data))
			return BOARD_STOPPED;
		if (board_has(board, which, value))
			return 0;
		left = board_find_left(board, which, value);
		if (left > 0)
			return left;
		syscall(SYS_futex, &board->file->bell, FUTEX_WAIT, bell,
			&patience, NULL, 0);
	}
}

static uint64_t place(uint32_t rank, uint64_t at)
{
	return ROOMS + rank * BOARD_ROOM + at;
}

bool board_put(const struct board *board, uint32_t rank, uint64_t at,
	       const void *from, uint64_t size)
{
	const char *bytes = from;

	while (size > 0) {
		ssize_t n =
			pwrite(board->fd, bytes, size, (off_t)place(rank, at));

		if (n <= 0)
			return false;
		bytes += n;
		at += (uint64_t)n;
		size -= (uint64_t)n;
	}
	return true;
}

bool board_get(const struct board *board, uint32_t rank, uint64_t at, void *to,
	       uint64_t size)
{
	char *bytes = to;

	while (size > 0) {
		ssize_t n =
			pread(board->fd, bytes, size, (off_t)place(rank, at));

		if (n <= 0)
			return false;
		bytes += n;
		at += (uint64_t)n;
		size -= (uint64_t)n;
	}
	return true;
}
