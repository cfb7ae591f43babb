/*
 * Tests sharing of memory that a process has allocated itself. The numbers of
 * cases are those of the list of PyTorch's behaviour. Most cases have another
 * form here, because the broker counts the users and tells the producer when
 * memory may be reused.
 */
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include "tests/lib/sharing.h"
#include "tests/lib/strike.h"
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

TestSuite(share, .init = sharing_open, .fini = sharing_close, .timeout = 300);

static int have(struct actor *actor, actor_fn *fn, const char *name)
{
	strcpy(sharing.page->name, name);
	return actor_run(actor, fn);
}

static void ticket_for(struct fsdp_tensor *tensor)
{
	must(fsdp_ticket_make(tensor, 1, 60000, &sharing.page->ticket) == 0);
}

/* Returns figures that match any values. The caller sets those that matter. */
static struct figures any_figures(void)
{
	struct figures any;

	memset(&any, 0xff, sizeof(any));
	return any;
}

/* --- addresses ----------------------------------------------------------- */

/* Case 34: the tensor has 0xe0 bytes at 0x120 of an allocation of 0x4000. */
Test(share, a_tensor_is_at_its_offset_in_the_allocation)
{
	uint8_t *memory = legacy_make(1);
	const struct fsdp_spec specs[2] = {{FSDP_U8, 1, {SHARED_SIZE}},
					   {FSDP_F32, 1, {0xe0 / 4}}};
	void *pointers[2] = {memory, memory + 0x120};
	struct fsdp_tensor *tensors[2] = {NULL};
	uint8_t twos[0xe0];
	uint64_t base;

	memset(twos, 2, sizeof(twos));
	gpu_put(gpu_nth(0), memory + 0x120, twos, sizeof(twos));
	cr_assert(zero(int, fsdp_share(sharing.client, specs, pointers, 2, NULL,
				       tensors)),
		  "%s", fsdp_error());
	cr_expect(eq(ptr, fsdp_data_mut(tensors[0]), memory));
	cr_expect(eq(ptr, fsdp_data_mut(tensors[1]), memory + 0x120));
	must(publish_as(tensors[0], "t/all") == 0);
	must(publish_as(tensors[1], "t/part") == 0);
	cr_assert(zero(int, have(&sharing.one, actor_gets, "t/all")), "%s",
		  sharing.page->sentence);
	base = sharing.page->address;
	cr_expect(eq(u8, sharing.page->seen, 1));
	cr_assert(zero(int, have(&sharing.one, actor_gets, "t/part")));
	cr_expect(eq(u64, sharing.page->address - base, 0x120));
	cr_expect(eq(u8, sharing.page->seen, 2));
	fsdp_free(tensors[0]);
	fsdp_free(tensors[1]);
}

/* This is case 31. */
Test(share, a_second_receive_shares_the_first_mapping)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory);
	struct fsdp_tensor *part = share(memory, 16);
	uint64_t address;

	must(publish_as(part, "t/b") == 0);
	cr_assert(zero(int, have(&sharing.one, actor_gets, "t/a")));
	address = sharing.page->address;
	cr_assert(zero(int, have(&sharing.one, actor_gets, "t/a")));
	cr_expect(eq(u64, sharing.page->address, address));
	cr_assert(zero(int, have(&sharing.one, actor_gets, "t/b")));
	cr_expect(eq(u64, sharing.page->address, address));
	cr_expect(gpu_is_count(sharing.one.pid, "IpcOpenMemHandle", 1));
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	cr_expect(eq(i64, count_slot_holds(sharing.client, tensor), 2),
		  "the first receive holds on, and so does this process");
	fsdp_free(tensor);
	fsdp_free(part);
}

Test(share, the_sharer_gets_its_own_address)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory), *again = NULL;

	cr_assert(zero(int, try_get("t/a", &again)));
	cr_expect(eq(ptr, (void *)fsdp_data(again), memory));
	cr_expect(gpu_is_count(getpid(), "IpcOpenMemHandle", 0));
	fsdp_free(again);
	fsdp_free(tensor);
}

