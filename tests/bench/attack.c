/*
 * The attacks of `fsdp-bench hostile`. Each of them has blocked the loop of an
 * earlier version of the broker.
 */
#include "bench.h"
#include "fsdp.h"
#include "hostile.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

static struct fsdp_spec bytes(uint64_t n)
{
	return (struct fsdp_spec){
		.dtype = FSDP_U8, .n_dims = 1, .shape = {(int64_t)n}};
}

/* Each attacker has a prefix of its own. */
static const char *own_prefix(const struct attacker *attacker, const char *what,
			      char ret[NAME_SIZE])
{
	snprintf(ret, NAME_SIZE, "%.30s-%u/", what, attacker->index);
	return ret;
}

/* Returns how many of `n` objects an attacker makes. In a rehearsal these are
 * few. */
static size_t scaled(const struct attacker *attacker, size_t n)
{
	return attacker->is_rehearsal ? n / 128 : n;
}

/* --- seal: a bundle is committed while a pipe holds one of its pages ----- */

static void splice_page(void *page, int write_fd)
{
	struct iovec part = {.iov_base = page, .iov_len = 4096};

	if (vmsplice(write_fd, &part, 1, 0) < 0)
		die("vmsplice: %m");
}

static int strike_seal(struct attacker *attacker)
{
	struct fsdp_bundle_options options = {.access.gid = FSDP_GID_DEFAULT,
					      .size_hint = 4096,
					      .flags = FSDP_REPLACE};
	char prefix[NAME_SIZE], text[NAME_SIZE + 8], page[4096];
	struct fsdp_spec spec = bytes(4096);
	const char *name = text;
	struct fsdp_bundle *bundle;
	struct fsdp_tensor *tensor;
	int ends[2], r;

	own_prefix(attacker, "seal", prefix);
	snprintf(text, sizeof(text), "%sx", prefix);
	r = fsdp_bundle_begin(attacker->client, prefix, &options, &bundle);
	if (r < 0)
		return r;
	r = fsdp_bundle_alloc(bundle, &name, &spec, 1, &tensor);
	if (r < 0) {
		fsdp_bundle_abort(bundle);
		return r;
	}
	sys(pipe2(ends, O_CLOEXEC), "pipe2");
	memset(fsdp_data_mut(tensor), 1, 4096);
	splice_page(fsdp_data_mut(tensor), ends[1]);
	/* Before the broker refuses, it searches all processes for the pipe. */
	if (fsdp_bundle_commit(bundle, NULL) < 0)
		fsdp_bundle_abort(bundle);
	sys((int)read(ends[0], page, sizeof(page)), "read");
	close(ends[0]);
	close(ends[1]);
	fsdp_free(tensor);
	return 0;
}

/* --- evict: over quota, behind a table that was full once ---------------- */

#define EVICT_CONFIG                                                           \
	"[memory]\nmemory_max = 1G\n"                                          \
	"[quota]\nquota_slots = 1048576\nquota_bytes = 128M\n"
#define N_SLOTS_ONCE 1000000

static void remove_many(struct fsdp_client *client, const char *prefix,
			size_t n)
{
	char texts[FSDP_MAX_BATCH][NAME_SIZE];
	const char *names[FSDP_MAX_BATCH];

	for (size_t i = 0; i < n;) {
		size_t n_now = 0;

		for (; n_now < FSDP_MAX_BATCH && i < n; n_now++, i++) {
			name_format(texts[n_now], prefix, i);
			names[n_now] = texts[n_now];
		}
		must(fsdp_remove(client, names, n_now), "remove");
	}
}

static void prepare_evict(struct attacker *attacker)
{
	size_t n = scaled(attacker, N_SLOTS_ONCE);

	publish_many(attacker->client, "evict-once", n, 16);
	remove_many(attacker->client, "evict-once", n);
}

/* An evictable tensor that is held cannot be evicted, but the broker looks at
 * it. */
static void arm_evict(struct attacker *attacker)
{
	struct fsdp_spec spec = bytes(64);
	/* The attacker of an earlier pair may have left its tensor. */
	struct fsdp_publication publication = {.flags = FSDP_EVICTABLE |
							FSDP_REPLACE};
	char text[NAME_SIZE];

	name_format(text, "evict-held", attacker->index);
	publication.name = text;
	must(fsdp_alloc(attacker->client, &spec, 1, NULL, -1,
			&publication.tensor),
	     "alloc");
	must(fsdp_publish(attacker->client, &publication, 1), "publish");
}

