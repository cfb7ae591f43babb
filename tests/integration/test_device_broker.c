/*
 * Tests the broker's memory on devices by raw frames, with the fake driver, and
 * kills the broker and clients. Only the broker uses a driver. The test itself
 * writes what the clients' devices would write.
 */
#include "tests/lib/actor.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/gpu.h"
#include "tests/lib/wire_device.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (INT64_C(1) << 20)

static const char CONFIG[] = "[memory]\nchunk_min = 2M\nchunk_max = 16M\n"
			     "warm_ms = 1h\ndevice_memory_max = 64M\n";

static struct daemon daemon_;
static struct wire *alice, *bob;
static struct tensor_place place;
static struct timelines mine = TIMELINES_NULL;

static void begin(void)
{
	gpu_open();
	setenv("FAKECUDA_COUNT", "1", 1);
	setenv("FAKECUDA_MEM_MB", "128", 1);
}

static void start(const char *config)
{
	const struct daemon_options options = {.is_supervised = true,
					       .config = config};

	daemon_start_with(&daemon_, &options);
	alice = wire_open(daemon_socket(&daemon_));
	bob = wire_open(daemon_socket(&daemon_));
}

/* Kill the broker, and start it again. */
static void restart(void)
{
	daemon_kill_broker(&daemon_);
	cr_assert(zero(int, wire_resume(&alice, daemon_socket(&daemon_))), "%s",
		  wire_sentence(alice));
	cr_assert(zero(int, wire_resume(&bob, daemon_socket(&daemon_))), "%s",
		  wire_sentence(bob));
}

static void end(void)
{
	timelines_close(&mine);
	wire_close(alice);
	wire_close(bob);
	daemon_stop(&daemon_);
	gpu_close();
}

TestSuite(device_broker, .init = begin, .fini = end, .timeout = 300);

static void must_alloc(struct wire *wire, const struct device_uuid *gpu,
		       int64_t size, struct tensor_place *ret)
{
	int r = wire_alloc_on(wire, gpu, size, -1, ret);

	cr_assert(zero(int, r), "%s", wire_sentence(wire));
}

/* Returns the inode of the fake driver's file for a chunk. */
static ino_t chunk_inode(struct wire *wire, uint32_t chunk)
{
	int fd = wire_chunk(wire, chunk);
	struct stat status;

	cr_assert(ge(int, fd, 0), "%s", wire_sentence(wire));
	cr_assert(zero(int, fstat(fd, &status)));
	close(fd);
	return status.st_ino;
}

static bool log_says(const char *part)
{
	char path[96], line[1024];
	bool is_found = false;
	FILE *file;

	snprintf(path, sizeof(path), "%s/log", daemon_.dir);
	file = fopen(path, "re");
	cr_assert(file != NULL);
	while (!is_found && fgets(line, sizeof(line), file))
		is_found = strstr(line, part);
	fclose(file);
	return is_found;
}

/* --- the driver ---------------------------------------------------------- */

/* Returns whether the broker may make this call of the driver. None of the
 * allowed calls needs a context. */
static bool is_allowed(const char *call)
{
	static const char *const names[] = {
		"Init",
		"DriverGetVersion",
		"DeviceGet",
		"DeviceGetCount",
		"DeviceGetUuid",
		"DeviceGetName",
		"DeviceGetAttribute",
		"DeviceTotalMem",
		"MemGetAllocationGranularity",
		"MemCreate",
		"MemExportToShareableHandle",
		"MemImportFromShareableHandle",
		"MemGetAllocationPropertiesFromHandle",
		"MemRelease",
		"GetErrorName",
		"GetErrorString",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (strcmp(call, names[i]) == 0)
			return true;
	}
	return false;
}

static void expect_no_context(pid_t broker)
{
	char path[96], line[128], name[64];
	FILE *file;
	long n;

	cr_expect(zero(i64, gpu_count(broker, "contexts")));
	cr_expect(gt(i64, gpu_count(broker, "Init"), 0));
	snprintf(path, sizeof(path), "%s/calls.%d", getenv("FAKECUDA_DIR"),
		 (int)broker);
	file = fopen(path, "re");
	cr_assert(file != NULL);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%63s %ld", name, &n) == 2 && n > 0)
			cr_expect(is_allowed(name), "%s", name);
	}
	fclose(file);
}

