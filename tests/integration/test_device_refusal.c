/*
 * Tests the errors of calls that devices cannot do, from a missing driver to
 * streams of other processes. Host memory works in all cases.
 */
#include "client/fsdp.h"
#include "tests/lib/actor.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/device.h"
#include "tests/lib/gpu.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct fsdp_spec BYTES = {FSDP_U8, 1, {4096}};

static struct daemon daemon_;
static struct fsdp_client *client;

static void open_client(const char *socket)
{
	struct fsdp_connect_options options = {.path = socket};

	must(fsdp_connect(&options, &client) == 0);
}

static void start(void)
{
	daemon_start(&daemon_);
	open_client(daemon_socket(&daemon_));
}

static void begin(void)
{
	gpu_open();
}

static void end(void)
{
	fsdp_close(client);
	daemon_stop(&daemon_);
	gpu_close();
}

TestSuite(device_refusal, .init = begin, .fini = end, .timeout = 300);

static int alloc_on(const struct fsdp_device *device, struct fsdp_tensor **ret)
{
	*ret = NULL;
	return fsdp_alloc_on(client, device, &BYTES, 1, NULL, 0, ret);
}

static bool says(const char *part)
{
	return strstr(fsdp_error(), part) != NULL;
}

/* Returns whether host memory works. It must always work. */
static bool host_works(void)
{
	struct fsdp_publication it = {.name = "t/host"};
	struct fsdp_tensor *tensor = NULL;
	bool works;

	if (alloc_on(NULL, &it.tensor) < 0)
		return false;
	memset(fsdp_data_mut(it.tensor), 7, 4096);
	works = fsdp_publish(client, &it, 1) == 0 &&
		fsdp_get(client, &it.name, 1, NULL, &tensor) == 0 &&
		is_filled(fsdp_data(tensor), 4096, 7);
	fsdp_free(tensor);
	fsdp_free(it.tensor);
	return works && fsdp_remove(client, &it.name, 1) == 0;
}

/* Returns a device of the fake driver without asking a driver. */
static struct fsdp_device some_device(void)
{
	struct fsdp_device device;

	must(fsdp_device_parse("GPU-00000000-0000-0000-0000-000000000001",
			       &device) == 0);
	return device;
}

static int note_nothing(const struct fsdp_device_entry *entry, void *data)
{
	(void)entry, (void)data;
	return 0;
}

/* --- the driver ---------------------------------------------------------- */

Test(device_refusal, without_a_driver_host_memory_can_be_used)
{
	struct fsdp_device device = some_device();
	struct fsdp_tensor *tensor;

	setenv("FSDP_LIBCUDA", "/nowhere/libcuda.so.1", 1);
	start();
	cr_expect(eq(int, alloc_on(&device, &tensor), -ENODEV));
	cr_expect(says("/nowhere/libcuda.so.1"), "%s", fsdp_error());
	cr_expect(eq(int, fsdp_devices(note_nothing, NULL), -ENODEV));
	cr_expect(host_works());
}

Test(device_refusal, host_memory_needs_no_driver)
{
	start();
	cr_expect(host_works());
	cr_expect(not(gpu_is_loaded()));
	cr_expect(zero(int, fsdp_devices(note_nothing, NULL)));
	cr_expect(gpu_is_loaded());
}

Test(device_refusal, the_error_names_a_driver_that_is_too_old)
{
	struct fsdp_device device = some_device();
	struct fsdp_tensor *tensor;

	setenv("FAKECUDA_DRIVER_VERSION", "10020", 1);
	start();
	cr_expect(eq(int, alloc_on(&device, &tensor), -ENOSYS));
	cr_expect(says("10.2"), "%s", fsdp_error());
	cr_expect(host_works());
}

/* --- devices ------------------------------------------------------------- */

Test(device_refusal, an_unknown_device_is_refused_with_a_list_of_known_ones)
{
	struct fsdp_device device, mine;
	struct fsdp_tensor *tensor;
	char text[FSDP_DEVICE_TEXT];

	start();
	must(fsdp_device_parse("GPU-deadbeef-0000-0000-0000-000000000000",
			       &device) == 0);
	cr_expect(eq(int, alloc_on(&device, &tensor), -ENODEV));
	cr_expect(says("GPU-deadbeef"), "%s", fsdp_error());
	mine = gpu_name(0);
	fsdp_device_format(&mine, text);
	cr_expect(says(text), "%s", fsdp_error());
	cr_expect(host_works());
}

