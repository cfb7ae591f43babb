/*
 * Tests libfsdp with a real broker, in one process and in two.
 */
#include "client/fsdp_admin.h"
#include "client/fsdp_channel.h"
#include "client/fsdp_comm.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

CHECKED_SUITE(client, client_setup, client_teardown, .timeout = 300);

Test(client, a_published_tensor_is_found_by_another_connection)
{
	struct fsdp_client *other = connect_to(&daemon_, 0);
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_info info = {.struct_size = sizeof(info)};

	put(client, "test/a", 1.5f);
	cr_assert(eq(int, get(other, "test/a", 0, &tensor), 0), "%s",
		  fsdp_error());
	cr_assert(eq(flt, first_of(tensor), 1.5f));
	cr_assert(eq(ptr, fsdp_data_mut(tensor), NULL));
	fsdp_tensor_info(tensor, &info);
	cr_assert(eq(str, (char *)info.name, "test/a"));
	cr_assert(eq(u64, info.version, 1));
	cr_assert(eq(u64, info.size, 1024));
	fsdp_close(other);
}

/* These are the options of a later release. This library knows only their
 * beginning. */
struct later_options {
	struct fsdp_get_options known;
	uint64_t later;
};

Test(client, options_of_a_later_release_are_refused_only_if_they_are_used)
{
	struct later_options options = {
		.known = {.struct_size = sizeof(options)}};
	const char *name = "test/a";
	struct fsdp_tensor *tensor;

	put(client, name, 1.5f);
	cr_assert(zero(int,
		       fsdp_get(client, &name, 1,
				(struct fsdp_get_options *)&options, &tensor)));
	fsdp_free(tensor);
	options.later = 1;
	cr_assert(eq(int,
		     fsdp_get(client, &name, 1,
			      (struct fsdp_get_options *)&options, &tensor),
		     -E2BIG));
}

static int check_entry(const struct fsdp_entry *entry, void *data)
{
	(void)data;
	cr_expect(eq(sz, entry->struct_size, sizeof(*entry)));
	cr_expect(eq(sz, entry->info->struct_size, sizeof(*entry->info)));
	return 1;
}

Test(client, a_description_has_the_size_of_its_struct)
{
	struct {
		struct fsdp_info known;
		uint64_t later;
	} info = {.known.struct_size = sizeof(info), .later = 9};
	struct fsdp_tensor *tensor = make(client, &VECTOR, 1);

	cr_assert(zero(int, fsdp_tensor_info(tensor, &info.known)));
	cr_expect(eq(sz, info.known.struct_size, sizeof(info.known)));
	cr_expect(eq(u64, info.known.size, 1024));
	cr_expect(eq(u64, info.later, 9));
	info.known.struct_size = sizeof(size_t);
	cr_expect(eq(int, fsdp_tensor_info(tensor, &info.known), -EINVAL));
	cr_assert(zero(int, publish(client, tensor, "test/a", 0)));
	cr_expect(eq(int, fsdp_list(client, "", check_entry, NULL), 1));
	fsdp_free(tensor);
}

Test(client, publications_have_the_stride_of_the_caller)
{
	struct {
		struct fsdp_publication known;
		uint64_t later;
	} items[2] = {
		{.known = {.struct_size = sizeof(*items), .name = "test/a"}},
		{.known = {.struct_size = sizeof(*items), .name = "test/b"}}};

	for (int i = 0; i < 2; i++)
		items[i].known.tensor = make(client, &VECTOR, 1);
	cr_assert(zero(int, fsdp_publish(client, &items[0].known, 2)), "%s",
		  fsdp_error());
	cr_expect(eq(u64, items[0].known.version, 1));
	cr_expect(eq(u64, items[1].known.version, 1));
}

Test(client, an_unknown_name_is_refused_with_a_message)
{
	struct fsdp_tensor *tensor = NULL;

	cr_assert(eq(int, get(client, "test/none", 0, &tensor), -ENOENT));
	cr_assert(ne(int, strlen(fsdp_error()), 0));
	cr_assert(eq(ptr, tensor, NULL));
}

