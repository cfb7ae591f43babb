/*
 * The ledger. Its sums are only upper bounds. If a sum seems too high for a new
 * allocation, or if a process asks for it, every file is checked for released
 * memory. So a kill -9 at any point harms no other process.
 */
#include "tests/fakes/cuda/ledger.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x41445543454b4146) /* "FAKECUDA" */
/* Files are checked after this many creations, so that files without an owner
 * do not fill the folder's file system. */
#define CREATIONS_PER_SWEEP 64

struct sums {
	uint64_t last_serial;
	uint64_t used[FAKE_MAX_DEVICES];
	uint64_t n_live;    /* value at the last check */
	uint64_t n_created; /* creations since then */
};

static int dir_fd = -1;
static int sums_fd = -1;
static struct sums *sums;

static void open_dir(void)
{
	const char *path = settings()->dir;
	char own[64];

	if (!path) {
		snprintf(own, sizeof(own), "/dev/shm/fakecuda-%d",
			 (int)getuid());
		path = own;
		mkdir(path, 0700);
	}
	dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0)
		settings_refuse("FAKECUDA_DIR %s: %m", path);
}

int ledger_dir(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, open_dir);
	return dir_fd;
}

/* All users can access the files, as they can access devices. The folder
 * decides who can enter it. */
static int make_shared(const char *name)
{
	int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
			0666);

	if (fd >= 0)
		(void)fchmod(fd, 0666); /* independent of the umask */
	return fd < 0 ? -errno : fd;
}