Test(share, overlapping_tensors_are_counted_separately)
{
	uint8_t *memory = legacy_make(7);
	struct fsdp_tensor *all = share_as("t/a", memory);
	struct fsdp_tensor *part = share(memory + 64, 128), *again;
	struct figures now;

	again = share(memory + 64, 128);
	figures_read(sharing.client, &now);
	cr_expect(eq(u64, now.slots, 3));
	cr_expect(eq(u64, now.chunks, 1), "of one allocation");
	must(have(&sharing.one, actor_gets, "t/a") == 0);
	cr_expect(zero(int, fsdp_unshare(part, 0)), "%s", fsdp_error());
	cr_expect(eq(int, fsdp_unshare(all, 0), -ETIMEDOUT));
	cr_expect(zero(int, fsdp_unshare(again, 0)), "%s", fsdp_error());
	fsdp_free(all);
	fsdp_free(part);
	fsdp_free(again);
}

static int write_into_it(void)
{
	struct fsdp_tensor *tensor = NULL;
	CUstream stream = stream_make(gpu_nth(0));

	must(try_get(sharing.page->name, &tensor) == 0);
	must(strike(gpu_nth(0), (CUdeviceptr)(uintptr_t)fsdp_data(tensor),
		    stream) == 0);
	return stream_finish(stream) ? 0 : -EFAULT;
}

Test(share, donated_memory_is_read_only_for_other_processes)
{
	struct fsdp_tensor *tensor, *again = NULL;
	struct vmm_memory memory;
	void *at;

	need_kernels();
	vmm_make(&memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 7);
	at = (void *)(uintptr_t)memory.address;
	tensor = share(at, memory.size);
	cr_expect(eq(ptr, fsdp_data_mut(tensor), at));
	must(publish_as(tensor, "t/a") == 0);
	cr_assert(zero(int, have(&sharing.one, actor_gets, "t/a")), "%s",
		  sharing.page->sentence);
	cr_expect(eq(u8, sharing.page->seen, 7));
	cr_expect(eq(int, have(&sharing.two, write_into_it, "t/a"), -EFAULT));
	cr_assert(zero(int, try_get("t/a", &again)));
	cr_expect(eq(ptr, (void *)fsdp_data(again), at));
	cr_expect(holds_value(again, 7));
	fsdp_free(again);
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	actor_kill(&sharing.two);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)), "%s",
		  fsdp_error());
	fsdp_free(tensor);
	vmm_end(&memory);
	cr_expect(nothing_is_left(2));
}

/* --- given back ---------------------------------------------------------- */

/* This is the first half of case 27. */
Test(share, a_tensor_without_users_is_unshared_at_once)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory), *none = NULL;

	must(have(&sharing.one, actor_gets, "t/a") == 0);
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	cr_assert(zero(int, fsdp_unshare(tensor, 0)), "%s", fsdp_error());
	cr_expect(eq(int, try_get("t/a", &none), -ENOENT));
	cr_expect(zero(int, fsdp_unshare(tensor, 0)), "it may be said again");
	cr_expect(eq(int, fsdp_acquire(tensor), -ESTALE));
	fsdp_free(tensor);
	legacy_free(memory);
	cr_expect(nothing_is_left(3));
}

/* This is the second half of case 27. */
Test(share, a_tensor_in_use_stays_in_limbo_until_it_is_released)
{
	struct figures limbo = any_figures();
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory), *none = NULL;
	char pid[16];

	must(have(&sharing.one, actor_gets, "t/a") == 0);
	cr_assert(eq(int, fsdp_unshare(tensor, 0), -ETIMEDOUT));
	snprintf(pid, sizeof(pid), "%d", sharing.one.pid);
	cr_expect(says(pid), "it says who: %s", fsdp_error());
	cr_expect(eq(int, try_get("t/a", &none), -ENOENT));
	limbo.slots_limbo = 1;
	cr_expect(figures_await(sharing.client, &limbo));
	cr_expect(zero(int, actor_run(&sharing.one, actor_checks)));
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)));
	fsdp_free(tensor);
	cr_expect(nothing_is_left(3));
}

