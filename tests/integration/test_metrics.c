/*
 * Tests what monitoring reads: durations by kind of request, chunks, accounts,
 * and the time of the event loop.
 */
#include "client/fsdp.h"
#include "tests/lib/users.h"
#include <errno.h>
#include <unistd.h>

static struct fsdp_client *client;

static void setup(void)
{
	struct fsdp_connect_options options = {0};

	users_start(NULL);
	options.path = daemon_socket(&users_daemon);
	cr_assert(zero(int, fsdp_connect(&options, &client)), "%s",
		  fsdp_error());
}

static void finish(void)
{
	fsdp_close(client);
	users_stop();
}

TestSuite(metrics, .init = setup, .fini = finish, .timeout = 300);

/* --- histograms ---------------------------------------------------------- */

struct found {
	enum fsdp_histogram_kind kind;
	const char *name;
	uint64_t n, sum_ns;
};

static int find_histogram(const struct fsdp_histogram *histogram, void *data)
{
	struct found *found = data;
	uint64_t n = 0, last_ns = 0;

	for (uint32_t i = 0; i < histogram->n_buckets; i++) {
		cr_assert(gt(u64, histogram->limits_ns[i], last_ns));
		last_ns = histogram->limits_ns[i];
		n += histogram->counts[i];
	}
	cr_expect(eq(u64, last_ns, UINT64_MAX));
	cr_expect(eq(u64, n, histogram->n));
	cr_expect(gt(u64, n, 0), "%s is empty", histogram->name);
	if (histogram->kind == found->kind &&
	    strcmp(histogram->name, found->name) == 0) {
		found->n = n;
		found->sum_ns = histogram->sum_ns;
	}
	return 0;
}

static struct found find(enum fsdp_histogram_kind kind, const char *name)
{
	struct found found = {.kind = kind, .name = name};

	cr_assert(zero(int, fsdp_histograms(client, find_histogram, &found)),
		  "%s", fsdp_error());
	return found;
}

Test(metrics, a_request_counts_in_the_histogram_of_its_kind)
{
	struct found ping;

	cr_expect(zero(u64, find(FSDP_HISTOGRAM_REQUEST, "ping").n));
	for (int i = 0; i < 10; i++)
		cr_assert(zero(int, fsdp_ping(client)));
	ping = find(FSDP_HISTOGRAM_REQUEST, "ping");
	cr_expect(eq(u64, ping.n, 10));
	cr_expect(gt(u64, ping.sum_ns, 0));
	cr_expect(eq(u64, find(FSDP_HISTOGRAM_REQUEST, "hello").n, 1));
	cr_expect(ge(u64, find(FSDP_HISTOGRAM_ITERATION, "").n, 10));
}

Test(metrics, a_request_that_waits_counts_as_parked_with_its_wait)
{
	struct fsdp_get_options options = {.timeout_ms = 50};
	const char *name = "test/nothing";
	struct fsdp_tensor *tensor;
	struct found parked;

	cr_assert(eq(int, fsdp_get(client, &name, 1, &options, &tensor),
		     -ETIMEDOUT));
	parked = find(FSDP_HISTOGRAM_PARKED, "get");
	cr_expect(eq(u64, parked.n, 1));
	cr_expect(ge(u64, parked.sum_ns, 40 * 1000000));
	cr_expect(zero(u64, find(FSDP_HISTOGRAM_REQUEST, "get").n));
}

Test(metrics, a_refused_request_counts_too)
{
	const char *name = "test/nothing";

	cr_assert(eq(int, fsdp_remove(client, &name, 1), -ENOENT));
	cr_expect(eq(u64, find(FSDP_HISTOGRAM_REQUEST, "remove").n, 1));
}

static int stop_at_once(const struct fsdp_histogram *histogram, void *data)
{
	(void)histogram;
	(void)data;
	return 7;
}

