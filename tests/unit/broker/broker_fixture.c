#include "tests/unit/broker/broker_fixture.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

void must(int r, const struct error *err)
{
	cr_assert(r == 0, "%d: %s", r, err->msg);
}

struct broker *broker;
struct client alice, bob;

struct broker *broker_make(void)
{
	struct broker *self = calloc(1, sizeof(*self));
	struct error err = ERROR_NULL;

	cr_assert(self != NULL);
	must(parts_open(self, &err), &err);
	must(catalog_create(&self->store.catalog, &err), &err);
	must(table_create(&self->store.table, &err), &err);
	accounts_init(&self->base.accounts, &self->base.config);
	pools_init(&self->store.pools);
	return self;
}

/* --- clients -------------------------------------------------------------- */

static void open_for(struct client *client, struct broker *self, pid_t pid,
		     uint32_t uid, uint64_t budget)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct error err = ERROR_NULL;
	int fds[2];

	*client = (struct client){.broker = self};
	must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC,
			0, fds),
	     &err);
	must(session_new(&self->sessions, pid, uid, uid, pidfd, budget,
			 &client->session, &err),
	     &err);
	must(refs_open(&client->refs,
		       fcntl(client->session->holdings.refs.fd, F_DUPFD_CLOEXEC,
			     3),
		       REFS_CLIENT, &err),
	     &err);
	client->sock_fd = fds[0];
	client->peer = (struct peer){
		.sessions = &self->sessions,
		.session = client->session,
		.sock_fd = fds[1],
		.events = UV_READABLE,
		.cred = {.pid = pid, .uid = uid, .gid = uid},
		.replies = {.sock_fd = fds[1],
			    .account = accounts_get(&self->base.accounts, uid)},
	};
	client->session->peer = &client->peer;
}

void client_open(struct client *client, struct broker *self, uint32_t uid,
		 uint64_t budget)
{
	open_for(client, self, getpid(), uid, budget);
}

pid_t client_open_child(struct client *client, struct broker *self,
			uint32_t uid)
{
	pid_t child = fork();

	if (child == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	open_for(client, self, child, uid, 0);
	return child;
}

void kill_child(struct client *client, pid_t child)
{
	siginfo_t info;

	/* The broker must not close a peer that is not its own. */
	peer_attach(client->session, NULL);
	cr_assert(zero(int, kill(child, SIGKILL)));
	cr_assert(zero(int,
		       waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT)));
}

void broker_set_up(void)
{
	broker = broker_make();
	client_open(&alice, broker, 1000, 0);
	client_open(&bob, broker, 1001, 0);
}

void client_close(struct client *client)
{
	session_end(client->session, 0);
	refs_close(&client->refs);
	close(client->sock_fd);
	close(client->peer.sock_fd);
}

void client_send_fd(struct client *client, const struct request *request,
		    uint64_t number, int fd)
{
	struct error err = ERROR_NULL;
	struct frame frame = {.kind = request->kind,
			      .n_fds = fd >= 0,
			      .number = number,
			      .fds = {fd}};
	uint8_t *body;
	size_t size;

	must(request_encode(request, &body, &size, &err), &err);
	frame.body = body;
	frame.body_size = (uint32_t)size;
	frame.answered = number;
	cr_assert(ge(int,
		     verb_dispatch(client->broker, &client->peer, &frame, &err),
		     0),
		  "%s", err.msg);
	frame_close_fds(&frame);
	free(body);
}

void client_send(struct client *client, const struct request *request,
		 uint64_t number)
{
	client_send_fd(client, request, number, -1);
}

bool client_recv(struct client *client, struct reply *ret, int *ret_code)
{
	static uint8_t buffer[FRAME_MAX_SIZE];
	struct error err = ERROR_NULL;
	struct frame frame;
	int r;

	r = frame_recv(client->sock_fd, buffer, &frame, NULL, &err);
	cr_assert(r >= 0, "%s", err.msg);
	if (r != FRAME_OK)
		return false;
	client->n_fds = frame.n_fds;
	frame_close_fds(&frame);
	must(reply_decode(frame.kind, frame.code, frame.body, frame.body_size,
			  ret, &err),
	     &err);
	*ret_code = frame.code;
	client->sentence[0] = '\0';
	if (frame.code < 0)
		snprintf(client->sentence, sizeof(client->sentence), "%s",
			 ret->sentence);
	return true;
}

int client_call(struct client *client, const struct request *request,
		struct reply *ret)
{
	int code;

	client_send(client, request, ++client->number);
	while (!client_recv(client, ret, &code))
		loop_step(&client->broker->base.loop.uv);
	return code;
}

int client_ask(struct client *client, const struct request *request)
{
	struct reply reply;
	int code = client_call(client, request, &reply);

	reply_deinit(&reply);
	return code;
}

