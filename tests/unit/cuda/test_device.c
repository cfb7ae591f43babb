/*
 * Tests that devices are found by UUID, without a context.
 */
#include "cuda/device.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define FORM "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"

static bool says(const struct error *err, const char *part)
{
	return strstr(err->msg, part);
}

TestSuite(device, .init = gpu_open, .fini = gpu_close);

static const struct device *list(uint32_t wanted)
{
	const struct device *devices = NULL;
	struct error err = ERROR_NULL;
	uint32_t n = 0;

	cr_assert(zero(int, device_list(&devices, &n, &err)), "%s", err.msg);
	need_gpus(n, wanted);
	if (is_fake())
		cr_assert(eq(u32, n, wanted));
	return devices;
}

Test(device, a_uuid_can_be_parsed_and_formatted)
{
	const char text[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";
	struct device_uuid uuid;
	char again[DEVICE_TEXT_SIZE];

	cr_assert(zero(int, device_parse(text, &uuid, NULL)));
	cr_expect(eq(int, uuid.bytes[0], 0x01));
	cr_expect(eq(int, uuid.bytes[15], 0xef));
	device_format(&uuid, again);
	cr_expect(eq(str, again, (char *)text));
	cr_assert(zero(int,
		       device_parse("GPU-01234567-89AB-CDEF-0123-456789ABCDEF",
				    &uuid, NULL)));
	device_format(&uuid, again);
	cr_expect(eq(str, again, (char *)text));
}

Test(device, invalid_texts_are_refused_with_the_expected_form)
{
	static const char *const texts[] = {
		"",
		"0",
		"GPU-",
		"MIG-",
		"MIX-01234567-89ab-cdef-0123-456789abcdef",
		"01234567-89ab-cdef-0123-456789abcdef",
		"GPU-01234567-89ab-cdef-0123-456789abcde",
		"GPU-01234567-89ab-cdef-0123-456789abcdef0",
		"GPU-01234567-89ab-cdef-0123-456789abcdeg",
		"GPU-0123456789ab-cdef-0123-456789abcdef",
		/* host memory is not a device */
		"GPU-00000000-0000-0000-0000-000000000000",
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		struct device_uuid uuid = {{7}};
		struct error err = ERROR_NULL;

		cr_expect(
			eq(int, device_parse(texts[i], &uuid, &err), -EINVAL));
		cr_expect(says(&err, FORM), "%s", err.msg);
		cr_expect(eq(int, uuid.bytes[0], 7));
	}
}

Test(device, each_device_is_found_by_its_uuid)
{
	const struct device *devices, *found;

	need_fake("it must be another machine");
	setenv("FAKECUDA_DEVICES", "3", 1);
	devices = list(3);
	for (int i = 0; i < 3; i++) {
		cr_expect(not(device_uuid_is_host(&devices[i].uuid)));
		cr_assert(
			zero(int, device_find(&devices[i].uuid, &found, NULL)));
		cr_expect(eq(ptr, (void *)found, (void *)&devices[i]));
		cr_expect(eq(int, found->ordinal, i));
	}
}

Test(device, features_of_a_device_are_detected)
{
	const struct device *device;

	need_fake("it must be another machine");
	setenv("FAKECUDA_MEM_MB", "512", 1);
	setenv("FAKECUDA_WITH", "readonly_register", 1);
	device = list(2);
	cr_expect(eq(u64, device->memory, UINT64_C(512) << 20));
	cr_expect(eq(u64, device->granularity, UINT64_C(2) << 20));
	cr_expect(device->name[0] != 0);
	cr_expect(device->has_vmm && device->has_posix_fd);
	cr_expect(device->has_rdma);
	cr_expect(device->has_wait_value && device->has_ipc_events);
	cr_expect(device->has_readonly_register);
}

Test(device, missing_features_of_a_device_are_detected)
{
	const struct device *device;

	need_fake("it must be another machine");
	setenv("FAKECUDA_WITHOUT", "posix_fd,rdma,memops,ipc_events", 1);
	device = list(2);
	cr_expect(device->has_vmm);
	cr_expect(not(device->has_posix_fd));
	cr_expect(not(device->has_rdma));
	cr_expect(not(device->has_wait_value));
	cr_expect(not(device->has_ipc_events));
	cr_expect(not(device->has_readonly_register));
}

Test(device, a_driver_older_than_an_attribute_lacks_the_feature)
{
	const struct device *device;

	need_fake("calls must fail");
	/* The third attribute that is queried is that of RDMA. */
	setenv("FAKECUDA_FAIL", "DeviceGetAttribute:3:1", 1);
	device = list(2);
	cr_expect(not(device->has_rdma));
	cr_expect(device->has_posix_fd && device->has_wait_value);
}

Test(device, a_feature_without_its_functions_is_missing)
{
	const struct device *device;

	need_fake("it must be loaded from another file");
	setenv("FSDP_LIBCUDA", DRIVER_WITHOUT_OPTIONAL, 1);
	device = list(2);
	cr_expect(not(device->has_wait_value));
	cr_expect(not(device->has_ipc_events));
	cr_expect(device->has_vmm);
}

Test(device, listing_devices_creates_no_context)
{
	need_fake("its calls are counted");
	setenv("FAKECUDA_COUNT", "1", 1);
	(void)list(2);
	cr_expect(eq(long, gpu_count(getpid(), "DeviceGetUuid"), 2));
	cr_expect(zero(long, gpu_count(getpid(), "contexts")));
}

static struct device_uuid instance(const char *visible)
{
	setenv("FAKECUDA_MIG", "1", 1);
	if (visible)
		setenv("CUDA_VISIBLE_DEVICES", visible, 1);
	return list(1)->uuid;
}

Test(device, an_instance_of_a_gpu_has_its_own_name)
{
	const struct device *found;
	struct device_uuid uuid, parsed;
	char text[DEVICE_TEXT_SIZE];

	need_fake("it must be another machine");
	uuid = instance(NULL);
	device_format(&uuid, text);
	cr_expect(zero(int, strncmp(text, "MIG-", 4)), "%s", text);
	cr_assert(zero(int, device_parse(text, &parsed, NULL)));
	cr_expect(zero(int, memcmp(&parsed, &uuid, sizeof(uuid))));
	cr_assert(zero(int, device_find(&parsed, &found, NULL)));
	cr_expect(found->is_mig);
	/* Programs that do not look for instances write this prefix. */
	memcpy(text, "GPU", 3);
	cr_assert(zero(int, device_parse(text, &parsed, NULL)));
	cr_expect(zero(int, memcmp(&parsed, &uuid, sizeof(uuid))));
}

/* A process can see only one of the instances, so another process reports the
 * name of the other one. */
Test(device, an_instance_can_be_selected_by_its_name)
{
	char text[DEVICE_TEXT_SIZE] = "";
	struct device_uuid uuid;
	int ends[2];

	need_fake("it must be another machine");
	cr_assert(zero(int, pipe(ends)));
	if (fork() == 0) {
		uuid = instance("1");
		device_format(&uuid, text);
		_exit(write(ends[1], text, sizeof(text)) != sizeof(text));
	}
	cr_assert(eq(long, read(ends[0], text, sizeof(text)), sizeof(text)));
	wait(NULL);
	cr_assert(zero(int, strncmp(text, "MIG-", 4)), "%s", text);
	cr_assert(zero(int, device_parse(text, &uuid, NULL)));
	instance(text);
	cr_expect(zero(int, memcmp(&list(1)->uuid, &uuid, sizeof(uuid))));
}

Test(device, a_whole_gpu_is_not_an_instance)
{
	need_fake("it must be another machine");
	cr_expect(not(list(2)->is_mig));
}

Test(device, a_driver_with_one_kind_of_uuid_has_no_instances)
{
	need_fake("calls are taken away");
	setenv("FAKECUDA_MIG", "1", 1);
	cr_assert(zero(int, driver_load(NULL)));
	cu.DeviceGetGpuUuid = NULL;
	cr_expect(not(list(1)->is_mig));
}

Test(device, an_unknown_device_is_refused_with_a_list_of_known_ones)
{
	struct device_uuid uuid = {{1, 2, 3}};
	const struct device *found = NULL, *devices;
	struct error err = ERROR_NULL;
	char text[DEVICE_TEXT_SIZE];

	need_fake("it must be another machine");
	setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
	devices = list(2);
	cr_expect(eq(int, device_find(&uuid, &found, &err), -ENODEV));
	cr_expect(zero(ptr, (void *)found));
	for (int i = 0; i < 2; i++) {
		device_format(&devices[i].uuid, text);
		cr_expect(says(&err, text), "%s", err.msg);
	}
	cr_expect(says(&err, "GPU-01020300-"), "%s", err.msg);
	cr_expect(says(&err, "CUDA_VISIBLE_DEVICES=\"1,0\""), "%s", err.msg);
}

Test(device, without_a_driver_no_device_is_found)
{
	struct device_uuid uuid = {{1}};
	const struct device *found;
	struct error err = ERROR_NULL;

	need_fake("it must be loaded from another file");
	setenv("FSDP_LIBCUDA", "/nonexistent", 1);
	cr_expect(eq(int, device_find(&uuid, &found, &err), -ENODEV));
	cr_expect(says(&err, "no CUDA driver"), "%s", err.msg);
}

Test(device, a_failing_query_is_an_error_with_the_number_of_the_device)
{
	const struct device *devices;
	struct error err = ERROR_NULL;
	uint32_t n;

	need_fake("calls must fail");
	setenv("FAKECUDA_FAIL", "DeviceGetUuid:2:999", 1);
	cr_expect(eq(int, device_list(&devices, &n, &err), -EIO));
	cr_expect(says(&err, "device 1"), "%s", err.msg);
	/* The error stays the result of all later calls. */
	cr_expect(eq(int, device_list(&devices, &n, NULL), -EIO));
}

Test(device, a_driver_that_cannot_count_devices_is_an_error)
{
	const struct device *devices;
	struct error err = ERROR_NULL;
	uint32_t n;

	need_fake("calls must fail");
	setenv("FAKECUDA_FAIL", "DeviceGetCount:1:999", 1);
	cr_expect(eq(int, device_list(&devices, &n, &err), -EIO));
	cr_expect(says(&err, "count devices"), "%s", err.msg);
}

static void expect_unshareable(const char *mode, int code, const char *part)
{
	struct error err = ERROR_NULL;

	setenv("FAKECUDA_COMPUTE_MODE", mode, 1);
	cr_expect(eq(int, device_check_shareable(list(2), &err), code));
	cr_expect(says(&err, part), "%s", err.msg);
	cr_expect(says(&err, "-c DEFAULT"), "%s", err.msg);
}

Test(device, exclusive_process_mode_is_refused_with_a_remedy)
{
	need_fake("it must be another machine");
	expect_unshareable("exclusive_process", -EBUSY, "exclusive-process");
}

Test(device, prohibited_mode_is_refused_with_a_remedy)
{
	need_fake("it must be another machine");
	expect_unshareable("prohibited", -EPERM, "prohibited");
}

Test(device, the_default_mode_is_shareable)
{
	cr_expect(zero(int,
		       device_check_shareable(list(is_fake() ? 2 : 1), NULL)));
}

/* Act like a process with MPS in its environment. */
static void set_up_mps(void)
{
	char path[64];
	FILE *control;

	(void)snprintf(path, sizeof(path), "%s/control",
		       getenv("FAKECUDA_DIR"));
	control = fopen(path, "we");
	cr_assert(control != NULL);
	(void)fclose(control);
	setenv("FAKECUDA_COUNT", "1", 1);
	setenv("CUDA_MPS_PIPE_DIRECTORY", getenv("FAKECUDA_DIR"), 1);
}

Test(device, a_process_with_mps_in_its_environment_becomes_a_client)
{
	need_fake("its calls are counted");
	set_up_mps();
	(void)list(2);
	cr_expect(eq(long, gpu_count(getpid(), "mps_clients"), 1));
}

Test(device, a_process_that_left_mps_does_not_become_a_client)
{
	need_fake("its calls are counted");
	set_up_mps();
	cr_expect(device_leave_mps());
	(void)list(2);
	cr_expect(zero(long, gpu_count(getpid(), "mps_clients")));
}

Test(device, mps_in_its_default_folder_is_also_left)
{
	struct stat status;

	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
	cr_expect(not(device_leave_mps()));
	cr_expect(
		eq(int, stat(getenv("CUDA_MPS_PIPE_DIRECTORY"), &status), -1));
	cr_expect(eq(int, errno, ENOTDIR)); /* no process can make it */
}