Test(client, a_handle_counts_its_holds)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, 1);

	cr_assert(eq(int, publish(client, tensor, "test/a", 0), 0));
	cr_assert(eq(int, fsdp_hold(tensor), 0));
	cr_assert(eq(int, fsdp_release(tensor), 0));
	cr_assert(eq(int, fsdp_release(tensor), 0));
	cr_assert(eq(int, fsdp_release(tensor), -EINVAL));
	cr_assert(eq(int, fsdp_hold(tensor), -EINVAL));
	cr_assert(eq(int, fsdp_acquire(tensor), 0));
	cr_assert(eq(int, fsdp_release(tensor), 0));
}

Test(client, a_replaced_version_stays_readable_and_cannot_be_acquired)
{
	struct fsdp_tensor *old = NULL, *new = NULL;

	put(client, "test/a", 1);
	cr_assert(eq(int, get(client, "test/a", 0, &old), 0));
	put(client, "test/a", 2);
	cr_assert(eq(int, get(client, "test/a", 0, &new), 0));
	cr_assert(eq(flt, first_of(old), 1));
	cr_assert(eq(flt, first_of(new), 2));
	cr_assert(eq(int, count_limbo(client), 1));
	cr_assert(eq(int, fsdp_acquire(old), -ESTALE));
	cr_assert(eq(int, fsdp_release_sync(client, &old, 1), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, fsdp_acquire(old), -ESTALE));
	cr_assert(eq(int, count_limbo(client), 0));
}

Test(client, a_taken_name_is_refused_unless_it_is_replaced)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, 1);
	struct fsdp_publication it = {.tensor = tensor, .name = "test/a"};

	put(client, "test/a", 1);
	cr_assert(eq(int, fsdp_publish(client, &it, 1), -EEXIST));
	cr_assert(ne(ptr, fsdp_data_mut(tensor), NULL));
	it.flags = FSDP_REPLACE;
	cr_assert(eq(int, fsdp_publish(client, &it, 1), 0));
	cr_assert(eq(u64, it.version, 2));
	cr_assert(eq(ptr, fsdp_data_mut(tensor), NULL));
}

Test(client, scalars_and_empty_tensors_can_be_published)
{
	struct fsdp_spec scalar = {FSDP_F32, 0, {0}};
	struct fsdp_spec empty = {FSDP_F32, 2, {3, 0}};
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_info info = {.struct_size = sizeof(info)};

	tensor = make(client, &scalar, 7);
	cr_assert(eq(int, publish(client, tensor, "test/scalar", 0), 0));
	tensor = make(client, &empty, 0);
	cr_assert(eq(ptr, (void *)fsdp_data(tensor), NULL));
	cr_assert(eq(int, publish(client, tensor, "test/empty", 0), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, get(client, "test/scalar", 0, &tensor), 0));
	cr_assert(eq(flt, first_of(tensor), 7));
	cr_assert(eq(int, get(client, "test/empty", 0, &tensor), 0));
	fsdp_tensor_info(tensor, &info);
	cr_assert(eq(u64, info.size, 0));
	cr_assert(eq(i64, info.shape[0], 3));
}

Test(client, a_bad_spec_is_refused_before_any_tensor_is_created)
{
	struct fsdp_spec specs[2] = {VECTOR, {FSDP_F32, 1, {-1}}};
	struct fsdp_tensor *tensors[2] = {NULL, NULL};

	cr_assert(eq(int, memory_alloc(client, specs, 2, NULL, 0, tensors),
		     -EINVAL));
	cr_expect(strstr(fsdp_error(), "specs[1]") != NULL, "%s", fsdp_error());
	specs[1].n_dims = 9;
	cr_assert(eq(int, memory_alloc(client, specs, 2, NULL, 0, tensors),
		     -EINVAL));
	cr_assert(eq(int, memory_alloc(client, specs, 257, NULL, 0, tensors),
		     -E2BIG));
	cr_assert(eq(ptr, tensors[0], NULL));
}

Test(client, a_view_keeps_the_memory_after_its_base_was_freed)
{
	struct fsdp_tensor *base = make(client, &VECTOR, 1), *view = NULL;
	struct fsdp_spec spec = {FSDP_F32, 1, {4}};
	const float value = 42;
	int64_t stride = 2;

	memory_write(base, 48, &value, sizeof(value));
	cr_assert(eq(int, fsdp_view(base, &spec, &stride, 48, &view), 0), "%s",
		  fsdp_error());
	cr_assert(eq(ptr, (void *)fsdp_data(view),
		     (void *)((const char *)fsdp_data(base) + 48)));
	fsdp_free(base);
	cr_assert(eq(flt, first_of(view), 42));
	cr_assert(eq(int, publish(client, view, "test/view", 0), 0), "%s",
		  fsdp_error());
	cr_assert(eq(int, get(client, "test/view", 0, &base), 0));
	cr_assert(eq(flt, first_of(base), 42));
}