static int strike_evict(struct attacker *attacker)
{
	struct fsdp_spec spec = bytes(127u << 20);
	struct fsdp_tensor *tensor;
	int r = fsdp_alloc(attacker->client, &spec, 1, NULL, 0, &tensor);

	if (r == 0)
		fsdp_free(tensor);
	return r;
}

/* --- close: descriptors whose last close is slow ------------------------- */

static int connect_bare(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = sys(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0),
		     "socket");

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool leads_to(int fd, const char *path)
{
	struct sockaddr_un address = {0};
	socklen_t size = sizeof(address) - 1;

	return getpeername(fd, (struct sockaddr *)&address, &size) == 0 &&
	       address.sun_family == AF_UNIX &&
	       strcmp(address.sun_path, path) == 0;
}

/* Find the socket of a libfsdp connection, to which any code of the process can
 * write. */
static int find_socket(const char *path)
{
	for (int fd = 3; fd < 256; fd++)
		if (leads_to(fd, path))
			return fd;
	return -1;
}

/* Send `fd` with a byte that is not a frame. The caller keeps its own
 * descriptor. */
static int send_fd(int sock_fd, int fd)
{
	char byte = 0;
	struct iovec part = {.iov_base = &byte, .iov_len = 1};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)),
				.cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_RIGHTS}};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = sizeof(control)};

	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	return (int)sendmsg(sock_fd, &message, MSG_NOSIGNAL);
}

/* Returns one end of a socket pair in whose queue `fd` waits. Consumes `fd`. */
static int nest(int fd)
{
	int ends[2];

	sys(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends),
	    "socketpair");
	sys(send_fd(ends[0], fd), "send a descriptor");
	close(fd);
	close(ends[0]);
	return ends[1];
}

/*
 * Send `fd` so that the broker must close its last reference. The descriptor is
 * sent before hello; if the kernel refuses that, it is sent after hello.
 * Consumes `fd`. Returns a negative number if `fd` cannot be sent.
 */
static int give(struct attacker *attacker, int fd)
{
	int sock_fd = connect_bare(attacker->socket);
	struct fsdp_client *client = NULL;
	struct fsdp_connect_options options = {.path = attacker->socket,
					       .reconnect_ms = 1};
	int r = sock_fd < 0 ? -1 : send_fd(sock_fd, fd);

	if (sock_fd >= 0 && r < 0 && fsdp_connect(&options, &client) == 0)
		r = send_fd(find_socket(attacker->socket), fd);
	close(fd);
	if (sock_fd >= 0)
		close(sock_fd);
	fsdp_close(client);
	return r;
}

#define MEMFD_SIZE (128l << 20)
#define MEMFDS_MAX (2l << 30)

/* Memory files, tmpfs and the like of the whole machine, and free memory. */
static uint64_t shared_memory(uint64_t *ret_free)
{
	struct sysinfo info;

	sys(sysinfo(&info), "sysinfo");
	*ret_free = (uint64_t)info.freeram * info.mem_unit;
	return (uint64_t)info.sharedram * info.mem_unit;
}

static uint64_t most_shared_memory;

static void arm_memfd(struct attacker *attacker)
{
	uint64_t free_memory, size = MEMFDS_MAX;
	uint64_t used = shared_memory(&free_memory);

	(void)attacker;
	most_shared_memory =
		used + (size < free_memory / 4 ? size : free_memory / 4);
}

/* A broker that does not close the files that it receives would use up the
 * machine's memory. So the attackers wait while there are memory files of
 * MEMFDS_MAX, or of a quarter of the memory that was free. Each attacker may
 * exceed that by one file. */
static int strike_memfd(struct attacker *attacker)
{
	uint64_t unused;
	int fd;

	while (shared_memory(&unused) > most_shared_memory)
		sleep_us(1000);
	fd = sys(memfd_create("fsdp-bench", MFD_CLOEXEC), "memfd_create");

	sys(fallocate(fd, 0, 0, MEMFD_SIZE), "fallocate");
	return give(attacker, nest(fd));
}

/* Make a connection over loopback with more data to send than its peer reads.
 * Its close waits as long as SO_LINGER says. */
