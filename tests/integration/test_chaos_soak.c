/*
 * Many clients do everything at random on the same names, while clients and
 * the broker are killed; at the end the books must balance to the byte.
 *
 * Contents check themselves: the first word of a tensor is a number that only
 * its maker used, all others follow from that number and the name. Who kills
 * counts operations, not time, and draws from one seed, which is printed;
 * FSDP_SOAK_SEED repeats it.
 */
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include "tests/lib/memory.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_CLIENTS   4
#define N_NAMES     6 /* replaced, never removed */
#define N_BUNDLES   2
#define N_TICKETS   8
#define N_POCKET    12
#define DURATION_MS (are_on_devices() ? 8000 : 14000)
/* The supervisor gives up at the fifth death within 10 s. */
#define BROKER_PAUSE_MS 2600
#define OPS_PER_KILL    150

struct board {
	atomic_int must_end;
	_Atomic uint64_t n_ops;
	/* What a version of a name held, when it was first seen. */
	_Atomic uint64_t seen[N_NAMES][1 << 16];
	struct {
		atomic_int lock;
		bool is_there;
		struct fsdp_ticket ticket;
		uint64_t number;
	} tickets[N_TICKETS];
};

static struct board *board;
static struct chaos chaos;

/* --- contents ------------------------------------------------------------ */

static void fill(struct fsdp_tensor *tensor, const char *name, uint64_t number)
{
	pattern_fill(tensor, pattern_tag(name, number));
	memory_write(tensor, 0, &number, sizeof(number));
}

static uint64_t number_of(const struct fsdp_tensor *tensor)
{
	uint64_t number;

	memory_read(&number, tensor, 0, sizeof(number));
	return number;
}

/* Like pattern_is(), but for the first word. */
static bool is_whole(const struct fsdp_tensor *tensor, const char *name)
{
	return pattern_follows(tensor, pattern_tag(name, number_of(tensor)));
}

static bool check_entry(struct fsdp_client *client,
			const struct fsdp_entry *entry)
{
	const char *name = entry->info->name;
	struct fsdp_tensor *tensor = NULL;
	bool is_right;

	must(fsdp_get(client, &name, 1, NULL, &tensor) == 0);
	is_right = is_whole(tensor, name);
	fsdp_free(tensor);
	return is_right;
}

/* --- one client ---------------------------------------------------------- */

struct item {
	struct fsdp_tensor *tensor; /* NULL: empty */
	char name[32];              /* that its contents follow */
	uint64_t number;
	uint32_t holds;
};

struct worker {
	struct fsdp_client *client;
	struct chance chance;
	uint64_t next_number;
	struct item pocket[N_POCKET];
};

static void random_name(struct worker *worker, char name[32], int *ret_index)
{
	*ret_index = (int)draw(&worker->chance, N_NAMES);
	snprintf(name, 32, "soak/n%d", *ret_index);
}

static void let_go(struct item *item)
{
	fsdp_free(item->tensor);
	item->tensor = NULL;
}

static struct item *any_item(struct worker *worker)
{
	return &worker->pocket[draw(&worker->chance, N_POCKET)];
}

/* The tensor is held once, and goes with what it replaces. */
static void pocket(struct worker *worker, struct fsdp_tensor *tensor,
		   const char *name)
{
	struct item *item = any_item(worker);

	if (item->tensor)
		let_go(item);
	item->tensor = tensor;
	item->number = number_of(tensor);
	item->holds = 1;
	snprintf(item->name, sizeof(item->name), "%s", name);
}

static void check_item(const struct item *item)
{
	must(number_of(item->tensor) == item->number);
	must(is_whole(item->tensor, item->name));
}

/* A version of a name has one content, whoever looks. */
static void check_version(const struct fsdp_tensor *tensor, int index)
{
	uint64_t expected = 0;
	struct fsdp_info info = {.struct_size = sizeof(info)};

	fsdp_tensor_info(tensor, &info);
	if (info.version >= sizeof(board->seen[0]) / sizeof(uint64_t))
		return;
	if (atomic_compare_exchange_strong(&board->seen[index][info.version],
					   &expected, number_of(tensor)))
		return;
	must(expected == number_of(tensor));
}

static struct fsdp_tensor *make(struct worker *worker, const char *name)
{
	struct fsdp_spec spec = {FSDP_U64, 1, {8 << draw(&worker->chance, 9)}};
	struct fsdp_tensor *tensor = NULL;

