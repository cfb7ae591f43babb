/*
 * Tests the broker's view of devices: it finds them while it serves others,
 * names them when a request asks for an absent one, and reports them to the
 * operator.
 */
#include "tests/unit/broker/device_fixture.h"

#define GIB (UINT64_C(1) << 30)

static struct slot_ref ref;
static const struct device_uuid stranger = {{1, 2, 3, 4}};

static void set_up(void)
{
	gpu_open();
	broker = broker_make();
	client_open(&alice, broker, 1000, 0);
}

TestSuite(devices, .init = set_up, .fini = gpu_close, .timeout = 300);

static bool notes(const char *part)
{
	return strstr(log_notes(), part);
}

static bool refused_with(const char *part)
{
	return strstr(alice.sentence, part);
}

Test(devices, an_allocation_on_a_device_waits_until_the_driver_is_loaded)
{
	struct device_uuid gpu = broker_gpu(broker, 0);

	/* Set the state of a search that has just begun. The reply waits for
	 * the end of the search. */
	devices_load(&broker->store.devices);
	cr_assert(eq(int, broker->store.devices.state, DEVICES_LOADING));
	cr_expect(zero(int, client_alloc_on(&alice, &gpu, 100, 0, &ref)), "%s",
		  alice.sentence);
	cr_expect(eq(int, broker->store.devices.state, DEVICES_READY));
}

static void send_alloc_on(const struct device_uuid *gpu)
{
	struct alloc_item item = item_of(100);
	struct request request = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT, .mode = 0644},
			  .timeout_ms = -1,
			  .n_items = 1,
			  .items = &item,
			  .device = *gpu},
	};

	client_send(&alice, &request, ++alice.number);
}

Test(devices, the_driver_is_loaded_shortly_after_the_start)
{
	devices_start(&broker->store.devices);
	cr_expect(zero(int, broker->store.devices.load.type), "not begun");
	broker_await_driver(broker);
	cr_expect(eq(int, broker->store.devices.state, DEVICES_READY));
	cr_expect(zero(u32, broker->store.devices.put_off));
}

Test(devices, a_request_that_needs_the_driver_starts_loading_it_at_once)
{
	struct device_uuid gpu = broker_gpu(broker, 0);
	struct reply reply;
	int code;

	devices_start(&broker->store.devices);
	cr_assert(gt(u32, broker->store.devices.put_off, 0));
	send_alloc_on(&gpu);
	/* The request makes the search begin now, before its deadline. */
	cr_expect(zero(u32, broker->store.devices.put_off));
	while (!client_recv(&alice, &reply, &code))
		loop_step(&broker->base.loop.uv);
	cr_expect(zero(int, code), "%s", alice.sentence);
	reply_deinit(&reply);
}

Test(devices, host_memory_does_not_wait_for_the_driver)
{
	devices_load(&broker->store.devices);
	(void)client_alloc(&alice, 100);
	broker_await_driver(broker);
}

Test(devices, an_unknown_device_is_refused_and_the_error_lists_the_known_ones)
{
	char known[DEVICE_TEXT_SIZE];
	struct device_uuid gpu = broker_gpu(broker, 1);

	device_format(&gpu, known);
	cr_expect(eq(int, client_alloc_on(&alice, &stranger, 1, 0, &ref),
		     -ENODEV));
	cr_expect(refused_with("GPU-01020304-"), "%s", alice.sentence);
	cr_expect(refused_with(known), "%s", alice.sentence);
	cr_expect(eq(int, client_alloc_on(&alice, &stranger, 1, -1, &ref),
		     -ENODEV),
		  "who can wait is refused as well");
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES)));
}

Test(devices, a_bundle_on_an_unknown_device_is_refused_when_it_begins)
{
	struct request request = {
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = "m/",
				 .access = {.gid = GID_DEFAULT},
				 .device = stranger},
	};

	broker_load_driver(broker);
	cr_expect(eq(int, client_ask(&alice, &request), -ENODEV));
	cr_expect(refused_with("GPU-01020304-"), "%s", alice.sentence);
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_BUNDLES)));
}

Test(devices, without_a_driver_host_memory_works_and_a_note_explains_why)
{
	setenv("FSDP_LIBCUDA", "/nowhere/libcuda.so.1", 1);
	broker_load_driver(broker);
	cr_expect(eq(int, broker->store.devices.state, DEVICES_NONE));
	cr_expect(notes("host memory only: there is no CUDA driver"), "%s",
		  log_notes());
	cr_expect(eq(int, client_alloc_on(&alice, &stranger, 1, 0, &ref),
		     -ENODEV));
	cr_expect(refused_with("/nowhere/libcuda.so.1"), "%s", alice.sentence);
	(void)client_alloc(&alice, 100);
}

