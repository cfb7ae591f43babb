/*
 * Tests starts of a broker that runs out of memory while it takes over what an
 * earlier broker left. The test has kept the descriptors of the first broker.
 * No keeper reads the notifications of the brokers after it.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#define MAX_KEPT 32
#define FIRST_FD 3 /* the first descriptor of LISTEN_FDS */
/* The deadlines of this many names and of the communicator do not fit into the
 * first reservation (broker/base/deadline.c), and the names are adopted
 * last. */
#define N_NAMES 64

static struct sockaddr_un address = {.sun_family = AF_UNIX};
static char directory[] = "/tmp/fsdpd-start-XXXXXX";
static int keeper_fd;
static pthread_t keeper;
/* These are the kept descriptors and their names, in the order in which they
 * came. */
static int fds[MAX_KEPT];
static char names[MAX_KEPT * 64];
static int n_kept;
static struct fsdp_client *producer;
static struct fsdp_channel *channel;

/* The run keeps more than all names together. */
static const struct fsdp_param_spec LARGE[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {256, 256}}},
};

static const struct layer LAYERS[] = {LAYER("large", LARGE)};

/* --- the keeper ---------------------------------------------------------- */

static void keep(const char *text, int fd)
{
	const char *name = strstr(text, "FDNAME=");

	cr_assert(lt(int, n_kept, MAX_KEPT));
	fds[n_kept] = fd;
	snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s",
		 n_kept++ > 0 ? ":" : "", name + strlen("FDNAME="));
}

/* Returns -1 if the notification has no descriptor. */
static int receive(char *ret_text, size_t size)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {ret_text, size - 1};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(keeper_fd, &message, MSG_CMSG_CLOEXEC);
	int fd = -1;

	ret_text[n < 0 ? 0 : n] = '\0';
	if (n >= 0 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

static void *run_keeper(void *data)
{
	char text[256];
	int fd;

	do {
		fd = receive(text, sizeof(text));
		if (fd >= 0)
			keep(text, fd);
	} while (strcmp(text, "END") != 0);
	return data;
}

static void open_keeper(void)
{
	cr_assert(ne(ptr, mkdtemp(directory), NULL));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify",
		 directory);
	keeper_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	cr_assert(zero(int, bind(keeper_fd, (struct sockaddr *)&address,
				 sizeof(address))));
	cr_assert(zero(int, pthread_create(&keeper, NULL, run_keeper, NULL)));
}

/* When the keeper reads END, it has read all that a broker has sent. */
static void close_keeper(void)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	cr_assert(eq(long,
		     sendto(fd, "END", 3, 0, (struct sockaddr *)&address,
			    sizeof(address)),
		     3));
	close(fd);
	cr_assert(zero(int, pthread_join(keeper, NULL)));
	close(keeper_fd);
	unlink(address.sun_path);
	rmdir(directory);
}

/* --- brokers ------------------------------------------------------------- */

static void __attribute__((noreturn)) become_next(const char *failure)
{
	const char *program = daemon_program();
	char config[64], number[16];
	int copies[MAX_KEPT];

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	/* The copies have numbers above those that the descriptors are to
	 * get. */
	for (int i = 0; i < n_kept; i++)
		copies[i] = fcntl(fds[i], F_DUPFD, 1000);
	for (int i = 0; i < n_kept; i++)
		must(dup2(copies[i], FIRST_FD + i) == FIRST_FD + i &&
		     close(copies[i]) == 0);
	snprintf(config, sizeof(config), "%s/conf", daemon_.dir);
	snprintf(number, sizeof(number), "%d", n_kept);
	setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	snprintf(number, sizeof(number), "%d", (int)getpid());
	setenv("LISTEN_PID", number, 1);
	if (failure)
		setenv("FSDP_FAIL_AT", failure, 1);
	execl(program, program, "--socket", daemon_.socket, "--config", config,
	      (char *)NULL);
	_exit(127);
}

static pid_t start_next(const char *failure)
{
	pid_t pid = fork();

	if (pid == 0)
		become_next(failure);
	return pid;
}

/* Names with deadlines. */
static void make_names(void)
{
	struct fsdp_client *mine = connect_to(&daemon_, 0);
	char name[16];

	for (int i = 0; i < N_NAMES; i++) {
		struct fsdp_publication publication = {
			.struct_size = sizeof(publication),
			.tensor = make(mine, &VECTOR, 1),
			.name = name,
			.ttl_ms = 3600 * 1000,
		};

		snprintf(name, sizeof(name), "a/%d", i);
		must(fsdp_publish(mine, &publication, 1) == 0);
		fsdp_release(publication.tensor);
	}
	fsdp_close(mine);
}

