/*
 * Kills users of a channel at every failpoint that they pass, lets users
 * overwrite the shared memory, and kills the broker while a channel is in use.
 * The other users are told and continue, and no slot is lost.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME         "work/batches"
#define N_SLOTS      4
#define N_ITEMS      12
#define MAX_PASSAGES 2 /* tried at each failpoint */

#define OPTIONS .capacity = 4096, .n_slots = N_SLOTS, .timeout_ms = 20000

static const struct fsdp_channel_options share = {OPTIONS};
static const struct fsdp_channel_options broadcast = {
	OPTIONS, .mode = FSDP_CHANNEL_BROADCAST};
static const struct fsdp_channel_options limited = {
	OPTIONS, .mode = FSDP_CHANNEL_BROADCAST, .lag_ms = 1};

static struct chaos chaos;
static struct fsdp_client *client;
static struct fsdp_channel *from, *to; /* of the test itself */
static const struct fsdp_channel_options *options = &share;
static char plan[64], points[64]; /* of the victim */
static atomic_int *n_done;        /* in shared memory */

static void set_up(void)
{
	chaos_start(&chaos, NULL);
	client = chaos_connect(&chaos);
	n_done = shared_memory(sizeof(*n_done));
	(void)snprintf(plan, sizeof(plan), "%s/mine", chaos.dir);
	(void)snprintf(points, sizeof(points), "%s/passed", chaos.dir);
}

static void tear_down(void)
{
	plan_drop(plan);
	(void)unlink(points);
	fsdp_close(client);
	chaos_stop(&chaos);
}

TestSuite(channel_death, .init = set_up, .fini = tear_down, .timeout = 300);

static struct fsdp_channel *open_as(struct fsdp_client *of,
				    enum fsdp_channel_role role)
{
	struct fsdp_channel *channel;

	must(fsdp_channel_open(of, NAME, options, role, &channel) == 0);
	return channel;
}

static int send_number(struct fsdp_channel *channel, uint64_t number,
		       int32_t timeout_ms)
{
	const struct fsdp_spec spec = {FSDP_U64, 0, {0}};
	struct fsdp_item *item;
	void *data;
	int r = fsdp_item_begin(channel, timeout_ms, &item);

	if (r < 0)
		return r;
	must(fsdp_item_part(item, &spec, &data) == 0);
	*(uint64_t *)data = number;
	return fsdp_item_send(item);
}

static int receive_number(struct fsdp_channel *channel, uint64_t *ret,
			  int32_t timeout_ms)
{
	struct fsdp_item_view view = {.struct_size = sizeof(view)};
	struct fsdp_item *item;
	int r = fsdp_item_receive(channel, timeout_ms, &item);

	if (r < 0)
		return r;
	must(fsdp_item_view(item, 0, &view) == 0);
	*ret = *(const uint64_t *)view.data;
	return fsdp_item_release(item);
}

/* Check that all slots are free: exactly N_SLOTS items can be begun. In a
 * broadcast no item can be begun without a consumer, so this opens one. */
static void check_slots(void)
{
	struct fsdp_channel *reader = open_as(client, FSDP_CONSUMER);
	struct fsdp_channel *mine = open_as(client, FSDP_PRODUCER);
	struct fsdp_item *items[N_SLOTS], *more;

	/* A victim may have died when the channel had fewer slots. */
	cr_assert(zero(int, fsdp_channel_resize(mine, N_SLOTS, -1)));
	for (int i = 0; i < N_SLOTS; i++)
		cr_assert(zero(int, fsdp_item_begin(mine, -1, &items[i])),
			  "%d: %s", i, fsdp_error());
	cr_expect(eq(int, fsdp_item_begin(mine, 0, &more), -ETIMEDOUT));
	cr_assert(zero(int, fsdp_channel_close(mine)));
	cr_assert(zero(int, fsdp_channel_close(reader)));
}

/* --- killed at every failpoint ------------------------------------------- */

static void produce(void *unused)
{
	struct fsdp_client *mine = chaos_connect(&chaos);
	struct fsdp_channel *channel = open_as(mine, FSDP_PRODUCER);
	struct fsdp_item *item;

	(void)unused;
	for (uint64_t i = 1; i <= N_ITEMS; i++)
		must(send_number(channel, i, -1) == 0);
	must(fsdp_item_begin(channel, -1, &item) == 0);
	fsdp_item_cancel(item);
	must(fsdp_item_fail(channel, -1, "the end") == 0);
	must(fsdp_channel_end(channel) == 0);
	must(fsdp_channel_close(channel) == 0);
	fsdp_close(mine);
}