Test(device_refusal, an_invalid_name_of_a_device_is_refused)
{
	static const char *const bad[] = {
		"",
		"GPU-",
		"0",
		"cuda:0",
		"gpu-00000000-0000-0000-0000-00000000000",
		"GPU-00000000-0000-0000-0000-0000000000000",
		"GPU-0000000g-0000-0000-0000-000000000000",
		"HOST",
		"MIG-0000",
	};
	struct fsdp_device device;

	start();
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		cr_expect(eq(int, fsdp_device_parse(bad[i], &device), -EINVAL),
			  "%s", bad[i]);
		cr_expect(says("GPU-"), "%s", fsdp_error());
	}
	cr_expect(not(gpu_is_loaded()));
}

struct seeing {
	char socket[80], sentence[256];
	struct fsdp_device device;
};

static struct seeing *seeing;

/* Get the tensor in a process that sees the second device only. */
static int get_invisible(void)
{
	const char *names[] = {"t/first", "t/second"};
	struct fsdp_tensor *tensors[2] = {NULL};
	uint8_t byte;
	int r;

	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	open_client(seeing->socket);
	r = fsdp_get(client, names, 1, NULL, tensors);
	snprintf(seeing->sentence, sizeof(seeing->sentence), "%s",
		 fsdp_error());
	must(fsdp_get(client, names, 2, NULL, tensors) == r);
	must(alloc_on(&seeing->device, tensors) == r);
	must(fsdp_get(client, names + 1, 1, NULL, tensors) == 0);
	must(fsdp_copy_out(&byte, tensors[0], 0, 1) == 0 && byte == 2);
	fsdp_free(tensors[0]);
	must(host_works());
	return r;
}

static void put(const struct fsdp_device *device, const char *name,
		uint8_t value)
{
	struct fsdp_publication it = {.name = name};
	uint8_t bytes[4096];

	memset(bytes, value, sizeof(bytes));
	must(alloc_on(device, &it.tensor) == 0);
	must(fsdp_copy_in(it.tensor, 0, bytes, sizeof(bytes)) == 0);
	must(fsdp_publish(client, &it, 1) == 0);
	fsdp_free(it.tensor);
}

Test(device_refusal, the_error_names_a_device_that_is_hidden_from_the_process)
{
	struct fsdp_device first, second;
	struct actor blind;
	char text[FSDP_DEVICE_TEXT];

	start();
	seeing = shared_memory(sizeof(*seeing));
	strcpy(seeing->socket, daemon_socket(&daemon_));
	actor_start(&blind, NULL);
	if (n_gpus() < 2)
		cr_skip_test("needs two devices");
	first = seeing->device = gpu_name(0);
	second = gpu_name(1);
	put(&first, "t/first", 1);
	put(&second, "t/second", 2);
	cr_expect(eq(int, actor_run(&blind, get_invisible), -ENODEV));
	fsdp_device_format(&first, text);
	cr_expect(ne(ptr, strstr(seeing->sentence, text), NULL), "%s",
		  seeing->sentence);
	cr_expect(
		ne(ptr, strstr(seeing->sentence, "CUDA_VISIBLE_DEVICES"), NULL),
		"%s", seeing->sentence);
	actor_kill(&blind);
}

/* Make a context in this process, so that no other process can use a device in
 * exclusive mode. */
static int occupy(void)
{
	(void)stream_make(gpu_nth(0));
	return 0;
}

Test(device_refusal, a_device_in_exclusive_mode_is_refused)
{
	struct fsdp_device device;
	struct fsdp_tensor *tensor;
	struct actor first;

	setenv("FAKECUDA_COMPUTE_MODE", "exclusive_process", 1);
	start();
	actor_start(&first, NULL);
	must(actor_run(&first, occupy) == 0);
	device = gpu_name(0);
	cr_expect(eq(int, alloc_on(&device, &tensor), -EBUSY));
	cr_expect(says("nvidia-smi"), "%s", fsdp_error());
	cr_expect(host_works());
	actor_kill(&first);
}