Test(metrics, a_callback_may_end_the_list)
{
	cr_expect(eq(int, fsdp_histograms(client, stop_at_once, NULL), 7));
	cr_expect(zero(int, fsdp_ping(client)));
}

/* --- the loop ------------------------------------------------------------ */

struct loop_time {
	uint64_t sum_ns, uptime_ms, requests_ns;
};

static int add_time(const char *name, uint64_t value, void *data)
{
	struct loop_time *time = data;
	const char *end = strrchr(name, '_');

	if (strcmp(name, "uptime_ms") == 0)
		time->uptime_ms = value;
	if (strcmp(name, "loop_requests_ns") == 0)
		time->requests_ns = value;
	if (strncmp(name, "loop_", 5) == 0 && strcmp(end, "_ns") == 0 &&
	    strcmp(name, "loop_longest_ns") != 0)
		time->sum_ns += value;
	return 0;
}

Test(metrics, the_times_of_the_loop_are_no_more_than_the_uptime)
{
	struct loop_time time = {0};

	for (int i = 0; i < 100; i++)
		cr_assert(zero(int, fsdp_ping(client)));
	cr_assert(zero(int, fsdp_status(client, add_time, &time, NULL)));
	cr_expect(gt(u64, time.requests_ns, 0));
	cr_expect(ge(u64, time.sum_ns, time.requests_ns));
	cr_expect(le(u64, time.sum_ns, (time.uptime_ms + 2) * 1000000));
}

/* --- chunks -------------------------------------------------------------- */

struct chunks {
	uint32_t wanted;
	struct fsdp_chunk found;
	uint64_t used;
	uint32_t n, n_blocks;
};

static int add_chunk(const struct fsdp_chunk *chunk, void *data)
{
	struct chunks *chunks = data;

	cr_expect(le(u64, chunk->used + chunk->reserved, chunk->size));
	chunks->n++;
	chunks->used += chunk->used;
	chunks->n_blocks += chunk->n_blocks;
	if (chunk->chunk == chunks->wanted)
		chunks->found = *chunk;
	return 0;
}

static int take_entry(const struct fsdp_entry *entry, void *data)
{
	*(struct fsdp_entry *)data = *entry;
	return 0;
}

static struct fsdp_tensor *make(int64_t size)
{
	struct fsdp_spec spec = {FSDP_U8, 1, {size}};
	struct fsdp_tensor *tensor;

	cr_assert(zero(int, fsdp_alloc(client, &spec, 1, NULL, -1, &tensor)),
		  "%s", fsdp_error());
	return tensor;
}

Test(metrics, the_chunk_of_a_tensor_shows_its_use)
{
	struct fsdp_tensor *tensor = make(1 << 20);
	struct fsdp_entry entry = {0};
	struct chunks chunks = {0};

	cr_assert(zero(int, fsdp_list_all(client, take_entry, &entry)));
	chunks.wanted = entry.chunk;
	cr_assert(zero(int, fsdp_chunks(client, add_chunk, &chunks)), "%s",
		  fsdp_error());
	cr_expect(eq(u32, chunks.found.chunk, entry.chunk));
	cr_expect(eq(u32, chunks.found.uid, getuid()));
	cr_expect(eq(u32, chunks.found.n_blocks, 1));
	cr_expect(eq(u64, chunks.found.used, 1 << 20));
	cr_expect(le(u64, entry.offset + (1 << 20), chunks.found.size));
	fsdp_free(tensor);
}

Test(metrics, accounts_are_charged_what_their_chunks_use)
{
	struct fsdp_tensor *first = make(100), *second = make(3 << 20);
	struct chunks chunks = {0};
	struct wire *wire = open_as(getuid());

	cr_assert(zero(int, fsdp_chunks(client, add_chunk, &chunks)));
	cr_expect(eq(u32, chunks.n_blocks, 2));
	cr_expect(eq(u64, chunks.used, wire_status(wire, "bytes_live")));
	wire_close(wire);
	fsdp_free(first);
	fsdp_free(second);
}