	must(memory_alloc(worker->client, &spec, 1, NULL, 1000, &tensor) == 0);
	fill(tensor, name, worker->next_number++);
	return tensor;
}

static void do_publish(struct worker *worker)
{
	struct fsdp_publication it = {.flags = FSDP_REPLACE};
	char name[32];
	int index;

	random_name(worker, name, &index);
	it.name = name;
	it.tensor = make(worker, name);
	must(fsdp_publish(worker->client, &it, 1) == 0);
	check_version(it.tensor, index);
	if (draw(&worker->chance, 2))
		pocket(worker, it.tensor, name);
	else
		fsdp_free(it.tensor);
}

static void do_get(struct worker *worker)
{
	struct fsdp_get_options options = {
		.timeout_ms = draw(&worker->chance, 4) ? 0 : 5};
	struct fsdp_tensor *tensor = NULL;
	char name[32];
	const char *names = name;
	int index, r;

	random_name(worker, name, &index);
	r = fsdp_get(worker->client, &names, 1, &options, &tensor);
	must(r == 0 || r == -ENOENT || r == -ETIMEDOUT);
	if (r < 0)
		return;
	must(is_whole(tensor, name));
	check_version(tensor, index);
	pocket(worker, tensor, name);
}

static void do_get_several(struct worker *worker)
{
	char text[3][32];
	const char *names[3];
	struct fsdp_tensor *tensors[3];
	int index[3], r;

	for (int i = 0; i < 3; i++) {
		random_name(worker, text[i], &index[i]);
		names[i] = text[i];
	}
	r = fsdp_get(worker->client, names, 3, NULL, tensors);
	must(r == 0 || r == -ENOENT);
	for (int i = 0; i < 3 && r == 0; i++) {
		must(is_whole(tensors[i], names[i]));
		check_version(tensors[i], index[i]);
		fsdp_free(tensors[i]);
	}
}

static void do_hold_and_release(struct worker *worker)
{
	struct item *item = any_item(worker);

	if (!item->tensor)
		return;
	check_item(item);
	switch (draw(&worker->chance, 4)) {
	case 0:
		must(fsdp_hold(item->tensor) == 0);
		item->holds++;
		break;
	case 1:
		must(fsdp_release(item->tensor) == 0);
		item->holds--;
		break;
	case 2:
		must(fsdp_release_sync(worker->client, &item->tensor, 1) == 0);
		item->holds--;
		break;
	default:
		let_go(item);
		return;
	}
	if (item->holds > 0)
		return;
	/* Back, if its name still shows it. */
	if (fsdp_acquire(item->tensor) < 0) {
		let_go(item);
		return;
	}
	item->holds = 1;
	check_item(item);
}

/* Names that come and go. */
static void do_remove(struct worker *worker)
{
	struct fsdp_publication it = {.flags = FSDP_REPLACE};
	const char *name;
	char text[32];
	int r;

	snprintf(text, sizeof(text), "soak/gone%u", draw(&worker->chance, 3));
	name = text;
	if (draw(&worker->chance, 2)) {
		static const uint32_t flags[] = {0, FSDP_TIED, FSDP_EVICTABLE};

		it.name = name;
		it.flags |= flags[draw(&worker->chance, 3)];
		it.ttl_ms = draw(&worker->chance, 2) ? 100 : 0;
		it.tensor = make(worker, name);
		must(fsdp_publish(worker->client, &it, 1) == 0);
		fsdp_free(it.tensor);
		return;
	}
	r = fsdp_remove(worker->client, &name, 1);
	must(r == 0 || r == -ENOENT);
}

/* A client that is killed within takes its place with it, no more. */
static bool lock(int i)
{
	int is_free = 0;

	return atomic_compare_exchange_strong(&board->tickets[i].lock, &is_free,
					      1);
}

static void unlock(int i)
{
	atomic_store(&board->tickets[i].lock, 0);
}

static void do_make_ticket(struct worker *worker)
{
	struct fsdp_tensor *tensor = make(worker, "ticket");
	int i = (int)draw(&worker->chance, N_TICKETS);
	struct fsdp_ticket ticket;

	must(fsdp_ticket_make(tensor, 2, 1500, &ticket) == 0);
	if (lock(i)) {
		board->tickets[i].ticket = ticket;
		board->tickets[i].number = number_of(tensor);
		board->tickets[i].is_there = true;
		unlock(i);
	}
	fsdp_free(tensor);
}