static void consume(void *unused)
{
	struct fsdp_client *mine = chaos_connect(&chaos);
	struct fsdp_channel *channel = open_as(mine, FSDP_CONSUMER);
	struct fsdp_tensor *tensor;
	struct fsdp_item *item;
	uint64_t number, last = 0;

	(void)unused;
	for (int i = 0; i < N_ITEMS / 2; i++) {
		must(receive_number(channel, &number, -1) == 0);
		must(number > last);
		last = number;
	}
	must(fsdp_item_receive(channel, -1, &item) == 0);
	must(fsdp_item_keep(item, 0, &tensor) == 0);
	must(fsdp_item_release(item) == 0);
	must(fsdp_channel_resize(channel, 1, -1) == 0);
	for (int i = 0; i < N_SLOTS; i++)
		must(receive_number(channel, &number, -1) == 0);
	must(fsdp_channel_resize(channel, N_SLOTS, -1) == 0);
	must(fsdp_channel_close(channel) == 0);
	fsdp_close(mine);
}

/* Send until the channel has cut all consumers that do not release their
 * items. */
static void produce_until_cut(void *unused)
{
	struct fsdp_client *mine = chaos_connect(&chaos);
	struct fsdp_channel *channel = open_as(mine, FSDP_PRODUCER);
	uint64_t number = 0;
	int r;

	(void)unused;
	do
		r = send_number(channel, ++number, -1);
	while (r == 0);
	must(r == -EPIPE);
	must(fsdp_channel_close(channel) == 0);
	fsdp_close(mine);
}

/* Begin items whose only consumer closes before they are sent. */
static void produce_unheard(void *unused)
{
	struct fsdp_client *mine = chaos_connect(&chaos);
	struct fsdp_channel *channel = open_as(mine, FSDP_PRODUCER);
	struct fsdp_channel *reader;
	struct fsdp_item *item;

	(void)unused;
	for (int i = 0; i < 2; i++) {
		reader = open_as(mine, FSDP_CONSUMER);
		must(fsdp_item_begin(channel, -1, &item) == 0);
		must(fsdp_channel_close(reader) == 0);
		must(fsdp_item_send(item) == 0);
	}
	must(fsdp_channel_close(channel) == 0);
	fsdp_close(mine);
}

/* Hold the older item while receiving the next one. So this consumer is the
 * last that releases the older item. */
static void listen(void *unused)
{
	struct fsdp_client *mine = chaos_connect(&chaos);
	struct fsdp_channel *channel = open_as(mine, FSDP_CONSUMER);
	struct fsdp_item *older, *item;

	(void)unused;
	must(fsdp_item_receive(channel, -1, &older) == 0);
	for (int i = 0; i < N_ITEMS; i++) {
		must(fsdp_item_receive(channel, -1, &item) == 0);
		must(fsdp_item_release(older) == 0);
		older = item;
	}
	must(fsdp_channel_close(channel) == 0);
	fsdp_close(mine);
}

/* Release only the first item, set `n_done`, and receive until the channel cuts
 * this consumer. */
static void listen_until_cut(void *unused)
{
	struct fsdp_client *mine = chaos_connect(&chaos);
	struct fsdp_channel *channel = open_as(mine, FSDP_CONSUMER);
	struct fsdp_item *first = NULL, *item;
	int r = fsdp_item_receive(channel, -1, &first);

	(void)unused;
	while (r == 0) {
		r = fsdp_item_receive(channel, -1, &item);
		if (r == 0 && first) {
			must(fsdp_item_release(first) == 0);
			first = NULL;
			atomic_store(n_done, 1);
		}
	}
	must(r == -EOVERFLOW);
	must(fsdp_channel_close(channel) == 0);
	fsdp_close(mine);
}

struct role {
	child_fn *fn;
	const char *variable, *path;
};

static void play_role(void *data)
{
	const struct role *role = data;

	/* The variable must be set before the library passes its first
	 * failpoint. */
	setenv(role->variable, role->path, 1);
	role->fn(NULL);
}

static bool has_ended(pid_t pid, int *ret)
{
	int status;

	if (*ret == 0 && waitpid(pid, &status, WNOHANG) == pid)
		*ret = WIFSIGNALED(status) ? 1 : 2;
	return *ret;
}

