/*
 * Kills clients: at every failpoint that they pass, while they hold something
 * of each kind, while there is no broker, and after they overwrote their own
 * ref-counter file. Tensors that only they held are freed, and tensors that
 * they published stay complete.
 */
#include "shm/refs.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/memory.h"
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PASSAGES 3 /* tried at each failpoint, with one broker each */

static const struct fsdp_spec PAGE = {FSDP_U64, 1, {512}};

static struct chaos chaos;
static struct fsdp_client *watcher;

/* The test and its children share this memory. */
struct talk {
	atomic_int is_ready;
	atomic_int may_go;
	_Atomic uint64_t n_done; /* steps that a client has done */
	/* version of work/a that its producer knows */
	_Atomic uint64_t version;
	struct fsdp_ticket ticket;
	char plan[48], points[48]; /* of the client */
};

static struct talk *talk;

static void set_up(void)
{
	chaos_start(&chaos, NULL);
	watcher = chaos_connect(&chaos);
	talk = shared_memory(sizeof(*talk));
	snprintf(talk->plan, sizeof(talk->plan), "%s/mine", chaos.dir);
	snprintf(talk->points, sizeof(talk->points), "%s/passed", chaos.dir);
}

static void tear_down(void)
{
	/* A planned death that has not happened must not happen during the
	 * end. */
	plan_drop(talk->plan);
	plan_drop(chaos.plan);
	(void)unlink(talk->points);
	fsdp_close(watcher);
	chaos_stop(&chaos);
}

static void need_points(void)
{
	if (!chaos_has_points())
		cr_skip_test("built without FSDP_TEST_POINTS");
}

static void await(atomic_int *flag)
{
	while (!atomic_load(flag))
		nap_ms(1);
}

static void say_ready(void)
{
	atomic_store(&talk->is_ready, 1);
}

/* --- what clients do ----------------------------------------------------- */

static void put(struct fsdp_client *client, const char *name, uint32_t flags)
{
	struct fsdp_publication it = {.name = name,
				      .flags = flags | FSDP_REPLACE};
	uint64_t version = atomic_load(&talk->version) + 1;

	it.tensor = pattern_make(client, pattern_tag(name, version));
	must(fsdp_publish(client, &it, 1) == 0);
	must(it.version == version);
	if (strcmp(name, "work/a") == 0)
		atomic_store(&talk->version, version);
	/* The tensor is not freed, so that a killed producer still holds
	 * everything. */
}

static void make_view(struct fsdp_client *client)
{
	const char *name = "work/view";
	struct fsdp_publication it = {.name = name};
	struct fsdp_tensor *base = pattern_make(client, pattern_tag(name, 1));

	must(fsdp_view(base, &PAGE, NULL, 0, &it.tensor) == 0);
	must(fsdp_publish(client, &it, 1) == 0);
	fsdp_free(base);
	fsdp_free(it.tensor);
	must(fsdp_remove(client, &name, 1) == 0);
}

static void produce(void *unused)
{
	struct fsdp_client *client = chaos_connect(&chaos);
	struct fsdp_publication unnamed = {.name = NULL};
	struct fsdp_tensor *writing;
	struct fsdp_ticket ticket;

	(void)unused;
	put(client, "work/a", 0);
	put(client, "work/a", FSDP_EVICTABLE);
	make_view(client);
	writing = pattern_make(client, 1);
	unnamed.tensor = pattern_make(client, 2);
	must(fsdp_publish(client, &unnamed, 1) == 0);
	must(fsdp_ticket_make(unnamed.tensor, 2, 10, &ticket) == 0);
	put(client, "work/a", FSDP_TIED);
	put(client, "work/a", 0);
	must(fsdp_release_sync(client, &writing, 1) == 0);
	fsdp_close(client);
}

static const char *const NAMES[] = {"kept/x", "kept/y"};

