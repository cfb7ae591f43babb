/*
 * Tests clients that follow no protocol. They send requests of collectives in
 * any order and number, with ids that were right a moment ago, over connections
 * that are closed and opened again. Each request must get a reply, the broker
 * must keep serving, and after the clients have exited nothing must remain.
 *
 * The requests follow from the seed; the replies depend on the broker's timing.
 */
#include "client/fsdp.h"
#include "shm/refs.h"
#include "shm/table.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/leaks.h"
#include "tests/lib/memory.h"
#include "tests/lib/wire_repeat.h"
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define N_CLIENTS  3
#define N_REQUESTS 6000 /* for each seed */
#define N_COMMS    3
#define N_GROUPS   2
#define N_NOTED    64
#define TTL_MS     20

/* This is what a client knows of a group. Unknown ids are 0. */
struct group {
	uint64_t id, unshard, reduction; /* numbers of the last ones */
	struct slot_ref input;
};

struct comm {
	uint64_t id, step, committing;
	struct group groups[N_GROUPS];
};

/* These are the requests that were sent, by number. */
struct noted {
	uint32_t comm, group;
	struct request request; /* without what it points to */
};

struct client {
	struct wire *wire;
	struct comm comms[N_COMMS];
	struct noted noted[N_NOTED];
	struct slot_ref held;
};

static struct daemon daemon_;
static struct wire *other; /* reads the broker's status */
static struct client clients[N_CLIENTS];
static uint64_t state; /* of the random numbers */

static uint32_t pick(uint32_t n)
{
	state = state * UINT64_C(6364136223846793005) +
		UINT64_C(1442695040888963407);
	return (uint32_t)(state >> 33) % n;
}

/* Returns `right` in most cases, otherwise a random number. */
static uint64_t mostly(uint64_t right)
{
	return pick(25) ? right : pick(60);
}

/* --- requests ------------------------------------------------------------ */

static const char *const comm_names[N_COMMS] = {"wild/a", "wild/b", "wild/c"};
static const char *const group_names[N_GROUPS] = {"first", "second"};
static struct group_param params[3];

/* The communicator has one rank, two replicas, or as many shards as there are
 * clients. */
static void make_join(uint32_t i, uint32_t self, struct request *ret)
{
	static const uint32_t n_ranks[N_COMMS] = {1, 2, N_CLIENTS};

	ret->kind = MESSAGE_COMM_JOIN;
	ret->comm_join = (struct comm_join_request){
		.name = comm_names[i],
		.access = {.gid = GID_DEFAULT},
		.n_ranks = n_ranks[i],
		.rank = (uint32_t)mostly(self) % n_ranks[i],
		.n_shards = i == 1 ? 1 : n_ranks[i],
		.timeout_ms = 100,
		.ttl_ms = TTL_MS,
		.limiter = i == 2,
		.limit = 1,
		.n_inputs = 2,
	};
}

static void make_group(const struct comm *comm, uint32_t i, struct request *ret)
{
	ret->kind = MESSAGE_GROUP;
	ret->group = (struct group_request){
		.comm = mostly(comm->id),
		.name = group_names[i],
		/* The cast makes a gather of the second group necessary. */
		.param_dtype = i ? DTYPE_BF16 : 0,
		.layout = pick(50) == 0,
		.n_params = 3,
		.params = params,
	};
}

static void make_reduce(const struct group *group, struct request *ret)
{
	ret->kind = MESSAGE_REDUCE;
	ret->reduce = (struct reduce_request){
		.group = mostly(group->id),
		.input = {(uint32_t)mostly(group->input.slot),
			  group->input.generation},
		.flags = pick(50) ? 0 : pick(8),
		.has_factor = pick(50) == 0,
		.factor = pick(3) ? 2 : NAN,
	};
}