Test(client, a_view_that_exceeds_its_base_is_refused)
{
	struct fsdp_tensor *base = make(client, &VECTOR, 1), *view = NULL;

	cr_assert(eq(int, fsdp_view(base, &VECTOR, NULL, 4, &view), -ERANGE));
	cr_assert(eq(int, fsdp_release(base), 0));
	cr_assert(eq(int, fsdp_view(base, &VECTOR, NULL, 0, &view), -EINVAL));
}

Test(client, a_ticket_passes_on_an_unnamed_tensor_once)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, 5), *got = NULL;
	struct fsdp_client *other = connect_to(&daemon_, 0);
	struct fsdp_ticket ticket;

	cr_assert(eq(int, publish(client, tensor, NULL, 0), 0));
	cr_assert(eq(int, fsdp_ticket_make(tensor, 1, 10000, &ticket), 0), "%s",
		  fsdp_error());
	fsdp_free(tensor);
	cr_assert(eq(int, fsdp_ticket_redeem(other, &ticket, 1, &got), 0), "%s",
		  fsdp_error());
	cr_assert(eq(flt, first_of(got), 5));
	cr_assert(
		eq(int, fsdp_ticket_redeem(other, &ticket, 1, &got), -ENOENT));
	fsdp_close(other);
}

/* Make a ticket of an unnamed tensor of this mode. */
static struct fsdp_tensor *pass_on(uint32_t mode, uint32_t n_uses,
				   struct fsdp_ticket *ret)
{
	const struct fsdp_access access = {.gid = FSDP_GID_DEFAULT,
					   .mode = mode};
	struct fsdp_tensor *tensor = NULL;

	cr_assert(
		zero(int, fsdp_alloc(client, &VECTOR, 1, &access, 0, &tensor)),
		"%s", fsdp_error());
	cr_assert(zero(int, fsdp_ticket_make(tensor, n_uses, 10000, ret)), "%s",
		  fsdp_error());
	return tensor;
}

Test(client, several_processes_can_write_one_tensor)
{
	struct fsdp_client *others[] = {connect_to(&daemon_, 0),
					connect_to(&daemon_, 0)};
	struct fsdp_tensor *tensor, *got[2] = {NULL};
	struct fsdp_ticket ticket;
	float *mine;

	tensor = pass_on(0600, 2, &ticket);
	mine = fsdp_data_mut(tensor);
	for (int i = 0; i < 2; i++) {
		cr_assert(zero(int, fsdp_ticket_redeem_mut(others[i], &ticket,
							   1, &got[i])),
			  "%s", fsdp_error());
		((float *)fsdp_data_mut(got[i]))[i] = 5.0f + (float)i;
	}
	mine[2] = 7;
	cr_assert(eq(flt, mine[0], 5));
	cr_assert(eq(flt, mine[1], 6));
	cr_assert(eq(flt, ((const float *)fsdp_data(got[0]))[2], 7));
	/* The client that made the tensor may disconnect. The memory lives
	 * until the last client has released it. */
	fsdp_close(client);
	client = NULL;
	fsdp_close(others[0]);
	cr_assert(eq(flt, ((const float *)fsdp_data(got[1]))[0], 5));
	cr_assert(eq(int, count_limbo(others[1]), 1));
	fsdp_free(got[1]);
	while (count_limbo(others[1]) > 0)
		; /* the broker collects the tensor soon */
	fsdp_close(others[1]);
}

Test(client, a_published_tensor_cannot_be_redeemed_writable)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, 1), *got = NULL;
	struct fsdp_client *other = connect_to(&daemon_, 0);
	struct fsdp_ticket ticket;

	cr_assert(zero(int, publish(client, tensor, "test/a", 0)));
	cr_assert(zero(int, fsdp_ticket_make(tensor, 2, 10000, &ticket)));
	cr_assert(eq(int, fsdp_ticket_redeem_mut(other, &ticket, 1, &got),
		     -EPERM));
	cr_assert(zero(ptr, got));
	cr_assert(zero(int, fsdp_ticket_redeem(other, &ticket, 1, &got)));
	cr_assert(zero(ptr, fsdp_data_mut(got)));
	fsdp_close(other);
}