Test(share, unsharing_can_wait_for_the_last_release)
{
	must(have(&sharing.one, actor_shares, "t/a") == 0);
	must(have(&sharing.two, actor_gets, "t/a") == 0);
	sharing.page->timeout_ms = -1;
	actor_begin(&sharing.one, actor_unshares);
	await_parked(sharing.one.pid);
	must(actor_run(&sharing.two, actor_lets_go) == 0);
	cr_expect(zero(int, actor_end(&sharing.one)), "%s",
		  sharing.page->sentence);
	cr_expect(nothing_is_left(3));
}

Test(share, a_tensor_with_a_name_can_be_unshared_without_a_hold)
{
	struct fsdp_tensor *tensor = share_as("t/a", legacy_make(7));

	must(fsdp_release(tensor) == 0);
	cr_expect(zero(int, fsdp_unshare(tensor, 0)), "%s", fsdp_error());
	cr_expect(eq(ptr, (void *)fsdp_data(tensor), NULL));
	fsdp_free(tensor);
	cr_expect(nothing_is_left(3));
}

/* Only a consumer holds it, and it has no name. */
Test(share, a_tensor_in_limbo_is_not_unshared_without_a_hold)
{
	struct fsdp_tensor *tensor = share_as("t/a", legacy_make(7));
	const char *name = "t/a";
	int r;

	must(have(&sharing.one, actor_gets, name) == 0);
	must(fsdp_remove(sharing.client, &name, 1) == 0);
	must(fsdp_release(tensor) == 0);
	cr_expect(eq(int, fsdp_unshare(tensor, 0), -EINVAL));
	cr_expect(says("the handle is not held"), "%s", fsdp_error());
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	do
		r = fsdp_unshare(tensor, 0);
	while (r == -EINVAL);
	cr_expect(zero(int, r), "it has ended: %s", fsdp_error());
	fsdp_free(tensor);
	cr_expect(nothing_is_left(3));
}

static int give_up(void *data)
{
	atomic_bool *is_asked = data;

	atomic_store(is_asked, true);
	return 1;
}

static int sum_waiting(const struct fsdp_peer *peer, void *data)
{
	*(uint32_t *)data += peer->n_waiting;
	return 0;
}

/* If the broker dropped the hold of a request whose caller has given up, the
 * count of this process would be too low for ever. */
Test(share, an_interrupted_unsharing_keeps_its_hold)
{
	struct fsdp_client *before = sharing.client;
	atomic_bool is_asked = false;
	struct fsdp_connect_options options = {.path = sharing.page->socket,
					       .interrupted = give_up,
					       .interrupted_data = &is_asked};
	struct fsdp_tensor *tensor;
	uint32_t n_waiting = 0;

	must(fsdp_connect(&options, &sharing.client) == 0);
	tensor = share_as("t/a", legacy_make(7));
	must(have(&sharing.one, actor_gets, "t/a") == 0);
	cr_expect(eq(int, fsdp_unshare(tensor, -1), -EINTR));
	cr_expect(atomic_load(&is_asked));
	must(fsdp_clients(before, sum_waiting, &n_waiting) == 0);
	cr_expect(zero(u32, n_waiting), "no request may drop the hold later");
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)), "%s",
		  fsdp_error());
	fsdp_free(tensor);
	tensor = share_as("t/a", legacy_make(7));
	cr_expect(eq(i64, count_slot_holds(before, tensor), 1),
		  "it is in the same slot");
	fsdp_free(tensor);
	fsdp_close(sharing.client);
	sharing.client = before;
	cr_expect(nothing_is_left(3));
}

/* Case 32: in PyTorch the second release makes the count 2^64 - 1. */
Test(share, a_second_release_is_refused_and_changes_no_count)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory), *mine = NULL;

	must(have(&sharing.one, actor_gets, "t/a") == 0);
	cr_assert(zero(int, try_get("t/a", &mine)));
	cr_expect(zero(int, fsdp_release(mine)));
	cr_expect(eq(int, fsdp_release(mine), -EINVAL));
	cr_expect(eq(i64, count_slot_holds(sharing.client, tensor), 2));
	cr_expect(eq(int, fsdp_unshare(tensor, 0), -ETIMEDOUT));
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)));
	fsdp_free(mine);
	fsdp_free(tensor);
}