static void consume(void *unused)
{
	struct fsdp_get_options patience = {.timeout_ms = 5};
	struct fsdp_client *client = chaos_connect(&chaos);
	struct fsdp_tensor *got[2], *again[2], *redeemed, *none;
	const char *never = "work/never";

	(void)unused;
	must(fsdp_get(client, NAMES, 2, NULL, got) == 0);
	must(fsdp_get(client, NAMES, 2, NULL, again) == 0);
	must(fsdp_hold(got[0]) == 0);
	must(fsdp_release(got[0]) == 0);
	must(fsdp_get(client, &never, 1, &patience, &none) == -ETIMEDOUT);
	must(fsdp_ticket_redeem(client, &talk->ticket, 1, &redeemed) == 0);
	must(pattern_is(redeemed, 3));
	must(fsdp_release_sync(client, got, 2) == 0);
	must(fsdp_release(redeemed) == 0);
	must(pattern_is(again[1], pattern_tag(NAMES[1], 1)));
	fsdp_close(client);
}

#define BUNDLE "work/model/"
static const char *const MEMBERS[] = {"work/model/w", "work/model/b"};

static struct fsdp_bundle *stage(struct fsdp_client *client, uint64_t version)
{
	struct fsdp_bundle_options options = {.access = {FSDP_GID_DEFAULT, 0},
					      .flags = FSDP_REPLACE,
					      .device = memory_device()};
	struct fsdp_spec specs[2] = {PAGE, PAGE};
	struct fsdp_bundle *bundle = NULL;
	struct fsdp_tensor *members[2];

	must(fsdp_bundle_begin(client, BUNDLE, &options, &bundle) == 0);
	must(fsdp_bundle_alloc(bundle, MEMBERS, specs, 2, members) == 0);
	for (int i = 0; i < 2; i++)
		pattern_fill(members[i], pattern_tag(MEMBERS[i], version));
	return bundle;
}

static void load(void *unused)
{
	struct fsdp_client *client = chaos_connect(&chaos);
	struct fsdp_tensor **all = NULL;
	size_t n = 0;

	(void)unused;
	must(fsdp_bundle_commit(stage(client, 1), NULL) == 0);
	fsdp_bundle_abort(stage(client, 0));
	must(fsdp_bundle_get(client, BUNDLE, NULL, &all, &n) == 0);
	must(n == 2);
	free(all);
	must(fsdp_bundle_commit(stage(client, 2), NULL) == 0);
	fsdp_close(client);
}

/* Hold something of each kind, and then wait. */
static void hold_everything(void *unused)
{
	struct fsdp_client *client = chaos_connect(&chaos);
	struct fsdp_publication unnamed = {.name = NULL};
	struct fsdp_bundle_options tied = {.access = {FSDP_GID_DEFAULT, 0},
					   .flags = FSDP_TIED,
					   .device = memory_device()};
	const char *member = "work/tied/w";
	struct fsdp_bundle *bundle;
	struct fsdp_tensor *got[2], *view;

	(void)unused;
	put(client, "work/a", 0);
	put(client, "work/a", FSDP_TIED);
	put(client, "work/a", 0);
	unnamed.tensor = pattern_make(client, 1);
	must(fsdp_publish(client, &unnamed, 1) == 0);
	must(fsdp_view(unnamed.tensor, &PAGE, NULL, 0, &view) == 0);
	pattern_make(client, 2);
	must(fsdp_get(client, NAMES, 2, NULL, got) == 0);
	must(fsdp_bundle_begin(client, "work/tied/", &tied, &bundle) == 0);
	must(fsdp_bundle_alloc(bundle, &member, &PAGE, 1, &view) == 0);
	must(fsdp_bundle_commit(bundle, NULL) == 0);
	must(fsdp_bundle_commit(stage(client, 1), NULL) == 0);
	stage(client, 2);
	say_ready();
	pause();
}

/* --- what the test does, by others --------------------------------------- */

static void put_kept(void *unused)
{
	struct fsdp_client *client = chaos_connect(&chaos);

	(void)unused;
	for (int i = 0; i < 2; i++)
		pattern_put(client, NAMES[i], 1);
	fsdp_close(client);
}

static void publish_kept(void)
{
	must(child_run(put_kept, NULL));
}