static void make_wait(const struct comm *comm, const struct group *group,
		      struct request *ret)
{
	ret->kind = MESSAGE_WAIT;
	ret->wait = (struct wait_request){
		.comm = mostly(comm->id),
		.group = mostly(group->id),
		.kind = WORK_UNSHARD + pick(3),
		.timeout_ms = (int32_t)pick(3) * 10,
	};
	if (ret->wait.kind == WORK_UNSHARD)
		ret->wait.sequence = mostly(group->unshard);
	else if (ret->wait.kind == WORK_REDUCE)
		ret->wait.sequence = mostly(group->reduction);
	else
		ret->wait.sequence = mostly(comm->committing);
	if (ret->wait.kind == WORK_COMMIT)
		ret->wait.group = 0;
}

static void make_any(const struct comm *comm, const struct group *group,
		     struct request *ret)
{
	ret->kind = (uint16_t)(MESSAGE_COMM_LEAVE + pick(10));
	switch (ret->kind) {
	case MESSAGE_UNSHARD:
		ret->unshard.group = mostly(group->id);
		break;
	case MESSAGE_RESHARD:
		ret->reshard.group = mostly(group->id);
		ret->reshard.n_mesh = pick(10) ? 0 : pick(4);
		break;
	case MESSAGE_INPUT:
		ret->input.group = mostly(group->id);
		ret->input.timeout_ms = (int32_t)pick(2) * 10;
		break;
	case MESSAGE_REDUCE:
		make_reduce(group, ret);
		break;
	case MESSAGE_COMMIT:
		ret->commit.comm = mostly(comm->id);
		ret->commit.step = mostly(comm->step + 1);
		break;
	case MESSAGE_COMM_LEAVE:
		if (pick(30) == 0) {
			ret->comm_leave.comm = mostly(comm->id);
			break;
		}
		/* fall through */
	default:
		make_wait(comm, group, ret);
	}
}

static void make_request(struct client *client, struct request *ret)
{
	uint32_t self = (uint32_t)(client - clients);
	uint32_t i = pick(N_COMMS), j = pick(N_GROUPS);
	const struct comm *comm = &client->comms[i];
	struct noted *noted =
		&client->noted[(client->wire->number + 1) % N_NOTED];

	*ret = (struct request){0};
	if (!comm->id || pick(200) == 0)
		make_join(i, self, ret);
	else if (!comm->groups[j].id || pick(100) == 0)
		make_group(comm, comm->groups[0].id ? j : 0, ret);
	else
		make_any(comm, &comm->groups[j], ret);
	if (ret->kind == MESSAGE_GROUP)
		j = ret->group.name == group_names[1];
	*noted = (struct noted){i, j, *ret};
}

/* --- answers ------------------------------------------------------------- */

static void note_refusal(struct client *client, const struct noted *noted,
			 int code)
{
	struct comm *comm = &client->comms[noted->comm];

	cr_assert(ne(str, (char *)wire_sentence(client->wire), ""));
	if (code != -ECONNABORTED || !comm->id)
		return;
	wire_send(client->wire,
		  &(struct request){.kind = MESSAGE_COMM_LEAVE,
				    .comm_leave = {.comm = comm->id}});
	client->noted[client->wire->number % N_NOTED].request.kind = 0;
	*comm = (struct comm){0};
}

static void note_answer(struct client *client, struct noted *noted)
{
	const struct reply *reply = &client->wire->reply;
	struct comm *comm = &client->comms[noted->comm];
	struct group *group = &comm->groups[noted->group];

	switch (reply->kind) {
	case MESSAGE_COMM_JOIN:
		*comm = (struct comm){.id = reply->comm.comm,
				      .step = reply->comm.step};
		break;
	case MESSAGE_GROUP:
		*group = (struct group){.id = reply->group.group};
		client->held = reply->group.places[0].ref;
		break;
	case MESSAGE_UNSHARD:
		group->unshard = reply->work.sequence;
		break;
	case MESSAGE_INPUT:
		group->input = reply->places.places[0].ref;
		break;
	case MESSAGE_REDUCE:
		group->reduction = reply->work.sequence;
		break;
	case MESSAGE_COMMIT:
		comm->committing = reply->work.sequence;
		break;
	case MESSAGE_WAIT:
		if (noted->request.wait.kind == WORK_COMMIT)
			comm->step = noted->request.wait.sequence;
		else if (reply->places.n_places)
			client->held = reply->places.places[0].ref;
		break;
	default:
		break;
	}
}