Test(devices, the_error_names_a_driver_that_is_too_old)
{
	setenv("FAKECUDA_DRIVER_VERSION", "11040", 1);
	broker_load_driver(broker);
	cr_expect(eq(int, broker->store.devices.state, DEVICES_NONE));
	cr_expect(notes("11.4"), "%s", log_notes());
	cr_expect(eq(int, client_alloc_on(&alice, &stranger, 1, 0, &ref),
		     -ENOSYS));
	cr_expect(refused_with("11.4"), "%s", alice.sentence);
}

Test(devices, a_note_warns_of_a_fake_driver)
{
	broker_load_driver(broker);
	cr_expect(notes("FAKE of the CUDA driver"), "%s", log_notes());
}

Test(devices, tensors_may_use_nine_tenths_of_a_device_by_default)
{
	const struct device *device;

	setenv("FAKECUDA_MEM_MB", "1024", 1);
	(void)broker_gpu(broker, 0);
	device = &broker->store.devices.list[0];
	cr_expect(le(u64, devices_memory_max(&broker->store.devices, device),
		     GIB / 10 * 9));
	cr_expect(gt(u64, devices_memory_max(&broker->store.devices, device),
		     GIB / 10 * 8));
	broker->base.config.device_memory_max = GIB / 2;
	cr_expect(eq(u64, devices_memory_max(&broker->store.devices, device),
		     GIB / 2));
	broker->base.config.device_memory_max = 5 * GIB;
	cr_expect(eq(u64, devices_memory_max(&broker->store.devices, device),
		     device->memory));
}

Test(devices, a_device_in_exclusive_process_mode_is_noted_and_refused)
{
	struct device_uuid gpu;

	setenv("FAKECUDA_COMPUTE_MODE", "exclusive_process", 1);
	gpu = broker_gpu(broker, 0);
	cr_expect(notes("exclusive-process"), "%s", log_notes());
	cr_expect(eq(int, client_alloc_on(&alice, &gpu, 100, 0, &ref), -EBUSY));
	cr_expect(refused_with("nvidia-smi"), "%s", alice.sentence);
	cr_expect(zero(u32, broker->store.pools.n_chunks));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_CHUNKS)));
}

Test(devices, a_lost_device_keeps_its_tensors_but_allocates_no_more)
{
	struct slot_ref kept;
	struct device_uuid gpu, other;
	uint32_t block;

	setenv("FAKECUDA_FAIL", "MemCreate:2:lost", 1);
	gpu = broker_gpu(broker, 0);
	other = broker_gpu(broker, 1);
	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 100, 0, &kept)));
	cr_expect(eq(int,
		     client_alloc_on(&alice, &gpu, UINT64_C(64) << 20, 0, &ref),
		     -EIO));
	cr_expect(notes("allocates no more memory"), "%s", log_notes());
	/* The request is refused even if there would be room. */
	cr_expect(eq(int, client_alloc_on(&alice, &gpu, 100, -1, &ref), -EIO));
	cr_expect(refused_with("GPU-"), "%s", alice.sentence);
	block = catalog_slot(&broker->store.catalog, kept.slot)->block;
	cr_expect(gt(u32, block, 0));
	cr_expect(zero(int, client_alloc_on(&alice, &other, 100, 0, &ref)),
		  "%s", alice.sentence);
}

Test(devices, values_of_devices_are_in_the_status)
{
	struct request request = {.kind = MESSAGE_STATUS};
	char text[DEVICE_TEXT_SIZE], wanted[2][DEVICE_TEXT_SIZE + 32];
	struct device_uuid gpu = broker_gpu(broker, 1);
	uint64_t version = 0, n_devices = 0, is_fake = 0, size = 0, max = 0;
	struct reply reply;

	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 100, 0, &ref)));
	device_format(&gpu, text);
	snprintf(wanted[0], sizeof(wanted[0]), "%s_chunk_bytes", text);
	snprintf(wanted[1], sizeof(wanted[1]), "%s_memory_max", text);
	cr_assert(zero(int, client_call(&alice, &request, &reply)));
	for (uint32_t i = 0; i < reply.status.n_values; i++) {
		const struct status_value *value = &reply.status.values[i];

		if (strcmp(value->name, "driver_version") == 0)
			version = value->value;
		if (strcmp(value->name, "driver_is_fake") == 0)
			is_fake = value->value;
		if (strcmp(value->name, "devices") == 0)
			n_devices = value->value;
		if (strcmp(value->name, wanted[0]) == 0)
			size = value->value;
		if (strcmp(value->name, wanted[1]) == 0)
			max = value->value;
	}
	reply_deinit(&reply);
	cr_expect(eq(u64, version, 13000));
	cr_expect(eq(u64, is_fake, 1));
	cr_expect(eq(u64, n_devices, 2));
	cr_expect(eq(u64, size, broker->base.config.chunk_min));
	cr_expect(eq(u64, max,
		     devices_memory_max(&broker->store.devices,
					&broker->store.devices.list[1])));
}