static int open_shared(const char *name)
{
	int fd = openat(dir_fd, name, O_RDWR | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/* O_CREAT for an existing file may be refused if it belongs to another user
 * (fs.protected_regular). */
static int open_or_make(const char *name)
{
	int fd;

	do {
		fd = open_shared(name);
		if (fd == -ENOENT)
			fd = make_shared(name);
	} while (fd == -EEXIST);
	return fd;
}

static int lock_whole(int fd, int command, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
	int r;

	do
		r = fcntl(fd, command, &lock);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : lock.l_type;
}

static void lock_sums(void)
{
	if (lock_whole(sums_fd, F_OFD_SETLKW, F_WRLCK) < 0)
		settings_refuse("the ledger cannot be locked: %m");
}

static void unlock_sums(void)
{
	lock_whole(sums_fd, F_OFD_SETLK, F_UNLCK);
}

/* The lock is held until the process ends, or executes another program. */
static void lock_process(void)
{
	char name[LEDGER_NAME_SIZE];
	int fd;

	snprintf(name, sizeof(name), "process.%d", (int)getpid());
	fd = open_or_make(name);
	/* This kind of lock belongs to the process, so a forked child does not
	 * have it. */
	if (fd < 0 || lock_whole(fd, F_SETLK, F_WRLCK) < 0)
		settings_refuse("%s cannot be locked: %m", name);
}

void ledger_open(void)
{
	void *at;

	if (sums)
		return;
	(void)ledger_dir();
	sums_fd = open_or_make("ledger");
	if (sums_fd < 0 || ftruncate(sums_fd, sizeof(*sums)) < 0)
		settings_refuse("the ledger cannot be opened: %m");
	at = mmap(NULL, sizeof(*sums), PROT_READ | PROT_WRITE, MAP_SHARED,
		  sums_fd, 0);
	if (at == MAP_FAILED)
		settings_refuse("the ledger cannot be mapped: %m");
	sums = at;
	/* without the lock, the file would look like that of a dead process */
	lock_sums();
	lock_process();
	unlock_sums();
}

void ledger_name(uint64_t serial, char ret[LEDGER_NAME_SIZE])
{
	snprintf(ret, LEDGER_NAME_SIZE, "memory.%llu",
		 (unsigned long long)serial);
}

static bool is_locked(int fd)
{
	return lock_whole(fd, F_OFD_GETLK, F_WRLCK) != F_UNLCK;
}

static bool read_head(int fd, struct ledger_head *ret)
{
	return pread(fd, ret, sizeof(*ret), 0) == sizeof(*ret) &&
	       ret->magic == MAGIC && ret->device < FAKE_MAX_DEVICES;
}

/* Counts a file if a process uses it, and removes it if not. Returns -errno if
 * that is unknown. */
static int sweep_memory(const char *name, struct sums *ret)
{
	struct ledger_head head;
	int fd = open_shared(name);

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	if (is_locked(fd) && read_head(fd, &head)) {
		ret->used[head.device] += head.size;
		ret->n_live++;
	} else {
		unlinkat(dir_fd, name, 0);
	}
	close(fd);
	return 0;
}

/* Removes names of files whose first name was removed. It is called after all
 * those were. */
static int sweep_link(const char *name, struct sums *ret)
{
	struct stat st;

	(void)ret;
	if (fstatat(dir_fd, name, &st, 0) == 0 && st.st_nlink == 1)
		unlinkat(dir_fd, name, 0);
	return 0;
}

/* Removes the files whose name has this prefix and the id of a dead process. */
static int sweep_process(const char *name, struct sums *ret)
{
	pid_t pid = atoi(strchr(name, '.') + 1);

	(void)ret;
	if (pid != getpid() && !ledger_has_process(pid))
		unlinkat(dir_fd, name, 0);
	return 0;
}

static int sweep_names(DIR *dir, const char *prefix,
		       int (*fn)(const char *, struct sums *), struct sums *ret)
{
	struct dirent *entry;
	int r = 0;

	rewinddir(dir);
	while (r == 0 && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
			r = fn(entry->d_name, ret);
	}
	return r;
}

static int sweep_dir(DIR *dir, struct sums *ret)
{
	int r = sweep_names(dir, "memory.", sweep_memory, ret);

	if (r == 0)
		r = sweep_names(dir, "ipc.", sweep_link, ret);
	if (r == 0)
		r = sweep_names(dir, "event.", sweep_process, ret);
	if (r == 0)
		r = sweep_names(dir, "process.", sweep_process, ret);
	return r;
}

/* Makes the sums exact, and removes files without an owner. If there are no
 * descriptors for the check, the sums stay upper bounds. */
static void sweep(void)
{
	struct sums exact = {.last_serial = sums->last_serial};
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (dir && sweep_dir(dir, &exact) == 0)
		*sums = exact;
	if (dir)
		closedir(dir);
	else if (fd >= 0)
		close(fd);
}

static bool has_room(const struct ledger_head *head)
{
	uint64_t limit = settings()->memory_mb << 20;

	return head->size <= limit &&
	       sums->used[head->device] <= limit - head->size;
}

static int fill_file(int fd, const struct ledger_head *head)
{
	int r = lock_whole(fd, F_OFD_SETLK, F_RDLCK);

	if (r < 0)
		return r;
	if (pwrite(fd, head, sizeof(*head), 0) != sizeof(*head) ||
	    ftruncate(fd, (off_t)(LEDGER_HEAD + head->size)) < 0)
		return -errno;
	return 0;
}

static int create(struct ledger_head *head)
{
	char name[LEDGER_NAME_SIZE];
	int fd, r;

	if (!has_room(head) ||
	    ++sums->n_created > CREATIONS_PER_SWEEP + sums->n_live)
		sweep();
	if (!has_room(head))
		return -ENOMEM;
	head->magic = MAGIC;
	head->serial = ++sums->last_serial;
	ledger_name(head->serial, name);
	fd = make_shared(name);
	if (fd < 0)
		return fd;
	r = fill_file(fd, head);
	if (r < 0) {
		unlinkat(dir_fd, name, 0);
		close(fd);
		return r;
	}
	sums->used[head->device] += head->size;
	return fd;
}

int ledger_create(struct ledger_head *head)
{
	int fd;

	lock_sums();
	fd = create(head);
	unlock_sums();
	return fd;
}

int ledger_find(const char *name)
{
	int fd;

	lock_sums();
	fd = open_shared(name);
	if (fd >= 0 && !is_locked(fd)) {
		close(fd);
		fd = -ENOENT;
	}
	if (fd >= 0)
		ledger_lock_file(fd);
	unlock_sums();
	return fd;
}

bool ledger_is_memory(int fd)
{
	struct ledger_head head;

	return read_head(fd, &head);
}

void ledger_lock_file(int fd)
{
	lock_whole(fd, F_OFD_SETLK, F_RDLCK);
}

static void settle(uint64_t serial, ino_t inode)
{
	char name[LEDGER_NAME_SIZE];
	struct ledger_head head;
	struct stat st;
	int fd;

	ledger_name(serial, name);
	fd = open_shared(name);
	if (fd < 0)
		return;
	/* The file may belong to another folder and have the same serial. */
	if (fstat(fd, &st) == 0 && st.st_ino == inode && !is_locked(fd) &&
	    read_head(fd, &head)) {
		unlinkat(dir_fd, name, 0);
		sums->used[head.device] -= head.size;
	}
	close(fd);
}

void ledger_settle(uint64_t serial, ino_t inode)
{
	lock_sums();
	settle(serial, inode);
	unlock_sums();
}

int ledger_link(uint64_t serial, const char *name)
{
	char first[LEDGER_NAME_SIZE];

	ledger_name(serial, first);
	unlinkat(dir_fd, name, 0);
	return linkat(dir_fd, first, dir_fd, name, 0) < 0 ? -errno : 0;
}

void ledger_unlink(const char *name)
{
	unlinkat(dir_fd, name, 0);
}

bool ledger_has_process(pid_t pid)
{
	char name[LEDGER_NAME_SIZE];
	bool is_alive;
	int fd;

	snprintf(name, sizeof(name), "process.%d", (int)pid);
	fd = open_shared(name);
	if (fd < 0)
		return false;
	is_alive = lock_whole(fd, F_GETLK, F_WRLCK) != F_UNLCK;
	close(fd);
	return is_alive;
}

int ledger_enter(unsigned int device, bool is_exclusive)
{
	char name[LEDGER_NAME_SIZE];
	int fd;

	snprintf(name, sizeof(name), "context.%u", device);
	fd = open_or_make(name);
	if (fd < 0)
		return fd;
	if (lock_whole(fd, F_OFD_SETLK, is_exclusive ? F_WRLCK : F_RDLCK) < 0) {
		close(fd);
		return -EBUSY;
	}
	return fd;
}
