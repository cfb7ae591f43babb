/*
 * Tests a listening socket: how it is made, and when its process has no free
 * descriptor. Then each client is turned away and none waits, and the loop does
 * not spin.
 */
#include "broker/session/listener.h"
#include "tests/unit/broker/broker_fixture.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define N 3

static char directory[] = "/tmp/test-listener-XXXXXX";
static char path[64];
static int clients[N]; /* sockets, which are not connected yet */
static struct rlimit before;

static void setup(void)
{
	struct error err = ERROR_NULL;

	broker_set_up();
	cr_assert(ne(ptr, mkdtemp(directory), NULL));
	snprintf(path, sizeof(path), "%s/socket", directory);
	must(listener_open(&broker->sessions, path, -1, &err), &err);
	for (int i = 0; i < N; i++)
		clients[i] = socket(
			AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
			0);
	cr_assert(zero(int, getrlimit(RLIMIT_NOFILE, &before)));
}

static void teardown(void)
{
	listener_close(&broker->sessions.listener);
	(void)rmdir(directory);
}

TestSuite(listener, .init = setup, .fini = teardown, .timeout = 300);

static void limit_descriptors(rlim_t max)
{
	const struct rlimit limit = {max, before.rlim_max};

	cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &limit)));
}

static void connect_client(int fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	strcpy(address.sun_path, path);
	cr_assert(zero(int, connect(fd, (struct sockaddr *)&address,
				    sizeof(address))));
}

static bool is_turned_away(int fd)
{
	struct pollfd pollfd = {.fd = fd, .events = POLLIN};

	return poll(&pollfd, 1, 0) == 1;
}

Test(listener, turns_each_client_away_while_no_descriptor_is_left)
{
	int first_free = dup(clients[0]);

	close(first_free);
	limit_descriptors((rlim_t)first_free);
	for (int i = 0; i < N; i++) {
		connect_client(clients[i]);
		while (!is_turned_away(clients[i])) {
			loop_step(&broker->base.loop.uv);
			cr_assert(zero(u32, broker->sessions.n_peers));
		}
		while (closer_n_open(&broker->base.closer) > 0)
			;
	}
	limit_descriptors(before.rlim_cur);
}

/* Even the number of the spare descriptor is above the limit. */
Test(listener, pauses_if_it_cannot_turn_a_client_away)
{
	limit_descriptors(3);
	connect_client(clients[0]);
	(void)uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_expect(not(
		uv_is_active((uv_handle_t *)&broker->sessions.listener.poll)));
	limit_descriptors(before.rlim_cur);
	while (broker->sessions.n_peers == 0)
		loop_step(&broker->base.loop.uv);
	cr_expect(not(is_turned_away(clients[0])));
}

/* Acts as the owner of the directory, who puts a link to another file in the
 * place of the socket as soon as it is there. */
static const char *linked; /* NULL: nothing is done */

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
	const char *name = ((const struct sockaddr_un *)address)->sun_path;
	int r = (int)syscall(SYS_bind, fd, address, size);

	if (r == 0 && linked && (unlink(name) < 0 || symlink(linked, name) < 0))
		abort();
	return r;
}

Test(listener, opens_no_other_file_to_all_users)
{
	char name[80], file[80];
	struct stat st;
	int fd;

	snprintf(name, sizeof(name), "%s/replaced", directory);
	snprintf(file, sizeof(file), "%s/file", directory);
	fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	linked = file;
	cr_expect(lt(int, listener_bind(name, &(int){-1}, NULL), 0));
	linked = NULL;
	cr_assert(zero(int, fstat(fd, &st)));
	cr_expect(eq(u32, st.st_mode & 0777, 0600));
	close(fd);
	unlink(name);
	unlink(file);
}
