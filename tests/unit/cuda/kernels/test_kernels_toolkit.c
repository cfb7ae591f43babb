/*
 * Tests kernels and drivers of different versions. This program is linked as if
 * the toolkit 13.0 had made its image, which the fake accepts as one.
 */
#include "cuda/kernels.h"
#include "cuda/kernels/image.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>

static void setup(void)
{
	need_fake("its version is set, and its image is none");
	gpu_open();
}

TestSuite(kernels_toolkit, .init = setup, .fini = gpu_close);

static void expect_load(const char *version, int code, struct error *err)
{
	*err = ERROR_NULL;
	setenv("FAKECUDA_DRIVER_VERSION", version, 1);
	cr_assert(eq(int, kernels_image_toolkit, 13000));
	cr_assert(eq(int, kernels_load(err), code), "%s", err->msg);
}

static void expect_refusal(const char *version, const char *wanted)
{
	struct error err;

	expect_load(version, -ENOSYS, &err);
	cr_expect(ne(ptr, strstr(err.msg, wanted), NULL), "%s", err.msg);
}

Test(kernels_toolkit, the_error_names_a_driver_older_than_the_toolkit)
{
	expect_refusal("12090", "toolkit 13.0, and the driver is of CUDA 12.9");
}

Test(kernels_toolkit, a_driver_of_the_same_major_version_is_accepted)
{
	struct error err;

	expect_load("13000", 0, &err);
}

Test(kernels_toolkit, a_newer_driver_is_accepted)
{
	struct error err;

	expect_load("14020", 0, &err);
}

/* A driver refuses the image, for example, if the toolkit did not know the
 * device. */
Test(kernels_toolkit, an_image_that_the_driver_refuses_is_explained)
{
	static const char *const refusals[] = {"LibraryLoadData:1:200",
					       "LibraryLoadData:1:209",
					       "LibraryLoadData:1:222"};

	for (size_t i = 0; i < 3; i++) {
		int status;
		pid_t pid = fork();

		cr_assert(ge(int, pid, 0));
		if (pid == 0) {
			setenv("FAKECUDA_FAIL", refusals[i], 1);
			_exit(kernels_load(NULL) == -ENOSYS ? 0 : 1);
		}
		cr_assert(eq(int, waitpid(pid, &status, 0), pid));
		cr_expect(zero(int, status), "%s", refusals[i]);
	}
}