static uint32_t count_others(struct fsdp_channel *channel)
{
	struct fsdp_channel_info info = {.struct_size = sizeof(info)};

	must(fsdp_channel_info(channel, &info) == 0);
	return channel == to ? info.n_producers : info.n_consumers;
}

/* Receive in order what a victim sends, and then the report of its end, unless
 * it died before it had opened the channel. Returns whether it was killed. */
static bool meet_producer(struct role *role)
{
	uint64_t number, expected = 1;
	pid_t pid;
	int end = 0, r;

	to = open_as(client, FSDP_CONSUMER);
	pid = child_start(play_role, role);
	/* The victim sends until the channel has cut `to`, so `to` must not
	 * receive before that. */
	while (options->lag_ms && !has_ended(pid, &end))
		nap_ms(1);
	for (;;) {
		r = receive_number(to, &number, 20);
		if (r == 0)
			cr_assert(eq(u64, number, expected++));
		else if (r == -ETIMEDOUT && has_ended(pid, &end) &&
			 !count_others(to))
			break;
		else if (r != -ETIMEDOUT && r != -EREMOTEIO)
			break;
	}
	cr_assert(r == -ETIMEDOUT || r == -EOWNERDEAD || r == -ENODATA ||
			  (r == -EOVERFLOW && options->lag_ms),
		  "%d: %s", r, fsdp_error());
	while (!has_ended(pid, &end))
		nap_ms(1);
	check_slots();
	cr_assert(zero(int, fsdp_channel_close(to)));
	return end == 1;
}

/* Send to the victim. Another consumer receives the items that the victim did
 * not receive. */
static bool meet_consumer(struct role *role)
{
	uint64_t number, last = 0;
	pid_t pid;
	int end = 0, r;

	from = open_as(client, FSDP_PRODUCER);
	pid = child_start(play_role, role);
	number = 0;
	do {
		r = send_number(from, ++number, 20);
		if (r == -ETIMEDOUT)
			number--;
	} while (r == 0 || (r == -ETIMEDOUT &&
			    !(has_ended(pid, &end) && !count_others(from))));
	cr_assert(r == -ETIMEDOUT || r == -EPIPE, "%d: %s", r, fsdp_error());
	while (!has_ended(pid, &end))
		nap_ms(1);
	to = open_as(client, FSDP_CONSUMER);
	while ((r = receive_number(to, &number, 0)) == 0) {
		cr_assert(gt(u64, number, last));
		last = number;
	}
	cr_assert(eq(int, r, -ETIMEDOUT));
	check_slots();
	cr_assert(zero(int, fsdp_channel_close(to)));
	cr_assert(zero(int, fsdp_channel_close(from)));
	return end == 1;
}

/* Another consumer receives each item of a broadcast. Until the victim has set
 * `n_done`, calls do not wait, because a call that waits lets the channel cut a
 * late consumer. */
static bool meet_listener(struct role *role)
{
	uint64_t number = 1, received;
	bool may_cut;
	pid_t pid;
	int end = 0, r;

	atomic_store(n_done, 0);
	to = open_as(client, FSDP_CONSUMER);
	from = open_as(client, FSDP_PRODUCER);
	pid = child_start(play_role, role);
	while (!has_ended(pid, &end) || count_others(from) > 1) {
		may_cut = !options->lag_ms || atomic_load(n_done);
		r = send_number(from, number, may_cut ? 20 : 0);
		if (r == -ETIMEDOUT)
			continue;
		cr_assert(zero(int, r), "%s", fsdp_error());
		cr_assert(zero(int, receive_number(to, &received, 0)));
		cr_assert(eq(u64, received, number++));
	}
	check_slots();
	cr_assert(zero(int, fsdp_channel_close(to)));
	cr_assert(zero(int, fsdp_channel_close(from)));
	return end == 1;
}

/* The channel stays until its slots have been checked. */
static bool meet_nobody(struct role *role)
{
	pid_t pid;
	int end = 0;

	from = open_as(client, FSDP_PRODUCER);
	pid = child_start(play_role, role);
	while (!has_ended(pid, &end))
		nap_ms(1);
	check_slots();
	cr_assert(zero(int, fsdp_channel_close(from)));
	return end == 1;
}

typedef bool meet_fn(struct role *role);

