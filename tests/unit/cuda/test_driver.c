/*
 * Tests loading the driver. Each reason for which that fails must have its own
 * sentence.
 */
#include "cuda/context.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>

TestSuite(driver, .init = gpu_open, .fini = gpu_close);

static bool says(const struct error *err, const char *part)
{
	return strstr(err->msg, part);
}

/* Load the file that `path` names, and expect a refusal. */
static void expect_refusal(const char *path, int code, const char *part)
{
	struct error err = ERROR_NULL;

	if (path)
		setenv("FSDP_LIBCUDA", path, 1);
	cr_expect(eq(int, driver_load(&err), code));
	cr_expect(eq(int, err.code, code));
	cr_expect(says(&err, part), "%s", err.msg);
}

Test(driver, the_fake_driver_is_loaded_and_recognised)
{
	struct driver_info info;
	int n = 0;

	setenv("FAKECUDA_DRIVER_VERSION", "12040", 1);
	cr_assert(zero(int, driver_load(NULL)));
	driver_describe(&info);
	cr_expect(eq(int, info.version, 12040));
	cr_expect(info.is_fake);
	cr_expect(eq(str, (char *)info.path, getenv("FSDP_LIBCUDA")));
	cr_expect(eq(int, cu.DeviceGetCount(&n), CUDA_SUCCESS));
	cr_expect(eq(int, n, 2));
}

Test(driver, every_symbol_is_found)
{
	cr_assert(zero(int, driver_load(NULL)));
#define EXPECT_FOUND(name) cr_expect(cu.name != NULL, "cu" #name);
	DRIVER_SYMBOLS(EXPECT_FOUND)
	DRIVER_OPTIONAL_SYMBOLS(EXPECT_FOUND)
}

Test(driver, optional_symbols_may_be_missing)
{
	setenv("FSDP_LIBCUDA", DRIVER_WITHOUT_OPTIONAL, 1);
	cr_assert(zero(int, driver_load(NULL)));
	cr_expect(cu.StreamWaitValue64 == NULL);
	cr_expect(cu.IpcOpenEventHandle == NULL);
	cr_expect(cu.StreamQuery != NULL);
}

Test(driver, the_error_for_a_missing_driver_names_the_file)
{
	struct driver_info info;

	expect_refusal("/nonexistent/libcuda.so.1", -ENODEV,
		       "/nonexistent/libcuda.so.1");
	driver_describe(&info);
	cr_expect(eq(str, info.path, ""));
}

Test(driver, the_first_result_is_kept)
{
	char *path = strdup(getenv("FSDP_LIBCUDA"));

	expect_refusal("/nonexistent/libcuda.so.1", -ENODEV, "install");
	expect_refusal(path, -ENODEV, "/nonexistent/libcuda.so.1");
	free(path);
}

Test(driver, another_library_is_not_accepted_as_a_driver)
{
	expect_refusal("libm.so.6", -ENODEV, "not a CUDA driver");
}

Test(driver, the_toolkits_library_for_linking_is_refused)
{
	expect_refusal(DRIVER_STUB, -ENODEV, "a stub of the CUDA toolkit");
}

Test(driver, the_error_for_a_missing_symbol_has_found_and_needed_version)
{
	struct error err = ERROR_NULL;

	setenv("FSDP_LIBCUDA", DRIVER_INCOMPLETE, 1);
	setenv("FAKECUDA_DRIVER_VERSION", "11080", 1);
	cr_assert(eq(int, driver_load(&err), -ENOSYS));
	cr_expect(says(&err, "cuLibraryLoadData"), "%s", err.msg);
	cr_expect(says(&err, "11.8"), "%s", err.msg);
	cr_expect(says(&err, "12.0"), "%s", err.msg);
}

Test(driver, the_error_names_a_missing_symbol_of_a_new_driver)
{
	expect_refusal(DRIVER_INCOMPLETE, -ENOSYS,
		       "lacks cuLibraryLoadData, although it has version 13.0");
}

Test(driver, an_old_version_is_refused_even_if_it_has_all_symbols)
{
	setenv("FAKECUDA_DRIVER_VERSION", "11080", 1);
	expect_refusal(NULL, -ENOSYS, "version 11.8, and 12.0");
}

Test(driver, the_error_for_no_device_names_the_variable_that_hides_them)
{
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	expect_refusal(NULL, -ENODEV, "CUDA_VISIBLE_DEVICES=\"\"");
}

Test(driver, a_driver_with_no_devices_is_refused)
{
	setenv("FAKECUDA_DEVICES", "0", 1);
	expect_refusal(NULL, -ENODEV, "finds no device");
}

Test(driver, missing_permission_has_its_own_error)
{
	setenv("FAKECUDA_FAIL", "Init:1:304", 1);
	expect_refusal(NULL, -EPERM, "DeviceAllow");
}

Test(driver, a_driver_that_mismatches_its_kernel_modules_has_its_own_error)
{
	setenv("FAKECUDA_FAIL", "Init:1:803", 1);
	expect_refusal(NULL, -ENODEV, "reboot");
}