/* Read the replies that have arrived. Requests that wait for other ranks get
 * theirs later. */
static void read_answers(struct client *client)
{
	struct pollfd pollfd = {.fd = client->wire->fd, .events = POLLIN};
	struct noted *noted;

	while (poll(&pollfd, 1, 0) == 1) {
		cr_assert(eq(int, wire_receive(client->wire), FRAME_OK));
		noted = &client->noted[client->wire->frame.number % N_NOTED];
		if (noted->request.kind != client->wire->reply.kind)
			continue;
		if (client->wire->reply.code < 0)
			note_refusal(client, noted, client->wire->reply.code);
		else
			note_answer(client, noted);
	}
}

/* --- connections --------------------------------------------------------- */

static void send_hello(struct wire *wire, const struct wire *lost)
{
	const int fds[] = {lost->refs_fd, lost->doorbell_fd};
	struct request hello = wire_reconnect_hello(lost);
	uint8_t *body;
	size_t size;

	cr_assert(zero(int, request_encode(&hello, &body, &size, NULL)));
	wire_send_body(wire, MESSAGE_HELLO, lost->number + 1, body, size, fds,
		       2);
	free(body);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(zero(int, wire->frame.code), "%s", wire_sentence(wire));
}

/* Connect the same session again, without its parked requests. */
static void reconnect(struct client *client)
{
	struct wire *lost = client->wire;
	struct wire *wire = wire_connect(daemon_socket(&daemon_));

	send_hello(wire, lost);
	wire->session = lost->session;
	wire->number = lost->number + 1;
	memcpy(wire->token, lost->token, TOKEN_SIZE);
	wire->refs_fd = lost->refs_fd;
	wire->table_fd = lost->table_fd;
	wire->doorbell_fd = lost->doorbell_fd;
	lost->refs_fd = lost->table_fd = lost->doorbell_fd = -1;
	wire_close(lost);
	client->wire = wire;
}

static void say_goodbye(struct client *client)
{
	struct wire *wire = client->wire;

	wire_send(wire, &(struct request){.kind = MESSAGE_GOODBYE});
	do
		cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	while (wire->reply.kind != MESSAGE_GOODBYE);
	wire_close(wire);
}

static void open_client(struct client *client)
{
	*client = (struct client){.wire = wire_open(daemon_socket(&daemon_))};
}

static void release_some(struct client *client)
{
	struct release_item item = {.ref = client->held, .n_holds = 1};
	const struct request request = {
		.kind = MESSAGE_RELEASE,
		.release = {.n_items = 1, .items = &item},
	};

	if (client->held.slot)
		wire_send(client->wire, &request);
}

/* Write random counts and bits into the client's own ref-counter file. */
static void scribble(const struct client *client)
{
	const uint64_t noise[2] = {pick(UINT32_MAX), pick(UINT32_MAX)};
	const off_t places[] = {
		REFS_SUMMARY_OFFSET,
		REFS_BITMAP_OFFSET,
		REFS_ENTRIES_OFFSET + 16 * (off_t)pick(64),
		REFS_ENTRIES_OFFSET + 16 * (off_t)pick(TABLE_SLOTS),
	};

	cr_assert(eq(i64,
		     pwrite(client->wire->refs_fd, noise, sizeof(noise),
			    places[pick(4)]),
		     sizeof(noise)));
	(void)!write(client->wire->doorbell_fd, &(uint64_t){1}, 8);
}

static void kill_worker(void)
{
	pid_t pid = (pid_t)wire_status(other, "worker_pid");

	if (pid > 0)
		kill(pid, SIGKILL);
}