/* Returns whether the victim was killed. The broker must keep nothing of it and
 * nothing of the channel. */
static bool meet_and_audit(meet_fn *meet, struct role *role,
			   const struct figures *before)
{
	bool is_dead = meet(role);

	cr_assert(figures_await(client, before));
	return is_dead;
}

/* The victim must be killed at `point` at least once. */
static void kill_everywhere(child_fn *fn, meet_fn *meet, const char *point)
{
	struct role learning = {fn, "FSDP_POINTS_LOG", points};
	struct role dying = {fn, "FSDP_KILL_PLAN", plan};
	struct figures before;
	struct passages passages;
	unsigned int n_deaths = 0, n_at_point = 0;
	bool is_dead;

	if (!chaos_has_points())
		cr_skip_test("built without points");
	figures_read(client, &before);
	/* A living session keeps its unused grants, and the broker keeps empty
	 * chunks for a while. */
	before.grants = before.chunks = before.chunk_bytes = FIGURE_ANY;
	cr_assert(not(meet_and_audit(meet, &learning, &before)));
	passages_read(points, &passages);
	for (size_t i = 0; i < passages.n; i++) {
		const struct passage *it = &passages.list[i];

		/* Other tests cover the other failpoints of the library. */
		if (!strstr(it->name, "slots.") && !strstr(it->name, "bell.") &&
		    !strstr(it->name, "channel"))
			continue;
		for (unsigned int n = 1; n <= it->n && n <= MAX_PASSAGES; n++) {
			fprintf(stderr, "killed at passage %u of %s\n", n,
				it->name);
			plan_death(plan, it->name, n);
			is_dead = meet_and_audit(meet, &dying, &before);
			plan_drop(plan);
			n_deaths += is_dead;
			n_at_point += is_dead && !strcmp(it->name, point);
		}
	}
	/* The number of sleeps differs from run to run. */
	cr_assert(ge(uint, n_deaths, 12));
	cr_assert(gt(uint, n_at_point, 0));
}

Test(channel_death, a_producer_that_dies_at_any_failpoint_loses_no_slot)
{
	kill_everywhere(produce, meet_producer, "slots.queued");
}

Test(channel_death, a_consumer_that_dies_at_any_failpoint_loses_no_slot)
{
	kill_everywhere(consume, meet_consumer, "slots.taken");
}

Test(channel_death, a_producer_of_a_broadcast_that_dies_loses_no_slot)
{
	options = &broadcast;
	kill_everywhere(produce, meet_producer, "slots.queued");
}

Test(channel_death, a_producer_without_consumers_that_dies_loses_no_slot)
{
	options = &broadcast;
	kill_everywhere(produce_unheard, meet_nobody, "slots.finished");
}

Test(channel_death, a_consumer_of_a_broadcast_that_dies_keeps_no_slot)
{
	options = &broadcast;
	kill_everywhere(listen, meet_listener, "slots.finished");
}

Test(channel_death, a_producer_that_dies_while_it_cuts_consumers_loses_no_slot)
{
	options = &limited;
	kill_everywhere(produce_until_cut, meet_producer,
			"client.channel_lag.received");
}

Test(channel_death, a_consumer_that_is_cut_and_dies_keeps_no_slot)
{
	options = &limited;
	kill_everywhere(listen_until_cut, meet_listener, "slots.hand_set");
}

/* --- sleeping processes -------------------------------------------------- */

static void open_and_pause(void *unused)
{
	struct fsdp_client *mine = chaos_connect(&chaos);

	(void)unused;
	(void)open_as(mine, FSDP_PRODUCER);
	atomic_store(n_done, 1);
	pause();
}

static void await_done(int n)
{
	while (atomic_load(n_done) < n)
		nap_ms(1);
}

static void receive_and_tell(void *unused)
{
	struct fsdp_client *mine = chaos_connect(&chaos);
	uint64_t number;

	(void)unused;
	to = open_as(mine, FSDP_CONSUMER);
	atomic_fetch_add(n_done, 1);
	must(receive_number(to, &number, -1) == -EOWNERDEAD);
	must(receive_number(to, &number, -1) == -ENODATA);
	fsdp_close(mine);
}

