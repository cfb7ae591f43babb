#include "tests/fuzz/world.h"
#include "broker/adopt.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/name.h"
#include "tests/fuzz/kernel.h"
#include "tests/fuzz/process.h"
#include "tests/fuzz/seen.h"
#include "tests/fuzz/worker.h"
#include "tests/unit/broker/loop_fixture.h"
#include "tests/unit/broker/parts_fixture.h"
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Of about a millisecond, if nothing is due. Only a broker that hangs needs as
 * many. */
#define SETTLE_STEPS 60000
#define RUN_STEPS    3000
/* One round of the loop may take this time of the CPU, with sanitizers. */
#define MAX_ROUND_NS UINT64_C(2000000000)

struct broker *world_broker;

static uint64_t ahead_ms; /* of the broker's clock */

/* --- the broker ----------------------------------------------------------- */

static void broker_start(void)
{
	static const char *const settings[] = {
		"memory_max=64M", "memory_reserve=0", "chunk_min=2M",
		"quota_bytes=64M"};
	struct broker *broker = calloc(1, sizeof(*broker));
	struct error err = ERROR_NULL;

	ENSURE(broker);
	broker->store.catalog = CATALOG_NULL;
	broker->store.table = TABLE_NULL;
	broker->sessions.table_readonly_fd = -1;
	broker->parent_fd = broker->engine.oom_fd = -1;
	broker->sessions.listener.fd = broker->sessions.listener.spare_fd = -1;
	broker->config_source.path = "/dev/null";
	broker->config_source.settings = settings;
	broker->config_source.n_settings = sizeof(settings) / sizeof(*settings);
	broker->started_ms = now_ms();
	ENSURE(parts_open(broker, &err) == 0);
	keeper_pass_on(&broker->base.fdstore);
	broker->store.devices.state = DEVICES_NONE;
	error_set(&broker->store.devices.why, -ENODEV, "there is no driver");
	broker->engine.next_number = broker->engine.next_plan = 1;
	if (broker_adopt(broker, &err) < 0) {
		fprintf(stderr, "cannot adopt: %s\n", err.msg);
		abort();
	}
	world_broker = broker;
}

static void broker_end(void)
{
	broker_close(world_broker);
	free(world_broker);
	world_broker = NULL;
}

/* Run what is due, without waiting. */
static void run_once(void)
{
	struct timespec begin, end;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
	(void)uv_run(&world_broker->base.loop.uv, UV_RUN_NOWAIT);
	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
	ENSURE((uint64_t)(end.tv_sec - begin.tv_sec) * 1000000000 +
		       (uint64_t)end.tv_nsec - (uint64_t)begin.tv_nsec <
	       MAX_ROUND_NS);
}

void world_run(bool waits)
{
	uv_loop_t *loop = &world_broker->base.loop.uv;

	run_once();
	for (int i = 0; waits && i < RUN_STEPS; i++) {
		if (loop->active_reqs.count == 0 &&
		    uv_backend_timeout(loop) != 0)
			break;
		loop_step(loop);
	}
	run_once();
}

void world_sleep(uint64_t ms)
{
	struct deadlines *deadlines = &world_broker->base.deadlines;

	ahead_ms += ms;
	kernel_set_ahead(ahead_ms);
	/* The timer of the loop measures another clock. */
	if (uv_is_active((uv_handle_t *)&deadlines->timer))
		(void)uv_timer_start(&deadlines->timer,
				     deadlines->timer.timer_cb, 0, 0);
}

void world_restart(void)
{
	keeper_refuse(0);
	broker_end();
	for (int i = 0; i < N_PROCESSES; i++)
		process_disconnect(&processes[i]);
	broker_start();
}

/* --- begin and end -------------------------------------------------------- */

/* Count the descriptors, without pipes: the sanitizers' symbolizer has two. */
static int count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	const struct dirent *entry;
	char path[64];
	int n = 0;

	ENSURE(folder);
	while ((entry = readdir(folder))) {
		ssize_t size = readlinkat(dirfd(folder), entry->d_name, path,
					  sizeof(path) - 1);

		n += size > 0 && strncmp(path, "pipe:", 5) != 0;
	}
	(void)closedir(folder);
	return n;
}

/* All inputs but the first, in which libuv opens its own, leave as many. */
static void check_fds(void)
{
	static int n_fds = -1;
	char command[64];
	int n = count_fds();

	if (n_fds >= 0 && n != n_fds) {
		snprintf(command, sizeof(command), "ls -l /proc/%d/fd >&2",
			 (int)getpid());
		(void)!system(command);
		abort();
	}
	n_fds = n;
}

void world_open(void)
{
	static const uint32_t uids[N_PROCESSES] = {1000, 1000, 1001, 0};

	/* There is such a program, but it is not started. */
	ENSURE(setenv("FSDP_WORKER", "/proc/self/exe", true) == 0);
	seen_clear();
	broker_start();
	for (int i = 0; i < N_PROCESSES; i++)
		process_begin(&processes[i], uids[i]);
}

static bool is_settled(void)
{
	const struct broker *broker = world_broker;

	return broker->sessions.n == 0 && broker->sessions.n_peers == 0;
}

/* Quarantines and leases end, threads get their time, and a worker that was
 * started for a last job is killed, since it is silent. */
static void take_settle_step(int i)
{
	if (i % 16 == 15)
		world_sleep(60000);
	loop_step(&world_broker->base.loop.uv);
}

static void settle(void)
{
	for (int i = 0; i < SETTLE_STEPS && !is_settled(); i++)
		take_settle_step(i);
	ENSURE(is_settled());
}

