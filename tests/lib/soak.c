/*
 * The operations, and the results that each must have.
 */
#include "tests/lib/soak.h"
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include "tests/lib/memory.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_POCKET 12

static struct soak *board;

/* --- refusals ------------------------------------------------------------ */

/* The machine and the broker may run out of any resource. A session whose
 * broker was away for too long is lost, and its process ends. */
static bool is_refused(int r)
{
	if (r >= 0 || !board->is_harsh)
		return false;
	if (is_lost(r)) {
		fprintf(stderr, "client %d: %s\n", (int)getpid(), fsdp_error());
		_exit(SOAK_LOST);
	}
	if (!is_shortage(r))
		return false;
	atomic_fetch_add(&board->n_refused, 1);
	return true;
}

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

/* Does the same check as pattern_is(), but not for the first word. */
static bool is_whole(const struct fsdp_tensor *tensor, const char *name)
{
	return pattern_follows(tensor, pattern_tag(name, number_of(tensor)));
}

bool soak_check_entry(struct fsdp_client *client,
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
	struct fsdp_tensor *tensor; /* NULL if the item is empty */
	char name[32]; /* its contents follow from this number and the name */
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
	*ret_index = (int)draw(&worker->chance, SOAK_NAMES);
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

/* Keeps the tensor, which is held once. The tensor that it replaces is
 * released. */
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

/* A version of a name has the same content for all clients. */
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

/* Returns NULL if there is no memory. */
static struct fsdp_tensor *make(struct worker *worker, const char *name)
{
	struct fsdp_spec spec = {FSDP_U64, 1, {8 << draw(&worker->chance, 9)}};
	struct fsdp_tensor *tensor = NULL;

	int r = memory_alloc(worker->client, &spec, 1, NULL,
			     board->is_harsh ? 5 : 1000, &tensor);

	if (is_refused(r))
		return NULL;
	must(r == 0);
	fill(tensor, name, worker->next_number++);
	return tensor;
}

/* Consumes the tensor if it returns false. */
static bool publish(struct worker *worker, struct fsdp_publication *it)
{
	int r;

	if (!it->tensor)
		return false;
	r = fsdp_publish(worker->client, it, 1);
	if (!is_refused(r)) {
		must(r == 0);
		return true;
	}
	fsdp_free(it->tensor);
	return false;
}

static void do_publish(struct worker *worker)
{
	struct fsdp_publication it = {.flags = FSDP_REPLACE};
	char name[32];
	int index;

	random_name(worker, name, &index);
	it.name = name;
	it.tensor = make(worker, name);
	if (!publish(worker, &it))
		return;
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
	must(r == 0 || r == -ENOENT || r == -ETIMEDOUT || is_refused(r));
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
	must(r == 0 || r == -ENOENT || is_refused(r));
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
	/* Acquires it again, which works if its name still shows it. */
	if (fsdp_acquire(item->tensor) < 0) {
		let_go(item);
		return;
	}
	item->holds = 1;
	check_item(item);
}

/* Operations on names that are published and removed. */
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
		if (publish(worker, &it))
			fsdp_free(it.tensor);
		return;
	}
	r = fsdp_remove(worker->client, &name, 1);
	must(r == 0 || r == -ENOENT || is_refused(r));
}

/* A client that is killed with the lock makes only this place unusable. */
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
	int i = (int)draw(&worker->chance, SOAK_TICKETS);
	struct fsdp_ticket ticket;

	int r;

	if (!tensor)
		return;
	r = fsdp_ticket_make(tensor, 2, 1500, &ticket);
	must(r == 0 || is_refused(r));
	if (r == 0 && lock(i)) {
		board->tickets[i].ticket = ticket;
		board->tickets[i].number = number_of(tensor);
		board->tickets[i].is_there = true;
		unlock(i);
	}
	fsdp_free(tensor);
}

static void do_redeem(struct worker *worker)
{
	int i = (int)draw(&worker->chance, SOAK_TICKETS);
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
	must(r == 0 || r == -ENOENT || is_refused(r));
	if (r < 0)
		return;
	must(number_of(tensor) == number);
	must(is_whole(tensor, "ticket"));
	pocket(worker, tensor, "ticket");
}

static void random_bundle(struct worker *worker, char name[32],
			  char members[2][32])
{
	snprintf(name, 32, "soak/b%u/", draw(&worker->chance, SOAK_BUNDLES));
	snprintf(members[0], 32, "%.20sw", name);
	snprintf(members[1], 32, "%.20sb", name);
}

/* Both members contain the same number. */
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
	int r;

	random_bundle(worker, name, members);
	r = fsdp_bundle_begin(worker->client, name, &options, &bundle);
	if (is_refused(r))
		return;
	must(r == 0);
	r = fsdp_bundle_alloc(bundle, names, specs, 2, tensors);
	if (is_refused(r)) {
		fsdp_bundle_abort(bundle);
		return;
	}
	must(r == 0);
	for (int i = 0; i < 2; i++)
		fill(tensors[i], names[i], worker->next_number);
	worker->next_number++;
	r = -ECANCELED;
	if (draw(&worker->chance, 4)) {
		r = fsdp_bundle_commit(bundle, NULL);
		must(r == 0 || is_refused(r));
	}
	if (r < 0)
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
	must(r == 0 || r == -ENOENT || is_refused(r));
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

static struct fsdp_client *connect_client(void)
{
	struct fsdp_connect_options options = {.path = board->socket};
	struct fsdp_client *client = NULL;
	int r = fsdp_connect(&options, &client);

	if (is_refused(r))
		_exit(SOAK_LOST);
	must(r == 0);
	return client;
}

void soak_client(void *data)
{
	const struct soak_life *life = data;
	struct worker *worker = calloc(1, sizeof(*worker));

	must(worker);
	board = life->soak;
	worker->client = connect_client();
	worker->chance.state = life->seed;
	worker->next_number = life->first_number;
	while (!atomic_load(&board->must_end)) {
		ops[draw(&worker->chance, sizeof(ops) / sizeof(ops[0]))](
			worker);
		atomic_fetch_add(&board->n_ops, 1);
	}
	/* Some clients do not close their connection. */
	if (draw(&worker->chance, 2))
		fsdp_close(worker->client);
}

static int count_mortal(const struct fsdp_entry *entry, void *data)
{
	*(int *)data += entry->ttl_left_ms > 0;
	return 0;
}

void soak_await_deadlines(struct fsdp_client *client)
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