Test(device_refusal, an_allocation_on_a_full_device_is_refused)
{
	const struct fsdp_spec huge = {FSDP_U8, 1, {INT64_C(3) << 30}};
	const struct fsdp_spec large = {FSDP_U8, 1, {INT64_C(48) << 20}};
	struct fsdp_tensor *tensors[2] = {NULL};
	struct fsdp_device device;

	setenv("FAKECUDA_MEM_MB", "64", 1);
	start();
	device = gpu_name(0);
	cr_expect(
		eq(int,
		   fsdp_alloc_on(client, &device, &huge, 1, NULL, -1, tensors),
		   -ENOMEM));
	cr_expect(ne(str, (char *)fsdp_error(), ""));
	cr_assert(zero(int, fsdp_alloc_on(client, &device, &large, 1, NULL, 0,
					  tensors)),
		  "%s", fsdp_error());
	cr_expect(eq(
		int,
		fsdp_alloc_on(client, &device, &large, 1, NULL, 0, tensors + 1),
		-ENOMEM));
	cr_expect(host_works());
	fsdp_free(tensors[0]);
	cr_expect(zero(int, fsdp_alloc_on(client, &device, &large, 1, NULL, -1,
					  tensors)),
		  "%s", fsdp_error());
	fsdp_free(tensors[0]);
}

/* --- streams ------------------------------------------------------------- */

static int publish_on(struct fsdp_tensor *tensor, const char *name,
		      void *stream)
{
	struct fsdp_publication it = {
		.tensor = tensor, .name = name, .stream = stream};

	return fsdp_publish(client, &it, 1);
}

static int get_on(const char *name, void *stream)
{
	const struct fsdp_get_options options = {.stream = stream};
	struct fsdp_tensor *tensor = NULL;
	int r = fsdp_get(client, &name, 1, &options, &tensor);

	fsdp_free(tensor);
	return r;
}

Test(device_refusal, a_stream_of_another_device_is_refused)
{
	struct fsdp_tensor *tensor;
	struct fsdp_device device;
	CUstream foreign;

	start();
	if (n_gpus() < 2)
		cr_skip_test("needs two devices");
	device = gpu_name(0);
	foreign = stream_make(gpu_nth(1));
	must(alloc_on(&device, &tensor) == 0);
	cr_expect(eq(int, publish_on(tensor, "t/a", foreign), -EINVAL));
	cr_expect(says("stream"), "%s", fsdp_error());
	cr_expect(eq(int, get_on("t/a", NULL), -ENOENT), "nothing was done");
	cr_expect(zero(int, publish_on(tensor, "t/a", NULL)));
	cr_expect(eq(int, get_on("t/a", foreign), -EINVAL));
	cr_expect(eq(int, fsdp_tensor_wait(tensor, foreign, 0), -EINVAL));
	cr_expect(eq(int, fsdp_release_on(tensor, foreign), -EINVAL));
	fsdp_free(tensor);
}

Test(device_refusal, streams_are_refused_for_host_memory)
{
	struct fsdp_tensor *tensor;
	CUstream stream;

	start();
	stream = stream_make(gpu_nth(0));
	must(alloc_on(NULL, &tensor) == 0);
	cr_expect(eq(int, publish_on(tensor, "t/a", stream), -EINVAL));
	cr_expect(says("host memory"), "%s", fsdp_error());
	cr_expect(zero(int, publish_on(tensor, "t/a", NULL)));
	cr_expect(eq(int, fsdp_release_on(tensor, stream), -EINVAL));
	cr_expect(zero(int, get_on("t/a", stream)), "it is written");
	cr_expect(zero(int, fsdp_tensor_wait(tensor, stream, 0)));
	cr_expect(zero(int, fsdp_tensor_check(tensor)));
	fsdp_free(tensor);
}