/* Case 35: an allocator of PyTorch that runs out of blocks asks which blocks
 * are in limbo. Here the allocator asks about the blocks that it has shared,
 * and the broker replies at once. */
Test(share, an_allocator_can_reuse_blocks_without_users)
{
	struct fsdp_tensor *tensors[3];
	void *blocks[3];
	char name[8];
	size_t reused = 3;
	long n_made;

	for (size_t i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "t/%zu", i);
		blocks[i] = legacy_make((uint8_t)i);
		tensors[i] = share_as(name, blocks[i]);
		must(have(&sharing.one, actor_gets, name) == 0);
	}
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	n_made = gpu_count(getpid(), "MemAlloc");
	for (size_t i = 0; i < 3; i++)
		if (fsdp_unshare(tensors[i], 0) == 0)
			reused = i;
	cr_assert(eq(sz, reused, 2), "the one that was let go: %s",
		  fsdp_error());
	fsdp_free(tensors[reused]);
	tensors[reused] = share_as("t/new", blocks[reused]);
	cr_expect(zero(int, have(&sharing.two, actor_gets, "t/new")), "%s",
		  sharing.page->sentence);
	cr_expect(gpu_is_count(getpid(), "MemAlloc", n_made));
	for (size_t i = 0; i < 3; i++)
		fsdp_free(tensors[i]);
}

Test(share, unsharing_waits_for_a_valid_ticket)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as(NULL, memory);

	ticket_for(tensor);
	cr_assert(eq(int, fsdp_unshare(tensor, 0), -ETIMEDOUT));
	cr_expect(says("ticket"), "%s", fsdp_error());
	cr_assert(zero(int, actor_run(&sharing.one, actor_redeems)), "%s",
		  sharing.page->sentence);
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)));
	fsdp_free(tensor);
}

Test(share, unsharing_waits_for_work_of_a_stream)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory);

	must(have(&sharing.one, actor_gets, "t/a") == 0);
	must(actor_run(&sharing.one, actor_lets_go_late) == 0);
	cr_expect(eq(int, fsdp_unshare(tensor, 0), -ETIMEDOUT));
	cr_expect(eq(int, fsdp_unshare(tensor, 10), -ETIMEDOUT));
	sem_post(&sharing.page->gate);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)), "%s",
		  fsdp_error());
	fsdp_free(tensor);
	legacy_free(memory);
}

Test(share, a_stream_may_write_a_tensor_after_its_publication)
{
	CUstream stream = stream_make(gpu_nth(0));
	void *memory = legacy_make(1);
	struct fsdp_tensor *tensor = share(memory, SHARED_SIZE);
	struct fsdp_publication it = {
		.tensor = tensor, .name = "t/a", .stream = stream};

	stream_hold(stream, &sharing.page->gate);
	stream_fill(stream, tensor, 2);
	cr_assert(zero(int, fsdp_publish(sharing.client, &it, 1)), "%s",
		  fsdp_error());
	cr_expect(eq(int, have(&sharing.one, actor_gets, "t/a"), -ETIMEDOUT));
	cr_expect(eq(int, fsdp_unshare(tensor, 0), -ETIMEDOUT),
		  "it is still being written");
	sem_post(&sharing.page->gate);
	must(stream_finish(stream));
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)), "%s",
		  fsdp_error());
	fsdp_free(tensor);
}

Test(share, a_name_that_was_replaced_is_kept_by_unsharing)
{
	void *memory = legacy_make(1);
	struct fsdp_tensor *old = share_as("t/a", memory);
	struct fsdp_tensor *new = share_as("t/a", legacy_make(2)), *now = NULL;

	cr_assert(zero(int, fsdp_unshare(old, 0)), "%s", fsdp_error());
	cr_assert(zero(int, try_get("t/a", &now)), "%s", fsdp_error());
	cr_expect(holds_value(now, 2));
	fsdp_free(now);
	fsdp_free(old);
	fsdp_free(new);
}