Test(client, a_user_that_may_only_read_cannot_redeem_a_ticket_writable)
{
	struct fsdp_tensor *got = NULL;
	struct fsdp_client *reader;
	struct fsdp_ticket ticket;

	if (geteuid() != 0)
		cr_skip_test("only root can be two users");
	cr_assert(zero(int, chmod(daemon_.dir, 0755)));
	(void)pass_on(0644, 2, &ticket);
	cr_assert(zero(int, seteuid(61001)));
	reader = connect_to(&daemon_, 0);
	cr_assert(zero(int, seteuid(0)));
	cr_assert(eq(int, fsdp_ticket_redeem_mut(reader, &ticket, 1, &got),
		     -EACCES));
	cr_assert(ne(ptr, strstr(fsdp_error(), "read-only"), NULL), "%s",
		  fsdp_error());
	cr_assert(zero(int, fsdp_ticket_redeem(reader, &ticket, 1, &got)));
	fsdp_close(reader);
}

Test(client, a_name_that_was_removed_is_not_found_from_the_cache)
{
	const char *names[] = {"test/a", "test/b"};
	struct fsdp_tensor *tensors[2] = {NULL, NULL};

	put(client, "test/a", 1);
	put(client, "test/b", 2);
	for (int i = 0; i < 3; i++) {
		cr_assert(
			eq(int, fsdp_get(client, names, 2, NULL, tensors), 0));
		fsdp_free(tensors[0]);
		fsdp_free(tensors[1]);
	}
	cr_assert(eq(int, fsdp_remove(client, &names[1], 1), 0));
	cr_assert(eq(int, fsdp_get(client, names, 2, NULL, tensors), -ENOENT));
	cr_assert(eq(int, fsdp_get(client, names, 1, NULL, tensors), 0));
}

/* --- fork ---------------------------------------------------------------- */

static int child_status(int status)
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Check this in the child. Returns 0, or the number of the step that failed. */
static int use_in_child(struct fsdp_tensor *inherited)
{
	struct fsdp_client *mine = NULL;
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_)};

	if (fsdp_ping(client) != -ECHILD || fsdp_release(inherited) != -ECHILD)
		return 1;
	if (first_of(inherited) != 9)
		return 2;
	if (fsdp_connect(&options, &mine) < 0)
		return 3;
	if (get(mine, "test/a", 0, &tensor) < 0 || first_of(tensor) != 9)
		return 4;
	fsdp_close(client);
	if (first_of(tensor) != 9)
		return 5;
	fsdp_close(mine);
	return 0;
}

Test(client, a_forked_child_can_read_and_connect_itself)
{
	struct fsdp_client *reader = client;
	struct fsdp_client *maker = connect_to(&daemon_, 0);
	struct fsdp_tensor *tensor = NULL;
	int status = -1;
	pid_t pid;

	host_memory_only("a driver does not survive a fork");
	put(maker, "test/a", 9);
	cr_assert(eq(int, get(reader, "test/a", 0, &tensor), 0));
	pid = fork();
	if (pid == 0)
		_exit(use_in_child(tensor));
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_assert(eq(int, child_status(status), 0));
	cr_assert(eq(int, fsdp_release(tensor), 0));
	fsdp_close(maker);
}

/* Return 0 if nothing can be mapped at this address or read from it, or the
 * number of the step that failed. */