Test(device_broker, the_broker_never_has_a_context_even_after_a_restart)
{
	struct device_uuid gpu;
	pid_t first;

	need_fake("its calls are counted");
	start(CONFIG);
	gpu = wire_gpu(alice, 1);
	must_alloc(alice, &gpu, MIB, &place);
	cr_assert(zero(int, wire_publish(alice, &place.ref, "a", 0)));
	first = daemon_broker_pid(&daemon_);
	cr_expect(eq(i64, gpu_count(first, "MemCreate"), 1));
	expect_no_context(first);
	restart();
	cr_expect(zero(int, wire_get(bob, "a", &place)));
	must_alloc(alice, &gpu, 3 * MIB, &place);
	expect_no_context(daemon_broker_pid(&daemon_));
}

Test(device_broker, an_mps_server_in_the_environment_is_ignored)
{
	char control[96];
	FILE *file;

	need_fake("its calls are counted");
	/* A server of MPS leaves this file in its directory. */
	snprintf(control, sizeof(control), "%s/control",
		 getenv("FAKECUDA_DIR"));
	file = fopen(control, "we");
	cr_assert(file != NULL);
	fclose(file);
	setenv("CUDA_MPS_PIPE_DIRECTORY", getenv("FAKECUDA_DIR"), 1);
	start(CONFIG);
	(void)wire_gpu(alice, 0);
	cr_expect(log_says("fsdpd ignores CUDA_MPS_PIPE_DIRECTORY"));
	cr_expect(zero(i64,
		       gpu_count(daemon_broker_pid(&daemon_), "mps_clients")));
}

Test(device_broker, without_a_driver_the_status_says_so_and_host_memory_works)
{
	const struct device_uuid stranger = {{1}};

	need_fake("it must be loaded from another file");
	setenv("FSDP_LIBCUDA", "/nowhere/libcuda.so.1", 1);
	start(CONFIG);
	cr_expect(ne(ptr, strstr(wire_note(alice), "host memory only"), NULL),
		  "%s", wire_note(alice));
	cr_expect(
		eq(int, wire_alloc_on(alice, &stranger, 1, -1, NULL), -ENODEV));
	cr_expect(zero(u64, wire_status(alice, "devices")));
	cr_expect(zero(int, wire_put(alice, "a", 100, NULL, NULL)));
}

Test(device_broker, the_status_warns_that_a_fake_driver_is_in_use)
{
	need_fake("it must be another machine");
	start(CONFIG);
	cr_expect(ne(ptr, strstr(wire_note(alice), "FAKE of the CUDA driver"),
		     NULL));
	cr_expect(eq(u64, wire_status(alice, "driver_is_fake"), 1));
}

/* --- restarts ------------------------------------------------------------ */

Test(device_broker, a_death_of_the_broker_loses_no_memory_of_devices)
{
	struct device_uuid gpu;
	ino_t inode;

	start(CONFIG);
	gpu = wire_gpu(alice, 0);
	must_alloc(alice, &gpu, MIB, &place);
	cr_assert(zero(int, wire_publish(alice, &place.ref, "a", 0)));
	inode = chunk_inode(alice, place.chunk);
	restart();
	cr_assert(zero(int, wire_get(bob, "a", &place)));
	cr_expect(eq(u64, chunk_inode(bob, place.chunk), inode));
	cr_expect(
		eq(u64, wire_status(alice, "own_device_bytes"), (uint64_t)MIB));
	/* Freed memory is used again, in the same chunk. */
	cr_assert(zero(int, wire_remove(alice, "a")));
	cr_assert(zero(int, wire_release(alice, &place.ref)));
	cr_assert(zero(int, wire_release(bob, &place.ref)));
	cr_expect(zero(u64, wire_status(alice, "own_device_bytes")));
	must_alloc(alice, &gpu, 2 * MIB, &place);
	cr_expect(eq(u64, chunk_inode(alice, place.chunk), inode));
}