Test(share, the_name_outlives_the_handle_of_the_sharer)
{
	struct fsdp_tensor *tensor = share_as("t/a", legacy_make(7));

	fsdp_free(tensor);
	cr_assert(zero(int, have(&sharing.one, actor_gets, "t/a")), "%s",
		  sharing.page->sentence);
	tensor = NULL;
	cr_assert(zero(int, try_get("t/a", &tensor)));
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)), "%s",
		  fsdp_error());
	fsdp_free(tensor);
	cr_expect(nothing_is_left(3));
}

/* --- handed on ----------------------------------------------------------- */

static struct fsdp_tensor *received;

/* Pass the received tensor on. */
static int hand_on_a_ticket(void)
{
	must(try_get("t/a", &received) == 0);
	must(try_share(fsdp_data(received), 16, &received) == -EINVAL);
	snprintf(sharing.page->sentence, sizeof(sharing.page->sentence), "%s",
		 fsdp_error());
	ticket_for(received);
	fsdp_free(received);
	return 0;
}

static int hand_on_a_view(void)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {16}};
	struct fsdp_tensor *view = NULL;

	must(try_get("t/a", &received) == 0);
	must(fsdp_view(received, &spec, NULL, 0x120, &view) == 0);
	must(publish_as(view, "t/view") == 0);
	fsdp_free(view);
	fsdp_free(received);
	return 0;
}

/* Case 36: PyTorch refuses to send what was received. */
Test(share, a_received_tensor_can_be_passed_on_by_a_ticket)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory);

	cr_assert(zero(int, actor_run(&sharing.one, hand_on_a_ticket)));
	cr_expect(ne(ptr, strstr(sharing.page->sentence, "fsdp_ticket"), NULL),
		  "%s", sharing.page->sentence);
	cr_assert(zero(int, actor_run(&sharing.two, actor_redeems)), "%s",
		  sharing.page->sentence);
	cr_expect(eq(u8, sharing.page->seen, 7));
	cr_expect(eq(int, fsdp_unshare(tensor, 0), -ETIMEDOUT));
	must(actor_run(&sharing.two, actor_lets_go) == 0);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)));
	fsdp_free(tensor);
}

Test(share, a_received_tensor_can_be_passed_on_by_a_view)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory);

	cr_assert(zero(int, actor_run(&sharing.one, hand_on_a_view)));
	cr_assert(zero(int, have(&sharing.two, actor_gets, "t/view")), "%s",
		  sharing.page->sentence);
	cr_expect(eq(u8, sharing.page->seen, 7));
	fsdp_free(tensor);
}

/* Case 36: a tensor without elements has no memory, so there is nothing to
 * share and no user to count. */
Test(share, a_tensor_without_elements_shares_no_memory)
{
	const struct fsdp_spec specs[2] = {{FSDP_F32, 2, {0, 4}},
					   {FSDP_U8, 1, {16}}};
	uint8_t *memory = legacy_make(7);
	void *pointers[2] = {NULL, memory};
	struct fsdp_tensor *tensors[2] = {NULL};

	cr_assert(zero(int, fsdp_share(sharing.client, specs, pointers, 1, NULL,
				       tensors)),
		  "%s", fsdp_error());
	cr_expect(gpu_is_count(getpid(), "IpcGetMemHandle", 0));
	cr_expect(eq(ptr, (void *)fsdp_data(tensors[0]), NULL));
	cr_expect(zero(int, fsdp_unshare(tensors[0], 0)));
	fsdp_free(tensors[0]);
	cr_assert(zero(int, fsdp_share(sharing.client, specs, pointers, 2, NULL,
				       tensors)),
		  "%s", fsdp_error());
	cr_expect(eq(ptr, (void *)fsdp_data(tensors[0]), NULL));
	cr_expect(eq(ptr, (void *)fsdp_data(tensors[1]), memory));
	cr_expect(zero(int, fsdp_unshare(tensors[1], 0)));
	cr_expect(zero(int, fsdp_unshare(tensors[0], 0)));
	fsdp_free(tensors[0]);
	fsdp_free(tensors[1]);
	cr_expect(nothing_is_left(3));
}

/* --- seen ---------------------------------------------------------------- */

static int note_shared(const struct fsdp_entry *entry, void *data)
{
	enum fsdp_shared *seen = data;

	seen[strcmp(entry->info->name, "t/a") == 0 ? 0 : 1] = entry->shared;
	return 0;
}