/* --- the channel --------------------------------------------------------- */

static const struct fsdp_channel_options CHANNEL = {.capacity = 4096,
						    .n_slots = 2};

/* Make a channel with a producer and an item that no consumer has received. */
static void make_channel(void)
{
	const struct fsdp_spec spec = {FSDP_U64, 0, {0}};
	struct fsdp_item *item;
	void *data;

	producer = connect_to(&daemon_, 0);
	cr_assert(zero(int, fsdp_channel_open(producer, "b/c", &CHANNEL,
					      FSDP_PRODUCER, &channel)));
	cr_assert(zero(int, fsdp_item_begin(channel, 0, &item)));
	cr_assert(zero(int, fsdp_item_part(item, &spec, &data)));
	*(uint64_t *)data = 7;
	cr_assert(zero(int, fsdp_item_send(item)));
}

static void expect_item(struct fsdp_client *mine)
{
	const struct fsdp_channel_options any = {.capacity = 0};
	struct fsdp_channel *consumer;
	struct fsdp_item *item;
	struct fsdp_item_view view = {.struct_size = sizeof(view)};

	cr_assert(zero(int, fsdp_channel_open(mine, "b/c", &any, FSDP_CONSUMER,
					      &consumer)),
		  "%s", fsdp_error());
	cr_assert(zero(int, fsdp_item_receive(consumer, 0, &item)), "%s",
		  fsdp_error());
	cr_expect(zero(int, fsdp_item_view(item, 0, &view)));
	cr_expect(eq(u64, *(const uint64_t *)view.data, 7));
	fsdp_item_release(item);
	fsdp_channel_close(consumer);
}

/* --- tests --------------------------------------------------------------- */

static void setup(void)
{
	char notify[sizeof(address.sun_path) + 16];
	const char *const env[] = {notify, NULL};
	const struct daemon_options options = {.env = env};
	const struct crew crew = {.daemon = &daemon_,
				  .comm = "test",
				  .layers = LAYERS,
				  .n_layers = 1};

	if (!chaos_has_points())
		cr_skip_test("built without points");
	host_memory_only("on devices no run goes on");
	if (getenv("FSDP_TEST_EXECUTOR"))
		cr_skip_test("fsdp-worker does the work");
	open_keeper();
	snprintf(notify, sizeof(notify), "NOTIFY_SOCKET=%s", address.sun_path);
	daemon_start_with(&daemon_, &options);
	make_names();
	make_channel();
	crew_set(&crew);
	ranks_start(&ranks, 2);
	cr_assert(zero(int, ranks_run(&ranks, trainer_join)));
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	daemon_kill_broker(&daemon_);
	close_keeper();
}

static void teardown(void)
{
	for (int i = 0; i < n_kept; i++)
		close(fds[i]);
	fsdp_channel_close(channel);
	fsdp_close(producer);
	ranks_stop(&ranks);
	daemon_stop(&daemon_);
}

TestSuite(short_start, .init = setup, .fini = teardown, .timeout = 300);

/* The run goes on, and the names and the channel are there. */
static void expect_all_there(void)
{
	struct fsdp_tensor *tensor;
	struct fsdp_client *mine;

	daemon_.pid = start_next(NULL);
	/* The ranks wait until the broker has taken over. It then serves other
	 * clients, too. */
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	mine = connect_to(&daemon_, 0);
	cr_assert(zero(int, get(mine, "a/0", 0, &tensor)), "%s", fsdp_error());
	fsdp_release(tensor);
	expect_item(mine);
	fsdp_close(mine);
}

static void fail_to_start(const char *failure)
{
	int status;

	cr_assert(ge(int, waitpid(start_next(failure), &status, 0), 0));
	cr_assert(eq(int, status, EX_TEMPFAIL << 8), "status %#x", status);
}

Test(short_start, that_has_adopted_runs_but_not_all_tensors_changes_nothing)
{
	fail_to_start("deadline.malloc:2:ENOMEM");
	expect_all_there();
}

/* The first mapping is that of the state table. */
Test(short_start, that_cannot_map_a_channel_changes_nothing)
{
	fail_to_start("memfd.map:2:ENOMEM");
	expect_all_there();
}

Test(short_start, that_cannot_map_a_board_changes_nothing)
{
	fail_to_start("memfd.map:3:ENOMEM");
	expect_all_there();
}

/* Two starts that fail are not counted as brokers that the adoption killed. */
Test(short_start, that_cannot_open_the_state_table_again_changes_nothing)
{
	for (int i = 0; i < 2; i++)
		fail_to_start("memfd.readonly:1:EMFILE");
	expect_all_there();
}