static int try_to_use(void *address)
{
	const uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
	int ends[2];

	errno = 0;
	(void)mmap((void *)((uintptr_t)address & ~mask), 1, PROT_READ,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (errno != EEXIST)
		return 1;
	if (pipe(ends) < 0 || write(ends[1], address, 1) >= 0)
		return 2;
	return errno == EFAULT ? 0 : 3;
}

/* Do the same in a child of the child. */
static int try_in_child(void *address)
{
	int status = -1, r = try_to_use(address);
	pid_t pid = r == 0 ? fork() : -1;

	if (pid == 0)
		_exit(try_to_use(address));
	if (r == 0 && waitpid(pid, &status, 0) == pid)
		r = child_status(status);
	return r;
}

Test(client, writable_memory_is_not_replaced_by_other_memory_in_a_child)
{
	struct fsdp_tensor *tensor = make(client, &VECTOR, 1);
	void *address = fsdp_data_mut(tensor);
	int status = -1;
	pid_t pid;

	host_memory_only("a driver does not survive a fork");
	pid = fork();
	if (pid == 0)
		_exit(try_in_child(address));
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_assert(eq(int, child_status(status), 0));
}

static atomic_bool is_over;

static void *ping_on(void *data)
{
	while (!atomic_load(&is_over))
		(void)fsdp_ping(data);
	return NULL;
}

/* A lock or list that another thread of the parent was changing at the moment
 * of fork() stays in that state in the child. */
Test(client, a_child_can_close_while_threads_of_its_parent_call)
{
	struct fsdp_client *busy;
	pthread_t threads[4];
	int status = 0;

	host_memory_only("a driver does not survive a fork");
#ifdef __SANITIZE_ADDRESS__
	/* The sanitizer's allocator has locks that stay taken in the child, too
	 * (tests/lib/sanitized_fork.c). Here nearly every child would find one
	 * taken. */
	cr_skip_test("a sanitizer's allocator does not survive such forks");
#endif
	busy = connect_to(&daemon_, 0);
	for (int i = 0; i < 4; i++)
		cr_assert(zero(
			int, pthread_create(&threads[i], NULL, ping_on, busy)));
	for (int i = 0; i < 1000 && status == 0; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(-fsdp_close(busy));
		cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	}
	cr_expect(zero(int, status), "%#x", status);
	atomic_store(&is_over, true);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	fsdp_close(busy);
}

/* --- many threads -------------------------------------------------------- */

struct worker {
	int index, n_failed;
};

static void *work(void *data)
{
	struct worker *it = data;
	char name[32];

	snprintf(name, sizeof(name), "test/worker%d", it->index);
	for (int i = 0; i < 50; i++) {
		struct fsdp_tensor *made = NULL, *got = NULL;

		if (memory_alloc(client, &VECTOR, 1, NULL, 0, &made) < 0 ||
		    publish(client, made, name, FSDP_REPLACE) < 0 ||
		    get(client, name, 0, &got) < 0)
			it->n_failed++;
		fsdp_free(made);
		fsdp_free(got);
	}
	return NULL;
}

Test(client, more_threads_than_recorded_replies_can_share_a_connection)
{
	struct worker workers[80] = {{0}};
	pthread_t threads[80];

	for (int i = 0; i < 80; i++) {
		workers[i].index = i;
		pthread_create(&threads[i], NULL, work, &workers[i]);
	}
	for (int i = 0; i < 80; i++) {
		pthread_join(threads[i], NULL);
		cr_assert(eq(int, workers[i].n_failed, 0));
	}
	cr_assert(eq(int, count_limbo(client), 0));
}

/* --- what is known here -------------------------------------------------- */

static int get_known(const char *name, struct fsdp_tensor **ret)
{
	struct fsdp_get_options options = {.known_only = true};

	return fsdp_get(client, &name, 1, &options, ret);
}

static int note_requests(const struct fsdp_peer *peer, void *data)
{
	*(uint64_t *)data = peer->n_requests;
	return 0;
}

/* Returns the requests of this test's session, which is the only one. The
 * status request counts, too. */
static uint64_t count_requests(void)
{
	uint64_t n = 0;

	cr_assert(zero(int, fsdp_clients(client, note_requests, &n)));
	return n;
}

Test(client, a_get_of_a_cached_name_sends_no_request)
{
	struct fsdp_tensor *tensor;
	uint64_t n;

	put(client, "test/a", 1);
	n = count_requests();
	cr_expect(eq(int, get_known("test/a", &tensor), -EAGAIN));
	cr_expect(eq(u64, count_requests(), n + 1));
	cr_assert(zero(int, get(client, "test/a", 0, &tensor)));
	fsdp_free(tensor);
	n = count_requests();
	cr_assert(zero(int, get_known("test/a", &tensor)));
	cr_expect(eq(flt, first_of(tensor), 1));
	fsdp_free(tensor);
	cr_expect(eq(u64, count_requests(), n + 1));
	put(client, "test/a", 2);
	cr_expect(eq(int, get_known("test/a", &tensor), -EAGAIN), "replaced");
}

/* --- invalid handles ----------------------------------------------------- */

#define refuses(call) cr_expect(eq(int, (call), -EINVAL), #call)

Test(client, a_null_client_is_refused_by_all_functions)
{
	struct fsdp_get_options patient = {.timeout_ms = -1};
	struct fsdp_tensor *none = NULL, *tensor, **tensors;
	struct fsdp_ticket ticket = {{0}};
	struct fsdp_pending *pending;
	struct fsdp_bundle *bundle;
	const char *name = "test/a";
	void *memory = &ticket;
	size_t n;

	refuses(fsdp_ping(NULL));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "there is no connection: the client is NULL; "
		     "fsdp_connect() makes one"));
	refuses(fsdp_alloc(NULL, &VECTOR, 1, NULL, 0, &tensor));
	refuses(fsdp_alloc_on(NULL, NULL, &VECTOR, 1, NULL, 0, &tensor));
	refuses(fsdp_share(NULL, &VECTOR, &memory, 1, NULL, &tensor));
	refuses(fsdp_publish(NULL, NULL, 1));
	refuses(fsdp_remove(NULL, &name, 1));
	refuses(fsdp_get(NULL, &name, 1, &patient, &tensor));
	refuses(fsdp_get_begin(NULL, &name, 1, &patient, &pending));
	refuses(fsdp_fd(NULL));
	refuses(fsdp_release_sync(NULL, &none, 1));
	refuses(fsdp_ticket_redeem(NULL, &ticket, 1, &tensor));
	refuses(fsdp_ticket_redeem_mut(NULL, &ticket, 1, &tensor));
	refuses(fsdp_ticket_revoke(NULL, 1));
	refuses(fsdp_bundle_begin(NULL, "m/", NULL, &bundle));
	refuses(fsdp_bundle_get(NULL, "m/", NULL, &tensors, &n));
	refuses(fsdp_bundle_get_begin(NULL, "m/", &patient, &pending));
	cr_expect(zero(int, fsdp_close(NULL)));
}

