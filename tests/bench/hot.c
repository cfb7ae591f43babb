/*
 * Rows hot_*: a process holds tensors that it knows already, and releases them.
 *
 * There are 10,000 tensors in random order, so that neither side works only in
 * the first cache line. The floor does the least that any counting must do, in
 * memory of the same size and kind and in the same order: it reads one cache
 * line of the tensor's description, adds to its 16-byte entry in a shared file,
 * reads its word in a table, and subtracts. In the rows by name it first hashes
 * the name, and finds that line in a table with open addressing. So both sides
 * wait for the same caches, which other processes on the machine may have
 * emptied.
 *
 * One sample is the mean over one pass. It is measured in CPU time, because
 * nothing here waits, and a pass takes long enough to be preempted. The
 * benchmark proves that our side makes no system call: a process that does the
 * same pass under strict seccomp must survive.
 */
#include "bench.h"
#include "child.h"
#include "daemon.h"
#include "fsdp.h"
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#define N_TENSORS 10000
#define PASSES    5

struct entry {
	_Atomic int32_t delta;
	uint32_t rest[3];
};

/* The floor's description of a tensor. */
struct line {
	_Alignas(64) uint32_t slot;
	char name[60];
};

/* A bucket of the floor's table of names, which is between a quarter and a half
 * full. */
struct bucket {
	uint64_t hash;
	const struct line *line; /* NULL if free */
};
#define N_BUCKETS 32768

struct hot {
	struct fsdp_client *client;
	/* in the order of their numbers */
	struct fsdp_tensor *tensors[N_TENSORS];
	uint32_t slots[N_TENSORS];
	char names[N_TENSORS][NAME_SIZE];
	uint32_t order[N_TENSORS];
	/* Tables of the floor: `lines` by number, `entries` and `words` by
	 * slot, `buckets` by hash. */
	struct line lines[N_TENSORS];
	struct entry *entries;
	_Atomic uint64_t *words;
	struct bucket buckets[N_BUCKETS];
};

typedef void pass_fn(struct hot *hot);

/* Shuffle by Fisher and Yates with xorshift, so the order is the same in every
 * run. */
static void shuffle(uint32_t *order)
{
	uint64_t x = 0x9e3779b97f4a7c15u;

	for (uint32_t i = 0; i < N_TENSORS; i++)
		order[i] = i;
	for (uint32_t i = N_TENSORS - 1; i > 0; i--) {
		uint32_t j, swap;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		j = (uint32_t)(x % (i + 1));
		swap = order[i];
		order[i] = order[j];
		order[j] = swap;
	}
}

static void get_all(struct hot *hot)
{
	const char *names[FSDP_MAX_BATCH];

	for (size_t i = 0; i < N_TENSORS; i += FSDP_MAX_BATCH) {
		size_t n = N_TENSORS - i;

		if (n > FSDP_MAX_BATCH)
			n = FSDP_MAX_BATCH;
		for (size_t j = 0; j < n; j++)
			names[j] = hot->names[i + j];
		must(fsdp_get(hot->client, names, n, NULL, hot->tensors + i),
		     "get");
	}
}

static void hot_open(struct hot *hot, const char *socket)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};

	hot->client = client_open(socket);
	shuffle(hot->order);
	for (size_t i = 0; i < N_TENSORS; i++)
		name_format(hot->names[i], "hot", i);
	get_all(hot);
	for (size_t i = 0; i < N_TENSORS; i++) {
		fsdp_tensor_info(hot->tensors[i], &info);
		hot->slots[i] = info.slot;
		must(fsdp_release(hot->tensors[i]), "release");
	}
}

static void *share(size_t size)
{
	int fd = sys(memfd_create("floor", MFD_CLOEXEC), "memfd_create");
	void *at;

	sys(ftruncate(fd, (off_t)size), "ftruncate");
	at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		die("mmap: %m");
	close(fd);
	return at;
}

static struct bucket *find(struct hot *hot, const char *name)
{
	uint64_t hash = XXH3_64bits(name, strlen(name));
	struct bucket *bucket = &hot->buckets[hash % N_BUCKETS];

	while (bucket->line &&
	       (bucket->hash != hash || strcmp(bucket->line->name, name) != 0))
		if (++bucket == hot->buckets + N_BUCKETS)
			bucket = hot->buckets;
	if (!bucket->line)
		bucket->hash = hash;
	return bucket;
}