static void put_ticket(void *unused)
{
	struct fsdp_client *client = chaos_connect(&chaos);
	struct fsdp_tensor *tensor = pattern_make(client, 3);

	(void)unused;
	must(fsdp_ticket_make(tensor, 1, 1000000, &talk->ticket) == 0);
	fsdp_free(tensor);
	fsdp_close(client);
}

/* If an earlier consumer died before it redeemed the ticket, the ticket is
 * still valid. If it died later, its hold was dropped, and the tensor was
 * freed. */
static void take_ticket(void *unused)
{
	struct fsdp_client *client = chaos_connect(&chaos);
	struct fsdp_tensor *tensor = NULL;
	int r = fsdp_ticket_redeem(client, &talk->ticket, 1, &tensor);

	(void)unused;
	must(r == 0 || r == -ENOENT);
	must(r < 0 || pattern_is(tensor, 3));
	fsdp_free(tensor);
	fsdp_close(client);
}

struct version {
	const char *name;
	uint64_t number;
};

static void look(void *data)
{
	const struct version *it = data;
	struct fsdp_client *client = chaos_connect(&chaos);

	must(pattern_is_published(client, it->name, it->number));
	fsdp_close(client);
}

static bool is_published(const char *name, uint64_t number)
{
	struct version version = {name, number};

	return child_run(look, &version);
}

static bool is_entry(struct fsdp_client *unused, const struct fsdp_entry *entry)
{
	(void)unused;
	return is_published(entry->info->name, entry->info->version);
}

/* --- killed at every failpoint ------------------------------------------- */

static void forget_work(void)
{
	remove_all(watcher, "work/");
	atomic_store(&talk->version, 0);
}

static int note_version(const struct fsdp_entry *entry, void *data)
{
	*(uint64_t *)data = entry->info->version;
	return 0;
}

/* Check that all versions that the producer knows of are published. One more
 * may be. */
static void check_version(void)
{
	uint64_t known = atomic_load(&talk->version), version = 0;

	must(fsdp_list(watcher, "work/a", note_version, &version) == 0);
	/* The third tensor is tied to its producer. */
	if (version == 0 && known >= 2 && known <= 3)
		return;
	cr_assert(ge(u64, version, known));
	cr_assert(le(u64, version, known + 1));
}

struct role {
	child_fn *fn;
	const char *variable; /* variable that names the file */
	const char *path;
};

static void play_role(void *data)
{
	const struct role *role = data;

	setenv(role->variable, role->path, 1);
	role->fn(NULL);
}

static int run_role(child_fn *fn, const char *variable, const char *path)
{
	struct role role = {fn, variable, path};
	int end;

	must(child_run(put_ticket, NULL));
	end = child_wait(child_start(play_role, &role));
	cr_assert(child_run(take_ticket, NULL));
	return end;
}

static void die_at(child_fn *fn, const char *point, unsigned int n)
{
	fprintf(stderr, "client killed at passage %u of %s\n", n, point);
	plan_death(talk->plan, point, n);
	cr_assert(eq(int, run_role(fn, "FSDP_KILL_PLAN", talk->plan), SIGKILL));
	check_version();
	cr_assert(audit(watcher, is_entry));
	forget_work();
}

static void die_everywhere(child_fn *fn)
{
	struct passages passages;

	need_points();
	publish_kept();
	cr_assert(eq(int, run_role(fn, "FSDP_POINTS_LOG", talk->points), 0));
	cr_assert(audit(watcher, is_entry));
	forget_work();
	passages_read(talk->points, &passages);
	cr_assert(ge(sz, passages.n, 8));
	for (size_t i = 0; i < passages.n; i++) {
		for (unsigned int n = 1; n <= passages.list[i].n; n++)
			die_at(fn, passages.list[i].name, n);
	}
	for (int i = 0; i < 2; i++)
		cr_assert(is_published(NAMES[i], 1));
}

TestSuite(client_dies, .init = set_up, .fini = tear_down, .timeout = 300);

Test(client_dies, as_a_producer)
{
	die_everywhere(produce);
}

Test(client_dies, as_a_consumer)
{
	die_everywhere(consume);
}

Test(client_dies, as_a_loader)
{
	die_everywhere(load);
}

static int add_waiting(const struct fsdp_peer *peer, void *data)
{
	*(uint32_t *)data += peer->n_waiting;
	return 0;
}

