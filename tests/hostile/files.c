/*
 * Files: those that the broker has sent, and others that it does not expect.
 */
#include "shm/memfd.h"
#include "tests/hostile/hostile.h"
#include "tests/lib/chaos.h"
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file files[MAX_FILES];
static uint32_t n_files;

/* --- those of the broker ------------------------------------------------- */

static void find_kind(struct file *file)
{
	char path[64], target[256];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
	n = readlink(path, target, sizeof(target) - 1);
	target[n < 0 ? 0 : n] = '\0';
	file->is_chunk =
		strstr(target, "fsdp-chunk") || strstr(target, "fsdp-bundle");
	if (strstr(target, "fsdp-channel"))
		file->forge = forge_slots;
	else if (strstr(target, "fsdp-board"))
		file->forge = forge_board;
}

static void map(struct file *file)
{
	struct stat status;
	void *at;

	if (fstat(file->fd, &status) < 0 || !S_ISREG(status.st_mode) ||
	    memfd_map(file->fd, (uint64_t)status.st_size, true, &at, NULL) < 0)
		return;
	file->map = at;
	file->size = (size_t)status.st_size;
}

/* A file stays mapped, because a thread may be writing to it. */
void files_note(int fd)
{
	struct file file = {.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)};

	if (file.fd < 0)
		return;
	find_kind(&file);
	map(&file);
	pthread_mutex_lock(&lock);
	if (n_files < MAX_FILES)
		files[n_files++] = file;
	else
		close(file.fd);
	pthread_mutex_unlock(&lock);
}

uint32_t files_map(struct file ret[MAX_FILES], bool spares_chunks)
{
	uint32_t n = 0;

	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < n_files; i++) {
		if (files[i].map && !(spares_chunks && files[i].is_chunk))
			ret[n++] = files[i];
	}
	pthread_mutex_unlock(&lock);
	return n;
}

static bool choose(struct chance *chance, struct file *ret)
{
	bool is_there;

	pthread_mutex_lock(&lock);
	is_there = n_files > 0;
	if (is_there)
		*ret = files[draw(chance, n_files)];
	pthread_mutex_unlock(&lock);
	return is_there;
}

/* --- abuse --------------------------------------------------------------- */

static void change_bytes(struct chance *chance, int fd)
{
	uint64_t word = draw(chance, UINT32_MAX);
	off_t at = (off_t)draw(chance, 1 << 16);

	switch (draw(chance, 3)) {
	case 0:
		(void)!pwrite(fd, &word, sizeof(word), at);
		break;
	case 1:
		(void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				 at, 1 + (off_t)draw(chance, 1 << 20));
		break;
	default:
		(void)!write(fd, &word, sizeof(word));
		break;
	}
}

static void change_file(struct chance *chance, int fd)
{
	static const int flags[] = {0, O_NONBLOCK, O_APPEND, O_ASYNC};

	switch (draw(chance, 6)) {
	case 0:
		(void)!ftruncate(fd, draw(chance, 1 << 20));
		break;
	case 1:
		(void)fcntl(fd, F_ADD_SEALS, 1 << draw(chance, 6));
		break;
	case 2:
		(void)fchmod(fd, 0666);
		break;
	case 3:
		(void)fcntl(fd, F_SETFL, flags[draw(chance, 4)]);
		break;
	case 4:
		(void)lseek(fd, (off_t)draw(chance, 4096), SEEK_SET);
		break;
	default:
		(void)flock(fd, LOCK_EX | LOCK_NB);
		break;
	}
}

/* A read resets an eventfd, and may block where the flag was taken away. */
static void read_some(int fd)
{
	struct timeval now = {0, 0};
	char bytes[16];
	fd_set fds;

	FD_ZERO(&fds);
	if (fd >= FD_SETSIZE)
		return;
	FD_SET(fd, &fds);
	if (select(fd + 1, &fds, NULL, NULL, &now) == 1)
		(void)!read(fd, bytes, sizeof(bytes));
}

void files_abuse(struct siege *siege, struct chance *chance, bool spares_chunks)
{
	struct file file;

	if (!choose(chance, &file) || (spares_chunks && file.is_chunk))
		return;
	switch (draw(chance, 3)) {
	case 0:
		change_bytes(chance, file.fd);
		break;
	case 1:
		change_file(chance, file.fd);
		break;
	default:
		read_some(file.fd);
		break;
	}
	atomic_fetch_add(&siege->n_files, 1);
}

/* --- others -------------------------------------------------------------- */

/* A memory file as the broker makes them, or nearly so. One that is not sealed
 * is truncated by a thread while the broker looks at it. */
static void *truncate_always(void *data)
{
	int fd = (int)(intptr_t)data;

	for (;;) {
		(void)!ftruncate(fd, 4096);
		(void)!ftruncate(fd, 1 << 21);
	}
	return NULL;
}

static int open_memory(struct chance *chance)
{
	const unsigned int huge = draw(chance, 4) ? 0 : MFD_HUGETLB;
	int fd = memfd_create("odd", MFD_CLOEXEC | MFD_ALLOW_SEALING | huge);
	struct file like;
	pthread_t thread;

	if (fd < 0)
		return -1;
	(void)!ftruncate(fd, choose(chance, &like) && like.size
				     ? (off_t)like.size
				     : 1 << 21);
	if (draw(chance, 2))
		(void)!pwrite(fd, "FSDPREF1", 8, 0);
	if (draw(chance, 2))
		(void)fcntl(fd, F_ADD_SEALS, draw(chance, 32));
	else if (draw(chance, 8) == 0)
		(void)pthread_create(&thread, NULL, truncate_always,
				     (void *)(intptr_t)fd);
	return fd;
}

static int open_pair(struct chance *chance)
{
	int fds[2], r;

	r = draw(chance, 2) ? pipe2(fds, O_CLOEXEC)
			    : socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC,
					 0, fds);
	if (r < 0)
		return -1;
	close(fds[1]);
	return fds[0];
}

int files_open_odd(struct chance *chance)
{
	static const char *const paths[] = {"/proc/self/mem", "/proc/self/maps",
					    "/dev/zero", "/dev/null", "/proc"};
	struct file file;

	switch (draw(chance, 8)) {
	case 0:
		return open_memory(chance);
	case 1:
		return open_pair(chance);
	case 2:
		return eventfd(draw(chance, 2),
			       EFD_CLOEXEC |
				       (draw(chance, 2) ? EFD_SEMAPHORE : 0));
	case 3:
		return epoll_create1(EPOLL_CLOEXEC);
	case 4:
		return open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	case 5:
		return (int)syscall(SYS_pidfd_open, getpid(), 0);
	case 6:
		return open(
			paths[draw(chance, sizeof(paths) / sizeof(paths[0]))],
			O_RDONLY | O_CLOEXEC);
	default:
		return choose(chance, &file)
			       ? fcntl(file.fd, F_DUPFD_CLOEXEC, 0)
			       : -1;
	}
}