/* --- accounts ------------------------------------------------------------ */

struct accounts {
	uint32_t uid, n;
	struct fsdp_account found;
};

static int add_account(const struct fsdp_account *account, void *data)
{
	struct accounts *accounts = data;

	accounts->n++;
	if (account->uid == accounts->uid)
		accounts->found = *account;
	return 0;
}

Test(metrics, an_account_shows_charges_and_limits)
{
	struct fsdp_tensor *tensor = make(4096);
	struct accounts accounts = {.uid = getuid()};
	const struct fsdp_account *mine = &accounts.found;

	cr_assert(zero(int, fsdp_accounts(client, add_account, &accounts)),
		  "%s", fsdp_error());
	cr_expect(eq(u64, mine->n_bytes, 4096));
	cr_expect(ge(u64, mine->max_bytes, 4096));
	cr_expect(eq(u64, mine->n_slots, 1));
	cr_expect(gt(u64, mine->max_slots, 1));
	cr_expect(eq(u64, mine->n_sessions, 1));
	cr_expect(zero(u64, mine->n_device_bytes));
	cr_expect(zero(u64, mine->n_waiting));
	fsdp_free(tensor);
}

/* --- other users --------------------------------------------------------- */

static uint32_t count(struct wire *wire, uint16_t kind)
{
	const struct request request = {.kind = kind};

	cr_assert(zero(int, wire_call(wire, &request)), "%s",
		  wire_sentence(wire));
	return kind == MESSAGE_MEMORY ? wire->reply.memory.n_items
				      : wire->reply.accounts.n_items;
}

Test(metrics, a_user_sees_only_its_own_memory_and_account)
{
	struct wire *alice, *bob = open_bob();

	if (!bob)
		cr_skip_test("we are one user");
	alice = open_as(ALICE);
	cr_assert(zero(int, wire_alloc(alice, 4096, NULL, -1, NULL)));
	cr_expect(eq(u32, count(alice, MESSAGE_MEMORY), 1));
	cr_expect(zero(u32, count(bob, MESSAGE_MEMORY)));
	cr_expect(eq(u32, count(alice, MESSAGE_ACCOUNTS), 1));
	cr_expect(eq(u32, alice->reply.accounts.items[0].uid, ALICE));
	cr_expect(eq(u32, count(bob, MESSAGE_ACCOUNTS), 1));
	wire_close(alice);
	wire_close(bob);
}

Test(metrics, root_sees_all_accounts)
{
	struct accounts accounts = {.uid = ALICE};
	struct wire *alice;

	if (getuid() != 0)
		cr_skip_test("we are not root");
	alice = open_as(ALICE);
	cr_assert(zero(int, fsdp_accounts(client, add_account, &accounts)));
	cr_expect(eq(u32, accounts.n, 2));
	cr_expect(eq(u64, accounts.found.n_sessions, 1));
	wire_close(alice);
}

/* A cursor comes from a client. */
Test(metrics, a_cursor_beyond_the_end_gives_an_empty_page)
{
	struct wire *wire = open_as(getuid());
	struct request request = {.kind = MESSAGE_HISTOGRAMS,
				  .histograms = {UINT64_MAX}};

	cr_assert(zero(int, wire_call(wire, &request)));
	cr_expect(zero(u32, wire->reply.histograms.n_items));
	request = (struct request){.kind = MESSAGE_MEMORY,
				   .memory = {UINT64_MAX}};
	cr_assert(zero(int, wire_call(wire, &request)));
	cr_expect(zero(u32, wire->reply.memory.n_items));
	request = (struct request){.kind = MESSAGE_ACCOUNTS,
				   .accounts = {UINT64_MAX}};
	cr_assert(zero(int, wire_call(wire, &request)));
	cr_expect(zero(u32, wire->reply.accounts.n_items));
	wire_close(wire);
}