static uint32_t count_waiting(void)
{
	uint32_t n = 0;

	must(fsdp_clients(watcher, add_waiting, &n) == 0);
	return n;
}

static void wait_for_ever(void *unused)
{
	struct fsdp_get_options options = {.timeout_ms = -1};
	struct fsdp_client *client = chaos_connect(&chaos);
	const char *names[] = {"kept/x", "work/never"};
	struct fsdp_tensor *got[2];

	(void)unused;
	(void)fsdp_get(client, names, 2, &options, got);
}

Test(client_dies, while_it_waits_for_a_name)
{
	pid_t pid;

	publish_kept();
	pid = child_start(wait_for_ever, NULL);
	while (count_waiting() == 0)
		nap_ms(1);
	cr_assert(eq(int, child_kill(pid), SIGKILL));
	cr_assert(audit(watcher, is_entry));
	cr_assert(eq(uint, count_waiting(), 0));
}

/* --- both die ------------------------------------------------------------ */

/* Start a client that holds something of each kind. Four names of these are to
 * stay. */
static pid_t start_holder(void)
{
	pid_t pid;

	publish_kept();
	atomic_store(&talk->is_ready, 0);
	atomic_store(&talk->version, 0);
	pid = child_start(hold_everything, NULL);
	await(&talk->is_ready);
	return pid;
}

static void check_after_holder(void)
{
	cr_assert(audit(watcher, is_entry));
	cr_assert(is_published("work/a", 3));
	for (int i = 0; i < 2; i++) {
		cr_assert(is_published(MEMBERS[i], 1));
		cr_assert(is_published(NAMES[i], 1));
	}
}

Test(client_dies, with_holds_of_all_kinds)
{
	pid_t pid = start_holder();
	struct figures now;

	figures_read(watcher, &now);
	cr_assert(ge(u64, now.slots_limbo, 2));
	cr_assert(eq(int, child_kill(pid), SIGKILL));
	check_after_holder();
}

/* Leave out failpoints that the broker passes only because this test makes
 * requests. */
static bool is_of_interest(const char *point)
{
	static const char *const others[] = {"verb.", "peer.", "frame.",
					     "hello."};

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		if (strncmp(point, others[i], strlen(others[i])) == 0)
			return false;
	}
	return true;
}

typedef void death_fn(pid_t pid);

/* List the failpoints that the broker passes because of a death, and then kill
 * it at each of them. Returns how often it died. */
static unsigned int sweep(death_fn *death)
{
	struct passages passages;
	unsigned int n_deaths = 0;
	pid_t pid = start_holder();

	passages_forget(chaos.points);
	death(pid);
	check_after_holder();
	passages_read(chaos.points, &passages);
	for (size_t i = 0; i < passages.n; i++) {
		const struct passage *it = &passages.list[i];

		for (unsigned int n = 1; is_of_interest(it->name) &&
					 n <= it->n && n <= MAX_PASSAGES;
		     n++) {
			fprintf(stderr, "broker killed at passage %u of %s\n",
				n, it->name);
			tear_down();
			set_up();
			pid = start_holder();
			plan_death(chaos.plan, it->name, n);
			death(pid);
			check_after_holder();
			n_deaths += plan_is_done(chaos.plan);
		}
	}
	return n_deaths;
}

static void kill_client(pid_t pid)
{
	must(child_kill(pid) == SIGKILL);
}

Test(client_dies, and_the_broker_dies_while_it_cleans_up)
{
	need_points();
	cr_assert(ge(uint, sweep(kill_client), 20));
}

/* The broker is stopped first, so that only the next one finds that the client
 * has exited. */
static void kill_both(pid_t pid)
{
	pid_t broker = daemon_broker_pid(&chaos.daemon);

	must(kill(broker, SIGSTOP) == 0);
	must(child_kill(pid) == SIGKILL);
	daemon_kill_broker(&chaos.daemon);
}

Test(client_dies, and_the_broker_dies_and_dies_again_as_it_takes_over)
{
	need_points();
	cr_assert(ge(uint, sweep(kill_both), 30));
}