Test(client, a_null_client_is_refused_by_all_functions_of_other_headers)
{
	struct fsdp_channel_options options = {.capacity = 64};
	struct fsdp_channel *channel;
	struct fsdp_comm *comm;
	uint64_t n, size;
	char text[8], *note;

	refuses(fsdp_channel_open(NULL, "test/c", &options, FSDP_PRODUCER,
				  &channel));
	refuses(fsdp_comm_join(NULL, "test/j", 1, 0, NULL, &comm));
	refuses(fsdp_comm_remove(NULL, "test/j"));
	refuses(fsdp_collect(NULL, &n, &size));
	refuses(fsdp_trim(NULL, &n, &size));
	refuses(fsdp_evict(NULL, NULL, 1, &n, &size));
	refuses(fsdp_drain(NULL, 0));
	refuses(fsdp_undrain(NULL));
	refuses(fsdp_log_level(NULL, FSDP_LOG_INFO));
	refuses(fsdp_reload(NULL, text, sizeof(text)));
	refuses(fsdp_status(NULL, NULL, NULL, &note));
	refuses(fsdp_status_reset(NULL));
}

Test(client, a_null_client_is_refused_by_all_lists)
{
	uint64_t cursor = 0;

	refuses(fsdp_list(NULL, "", NULL, NULL));
	refuses(fsdp_list_all(NULL, NULL, NULL));
	refuses(fsdp_limbo(NULL, NULL, NULL));
	refuses(fsdp_who(NULL, "test/a", NULL, NULL));
	refuses(fsdp_who_slot(NULL, 1, 1, NULL, NULL));
	refuses(fsdp_clients(NULL, NULL, NULL));
	refuses(fsdp_tickets(NULL, NULL, NULL));
	refuses(fsdp_prefixes(NULL, NULL, NULL));
	refuses(fsdp_histograms(NULL, NULL, NULL));
	refuses(fsdp_chunks(NULL, NULL, NULL));
	refuses(fsdp_accounts(NULL, NULL, NULL));
	refuses(fsdp_watch(NULL, "", &cursor, 0, NULL, NULL));
	refuses(fsdp_config(NULL, NULL, NULL));
	refuses(fsdp_channels(NULL, NULL, NULL));
	refuses(fsdp_comms(NULL, NULL, NULL));
	refuses(fsdp_groups(NULL, NULL, NULL, NULL));
	refuses(fsdp_group_plan(NULL, "test/j", "l0", NULL, NULL));
}