static int note_value(const char *name, uint64_t value, void *data)
{
	uint64_t *seen = data;

	if (strcmp(name, "shared_chunks") == 0)
		seen[0] = value;
	if (strcmp(name, "shared_bytes") == 0)
		seen[1] = value;
	return 0;
}

Test(share, the_kind_of_sharing_is_shown)
{
	struct fsdp_tensor *tensor = share_as("t/a", legacy_make(7));
	enum fsdp_shared seen[2] = {FSDP_SHARED_NOT, FSDP_SHARED_NOT};
	uint64_t values[2] = {0};

	sharing.page->value = 7;
	must(have(&sharing.one, actor_donates, "t/b") == 0);
	must(fsdp_list(sharing.client, "t/", note_shared, seen) == 0);
	cr_expect(eq(int, (int)seen[0], FSDP_SHARED_LEGACY));
	cr_expect(eq(int, (int)seen[1], FSDP_SHARED_DONATED));
	cr_expect(daemon_shows(&sharing.daemon, "ls t/a", "legacy"));
	cr_expect(daemon_shows(&sharing.daemon, "ls t/b", "donated"));
	cr_expect(daemon_shows(&sharing.daemon, "stat t/a",
			       "legacy: the memory ends with the process"));
	cr_expect(daemon_shows(&sharing.daemon, "stat t/b",
			       "donated: a process made the memory"));
	must(fsdp_status(sharing.client, note_value, values, NULL) == 0);
	cr_expect(eq(u64, values[0], 2));
	cr_expect(eq(u64, values[1], SHARED_SIZE + gpu_nth(0)->granularity));
	fsdp_free(tensor);
}

/* --- census -------------------------------------------------------------- */

static uint64_t n_files(pid_t pid)
{
	char path[32];
	uint64_t n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	must(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

struct census {
	uint64_t here, there, broker;
};

static struct census census_now(void)
{
	return (struct census){
		.here = n_files(getpid()),
		.there = n_files(sharing.one.pid),
		.broker = n_files(daemon_broker_pid(&sharing.daemon)),
	};
}

static bool is_more(const struct census *now, const struct census *than)
{
	return now->here > than->here || now->there > than->there ||
	       now->broker > than->broker;
}

/* Wait until there are no more objects than in `expected`. Other threads of the
 * broker close descriptors, so `expected` may include some that have been
 * closed since. */
static bool census_await(const struct census *expected)
{
	struct census now = census_now();

	for (int ms = 0; is_more(&now, expected); ms++) {
		if (ms == PATIENCE_MS)
			return false;
		nap_ms(1);
		now = census_now();
	}
	return true;
}

/* Each cycle has five tensors, as in PyTorch's own test. */
static void cycle(void)
{
	struct fsdp_tensor *tensors[5];
	void *memory = legacy_make(7);
	struct vmm_memory donated;

	vmm_make(&donated, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 7);
	for (size_t i = 0; i < 5; i++) {
		tensors[i] = i < 3 ? share(memory, SHARED_SIZE)
				   : share((void *)(uintptr_t)donated.address,
					   donated.size);
		must(publish_as(tensors[i], "t/a") == 0);
		must(have(&sharing.one, actor_gets, "t/a") == 0);
		must(actor_run(&sharing.one, actor_lets_go) == 0);
	}
	for (size_t i = 0; i < 5; i++) {
		must(fsdp_unshare(tensors[i], PATIENCE_MS) == 0);
		fsdp_free(tensors[i]);
	}
	legacy_free(memory);
	vmm_end(&donated);
}

/* Case 40: PyTorch runs 100,000 cycles. */
Test(share, many_cycles_leave_no_resources)
{
	const uint32_t n = is_fake() ? 400 : 40; /* of five tensors */
	struct census before;

	cycle();
	cr_expect(nothing_is_left(3));
	before = census_now();
	for (uint32_t i = 0; i < n; i++)
		cycle();
	cr_expect(nothing_is_left(3));
	cr_expect(census_await(&before));
}

/* Cases 24 to 26: in PyTorch each send uses a counter in a file, and every
 * 10,000 sends use another file. Here a process has one file, however much it
 * shares. */
Test(share, live_tensors_need_no_files)
{
	struct fsdp_tensor *tensors[1000], *first;
	void *memory = legacy_make(7);
	struct census before;

	first = share(memory, SHARED_SIZE);
	before = census_now();
	for (size_t i = 0; i < 1000; i++)
		tensors[i] = share(memory, SHARED_SIZE);
	cr_expect(census_await(&before));
	for (size_t i = 0; i < 1000; i++) {
		must(fsdp_unshare(tensors[i], PATIENCE_MS) == 0);
		fsdp_free(tensors[i]);
	}
	cr_expect(census_await(&before));
	must(fsdp_unshare(first, PATIENCE_MS) == 0);
	fsdp_free(first);
	legacy_free(memory);
	cr_expect(nothing_is_left(3));
}

/* --- donated memory ------------------------------------------------------ */

static void expect_chunks(uint64_t n, uint64_t size)
{
	uint64_t values[2] = {0};

	must(fsdp_status(sharing.client, note_value, values, NULL) == 0);
	cr_expect(eq(u64, values[0], n));
	cr_expect(eq(u64, values[1], n * size));
}

static void end_share(struct fsdp_tensor *tensor)
{
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)), "%s",
		  fsdp_error());
	fsdp_free(tensor);
}