static void hold_many(void *unused)
{
	enum { N = 2000 };
	static const struct fsdp_spec byte = {FSDP_U8, 1, {1}};
	struct fsdp_client *client = chaos_connect(&chaos);
	struct fsdp_tensor *tensor;

	(void)unused;
	for (int i = 0; i < N; i++)
		must(fsdp_alloc(client, &byte, 1, NULL, 0, &tensor) == 0);
	say_ready();
	pause();
}

/* The client holds more than is released in one round. */
Test(client_dies, with_many_holds_and_the_broker_dies_between_clean_up_rounds)
{
	pid_t pid, broker;

	need_points();
	publish_kept();
	pid = child_start(hold_many, NULL);
	await(&talk->is_ready);
	broker = daemon_broker_pid(&chaos.daemon);
	plan_death(chaos.plan, "session.round", 2);
	must(child_kill(pid) == SIGKILL);
	daemon_wait_death(&chaos.daemon, broker);
	cr_expect(plan_is_done(chaos.plan));
	cr_assert(audit(watcher, is_entry));
}

/* The client stays a zombie, so the next broker still finds its process, and
 * sees later that it has ended. */
static void kill_both_unreaped(pid_t pid)
{
	pid_t broker = daemon_broker_pid(&chaos.daemon);
	siginfo_t info;

	must(kill(broker, SIGSTOP) == 0);
	must(kill(pid, SIGKILL) == 0);
	must(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0);
	daemon_kill_broker(&chaos.daemon);
}

Test(client_dies, together_with_the_broker_and_is_not_reaped)
{
	pid_t pid = start_holder();

	kill_both_unreaped(pid);
	check_after_holder();
	cr_assert(eq(int, child_wait(pid), SIGKILL));
}

/* --- while it comes back ------------------------------------------------- */

static void come_back(void *unused)
{
	struct fsdp_client *client = chaos_connect(&chaos);
	struct fsdp_tensor *got[2];

	(void)unused;
	put(client, "work/a", 0);
	must(fsdp_get(client, NAMES, 2, NULL, got) == 0);
	say_ready();
	await(&talk->may_go);
	must(fsdp_ping(client) == 0);
	_exit(0);
}

/* Start a client whose broker was killed. The client notices that only after
 * `may_go` is set. */
static pid_t start_orphan(const char *variable, const char *path)
{
	struct role role = {come_back, variable, path};
	pid_t pid;

	publish_kept();
	atomic_store(&talk->is_ready, 0);
	atomic_store(&talk->may_go, 0);
	atomic_store(&talk->version, 0);
	pid = child_start(play_role, &role);
	await(&talk->is_ready);
	daemon_kill_broker(&chaos.daemon);
	return pid;
}

static int let_go(pid_t pid)
{
	atomic_store(&talk->may_go, 1);
	return child_wait(pid);
}

static void die_on_return(const char *point, unsigned int n)
{
	pid_t pid;

	fprintf(stderr, "client killed at passage %u of %s\n", n, point);
	tear_down();
	set_up();
	pid = start_orphan("FSDP_KILL_PLAN", talk->plan);
	plan_death(talk->plan, point, n);
	cr_assert(eq(int, let_go(pid), SIGKILL));
	cr_assert(audit(watcher, is_entry));
	cr_assert(is_published("work/a", 1));
}

Test(client_dies, while_it_reconnects_to_a_new_broker)
{
	struct passages passages;
	pid_t pid;

	need_points();
	pid = start_orphan("FSDP_POINTS_LOG", talk->points);
	passages_forget(talk->points);
	cr_assert(eq(int, let_go(pid), 0));
	cr_assert(audit(watcher, is_entry));
	passages_read(talk->points, &passages);
	cr_assert(ge(sz, passages.n, 3));
	for (size_t i = 0; i < passages.n; i++) {
		for (unsigned int n = 1; n <= passages.list[i].n; n++)
			die_on_return(passages.list[i].name, n);
	}
}

/* --- scribbling ---------------------------------------------------------- */

struct place {
	unsigned char *start, *end;
};