static void *load(void *data)
{
	(void)data;
	return (void *)(intptr_t)driver_load(NULL);
}

Test(driver, many_threads_load_the_driver_once)
{
	pthread_t threads[8];
	void *result;

	/* A second call of cuInit() would fail. */
	setenv("FAKECUDA_FAIL", "Init:2+:999", 1);
	for (int i = 0; i < 8; i++)
		cr_assert(zero(int,
			       pthread_create(&threads[i], NULL, load, NULL)));
	for (int i = 0; i < 8; i++) {
		cr_assert(zero(int, pthread_join(threads[i], &result)));
		cr_expect(result == NULL);
	}
}

/* Returns the result of `call` in a forked child, which is a small negative
 * number. */
static int in_child(int (*call)(struct error *err), const char *part)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct error err = ERROR_NULL;
		int r = call(&err);

		_exit(says(&err, part) ? -r : 255);
	}
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	return WIFEXITED(status) ? -WEXITSTATUS(status) : 1;
}

static int enter_first_device(struct error *err)
{
	static const struct device device = {.ordinal = 0};

	return context_enter(&device, err);
}

Test(driver, a_forked_child_is_refused)
{
	cr_assert(zero(int, driver_load(NULL)));
	cr_expect(eq(int, in_child(driver_load, "fork()"), -ECHILD));
	cr_expect(eq(int, in_child(enter_first_device, "fork()"), -ECHILD));
	cr_expect(zero(int, driver_load(NULL)));
}

Test(driver, a_child_forked_before_loading_can_load_the_driver)
{
	cr_expect(zero(int, in_child(driver_load, "")));
	cr_expect(zero(int, driver_load(NULL)));
}

Test(driver, each_result_has_one_errno)
{
	static const struct {
		CUresult result;
		int code;
	} rows[] = {
		{CUDA_SUCCESS, 0},
		{CUDA_ERROR_OUT_OF_MEMORY, -ENOMEM},
		{CUDA_ERROR_INVALID_VALUE, -EINVAL},
		{CUDA_ERROR_INVALID_HANDLE, -EINVAL},
		{CUDA_ERROR_INVALID_CONTEXT, -EINVAL},
		{CUDA_ERROR_CONTEXT_IS_DESTROYED, -EINVAL},
		{CUDA_ERROR_NOT_INITIALIZED, -ECHILD},
		{CUDA_ERROR_NOT_READY, -EAGAIN},
		{CUDA_ERROR_NOT_PERMITTED, -EOPNOTSUPP},
		{CUDA_ERROR_NOT_SUPPORTED, -EOPNOTSUPP},
		{CUDA_ERROR_DEVICE_UNAVAILABLE, -EBUSY},
		{CUDA_ERROR_ALREADY_MAPPED, -EEXIST},
		{CUDA_ERROR_NO_BINARY_FOR_GPU, -ENOEXEC},
		{CUDA_ERROR_MPS_CONNECTION_FAILED, -ECONNREFUSED},
		{CUDA_ERROR_ILLEGAL_ADDRESS, -EIO},
		{CUDA_ERROR_UNKNOWN, -EIO},
	};

	cr_assert(zero(int, driver_load(NULL)));
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		cr_expect(eq(int, driver_error(NULL, rows[i].result, "try"),
			     rows[i].code),
			  "result %d", (int)rows[i].result);
}

Test(driver, the_error_has_the_operation_and_the_result_of_the_driver)
{
	struct error err = ERROR_NULL;

	cr_assert(zero(int, driver_load(NULL)));
	cr_expect(eq(
		int,
		driver_error(&err, CUDA_ERROR_INVALID_VALUE, "map chunk %d", 7),
		-EINVAL));
	cr_expect(says(&err, "map chunk 7: "), "%s", err.msg);
	cr_expect(says(&err, "CUDA_ERROR_INVALID_VALUE"), "%s", err.msg);
}

Test(driver, an_unknown_result_is_given_as_a_number)
{
	struct error err = ERROR_NULL;

	cr_assert(zero(int, driver_load(NULL)));
	cr_expect(eq(int, driver_error(&err, (CUresult)7777, "try"), -EIO));
	cr_expect(says(&err, "7777"), "%s", err.msg);
}

Test(driver, after_a_sticky_result_the_error_asks_for_a_restart)
{
	struct error err = ERROR_NULL;

	cr_assert(zero(int, driver_load(NULL)));
	cr_expect(driver_is_sticky(CUDA_ERROR_ECC_UNCORRECTABLE));
	cr_expect(driver_is_sticky(CUDA_ERROR_CONTAINED));
	cr_expect(not(driver_is_sticky(CUDA_ERROR_OUT_OF_MEMORY)));
	cr_expect(not(driver_is_sticky(CUDA_SUCCESS)));
	cr_expect(eq(int, driver_error(&err, CUDA_ERROR_LAUNCH_FAILED, "wait"),
		     -EIO));
	cr_expect(says(&err, "start it again"), "%s", err.msg);
}