Test(device_broker, a_driver_that_is_missing_after_a_restart_loses_no_tensor)
{
	char link[96];
	struct tensor_place host, got;
	struct device_uuid gpu;

	need_fake("it must be loaded from another file");
	snprintf(link, sizeof(link), "%s/driver", getenv("FAKECUDA_DIR"));
	cr_assert(zero(int, symlink(getenv("FSDP_LIBCUDA"), link)));
	setenv("FSDP_LIBCUDA", link, 1);
	start(CONFIG);
	gpu = wire_gpu(alice, 0);
	must_alloc(alice, &gpu, MIB, &place);
	cr_assert(zero(int, wire_publish(alice, &place.ref, "device", 0)));
	cr_assert(zero(int, wire_put(alice, "host", 100, NULL, &host)));
	cr_assert(zero(int, unlink(link)));
	restart();
	cr_expect(ne(ptr, strstr(wire_note(alice), "host memory only"), NULL));
	cr_expect(zero(int, wire_get(bob, "host", &got)));
	cr_expect(zero(int, wire_get(bob, "device", &got)));
	cr_expect(eq(u32, got.chunk, place.chunk));
	(void)chunk_inode(bob, got.chunk);
	cr_expect(eq(int, wire_alloc_on(alice, &gpu, 1, -1, NULL), -ENODEV));
	cr_expect(zero(int, wire_remove(alice, "device")));
	cr_expect(zero(int, wire_release(alice, &place.ref)));
	cr_expect(zero(int, wire_release(bob, &got.ref)));
	cr_expect(zero(u64, wire_status(alice, "own_device_bytes")));
}

Test(device_broker, a_bundle_on_a_device_outlives_the_broker)
{
	struct alloc_item item = {
		.type = {.dtype = DTYPE_U8, .n_dims = 1, .shape = {MIB}},
		.name = "m/w",
	};
	struct request request = {.kind = MESSAGE_BUNDLE_BEGIN};
	uint64_t bundle;

	start(CONFIG);
	request.bundle_begin = (struct bundle_begin_request){
		.name = "m/",
		.access = {.gid = GID_DEFAULT, .mode = 0644},
		.size_hint = (uint64_t)MIB,
		.device = wire_gpu(alice, 0),
	};
	cr_assert(zero(int, wire_call(alice, &request)));
	bundle = alice->reply.bundle.bundle;
	restart();
	tensor_type_contiguous(&item.type);
	request = (struct request){
		.kind = MESSAGE_ALLOC,
		.alloc = {.bundle = bundle, .n_items = 1, .items = &item},
	};
	cr_assert(zero(int, wire_call(alice, &request)), "%s",
		  wire_sentence(alice));
	cr_expect(zero(int, device_uuid_is_host(
				    &alice->reply.places.chunks[0].device)));
	request = (struct request){.kind = MESSAGE_BUNDLE_COMMIT,
				   .bundle_commit = {bundle}};
	cr_assert(zero(int, wire_call(alice, &request)), "%s",
		  wire_sentence(alice));
	restart();
	request = (struct request){.kind = MESSAGE_BUNDLE_GET,
				   .bundle_get = {.name = "m/"}};
	cr_assert(zero(int, wire_call(bob, &request)), "%s",
		  wire_sentence(bob));
	cr_assert(eq(u32, bob->reply.bundle_get.n_chunks, 1));
	cr_expect(not(bob->reply.bundle_get.chunks[0].is_writable));
}

/* A broker that was started again loads the driver, and bob's request may come
 * before it has done so. */
Test(device_broker, a_wait_for_a_loader_outlasts_the_loading_of_the_driver)
{
	struct request request = {.kind = MESSAGE_BUNDLE_BEGIN};
	uint64_t bundle;

	start(CONFIG);
	request.bundle_begin = (struct bundle_begin_request){
		.name = "m/",
		.access = {.gid = GID_DEFAULT},
		.flags = PUBLISH_ONCE,
		.device = wire_gpu(alice, 0),
		.timeout_ms = 3600 * 1000,
	};
	cr_assert(zero(int, wire_call(alice, &request)));
	bundle = alice->reply.bundle.bundle;
	restart();
	wire_send(bob, &request);
	wire_wait_status(alice, "driver_loading", 0);
	request = (struct request){.kind = MESSAGE_BUNDLE_ABORT,
				   .bundle_abort = {bundle}};
	cr_assert(zero(int, wire_call(alice, &request)), "%s",
		  wire_sentence(alice));
	cr_assert(eq(int, wire_receive(bob), FRAME_OK));
	cr_expect(zero(int, bob->frame.code), "%s", wire_sentence(bob));
}

/* --- fences -------------------------------------------------------------- */