/* Returns the range at which this process has mapped its ref-counter file. */
static struct place find_refs(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	struct place place = {NULL, NULL};
	char line[512];
	void *start, *end;

	must(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (strstr(line, "fsdp-refs") &&
		    sscanf(line, "%p-%p", &start, &end) == 2)
			place = (struct place){start, end};
	}
	fclose(maps);
	must(place.start);
	return place;
}

/* Ring all eventfds, one of which is the doorbell. */
static void ring(void)
{
	uint64_t one = 1;
	char path[64], target[64];

	for (int fd = 3; fd < 32; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n < 0)
			continue;
		target[n] = '\0';
		if (strcmp(target, "anon_inode:[eventfd]") == 0)
			(void)!write(fd, &one, sizeof(one));
	}
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

#define N_SCRIBBLED 4096 /* slots; more than are in use */

/* Set every count to a random value, with every pending bit. */
static void scribble_once(struct place place, uint64_t *random)
{
	unsigned char *head = place.start;
	struct refs_entry *entries = (void *)(head + REFS_ENTRIES_OFFSET);

	for (size_t i = 0; i < N_SCRIBBLED; i++) {
		atomic_store(&entries[i].delta, (int32_t)next_random(random));
		atomic_store(&entries[i].used, (uint16_t)next_random(random));
	}
	memset(head + REFS_BITMAP_OFFSET, 0xff, N_SCRIBBLED / 8);
	memset(head + REFS_SUMMARY_OFFSET, 0xff, TABLE_SLOTS / 512);
	ring();
}

static void scribble(void *unused)
{
	struct fsdp_client *client = chaos_connect(&chaos);
	struct fsdp_tensor *got[2], *made;
	uint64_t random = 1;
	struct place place;

	(void)unused;
	must(fsdp_get(client, NAMES, 2, NULL, got) == 0);
	made = pattern_make(client, 1);
	place = find_refs();
	for (;;) {
		struct fsdp_publication it = {.tensor = made};
		struct fsdp_tensor *more = NULL;

		scribble_once(place, &random);
		/* These calls may have any result with such counts. */
		(void)fsdp_release_sync(client, &made, 1);
		(void)fsdp_get(client, NAMES, 2, NULL, got);
		(void)fsdp_publish(client, &it, 1);
		(void)memory_alloc(client, &PAGE, 1, NULL, 0, &more);
		fsdp_free(more);
		atomic_fetch_add(&talk->n_done, 1);
		say_ready();
	}
}

/* Do the work of another client: replace, get, hold, check, release. */
static void work(struct fsdp_client *client, uint64_t version)
{
	struct fsdp_tensor *got[2] = {NULL, NULL};

	pattern_put(client, NAMES[0], version);
	must(fsdp_get(client, NAMES, 2, NULL, got) == 0);
	must(pattern_is(got[0], pattern_tag(NAMES[0], version)));
	must(pattern_is(got[1], pattern_tag(NAMES[1], 1)));
	must(fsdp_release_sync(client, got, 2) == 0);
	fsdp_free(got[0]);
	fsdp_free(got[1]);
}

#define LAST_VERSION 199

static void work_for_days(void *unused)
{
	struct fsdp_client *client = chaos_connect(&chaos);

	(void)unused;
	for (uint64_t version = 2; version <= LAST_VERSION; version++)
		work(client, version);
	fsdp_close(client);
}

Test(client_dies, after_overwriting_its_own_counts)
{
	struct figures now;
	uint64_t n_before;
	pid_t pid;

	publish_kept();
	pid = child_start(scribble, NULL);
	await(&talk->is_ready);
	n_before = atomic_load(&talk->n_done);
	cr_assert(child_run(work_for_days, NULL));
	cr_assert(gt(u64, atomic_load(&talk->n_done), n_before));
	cr_assert(eq(int, waitpid(pid, NULL, WNOHANG), 0), "it died by itself");
	figures_read(watcher, &now);
	cr_assert(eq(u64, now.epoch, 1), "it killed the broker");
	cr_assert(eq(int, child_kill(pid), SIGKILL));
	cr_assert(audit(watcher, is_entry));
	cr_assert(is_published(NAMES[0], LAST_VERSION));
}