static void floor_open(struct hot *hot)
{
	uint32_t n = 0;

	for (size_t i = 0; i < N_TENSORS; i++) {
		struct line *line = &hot->lines[i];

		line->slot = hot->slots[i];
		if (line->slot >= n)
			n = line->slot + 1;
		snprintf(line->name, sizeof(line->name), "%s", hot->names[i]);
		find(hot, line->name)->line = line;
	}
	hot->entries = share(n * sizeof(*hot->entries));
	hot->words = share(n * sizeof(*hot->words));
}

/* Count up and down, and check in between that the tensor is still the same. */
static void count(struct hot *hot, const struct line *line)
{
	struct entry *entry = &hot->entries[line->slot];

	atomic_fetch_add(&entry->delta, 1);
	if (atomic_load(&hot->words[line->slot]) != 0)
		die("the floor's words have changed");
	atomic_fetch_sub(&entry->delta, 1);
}

static void pass_handle_floor(struct hot *hot)
{
	for (size_t i = 0; i < N_TENSORS; i++)
		count(hot, &hot->lines[hot->order[i]]);
}

static void pass_name_floor(struct hot *hot)
{
	for (size_t i = 0; i < N_TENSORS; i++)
		count(hot, find(hot, hot->names[hot->order[i]])->line);
}

static void pass_handle(struct hot *hot)
{
	for (size_t i = 0; i < N_TENSORS; i++) {
		struct fsdp_tensor *tensor = hot->tensors[hot->order[i]];

		must(fsdp_acquire(tensor), "acquire");
		must(fsdp_release(tensor), "release");
	}
}

static void pass_name(struct hot *hot)
{
	struct fsdp_tensor *tensor;
	const char *name;

	for (size_t i = 0; i < N_TENSORS; i++) {
		name = hot->names[hot->order[i]];
		must(fsdp_get(hot->client, &name, 1, NULL, &tensor), "get");
		fsdp_free(tensor);
	}
}

static void time_pass(struct hot *hot, pass_fn *pass, struct samples *samples)
{
	uint64_t start = cpu_ns();

	pass(hot);
	samples_add(samples, (double)(cpu_ns() - start) / N_TENSORS);
}

struct proof {
	const char *socket;
	pass_fn *pass;
};

/* Strict mode allows read, write, exit and sigreturn only. The kernel answers
 * any other call by SIGKILL. */
static void prove(int sock_fd, void *data)
{
	static struct hot hot;
	const struct proof *proof = data;

	hot_open(&hot, proof->socket);
	proof->pass(&hot);
	message_send(sock_fd, "r", 1);
	sys(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT), "seccomp");
	proof->pass(&hot);
	syscall(SYS_exit, 0);
}

/* The proof has value only if a system call would be noticed. */
static void pass_with_call(struct hot *hot)
{
	(void)hot;
	syscall(SYS_getppid);
}

static bool survives(const struct bench *bench, const struct proof *proof)
{
	struct child child;
	char ready;
	int status;

	child_start(&child, bench->client_cpu, prove, (void *)proof);
	message_receive(child.sock_fd, &ready, 1);
	sys(waitpid(child.pid, &status, 0), "wait for the proof");
	close(child.sock_fd);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void run(const struct bench *bench, pass_fn *pass, pass_fn *pass_floor,
		struct result *ret)
{
	static struct hot hot;
	struct daemon daemon;
	struct proof proof = {daemon.socket, pass};
	struct proof control = {daemon.socket, pass_with_call};
	struct pairs pairs = PAIRS_NULL;
	struct repeats repeats;
	struct fsdp_client *owner;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	owner = client_open(daemon.socket);
	publish_many(owner, "hot", N_TENSORS, 64);
	if (survives(bench, &control))
		die("strict seccomp does not work here");
	if (!survives(bench, &proof))
		die("it makes system calls: strict seccomp killed it");
	hot_open(&hot, daemon.socket);
	floor_open(&hot);
	pass_floor(&hot);
	pass(&hot);
	repeats = repeats_begin(bench, bench->n_pairs);
	while (pairs_next(&pairs, &repeats)) {
		for (int j = 0; j < PASSES; j++) {
			time_pass(&hot, pass_floor, &pairs.floor);
			time_pass(&hot, pass, &pairs.ours);
		}
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1, ret);
	pairs_deinit(&pairs);
	fsdp_close(hot.client);
	fsdp_close(owner);
	daemon_stop(&daemon);
}

void hot_acquire_release(const struct bench *bench, struct result *ret)
{
	run(bench, pass_handle, pass_handle_floor, ret);
}

void hot_get_by_name(const struct bench *bench, struct result *ret)
{
	run(bench, pass_name, pass_name_floor, ret);
}