Test(device_broker, the_broker_waits_for_a_fence_across_a_restart)
{
	struct device_uuid gpu;

	start(CONFIG);
	gpu = wire_gpu(alice, 0);
	must_alloc(alice, &gpu, MIB, &place);
	cr_assert(zero(int, wire_timelines(alice, 0, NULL, true, &mine)));
	cr_assert(zero(int, wire_publish(alice, &place.ref, "", 0)));
	wire_release_at(alice, &place.ref, 1, 5);
	wire_wait_status(alice, "slots_fenced", 1);
	restart();
	cr_expect(eq(u64, wire_status(alice, "timelines"), 1));
	wire_wait_status(alice, "slots_fenced", 1);
	cr_expect(eq(u64, wire_status(alice, "slots"), 1));
	wire_reach(&mine, 1, 5);
	wire_wait_status(alice, "slots", 0);
	wire_wait_status(alice, "slots_fenced", 0);
}

Test(device_broker, the_file_of_timelines_is_the_same_after_a_restart)
{
	struct timelines again = TIMELINES_NULL;
	struct stat before, after;

	start(CONFIG);
	cr_assert(zero(int, wire_timelines(alice, 0, NULL, true, &mine)));
	cr_assert(zero(int, fstat(mine.fd, &before)));
	restart();
	cr_assert(zero(int, wire_timelines(alice, 0, NULL, true, &again)));
	cr_assert(zero(int, fstat(again.fd, &after)));
	cr_expect(eq(u64, before.st_ino, after.st_ino));
	timelines_close(&again);
}

Test(device_broker, an_allocation_waits_for_memory_that_devices_still_read)
{
	const struct request status = {.kind = MESSAGE_STATUS};
	struct device_uuid gpu;

	start(CONFIG);
	gpu = wire_gpu(alice, 0);
	must_alloc(alice, &gpu, 60 * MIB, &place);
	cr_assert(zero(int, wire_timelines(alice, 0, NULL, true, &mine)));
	wire_release_at(alice, &place.ref, 2, 1);
	wire_wait_status(alice, "slots_fenced", 1);
	cr_expect(
		eq(int, wire_alloc_on(bob, &gpu, 60 * MIB, 0, NULL), -ENOMEM));
	{
		struct alloc_item item = {
			.type = {.dtype = DTYPE_U8,
				 .n_dims = 1,
				 .shape = {60 * MIB}},
			.name = "",
		};
		struct request request = {
			.kind = MESSAGE_ALLOC,
			.alloc = {.access = {.gid = GID_DEFAULT},
				  .timeout_ms = -1,
				  .n_items = 1,
				  .items = &item,
				  .device = gpu},
		};

		tensor_type_contiguous(&item.type);
		wire_send(bob, &request);
	}
	wire_wait_status(alice, "waiters", 1);
	wire_reach(&mine, 2, 1);
	cr_assert(eq(int, wire_receive(bob), FRAME_OK));
	cr_expect(zero(int, bob->frame.code), "%s", wire_sentence(bob));
	cr_expect(zero(int, wire_call(bob, &status)));
}

/* --- death of a writer --------------------------------------------------- */

static struct {
	struct actor actor;
	struct wire *wire;
	struct timelines timelines;
} writer;

/* In the writer, publish one tensor that is written, and one that is never
 * written. */
static int publish_both(void)
{
	struct tensor_place done, late;
	struct device_uuid gpu;
	int r;

	writer.wire = wire_open(daemon_socket(&daemon_));
	gpu = wire_gpu(writer.wire, 0);
	r = wire_timelines(writer.wire, 0, NULL, true, &writer.timelines);
	if (r == 0)
		r = wire_alloc_on(writer.wire, &gpu, 100, -1, &done);
	if (r == 0)
		r = wire_alloc_on(writer.wire, &gpu, 100, -1, &late);
	if (r == 0)
		r = wire_publish_at(writer.wire, &done.ref, "done", 1, 1);
	if (r == 0)
		r = wire_publish_at(writer.wire, &late.ref, "late", 1, 2);
	wire_reach(&writer.timelines, 1, 1);
	return r;
}

static void get_late(struct timelines *ret)
{
	cr_assert(zero(int, wire_get(bob, "late", &place)));
	cr_assert(eq(u64, place.fence.value, 2));
	cr_assert(not(place.is_tainted));
	cr_assert(zero(int, wire_timelines(bob, place.fence.session, &place.ref,
					   false, ret)),
		  "%s", wire_sentence(bob));
}