static void act(struct client *client)
{
	struct request request;
	uint32_t what = pick(1000);

	if (what == 0) {
		say_goodbye(client);
		open_client(client);
		return;
	}
	if (what < 4) {
		reconnect(client);
		return;
	}
	if (what < 6) {
		kill_worker();
		return;
	}
	if (what < 20) {
		scribble(client);
		return;
	}
	if (what < 40) {
		release_some(client);
	} else {
		make_request(client, &request);
		wire_send(client->wire, &request);
	}
	/* Reading replies only sometimes keeps several requests under way. */
	if (pick(10)) {
		poll(&(struct pollfd){client->wire->fd, POLLIN, 0}, 1, 1);
		read_answers(client);
	}
}

/* --- tests --------------------------------------------------------------- */

static struct group_param vector(const char *name, uint32_t dtype, int64_t size)
{
	struct group_param param = {
		.name = name,
		.type = {.dtype = dtype, .n_dims = 1, .shape = {size}},
	};

	tensor_type_contiguous(&param.type);
	return param;
}

static void setup(void)
{
	params[0] = vector("w", DTYPE_F32, 3000);
	params[1] = vector("b", DTYPE_F16, 7);
	params[2] = vector("n", DTYPE_I64, 1);
	daemon_start_with(&daemon_,
			  &(struct daemon_options){
				  .config = "[memory]\nchunk_min = 4M\n"});
	other = wire_open(daemon_socket(&daemon_));
}

static void teardown(void)
{
	wire_close(other);
	daemon_stop(&daemon_);
}

CHECKED_SUITE(disorder, setup, teardown, .timeout = 300);

static void run(uint64_t seed)
{
	state = seed;
	for (int i = 0; i < N_CLIENTS; i++)
		open_client(&clients[i]);
	for (int i = 0; i < N_REQUESTS; i++)
		act(&clients[pick(N_CLIENTS)]);
	for (int i = 0; i < N_CLIENTS; i++)
		say_goodbye(&clients[i]);
}

static void check_nothing_is_left(void)
{
	static const char *const names[] = {
		"comms_running", "comms",  "groups",       "waiters",
		"slots",         "blocks", "jobs_running", "bytes_live",
	};

	wire_wait_status(other, "sessions", 1);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		wire_wait_status(other, names[i], 0);
}

Test(disorder, of_requests_leaves_no_state)
{
	for (uint64_t seed = 1; seed <= 2; seed++) {
		run(seed);
		check_nothing_is_left();
	}
}

/* --- bytes --------------------------------------------------------------- */

/* Send each proper prefix of the request's body. All are refused. */
static void send_beginnings(const struct request *request)
{
	uint8_t *body;
	size_t size;

	cr_assert(zero(int, request_encode(request, &body, &size, NULL)));
	for (size_t n = 0; n < size; n++) {
		wire_send_body(other, request->kind, ++other->number, body, n,
			       NULL, 0);
		cr_assert(eq(int, wire_receive(other), FRAME_OK));
		cr_assert(lt(int, other->frame.code, 0), "%s, %zu bytes",
			  message_kind_name(request->kind), n);
		cr_assert(ne(str, (char *)wire_sentence(other), ""));
	}
	free(body);
}

Test(disorder, of_bytes_fails_only_the_request)
{
	const struct comm comm = {.id = 999, .committing = 1};
	const struct group group = {
		.id = 999, .unshard = 1, .reduction = 1, .input = {1, 1}};
	struct request request;

	state = 1;
	make_join(2, 0, &request);
	send_beginnings(&request);
	make_group(&comm, 1, &request);
	send_beginnings(&request);
	for (int i = 0; i < 100; i++) {
		make_any(&comm, &group, &request);
		send_beginnings(&request);
	}
	check_nothing_is_left();
}

/* --- the library --------------------------------------------------------- */

#define N_LAYERS 150

static void unshard(struct fsdp_group *layer)
{
	struct fsdp_work work;

	cr_assert(zero(int, fsdp_unshard(layer, &work)), "%s", fsdp_error());
	cr_assert(zero(int, fsdp_wait(&work, -1)), "%s", fsdp_error());
}