Test(channel_death, all_sleeping_processes_get_an_error_after_a_death)
{
	pid_t victim = child_start(open_and_pause, NULL), pids[3];

	await_done(1);
	for (int i = 0; i < 3; i++)
		pids[i] = child_start(receive_and_tell, NULL);
	await_done(4);
	nap_ms(20);
	cr_assert(eq(int, child_kill(victim), SIGKILL));
	for (int i = 0; i < 3; i++)
		cr_assert(zero(int, child_wait(pids[i])));
}

/* --- restarts ------------------------------------------------------------ */

static void produce_for_ever(void *unused)
{
	struct fsdp_client *mine = chaos_connect(&chaos);
	struct fsdp_channel *channel = open_as(mine, FSDP_PRODUCER);

	(void)unused;
	for (uint64_t i = 1;; i++)
		must(send_number(channel, i, -1) == 0);
}

Test(channel_death, a_restart_of_the_broker_is_not_noticed)
{
	uint64_t number, expected = 1;
	pid_t pid;
	int r;

	to = open_as(client, FSDP_CONSUMER);
	pid = child_start(produce_for_ever, NULL);
	for (int i = 0; i < 3; i++) {
		for (int j = 0; j < 1000; j++) {
			cr_assert(zero(int, receive_number(to, &number, -1)));
			cr_assert(eq(u64, number, expected++));
		}
		daemon_kill_broker(&chaos.daemon);
	}
	/* The new broker knows the users from the catalog, and cleans up after
	 * the dead one. */
	must(fsdp_ping(client) == 0);
	cr_assert(eq(int, child_kill(pid), SIGKILL));
	while ((r = receive_number(to, &number, -1)) == 0)
		cr_assert(eq(u64, number, expected++));
	cr_assert(eq(int, r, -EOWNERDEAD));
	check_slots();
}

Test(channel_death, a_death_without_a_broker_is_handled_by_the_next_broker)
{
	pid_t pid = child_start(open_and_pause, NULL);
	uint64_t number;

	await_done(1);
	to = open_as(client, FSDP_CONSUMER);
	plan_write(chaos.plan, "adopt.begin 1\n");
	daemon_kill_broker(&chaos.daemon);
	cr_assert(eq(int, child_kill(pid), SIGKILL));
	cr_assert(eq(int, receive_number(to, &number, -1), -EOWNERDEAD));
	cr_assert(eq(int, receive_number(to, &number, -1), -ENODATA));
	plan_drop(chaos.plan);
	check_slots();
}

/* --- a hostile user ------------------------------------------------------ */

static void scribble(void *data)
{
	struct fsdp_client *mine = chaos_connect(&chaos);
	struct fsdp_channel *channel = open_as(mine, FSDP_PRODUCER);
	uint8_t byte = *(const uint8_t *)data;
	unsigned long begin, end;
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];

	must(send_number(channel, 1, -1) == 0);
	while (maps && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "fsdp-channel") &&
		    sscanf(line, "%lx-%lx", &begin, &end) == 2)
			memset((void *)begin, byte, end - begin);
	}
	if (maps)
		(void)fclose(maps);
	fsdp_close(mine);
}

Test(channel_death,
     a_process_that_overwrites_its_channel_affects_only_that_channel)
{
	uint8_t bytes[] = {0, 0x02, 0xa5, 0xff};
	struct fsdp_tensor *kept;
	struct fsdp_item *item;
	uint64_t number;

	for (size_t i = 0; i < sizeof(bytes); i++) {
		to = open_as(client, FSDP_CONSUMER);
		from = open_as(client, FSDP_PRODUCER);
		cr_assert(child_run(scribble, &bytes[i]));
		/* Every call must return, whatever the words contain now. */
		for (int j = 0; j < 100; j++) {
			(void)send_number(from, 1, 0);
			if (fsdp_item_receive(to, 0, &item) < 0)
				continue;
			if (fsdp_item_n_parts(item) > 0 &&
			    fsdp_item_keep(item, 0, &kept) == 0)
				fsdp_free(kept);
			(void)fsdp_item_release(item);
		}
		cr_assert(zero(int, fsdp_channel_close(from)));
		cr_assert(zero(int, fsdp_channel_close(to)));
		cr_assert(zero(int, fsdp_ping(client)));
	}
	to = open_as(client, FSDP_CONSUMER);
	from = open_as(client, FSDP_PRODUCER);
	cr_assert(zero(int, send_number(from, 7, 0)));
	cr_assert(zero(int, receive_number(to, &number, 0)));
	cr_assert(eq(u64, number, 7));
}