static void expect_taint(const struct timelines *theirs)
{
	uint64_t word;

	/* The death lets the reader's wait end, and the reader then sees the
	 * taint. */
	while (!timeline_has_reached(timelines_load(theirs, 1), 2))
		usleep(1000);
	word = wire_word(bob, place.ref.slot);
	cr_expect(table_word_is_tainted(word));
	cr_expect(eq(int, table_word_state(word), SLOT_PUBLISHED));
	cr_assert(zero(int, wire_get(bob, "late", &place)));
	cr_expect(place.is_tainted);
	cr_expect(zero(u64, place.fence.session));
	cr_assert(zero(int, wire_get(bob, "done", &place)));
	cr_expect(not(place.is_tainted));
	cr_expect(eq(u64, wire_status(bob, "tainted"), 1));
	cr_expect(zero(u64, wire_status(bob, "timelines")));
}

Test(device_broker, a_writer_that_is_killed_taints_its_unfinished_tensors)
{
	struct timelines theirs = TIMELINES_NULL;

	start(CONFIG);
	actor_start(&writer.actor, NULL);
	cr_assert(zero(int, actor_run(&writer.actor, publish_both)));
	get_late(&theirs);
	actor_kill(&writer.actor);
	expect_taint(&theirs);
	timelines_close(&theirs);
}

Test(device_broker, a_writer_that_dies_without_a_broker_taints_them_as_well)
{
	struct timelines theirs = TIMELINES_NULL;
	pid_t broker;

	start(CONFIG);
	actor_start(&writer.actor, NULL);
	cr_assert(zero(int, actor_run(&writer.actor, publish_both)));
	get_late(&theirs);
	broker = daemon_broker_pid(&daemon_);
	/* Neither process sees that the other has ended. */
	cr_assert(zero(int, kill(broker, SIGSTOP)));
	actor_kill(&writer.actor);
	cr_assert(zero(int, kill(broker, SIGKILL)));
	daemon_wait_death(&daemon_, broker);
	cr_assert(zero(int, wire_resume(&bob, daemon_socket(&daemon_))));
	cr_assert(zero(int, wire_resume(&alice, daemon_socket(&daemon_))));
	expect_taint(&theirs);
	timelines_close(&theirs);
}

/* --- quarantine ---------------------------------------------------------- */

#define QUARANTINE(time)                                                       \
	"[memory]\nchunk_min = 2M\nchunk_max = 16M\nwarm_ms = 1h\n"            \
	"device_memory_max = 64M\ndevice_quarantine_ms = " time "\n"

/* In an actor, publish host memory, which needs no quarantine. */
static int publish_on_host(void)
{
	writer.wire = wire_open(daemon_socket(&daemon_));
	return wire_put(writer.wire, "host", 100, NULL, NULL);
}

static void expect_nothing_ended(const struct timelines *theirs)
{
	cr_expect(eq(u64, timelines_load(theirs, 1), 1));
	cr_expect(not(table_word_is_tainted(wire_word(bob, place.ref.slot))));
	cr_expect(zero(u64, wire_status(bob, "tainted")));
	cr_expect(eq(u64, wire_status(bob, "sessions"), 3));
}

Test(device_broker, in_quarantine_dead_sessions_keep_their_memory)
{
	struct timelines theirs = TIMELINES_NULL;
	struct actor other;

	start(QUARANTINE("1h"));
	actor_start(&writer.actor, NULL);
	actor_start(&other, NULL);
	cr_assert(zero(int, actor_run(&writer.actor, publish_both)));
	get_late(&theirs);
	actor_kill(&writer.actor);
	wire_wait_status(bob, "dead_sessions", 1);
	expect_nothing_ended(&theirs);
	/* A session without memory on a device ends at once. */
	cr_assert(zero(int, actor_run(&other, publish_on_host)));
	actor_kill(&other);
	wire_wait_status(bob, "dead_sessions", 2);
	wire_wait_status(bob, "sessions", 3);
	/* The next broker does not know when the quarantine began. */
	restart();
	expect_nothing_ended(&theirs);
	timelines_close(&theirs);
}

Test(device_broker, after_the_quarantine_dead_sessions_end)
{
	struct timelines theirs = TIMELINES_NULL;

	start(QUARANTINE("20ms"));
	actor_start(&writer.actor, NULL);
	cr_assert(zero(int, actor_run(&writer.actor, publish_both)));
	get_late(&theirs);
	actor_kill(&writer.actor);
	expect_taint(&theirs);
	wire_wait_status(bob, "sessions", 2);
	timelines_close(&theirs);
}