/* Ask as root, and wait for the reply, which the caller frees. */
static int ask(struct process *root, const struct request *request,
	       struct reply *ret)
{
	static uint8_t buffer[FRAME_MAX_SIZE];
	struct error err = ERROR_NULL;
	struct frame frame = {.kind = request->kind,
			      .number = ++root->number,
			      .answered = root->number};
	uint8_t *body;
	size_t size;
	int r;

	ENSURE(request_encode(request, &body, &size, &err) == 0);
	frame.body = body;
	frame.body_size = (uint32_t)size;
	ENSURE(frame_send(root->sock_fd, &frame, &err) == 0);
	free(body);
	for (int i = 0; i < SETTLE_STEPS; i++) {
		r = frame_recv(root->sock_fd, buffer, &frame, NULL, &err);
		if (r != FRAME_AGAIN)
			break;
		loop_step(&world_broker->base.loop.uv);
	}
	ENSURE(r == FRAME_OK);
	frame_close_fds(&frame);
	ENSURE(reply_decode(frame.kind, frame.code, frame.body, frame.body_size,
			    ret, &err) == 0);
	return frame.code;
}

static void tell(struct process *root, const struct request *request)
{
	struct reply reply;

	(void)ask(root, request, &reply);
	reply_deinit(&reply);
}

static void remove_tickets(struct process *root)
{
	struct request request = {.kind = MESSAGE_TICKETS};
	struct reply reply;

	ENSURE(ask(root, &request, &reply) == 0);
	for (uint32_t i = 0; i < reply.tickets.n_items; i++)
		tell(root,
		     &(struct request){.kind = MESSAGE_REVOKE,
				       .revoke = {reply.tickets.items[i].id}});
	reply_deinit(&reply);
}

static void remove_comms(struct process *root)
{
	struct request request = {.kind = MESSAGE_COMMS};
	struct reply reply;

	ENSURE(ask(root, &request, &reply) == 0);
	for (uint32_t i = 0; i < reply.comms.n_items; i++)
		tell(root, &(struct request){
				   .kind = MESSAGE_COMM_REMOVE,
				   .comm_remove = {reply.comms.items[i].name}});
	reply_deinit(&reply);
}

/* Remove the name, with its bundle if it is the name of a member. */
static void remove_name(struct process *root, const struct list_item *item)
{
	char name[NAME_MAX_SIZE + 1];
	const char *names = name;

	snprintf(name, sizeof(name), "%s", item->place.name);
	if (item->bundle)
		name[item->bundle_name_size] = '\0';
	tell(root,
	     &(struct request){.kind = MESSAGE_REMOVE, .remove = {1, &names}});
}

static void remove_names(struct process *root)
{
	struct request request = {.kind = MESSAGE_LIST,
				  .list = {.prefix = "", .filter = LIST_ALL}};
	struct reply reply;

	ENSURE(ask(root, &request, &reply) == 0);
	for (uint32_t i = 0; i < reply.list.n_items; i++)
		remove_name(root, &reply.list.items[i]);
	reply_deinit(&reply);
}

static void remove_all(void)
{
	struct process *root = &processes[N_PROCESSES - 1];

	/* The input may have lowered the limits. */
	config_deinit(&world_broker->base.config);
	ENSURE(config_load(&world_broker->base.config,
			   &world_broker->config_source, NULL) == 0);
	process_begin(root, 0);
	process_hello(root, 0, NULL);
	for (int i = 0; i < SETTLE_STEPS && !root->has_session; i++) {
		loop_step(&world_broker->base.loop.uv);
		process_read(root);
	}
	ENSURE(root->has_session);
	remove_tickets(root);
	remove_comms(root);
	remove_names(root);
	process_end(root);
	settle();
}

static bool is_empty(void)
{
	static const enum catalog_section sections[] = {
		SECTION_SLOT,   SECTION_BLOCK,       SECTION_GRANT,
		SECTION_TICKET, SECTION_BUNDLE,      SECTION_COMM,
		SECTION_GROUP,  SECTION_READY_FENCE, SECTION_CHANNEL,
		SECTION_RUN,    SECTION_SESSION};
	const struct catalog *catalog = &world_broker->store.catalog;
	uint64_t n = catalog->header->limbo.n;

	for (size_t i = 0; i < sizeof(sections) / sizeof(*sections); i++)
		n += catalog_n_live(catalog, sections[i]);
	for (int kind = 0; kind < ACCOUNT_N; kind++) {
		/* Unused chunks are kept, and prefixes for a time. */
		if (kind != ACCOUNT_CHUNKS && kind != ACCOUNT_PREFIXES)
			n += accounts_total(&world_broker->base.accounts, kind);
	}
	return n == 0;
}

static void complain(void)
{
	const struct catalog *catalog = &world_broker->store.catalog;

	for (int i = 0; i < SECTION_N; i++)
		fprintf(stderr, "section %d: %u\n", i,
			catalog_n_live(catalog, i));
	for (int kind = 0; kind < ACCOUNT_N; kind++)
		fprintf(stderr, "account %d: %llu\n", kind,
			(unsigned long long)accounts_total(
				&world_broker->base.accounts, kind));
	abort();
}

void world_close(void)
{
	keeper_refuse(0);
	/* Its jobs keep memory as long as it runs. */
	worker_clear();
	for (int i = 0; i < N_PROCESSES; i++)
		process_end(&processes[i]);
	settle();
	remove_all();
	for (int i = 0; i < SETTLE_STEPS && !is_empty(); i++)
		take_settle_step(i);
	if (!is_empty())
		complain();
	broker_end();
	worker_clear();
	keeper_clear();
	ahead_ms = 0;
	kernel_set_ahead(0);
	check_fds();
}