void client_acquire(struct client *client, const struct slot_ref *ref)
{
	cr_assert(eq(int,
		     refs_acquire(&client->refs, &client->broker->store.table,
				  ref->slot, ref->generation),
		     REFS_HELD));
}

bool client_release(struct client *client, const struct slot_ref *ref)
{
	return refs_release(&client->refs, &client->broker->store.table,
			    ref->slot);
}

/* --- requests ------------------------------------------------------------- */

struct alloc_item item_of(uint64_t size)
{
	struct alloc_item item = {
		.type = {.dtype = DTYPE_U8,
			 .n_dims = 1,
			 .shape = {(int64_t)size}},
		.name = "",
	};

	tensor_type_contiguous(&item.type);
	return item;
}

int client_alloc_item(struct client *client, struct alloc_item *item,
		      uint32_t mode, uint64_t bundle, int32_t timeout_ms,
		      struct slot_ref *ret)
{
	struct request request = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT, .mode = mode},
			  .bundle = bundle,
			  .timeout_ms = timeout_ms,
			  .n_items = 1,
			  .items = item},
	};
	struct reply reply;
	int r = client_call(client, &request, &reply);

	if (r == 0)
		*ret = reply.places.places[0].ref;
	reply_deinit(&reply);
	return r;
}

struct slot_ref client_alloc(struct client *client, uint64_t size)
{
	struct alloc_item item = item_of(size);
	struct slot_ref ref = {0};

	cr_assert(zero(int, client_alloc_item(client, &item, 0644, 0, 0, &ref)),
		  "%s", client->sentence);
	return ref;
}

int64_t client_publish(struct client *client, const struct slot_ref *ref,
		       const char *name, uint32_t flags, uint64_t ttl_ms)
{
	struct publish_item item = {
		.ref = *ref, .name = name, .flags = flags, .ttl_ms = ttl_ms};
	struct request request = {
		.kind = MESSAGE_PUBLISH,
		.publish = {.n_items = 1, .items = &item},
	};
	struct reply reply;
	int64_t r = client_call(client, &request, &reply);

	if (r == 0)
		r = (int64_t)reply.versions.versions[0];
	reply_deinit(&reply);
	return r;
}

int client_get(struct client *client, const char *name, struct slot_ref *ret)
{
	struct request request = {
		.kind = MESSAGE_GET,
		.get = {.n_names = 1, .names = &name},
	};
	struct reply reply;
	int r = client_call(client, &request, &reply);

	if (r == 0)
		*ret = reply.places.places[0].ref;
	reply_deinit(&reply);
	return r;
}

int client_release_n(struct client *client, const struct slot_ref *ref,
		     uint32_t n)
{
	struct release_item item = {.ref = *ref, .n_holds = n};

	return client_ask(client, &(struct request){.kind = MESSAGE_RELEASE,
						    .release = {1, &item}});
}

int client_remove(struct client *client, const char *name)
{
	return client_ask(client, &(struct request){.kind = MESSAGE_REMOVE,
						    .remove = {1, &name}});
}

struct slot_ref client_put(struct client *client, const char *name,
			   uint32_t flags)
{
	struct slot_ref ref = client_alloc(client, 100);

	cr_assert(client_publish(client, &ref, name, flags, 0) > 0, "%s",
		  client->sentence);
	cr_assert(zero(int, client_release_n(client, &ref, 1)));
	return ref;
}

/* --- looking -------------------------------------------------------------- */

enum slot_state word_state(const struct broker *self,
			   const struct slot_ref *ref)
{
	uint64_t word = table_load(&self->store.table, ref->slot);

	if (table_word_generation(word) != ref->generation)
		return SLOT_FREE;
	return table_word_state(word);
}

uint64_t used(struct broker *self, uint32_t uid, enum account_kind kind)
{
	return accounts_get(&self->base.accounts, uid)->used[kind];
}

void assert_empty(struct broker *self, uint32_t uid)
{
	const struct catalog *catalog = &self->store.catalog;

	cr_assert(zero(u64, used(self, uid, ACCOUNT_BYTES)));
	cr_assert(zero(u64, used(self, uid, ACCOUNT_SLOTS)));
	cr_assert(zero(u64, used(self, uid, ACCOUNT_GRANTS)));
	cr_assert(zero(u64, used(self, uid, ACCOUNT_TICKETS)));
	cr_assert(zero(u64, used(self, uid, ACCOUNT_BUNDLES)));
	cr_assert(zero(u32, catalog_n_live(catalog, SECTION_SLOT)));
	cr_assert(zero(u32, catalog_n_live(catalog, SECTION_BLOCK)));
	cr_assert(zero(u32, catalog_n_live(catalog, SECTION_GRANT)));
	cr_assert(zero(u32, catalog_n_live(catalog, SECTION_TICKET)));
	cr_assert(zero(u32, catalog_n_live(catalog, SECTION_BUNDLE)));
	cr_assert(zero(u32, catalog->header->limbo.n));
}
