/*
 * Tests loading NCCL. Each reason for which that fails, and each of NCCL's
 * errors, must have its own sentence.
 */
#include "cuda/driver.h"
#include "cuda/nccl.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

static void fakes_open(void)
{
	if (!getenv("FSDP_LIBNCCL"))
		cr_skip_test("needs the fakes of the driver and of NCCL");
	gpu_open();
}

static void fakes_close(void)
{
	if (getenv("FAKECUDA_DIR"))
		gpu_close();
}

TestSuite(nccl, .init = fakes_open, .fini = fakes_close);

static void expect_sentence(const struct error *err, const char *part)
{
	cr_expect(strstr(err->msg, part) != NULL, "no \"%s\" in: %s", part,
		  err->msg);
}

/* Load the file that `path` names (NULL: the fake), and expect a refusal. */
static void expect_refusal(const char *path, int code, const char *part)
{
	struct error err = ERROR_NULL;

	if (path)
		setenv("FSDP_LIBNCCL", path, 1);
	cr_expect(eq(int, nccl_load(&err), code));
	cr_expect(eq(int, err.code, code));
	expect_sentence(&err, part);
}

Test(nccl, the_named_file_is_loaded)
{
	Dl_info info;
	int version;

	cr_assert(zero(int, nccl_load(NULL)));
	cr_expect(zero(int, nccl.GetVersion(&version)));
	cr_expect(eq(int, version, NCCL_API_VERSION));
	cr_assert(ne(int, dladdr((void *)nccl.GetVersion, &info), 0));
	cr_expect(eq(str, (char *)info.dli_fname, getenv("FSDP_LIBNCCL")));
}

Test(nccl, every_symbol_is_found)
{
	cr_assert(zero(int, nccl_load(NULL)));
#define EXPECT_FOUND(name) cr_expect(nccl.name != NULL, "nccl" #name);
	NCCL_SYMBOLS(EXPECT_FOUND)
}

Test(nccl, the_error_for_a_missing_library_names_the_file)
{
	expect_refusal("/nonexistent/libnccl.so.2", -ENODEV,
		       "/nonexistent/libnccl.so.2");
}

Test(nccl, the_first_result_is_kept)
{
	char *path = strdup(getenv("FSDP_LIBNCCL"));

	expect_refusal("/nonexistent/libnccl.so.2", -ENODEV, "install");
	expect_refusal(path, -ENODEV, "/nonexistent/libnccl.so.2");
	free(path);
}

Test(nccl, the_oldest_supported_version_is_accepted)
{
	setenv("FAKENCCL_VERSION", "21900", 1);
	cr_expect(zero(int, nccl_load(NULL)));
}

Test(nccl, a_version_that_is_too_old_is_refused)
{
	setenv("FAKENCCL_VERSION", "21805", 1);
	expect_refusal(NULL, -ENOSYS, "it is 2.18.5, and 2.19 or a later 2");
}

Test(nccl, a_version_of_the_old_numbering_is_refused)
{
	setenv("FAKENCCL_VERSION", "2804", 1);
	expect_refusal(NULL, -ENOSYS, "it is 2.8.4,");
}

Test(nccl, a_version_of_the_next_series_is_refused)
{
	setenv("FAKENCCL_VERSION", "30000", 1);
	expect_refusal(NULL, -ENOSYS, "it is 3.0.0,");
}

Test(nccl, a_library_without_a_symbol_is_refused)
{
	expect_refusal(NCCL_INCOMPLETE, -ENOSYS, "lacks ncclCommSplit");
}

Test(nccl, a_library_other_than_nccl_is_refused)
{
	char *driver = strdup(getenv("FSDP_LIBCUDA"));

	expect_refusal(driver, -ENODEV, "has no ncclGetVersion");
	free(driver);
}

Test(nccl, another_library_with_a_fake_driver_is_refused)
{
	expect_refusal("libm.so.6", -EINVAL, "the driver");
}

Test(nccl, without_a_driver_the_error_says_so)
{
	setenv("FSDP_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
	expect_refusal(NULL, -ENODEV, "there is no CUDA driver");
}

/* Check the error that a forked child of a process that has loaded NCCL
 * gets. */
static void load_in_child(void)
{
	struct error err = ERROR_NULL;
	int r = nccl_load(&err);

	_exit(r == -ECHILD && strstr(err.msg, "fork()") ? 0 : 1);
}

Test(nccl, a_forked_child_cannot_use_nccl)
{
	int status;
	pid_t pid;

	cr_assert(zero(int, nccl_load(NULL)));
	pid = fork();
	if (pid == 0)
		load_in_child();
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(zero(int, status));
}

Test(nccl, a_child_forked_before_loading_can_load_nccl)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(-nccl_load(NULL));
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(zero(int, status));
	cr_expect(zero(int, nccl_load(NULL)));
}

Test(nccl, each_result_has_one_errno)
{
	static const struct {
		ncclResult_t result;
		int code;
	} rows[] = {
		{ncclSuccess, 0},
		{ncclUnhandledCudaError, -EIO},
		{ncclSystemError, -EIO},
		{ncclInternalError, -EIO},
		{ncclInvalidArgument, -EINVAL},
		{ncclInvalidUsage, -EINVAL},
		{ncclRemoteError, -ECONNABORTED},
		{ncclInProgress, -EAGAIN},
		{(ncclResult_t)99, -EIO},
	};

	cr_assert(zero(int, nccl_load(NULL)));
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		cr_expect(eq(int, nccl_error(NULL, rows[i].result, "x"),
			     rows[i].code));
}

Test(nccl, an_error_has_the_operation_and_the_message_of_nccl)
{
	struct error err = ERROR_NULL;
	ncclResult_t result;

	cr_assert(zero(int, nccl_load(NULL)));
	result = nccl.CommDestroy(NULL);
	cr_assert(eq(int, nccl_error(&err, result, "destroy %d", 7), -EINVAL));
	expect_sentence(&err, "destroy 7: NCCL says 'invalid argument' (");
	expect_sentence(&err, "CommDestroy: no communicator");
	cr_expect(eq(chr, err.msg[strlen(err.msg) - 1], ')'));
}

Test(nccl, an_error_about_another_rank_names_a_remedy)
{
	struct error err = ERROR_NULL;

	cr_assert(zero(int, nccl_load(NULL)));
	cr_assert(eq(int, nccl_error(&err, ncclRemoteError, "gather"),
		     -ECONNABORTED));
	expect_sentence(&err, "all ranks must leave and join again");
}

Test(nccl, ranks_connect_early_unless_the_environment_disables_it)
{
	unsetenv("NCCL_RUNTIME_CONNECT");
	nccl_connect_early();
	cr_expect(eq(str, getenv("NCCL_RUNTIME_CONNECT"), "0"));
	setenv("NCCL_RUNTIME_CONNECT", "1", 1);
	nccl_connect_early();
	cr_expect(eq(str, getenv("NCCL_RUNTIME_CONNECT"), "1"));
}
