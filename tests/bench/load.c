/*
 * Row load_1GiB: `fsdpctl load` of four safetensors files, from its start to
 * its end. The floor are as many plain readers as there are CPUs, which read
 * the same files into new shared memory. All files are in the page cache. In a
 * quick run each file has 64 MiB.
 */
#include "bench.h"
#include "daemon.h"
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_FILES     4
#define MAX_READERS 16
#define PIECE       ((uint64_t)2 << 20)
/* A file has this many tensors. Some are large, as in models. */
#define N_TENSORS 8

struct load {
	const struct bench *bench;
	struct daemon daemon;
	char paths[N_FILES][PATH_MAX];
	char fsdpctl[PATH_MAX];
	uint64_t file_size; /* size of the data */
};

/* --- files --------------------------------------------------------------- */

static size_t format_header(char *header, size_t room, int file, uint64_t size)
{
	uint64_t each = size / N_TENSORS;
	size_t n = 0;

	for (int i = 0; i < N_TENSORS; i++)
		n += (size_t)snprintf(
			header + n, room - n,
			"%c\"t%d.%d\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64
			"],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
			i ? ',' : '{', file, i, each, each * (uint64_t)i,
			each * (uint64_t)(i + 1));
	n += (size_t)snprintf(header + n, room - n, "}");
	return n;
}

static void write_all(int fd, const void *bytes, size_t size)
{
	const char *p = bytes;

	while (size) {
		ssize_t n = write(fd, p, size);

		if (n <= 0)
			die("write a file: %m");
		p += n;
		size -= (size_t)n;
	}
}

static void write_file(struct load *load, int i)
{
	static char piece[PIECE];
	char header[4096];
	uint64_t size =
		format_header(header, sizeof(header), i, load->file_size);
	int fd;

	snprintf(load->paths[i], sizeof(load->paths[i]), "%s/%d.safetensors",
		 load->bench->dir, i);
	fd = sys(open(load->paths[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600),
		 "make a file");
	write_all(fd, &size, sizeof(size));
	write_all(fd, header, size);
	memset(piece, i + 1, sizeof(piece));
	for (uint64_t at = 0; at < load->file_size; at += PIECE)
		write_all(fd, piece, PIECE);
	close(fd);
}

/* --- the floor ----------------------------------------------------------- */

struct readers {
	int fds[N_FILES];
	char *memory;
	uint64_t file_size;
	atomic_uint_fast64_t next; /* number of the next piece */
};

static void *read_pieces(void *data)
{
	struct readers *readers = data;
	uint64_t n = readers->file_size / PIECE, piece;

	while ((piece = atomic_fetch_add(&readers->next, 1)) < n * N_FILES) {
		char *into = readers->memory + piece * PIECE;
		off_t offset = (off_t)(piece % n * PIECE);

		if (madvise(into, PIECE, MADV_POPULATE_WRITE) < 0 ||
		    pread(readers->fds[piece / n], into, PIECE, offset) !=
			    (ssize_t)PIECE)
			die("read a file: %m");
	}
	return NULL;
}

static double read_plainly(const struct load *load)
{
	struct readers readers = {.file_size = load->file_size};
	uint64_t size = load->file_size * N_FILES, start = now_ns();
	int n = CPU_COUNT(&load->bench->cpus);
	pthread_t threads[MAX_READERS];
	int fd = sys(memfd_create("floor", MFD_CLOEXEC), "memfd_create");

	n = n > MAX_READERS ? MAX_READERS : n;
	sys(ftruncate(fd, (off_t)size), "ftruncate");
	readers.memory =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (readers.memory == MAP_FAILED)
		die("mmap: %m");
	for (int i = 0; i < N_FILES; i++)
		readers.fds[i] = sys(open(load->paths[i], O_RDONLY | O_CLOEXEC),
				     "open a file");
	for (int i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, read_pieces, &readers))
			die("start a thread");
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < N_FILES; i++)
		close(readers.fds[i]);
	start = now_ns() - start;
	munmap(readers.memory, size);
	close(fd);
	return (double)start;
}

/* --- ours ---------------------------------------------------------------- */

static void run_fsdpctl(const struct load *load, char *const *arguments)
{
	int status;
	pid_t pid = sys(fork(), "fork");

	if (pid == 0) {
		int null_fd = open("/dev/null", O_WRONLY);

		dup2(null_fd, STDOUT_FILENO);
		setenv("FSDP_SOCKET", load->daemon.socket, 1);
		execv(load->fsdpctl, arguments);
		_exit(127);
	}
	sys(waitpid(pid, &status, 0), "waitpid");
	if (status)
		die("fsdpctl %s failed", arguments[1]);
}

static double load_once(struct load *load)
{
	char *load_arguments[] = {load->fsdpctl,  "load",
				  load->paths[0], load->paths[1],
				  load->paths[2], load->paths[3],
				  "--prefix",     "m/",
				  "--quiet",      NULL};
	char *rm_arguments[] = {load->fsdpctl, "rm", "m/", NULL};
	uint64_t start = now_ns();

	run_fsdpctl(load, load_arguments);
	start = now_ns() - start;
	run_fsdpctl(load, rm_arguments);
	return (double)start;
}

void load_1gib(const struct bench *bench, struct result *ret)
{
	struct load load = {.bench = bench,
			    .file_size =
				    bench->is_quick ? 64u << 20 : 256u << 20};
	struct daemon_options options = {.is_unpinned = true};
	struct pairs pairs = PAIRS_NULL;
	unsigned n_pairs = bench->is_quick ? 2 : 3;

	bench_beside("fsdpctl", load.fsdpctl);
	for (int i = 0; i < N_FILES; i++)
		write_file(&load, i);
	unpin(bench);
	daemon_start(&load.daemon, bench, &options);
	(void)read_plainly(&load);
	(void)load_once(&load);
	for (unsigned i = 0; i < n_pairs; i++) {
		samples_add(&pairs.floor, read_plainly(&load));
		samples_add(&pairs.ours, load_once(&load));
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1e6, ret);
	pairs_deinit(&pairs);
	daemon_stop(&load.daemon);
}