Test(share, tensors_in_donated_memory_share_one_chunk_and_one_charge)
{
	struct fsdp_tensor *all, *part, *again;
	struct vmm_memory memory;
	uint64_t n;
	uint8_t *at;

	vmm_make(&memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 7);
	at = (uint8_t *)(uintptr_t)memory.address;
	n = n_files(getpid());
	all = share(at, memory.size);
	part = share(at + 64, 128);
	expect_chunks(1, memory.size);
	end_share(part);
	again = share(at + 64, 128);
	expect_chunks(1, memory.size);
	cr_expect(gpu_is_count(getpid(), "MemExportToShareableHandle", 1));
	must(publish_as(again, "t/a") == 0);
	cr_assert(zero(int, have(&sharing.one, actor_gets, "t/a")), "%s",
		  sharing.page->sentence);
	cr_expect(eq(u8, sharing.page->seen, 7));
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	end_share(again);
	end_share(all);
	cr_expect(eq(u64, n_files(getpid()), n), "it may be freed now");
	vmm_end(&memory);
	cr_expect(nothing_is_left(3));
}

static void *share_at_once(void *memory)
{
	return share(memory, 64);
}

Test(share, threads_that_share_one_allocation_make_one_chunk)
{
	struct vmm_memory memory;
	pthread_t threads[4];
	void *tensors[4];
	void *at;

	vmm_make(&memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 7);
	at = (void *)(uintptr_t)memory.address;
	for (size_t i = 0; i < 4; i++)
		must(pthread_create(&threads[i], NULL, share_at_once, at) == 0);
	for (size_t i = 0; i < 4; i++)
		must(pthread_join(threads[i], &tensors[i]) == 0);
	expect_chunks(1, memory.size);
	for (size_t i = 0; i < 4; i++)
		end_share(tensors[i]);
	vmm_end(&memory);
	cr_expect(nothing_is_left(3));
}

Test(share, memory_that_is_newly_mapped_at_an_old_address_is_another_chunk)
{
	struct fsdp_tensor *old, *new;
	struct vmm_memory memory;
	void *at;

	vmm_make(&memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 7);
	at = (void *)(uintptr_t)memory.address;
	old = share(at, memory.size);
	must(publish_as(old, "t/old") == 0);
	vmm_renew(&memory, 8);
	new = share(at, memory.size);
	must(publish_as(new, "t/new") == 0);
	expect_chunks(2, memory.size);
	must(have(&sharing.one, actor_gets, "t/old") == 0);
	cr_expect(eq(u8, sharing.page->seen, 7));
	must(have(&sharing.one, actor_gets, "t/new") == 0);
	cr_expect(eq(u8, sharing.page->seen, 8));
	actor_kill(&sharing.one);
	end_share(new);
	end_share(old);
	vmm_end(&memory);
	cr_expect(nothing_is_left(2));
}