Test(client, a_null_tensor_or_bundle_is_refused_by_all_functions)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_publication it = {.name = "test/a"};
	struct fsdp_tensor *none = NULL, *ret;
	struct fsdp_ticket ticket;
	const uint64_t digest = 1;
	const char *name = "m/a";
	void *map;

	refuses(fsdp_acquire(NULL));
	refuses(fsdp_hold(NULL));
	refuses(fsdp_release(NULL));
	refuses(fsdp_release_on(NULL, NULL));
	refuses(fsdp_release_sync(client, &none, 1));
	cr_expect(zero(ptr, (void *)fsdp_data(NULL)));
	cr_expect(zero(ptr, fsdp_data_mut(NULL)));
	refuses(fsdp_tensor_info(NULL, &info));
	refuses(fsdp_tensor_wait(NULL, NULL, 0));
	refuses(fsdp_tensor_check(NULL));
	refuses(fsdp_view(NULL, &VECTOR, NULL, 0, &ret));
	refuses(fsdp_private_map(NULL, &map));
	refuses(fsdp_fill(&none, 1, NULL, NULL));
	refuses(fsdp_set_digests(&none, &digest, 1));
	refuses(fsdp_copy_in(NULL, 0, &info, 1));
	refuses(fsdp_copy_out(&info, NULL, 0, 1));
	refuses(fsdp_ticket_make(NULL, 1, 1000, &ticket));
	refuses(fsdp_unshare(NULL, 0));
	refuses(fsdp_bundle_commit(NULL, NULL));
	refuses(fsdp_bundle_alloc(NULL, &name, &VECTOR, 1, &ret));
	refuses(fsdp_publish(client, &it, 1));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "publications[0].tensor: there is no tensor: the handle "
		     "is NULL"));
}

Test(client, a_released_handle_has_no_address)
{
	struct fsdp_tensor *tensor;

	put(client, "test/a", 1);
	cr_assert(zero(int, get(client, "test/a", 0, &tensor)));
	cr_assert(zero(int, fsdp_release(tensor)));
	cr_expect(zero(ptr, (void *)fsdp_data(tensor)));
	cr_assert(zero(int, fsdp_acquire(tensor)));
	cr_expect(eq(flt, first_of(tensor), 1));
	fsdp_free(tensor);
}

Test(client, a_freed_handle_is_refused)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_publication it = {.name = "test/b"};
	struct fsdp_tensor *freed, *tensors[2];
	struct fsdp_ticket ticket;

	put(client, "test/a", 1);
	cr_assert(zero(int, get(client, "test/a", 0, &freed)));
	fsdp_free(freed);
	cr_expect(eq(int, fsdp_acquire(freed), -EINVAL));
	cr_expect(eq(int, fsdp_hold(freed), -EINVAL));
	cr_expect(eq(int, fsdp_release(freed), -EINVAL));
	cr_expect(zero(ptr, (void *)fsdp_data(freed)));
	cr_expect(eq(int, fsdp_tensor_info(freed, &info), -EINVAL));
	cr_expect(eq(int, fsdp_ticket_make(freed, 1, 1000, &ticket), -EINVAL));
	it.tensor = freed;
	cr_expect(eq(int, fsdp_publish(client, &it, 1), -EINVAL));
	/* A second fsdp_free() must not add the handle to the free list again,
	 * or two tensors would get the same handle. */
	fsdp_free(freed);
	for (int i = 0; i < 2; i++)
		cr_assert(zero(int, get(client, "test/a", 0, &tensors[i])));
	cr_expect(ne(ptr, tensors[0], tensors[1]));
	cr_expect(zero(int, count_limbo(client)));
}

Test(client, the_error_for_an_invalid_spec_names_its_field)
{
	struct fsdp_spec specs[2] = {VECTOR, VECTOR};
	struct fsdp_tensor *ret[2];

	specs[1].dtype = 99;
	cr_expect(eq(int, fsdp_alloc(client, specs, 2, NULL, 0, ret), -EINVAL));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "specs[1].dtype is 99, which is not in enum fsdp_dtype"));
	specs[1] = VECTOR;
	specs[1].shape[0] = -1;
	cr_expect(eq(int, fsdp_alloc(client, specs, 2, NULL, 0, ret), -EINVAL));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "specs[1].shape[0] is -1; sizes are 0 or more"));
}