static void do_redeem(struct worker *worker)
{
	int i = (int)draw(&worker->chance, N_TICKETS);
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_ticket ticket;
	uint64_t number;
	int r;

	if (!board->tickets[i].is_there || !lock(i))
		return;
	ticket = board->tickets[i].ticket;
	number = board->tickets[i].number;
	unlock(i);
	r = fsdp_ticket_redeem(worker->client, &ticket, 1, &tensor);
	must(r == 0 || r == -ENOENT);
	if (r < 0)
		return;
	must(number_of(tensor) == number);
	must(is_whole(tensor, "ticket"));
	pocket(worker, tensor, "ticket");
}

static void random_bundle(struct worker *worker, char name[32],
			  char members[2][32])
{
	snprintf(name, 32, "soak/b%u/", draw(&worker->chance, N_BUNDLES));
	snprintf(members[0], 32, "%.20sw", name);
	snprintf(members[1], 32, "%.20sb", name);
}

/* Both members carry one number. */
static void do_load(struct worker *worker)
{
	const struct fsdp_spec page = {FSDP_U64, 1, {512}};
	struct fsdp_bundle_options options = {.access = {FSDP_GID_DEFAULT, 0},
					      .flags = FSDP_REPLACE,
					      .device = memory_device()};
	char name[32], members[2][32];
	const char *names[] = {members[0], members[1]};
	struct fsdp_spec specs[] = {page, page};
	struct fsdp_bundle *bundle = NULL;
	struct fsdp_tensor *tensors[2];

	random_bundle(worker, name, members);
	must(fsdp_bundle_begin(worker->client, name, &options, &bundle) == 0);
	must(fsdp_bundle_alloc(bundle, names, specs, 2, tensors) == 0);
	for (int i = 0; i < 2; i++)
		fill(tensors[i], names[i], worker->next_number);
	worker->next_number++;
	if (draw(&worker->chance, 4))
		must(fsdp_bundle_commit(bundle, NULL) == 0);
	else
		fsdp_bundle_abort(bundle);
	for (int i = 0; i < 2; i++)
		fsdp_free(tensors[i]);
}

static void check_pair(struct fsdp_tensor *const *tensors,
		       const char *const *names)
{
	for (int i = 0; i < 2; i++)
		must(is_whole(tensors[i], names[i]));
	must(number_of(tensors[0]) == number_of(tensors[1]));
}

static void do_get_bundle(struct worker *worker)
{
	char name[32], members[2][32];
	const char *names[] = {members[0], members[1]};
	struct fsdp_tensor *pair[2], **all = pair;
	size_t n = 2;
	int r;

	random_bundle(worker, name, members);
	if (draw(&worker->chance, 2))
		r = fsdp_bundle_get(worker->client, name, NULL, &all, &n);
	else
		r = fsdp_get(worker->client, names, 2, NULL, pair);
	must(r == 0 || r == -ENOENT);
	if (r < 0)
		return;
	must(n == 2);
	check_pair(all, names);
	fsdp_free(all[0]);
	pocket(worker, all[1], names[1]);
	if (all != pair)
		free(all);
}

typedef void op_fn(struct worker *worker);

static op_fn *const ops[] = {
	do_publish,
	do_publish,
	do_get,
	do_get,
	do_get_several,
	do_hold_and_release,
	do_hold_and_release,
	do_hold_and_release,
	do_remove,
	do_make_ticket,
	do_redeem,
	do_load,
	do_get_bundle,
	do_get_bundle,
};

struct order {
	uint64_t seed;
	uint64_t first_number;
};

static void work(void *data)
{
	const struct order *order = data;
	struct worker *worker = calloc(1, sizeof(*worker));

	must(worker);
	worker->client = chaos_connect(&chaos);
	worker->chance.state = order->seed;
	worker->next_number = order->first_number;
	while (!atomic_load(&board->must_end)) {
		ops[draw(&worker->chance, sizeof(ops) / sizeof(ops[0]))](
			worker);
		atomic_fetch_add(&board->n_ops, 1);
	}
	/* Some forget to close. */
	if (draw(&worker->chance, 2))
		fsdp_close(worker->client);
}

/* --- killing
 * ------------------------------------------------------------------ */