Test(device_broker, a_tensor_that_is_finished_in_quarantine_is_not_tainted)
{
	struct timelines theirs = TIMELINES_NULL;

	start(QUARANTINE("1h"));
	actor_start(&writer.actor, NULL);
	cr_assert(zero(int, actor_run(&writer.actor, publish_both)));
	get_late(&theirs);
	timelines_close(&theirs);
	cr_assert(zero(int, wire_timelines(bob, place.fence.session, &place.ref,
					   true, &theirs)));
	actor_kill(&writer.actor);
	wire_wait_status(bob, "dead_sessions", 1);
	/* A kernel that runs on after its process has died writes this. */
	wire_reach(&theirs, 1, 2);
	cr_assert(zero(int, wire_get(bob, "late", &place)));
	cr_expect(zero(u64, place.fence.session));
	cr_expect(not(place.is_tainted));
	timelines_close(&theirs);
}

#ifdef FSDP_TEST_POINTS
/* The broker dies while it cleans up after the writer. The next broker must do
 * the rest. */
Test(device_broker,
     an_interrupted_end_of_a_session_is_completed_by_the_next_broker)
{
	static const char *const points[] = {"ready_fence.ended",
					     "timeline_file.poisoned"};
	char token[96];

	need_fake("it must be another machine");
	for (size_t i = 0; i < 2; i++) {
		struct timelines theirs = TIMELINES_NULL;

		snprintf(token, sizeof(token), "%s/token",
			 getenv("FAKECUDA_DIR"));
		setenv("FSDP_KILL_AT", points[i], 1);
		setenv("FSDP_KILL_TOKEN", token, 1);
		start(CONFIG);
		actor_start(&writer.actor, NULL);
		cr_assert(zero(int, actor_run(&writer.actor, publish_both)));
		get_late(&theirs);
		fclose(fopen(token, "we"));
		{
			pid_t broker = daemon_broker_pid(&daemon_);

			actor_kill(&writer.actor);
			daemon_wait_death(&daemon_, broker);
		}
		cr_assert(
			zero(int, wire_resume(&bob, daemon_socket(&daemon_))));
		while (!timeline_has_reached(timelines_load(&theirs, 1), 2))
			usleep(1000);
		cr_assert(zero(int, wire_get(bob, "late", &place)));
		cr_expect(place.is_tainted, "%s", points[i]);
		cr_assert(zero(int, wire_get(bob, "done", &place)));
		cr_expect(not(place.is_tainted), "%s", points[i]);
		timelines_close(&theirs);
		if (i == 1)
			break;
		wire_close(alice);
		wire_close(bob);
		daemon_stop(&daemon_);
	}
}
#endif

/* --- users --------------------------------------------------------------- */

static struct {
	struct slot_ref ref;
	uint64_t session;
} * shared;

static int get_as_other(void)
{
	const struct request request = {
		.kind = MESSAGE_GET,
		.get = {.n_names = 1,
			.names = (const char *[]){"a"},
			.is_trust_set = true},
	};
	struct timelines theirs = TIMELINES_NULL;
	struct wire *wire = wire_open(daemon_socket(&daemon_));
	int r = wire_call(wire, &request);

	/* Only the same user gets it writable. */
	if (r == 0 && wire_timelines(wire, shared->session, &shared->ref, true,
				     &theirs) != -EACCES)
		r = -EBADMSG;
	if (r == 0)
		r = wire_timelines(wire, shared->session, &shared->ref, false,
				   &theirs);
	/* The descriptor is read-only, and opening the file again does not make
	 * it writable. */
	if (r == 0 && mmap(NULL, TIMELINE_SIZE, PROT_WRITE, MAP_SHARED,
			   theirs.fd, 0) != MAP_FAILED)
		r = -EBADF;
	timelines_close(&theirs);
	wire_close(wire);
	return r;
}

Test(device_broker, another_user_gets_timelines_read_only)
{
	const struct identity identity = {.uid = 12345, .gid = 12345};
	struct actor other = {0};
	struct device_uuid gpu;

	if (!actor_may_be_others())
		cr_skip_test("needs root, to be two users");
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	start(CONFIG);
	cr_assert(zero(int, chmod(daemon_.dir, 0755)));
	gpu = wire_gpu(alice, 0);
	must_alloc(alice, &gpu, 100, &place);
	cr_assert(zero(int, wire_timelines(alice, 0, NULL, true, &mine)));
	cr_assert(zero(int, wire_publish_at(alice, &place.ref, "a", 1, 1)));
	shared->ref = place.ref;
	shared->session = alice->session;
	actor_start(&other, &identity);
	cr_expect(zero(int, actor_run(&other, get_as_other)));
	actor_kill(&other);
}