Test(device_refusal, a_wait_for_a_tensor_that_is_not_held_is_refused)
{
	struct fsdp_device device;
	struct fsdp_tensor *tensor;
	CUstream stream;

	start();
	device = gpu_name(0);
	stream = stream_make(gpu_nth(0));
	must(alloc_on(&device, &tensor) == 0);
	must(fsdp_release(tensor) == 0);
	cr_expect(eq(int, fsdp_tensor_wait(tensor, stream, 0), -EINVAL));
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EINVAL));
	cr_expect(eq(int, fsdp_release_on(tensor, stream), -EINVAL));
	cr_expect(eq(int, fsdp_release_on(tensor, NULL), -EINVAL));
	fsdp_free(tensor);
}

Test(device_refusal, without_timelines_and_events_streams_are_refused)
{
	struct fsdp_device device;
	struct fsdp_tensor *tensor;
	CUstream stream;

	setenv("FAKECUDA_WITHOUT", "memops,ipc_events", 1);
	start();
	device = gpu_name(0);
	stream = stream_make(gpu_nth(0));
	must(alloc_on(&device, &tensor) == 0);
	cr_expect(eq(int, publish_on(tensor, "t/a", stream), -EOPNOTSUPP));
	cr_expect(ne(str, (char *)fsdp_error(), ""));
	cr_expect(zero(int, publish_on(tensor, "t/a", NULL)));
	cr_expect(zero(int, get_on("t/a", stream)), "it is written");
	fsdp_free(tensor);
}

/* Another process publishes a tensor that is written only when the gate
 * opens. */
static sem_t *gate;

static int publish_late(void)
{
	struct fsdp_tensor *tensor;
	CUstream stream = stream_make(gpu_nth(0));

	open_client(seeing->socket);
	must(alloc_on(&seeing->device, &tensor) == 0);
	stream_hold(stream, gate);
	stream_fill(stream, tensor, 5);
	return publish_on(tensor, "t/a", stream);
}

Test(device_refusal,
     timelines_that_cannot_be_registered_read_only_are_mapped_writable)
{
	const struct fsdp_get_options options = {.timeout_ms = -1};
	struct fsdp_tensor *tensor = NULL;
	const char *name = "t/a";
	struct actor producer;
	CUstream stream;

	start();
	seeing = shared_memory(sizeof(*seeing));
	strcpy(seeing->socket, daemon_socket(&daemon_));
	gate = shared_memory(sizeof(*gate));
	must(sem_init(gate, 1, 0) == 0);
	actor_start(&producer, NULL);
	seeing->device = some_device();
	seeing->device = gpu_name(0);
	must(actor_run(&producer, publish_late) == 0);
	stream = stream_make(gpu_nth(0));
	cr_assert(zero(int, get_on("t/a", stream)), "%s", fsdp_error());
	cr_expect(not(stream_is_done(stream)));
	sem_post(gate);
	cr_expect(stream_finish(stream));
	cr_assert(zero(int, fsdp_get(client, &name, 1, &options, &tensor)));
	fsdp_free(tensor);
	actor_kill(&producer);
}

/* --- nonsense ------------------------------------------------------------ */

Test(device_refusal, a_device_of_zeros_is_host_memory)
{
	static const struct fsdp_device host;
	struct fsdp_tensor *tensor;
	struct fsdp_info info = {.struct_size = sizeof(info)};

	start();
	must(alloc_on(&host, &tensor) == 0);
	fsdp_tensor_info(tensor, &info);
	cr_expect(zero(int, memcmp(&info.device, &host, sizeof(host))));
	cr_expect(zero(int, fsdp_release_on(tensor, NULL)));
	fsdp_free(tensor);
	cr_expect(zero(int, fsdp_fill(NULL, 0, NULL, NULL)));
	cr_expect(not(gpu_is_loaded()));
}

Test(device_refusal, a_bundle_on_an_unknown_device_is_not_begun)
{
	const struct fsdp_bundle_options options = {.device = some_device()};
	struct fsdp_bundle *bundle = NULL;

	setenv("FSDP_LIBCUDA", "/nowhere/libcuda.so.1", 1);
	start();
	cr_expect(eq(int, fsdp_bundle_begin(client, "m/", &options, &bundle),
		     -ENODEV));
	cr_expect(eq(ptr, (void *)bundle, NULL));
	cr_expect(host_works());
}