struct crew {
	struct chance chance;
	pid_t pids[N_CLIENTS];
	uint64_t n_born;
	unsigned int n_killed, n_broker_deaths;
};

static void start_client(struct crew *crew, int i)
{
	struct order order;

	crew->n_born++;
	order.seed = (uint64_t)draw(&crew->chance, UINT32_MAX) << 32 | 1;
	order.first_number = crew->n_born << 32;
	crew->pids[i] = child_start(work, &order);
}

static void kill_client(struct crew *crew)
{
	int i = (int)draw(&crew->chance, N_CLIENTS);

	cr_assert(eq(int, child_kill(crew->pids[i]), SIGKILL),
		  "a client ended by itself");
	crew->n_killed++;
	start_client(crew, i);
}

/* Where points are compiled in it dies at one of these, else anywhere. */
static void kill_broker(struct crew *crew)
{
	static const char *const points[] = {
		"catalog.commit",
		"catalog.committed",
		"verb.publish.done",
		"verb.publish.committed",
		"verb.get.done",
		"verb.get.committed",
		"publish.replaced",
		"bundle.flipped",
		"verb.redeem.done",
		"verb.release.committed",
		"slot.freed",
		"peer.send",
		"verb.bundle_commit.done",
		"session.rung",
	};
	uint32_t i = draw(&crew->chance, sizeof(points) / sizeof(points[0]));

	crew->n_broker_deaths++;
	if (chaos_has_points())
		plan_death(chaos.plan, points[i], 1 + draw(&crew->chance, 3));
	else
		daemon_kill_broker(&chaos.daemon);
}

static void await_ops(uint64_t n)
{
	uint64_t end = atomic_load(&board->n_ops) + n;
	uint64_t give_up = clock_ms() + 15000;

	while (atomic_load(&board->n_ops) < end) {
		cr_assert(lt(u64, clock_ms(), give_up), "clients hang");
		nap_ms(1);
	}
}

static void rage(struct crew *crew)
{
	uint64_t start = clock_ms(), last = start;

	while (clock_ms() - start < DURATION_MS) {
		await_ops(OPS_PER_KILL + draw(&crew->chance, OPS_PER_KILL));
		kill_client(crew);
		if (clock_ms() - last < BROKER_PAUSE_MS)
			continue;
		kill_broker(crew);
		last = clock_ms();
	}
}

static void end_all(const struct crew *crew)
{
	atomic_store(&board->must_end, 1);
	for (int i = 0; i < N_CLIENTS; i++)
		cr_assert(eq(int, child_wait(crew->pids[i]), 0));
}

static int count_mortal(const struct fsdp_entry *entry, void *data)
{
	*(int *)data += entry->ttl_left_ms > 0;
	return 0;
}

/* Until no name and no ticket will go by itself. */
static void await_deadlines(struct fsdp_client *client)
{
	struct figures now;
	int n_mortal;

	do {
		n_mortal = 0;
		nap_ms(10);
		must(fsdp_list(client, NULL, count_mortal, &n_mortal) == 0);
		figures_read(client, &now);
	} while (n_mortal > 0 || now.tickets > 0);
}

Test(soak, leaves_the_books_in_balance, .timeout = 90)
{
	uint64_t seed = choose_seed("FSDP_SOAK_SEED");
	struct crew crew = {.chance = {seed << 1 | 1}};
	struct fsdp_client *watcher;
	struct figures now;

	fprintf(stderr, "FSDP_SOAK_SEED=%llu\n", (unsigned long long)seed);
	board = shared_memory(sizeof(*board));
	chaos_start(&chaos, NULL);
	for (int i = 0; i < N_CLIENTS; i++)
		start_client(&crew, i);
	rage(&crew);
	end_all(&crew);
	plan_drop(chaos.plan);
	watcher = chaos_connect(&chaos);
	await_deadlines(watcher);
	figures_read(watcher, &now);
	cr_assert(audit(watcher, 1, check_entry));
	fprintf(stderr, "%llu operations, %u clients and %u brokers killed\n",
		(unsigned long long)atomic_load(&board->n_ops), crew.n_killed,
		crew.n_broker_deaths);
	cr_assert(ge(u64, now.epoch, 3));
	cr_assert(ge(uint, crew.n_killed, 10));
	fsdp_close(watcher);
	chaos_stop(&chaos);
}