static int make_lingering(int *ret_peer)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	socklen_t size = sizeof(address);
	struct linger linger = {.l_onoff = 1, .l_linger = 1};
	static char data[1 << 20];
	int listener, fd;

	listener =
		sys(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	sys(bind(listener, (struct sockaddr *)&address, size), "bind");
	sys(listen(listener, 1), "listen");
	sys(getsockname(listener, (struct sockaddr *)&address, &size),
	    "getsockname");
	fd = sys(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	sys(connect(fd, (struct sockaddr *)&address, size), "connect");
	*ret_peer = sys(accept4(listener, NULL, NULL, SOCK_CLOEXEC), "accept");
	close(listener);
	sys(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)),
	    "SO_LINGER");
	while (send(fd, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	return fd;
}

static int strike_linger(struct attacker *attacker)
{
	static int peers[64];
	static unsigned n;
	int peer, fd = make_lingering(&peer);
	int r = give(attacker, nest(fd));

	/* The peer stays open without reading, so the data cannot be
	 * delivered. */
	if (n >= 64)
		close(peers[n % 64]);
	peers[n++ % 64] = peer;
	return r;
}

/* --- bundles of 131,072 -------------------------------------------------- */

#define N_MEMBERS 131072
#define BUNDLE_CONFIG                                                          \
	"[quota]\nquota_slots = 1048576\nquota_grants = 16777216\n"

static int alloc_members(struct fsdp_bundle *bundle, const char *prefix,
			 size_t n)
{
	static struct fsdp_tensor *tensors[FSDP_MAX_BATCH];
	static char texts[FSDP_MAX_BATCH][NAME_SIZE];
	struct fsdp_spec specs[FSDP_MAX_BATCH];
	const char *names[FSDP_MAX_BATCH];
	int r;

	for (size_t i = 0; i < n; i += FSDP_MAX_BATCH) {
		for (size_t j = 0; j < FSDP_MAX_BATCH; j++) {
			snprintf(texts[j], NAME_SIZE, "%.40s%zu", prefix,
				 i + j);
			names[j] = texts[j];
			specs[j] = bytes(16);
		}
		r = fsdp_bundle_alloc(bundle, names, specs, FSDP_MAX_BATCH,
				      tensors);
		if (r < 0)
			return r;
		for (size_t j = 0; j < FSDP_MAX_BATCH; j++)
			fsdp_free(tensors[j]);
	}
	return 0;
}

static int make_bundle(struct attacker *attacker, const char *prefix)
{
	struct fsdp_bundle_options options = {.access.gid = FSDP_GID_DEFAULT,
					      .size_hint = N_MEMBERS * 64,
					      .flags = FSDP_REPLACE};
	struct fsdp_bundle *bundle;
	int r = fsdp_bundle_begin(attacker->client, prefix, &options, &bundle);

	if (r < 0)
		return r;
	r = alloc_members(bundle, prefix, scaled(attacker, N_MEMBERS));
	if (r == 0)
		r = fsdp_bundle_commit(bundle, NULL);
	if (r < 0)
		fsdp_bundle_abort(bundle);
	return r;
}

static void prepare_bundle(struct attacker *attacker)
{
	must(make_bundle(attacker, "big/"), "make a bundle");
}

static int strike_bundle_get(struct attacker *attacker)
{
	struct fsdp_tensor **tensors;
	size_t n;
	int r = fsdp_bundle_get(attacker->client, "big/", NULL, &tensors, &n);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		fsdp_free(tensors[i]);
	free(tensors);
	return 0;
}

/* A session that never got the bundle is granted all of it each time. */
static int strike_bundle_first_get(struct attacker *attacker)
{
	struct attacker fresh = *attacker;
	struct fsdp_connect_options options = {.path = attacker->socket};
	int r = fsdp_connect(&options, &fresh.client);

	if (r < 0)
		return r;
	r = strike_bundle_get(&fresh);
	fsdp_close(fresh.client);
	return r;
}

static int strike_bundle_commit(struct attacker *attacker)
{
	char prefix[NAME_SIZE];

	return make_bundle(attacker, own_prefix(attacker, "commit", prefix));
}

/* --- deadlines: 250,000 names that end at once --------------------------- */

#define DEADLINES_CONFIG "[quota]\nquota_slots = 1048576\n"
#define N_DEADLINES      250000
#define PERIOD_NS        8000000000ull

/* All attackers choose the same deadline: the next multiple of the period. */
static int strike_deadlines(struct attacker *attacker)
{
	uint64_t period = attacker->is_rehearsal ? PERIOD_NS / 8 : PERIOD_NS;
	uint64_t due = (now_ns() / period + 1) * period;
	struct fsdp_spec specs[FSDP_MAX_BATCH];
	struct fsdp_tensor *tensors[FSDP_MAX_BATCH];
	struct fsdp_publication publications[FSDP_MAX_BATCH];
	char texts[FSDP_MAX_BATCH][NAME_SIZE], prefix[NAME_SIZE];
	size_t n = scaled(attacker, N_DEADLINES) / N_ATTACKERS;
	int r = 0;

	snprintf(prefix, sizeof(prefix), "due-%u", attacker->index);
	for (size_t i = 0; i < FSDP_MAX_BATCH; i++)
		specs[i] = bytes(16);
	for (size_t i = 0; i < n; i += FSDP_MAX_BATCH) {
		uint64_t now = now_ns();

		if (now >= due)
			break;
		r = fsdp_alloc(attacker->client, specs, FSDP_MAX_BATCH, NULL, 0,
			       tensors);
		if (r < 0)
			break;
		for (size_t j = 0; j < FSDP_MAX_BATCH; j++) {
			name_format(texts[j], prefix, i + j);
			publications[j] = (struct fsdp_publication){
				.tensor = tensors[j],
				.name = texts[j],
				.flags = FSDP_REPLACE,
				.ttl_ms = (due - now) / 1000000 + 1};
		}
		r = fsdp_publish(attacker->client, publications,
				 FSDP_MAX_BATCH);
		for (size_t j = 0; j < FSDP_MAX_BATCH; j++)
			fsdp_free(tensors[j]);
	}
	while (now_ns() < due)
		sleep_us((unsigned)((due - now_ns()) / 1000 + 1));
	return r;
}

/* --- keeper: the process that keeps the descriptors does not read -------- */

/* Each bundle has a chunk, and thus a descriptor, of its own. */
static int strike_keeper(struct attacker *attacker)
{
	struct fsdp_bundle_options options = {.access.gid = FSDP_GID_DEFAULT,
					      .size_hint = 1 << 20,
					      .flags = FSDP_REPLACE};
	char prefix[NAME_SIZE], text[NAME_SIZE + 8];
	struct fsdp_spec spec = bytes(64);
	const char *name = text;
	struct fsdp_bundle *bundle;
	struct fsdp_tensor *tensor;
	int r;

	own_prefix(attacker, "keeper", prefix);
	snprintf(text, sizeof(text), "%sx", prefix);
	r = fsdp_bundle_begin(attacker->client, prefix, &options, &bundle);
	if (r < 0)
		return r;
	r = fsdp_bundle_alloc(bundle, &name, &spec, 1, &tensor);
	if (r == 0)
		fsdp_free(tensor);
	fsdp_bundle_abort(bundle);
	return r;
}

const struct attack attacks[] = {
	{.name = "seal",
	 .what = "commit a bundle while a pipe holds one of its pages",
	 .strike = strike_seal},
	{.name = "evict",
	 .what = "allocate over quota, after the slot table was full once",
	 .config = EVICT_CONFIG,
	 .prepare = prepare_evict,
	 .arm = arm_evict,
	 .strike = strike_evict},
	{.name = "close_memfd",
	 .what = "send memfds of 128 MiB inside a socket",
	 .arm = arm_memfd,
	 .strike = strike_memfd},
	{.name = "close_linger",
	 .what = "send TCP sockets that linger inside a socket",
	 .strike = strike_linger},
	{.name = "bundle_get",
	 .what = "get a bundle of 131,072 again and again",
	 .config = BUNDLE_CONFIG,
	 .prepare = prepare_bundle,
	 .strike = strike_bundle_get},
	{.name = "bundle_first_get",
	 .what = "the same, each time in a new session",
	 .config = BUNDLE_CONFIG,
	 .prepare = prepare_bundle,
	 .strike = strike_bundle_first_get},
	{.name = "bundle_commit",
	 .what = "stage and commit bundles of 131,072",
	 .config = BUNDLE_CONFIG,
	 .strike = strike_bundle_commit},
	{.name = "deadlines",
	 .what = "250,000 names that end at the same time",
	 .config = DEADLINES_CONFIG,
	 .min_seconds = 18,
	 .mortal = "due-",
	 .strike = strike_deadlines},
	{.name = "keeper",
	 .what = "make chunks while what keeps descriptors is stopped",
	 .strike = strike_keeper,
	 .has_deaf_keeper = true},
};
const size_t n_attacks = sizeof(attacks) / sizeof(*attacks);