static struct fsdp_comm *join_alone(struct fsdp_client *client,
				    struct fsdp_group **layers)
{
	const struct fsdp_device device = memory_device();
	const struct fsdp_comm_options options = {.limit = N_LAYERS,
						  .device = &device};
	const struct fsdp_param_spec param = {.name = "w",
					      .spec = {FSDP_F32, 1, {16}}};
	struct fsdp_comm *comm;
	struct fsdp_work work;
	char name[16];

	cr_assert(zero(
		int, fsdp_comm_join(client, "wild/d", 1, 0, &options, &comm)));
	for (int i = 0; i < N_LAYERS; i++) {
		snprintf(name, sizeof(name), "l%d", i);
		cr_assert(zero(int, fsdp_group_register(comm, name, &param, 1,
							NULL, &layers[i])));
	}
	cr_assert(zero(int, fsdp_commit(comm, 1, &work)));
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	return comm;
}

/* Clients do not wait for reshards. However many they send, reshards must not
 * reach the broker after later unshards, because it keeps a limited number of
 * replies for each session. */
Test(disorder, of_many_reshards_does_not_overtake_later_unshards)
{
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_)};
	static struct fsdp_group *layers[N_LAYERS];
	struct fsdp_client *client;
	struct fsdp_comm *comm;

	cr_assert(zero(int, fsdp_connect(&options, &client)));
	comm = join_alone(client, layers);
	for (int round = 0; round < 60; round++) {
		for (int i = N_LAYERS - 1; i >= 0; i--)
			unshard(layers[i]);
		for (int i = 0; i < N_LAYERS; i++)
			cr_assert(zero(int, fsdp_reshard(layers[i], 0)));
	}
	fsdp_comm_leave(comm);
	cr_assert(zero(int, fsdp_comm_remove(client, "wild/d")));
	fsdp_close(client);
	check_nothing_is_left();
}

#define N_FDS 256

/* Returns whether `fd` is libfsdp's connection to the broker. */
static bool is_connection(int fd)
{
	struct sockaddr_un peer = {.sun_path = ""};
	socklen_t size = sizeof(peer);

	return fd != other->fd &&
	       getpeername(fd, (struct sockaddr *)&peer, &size) == 0 &&
	       peer.sun_family == AF_UNIX &&
	       strcmp(peer.sun_path, daemon_socket(&daemon_)) == 0;
}

static void break_connection(void)
{
	for (int fd = 0; fd < N_FDS; fd++) {
		if (is_connection(fd))
			cr_assert(zero(int, shutdown(fd, SHUT_RDWR)));
	}
}

/* The one-way request may have arrived or not. It is sent again. */
Test(disorder, of_a_broken_connection_repeats_and_loses_no_one_way_request)
{
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_)};
	static struct fsdp_group *layers[N_LAYERS];
	struct fsdp_client *client;
	struct fsdp_comm *comm;
	struct fsdp_work works[4];

	cr_assert(zero(int, fsdp_connect(&options, &client)));
	comm = join_alone(client, layers);
	for (int round = 0; round < 40; round++) {
		for (int i = 0; i < 4; i++) {
			cr_assert(zero(int, fsdp_unshard(layers[i], &works[i])),
				  "%s", fsdp_error());
			if (i == round % 5)
				break_connection();
		}
		for (int i = 3; i >= 0; i--)
			cr_assert(zero(int, fsdp_wait(&works[i], -1)), "%s",
				  fsdp_error());
		for (int i = 0; i < 4; i++)
			cr_assert(zero(int, fsdp_reshard(layers[i], 0)));
		if (round % 5 == 4)
			break_connection();
	}
	cr_assert(zero(int, fsdp_ping(client)));
	fsdp_comm_leave(comm);
	cr_assert(zero(int, fsdp_comm_remove(client, "wild/d")));
	fsdp_close(client);
	check_nothing_is_left();
}
