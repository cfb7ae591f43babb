/*
 * Tests builds with kernels and without. This program is linked as if nvcc had
 * not been found.
 */
#include "cuda/kernels.h"
#include "cuda/kernels/image.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"

#include <errno.h>
#include <string.h>

TestSuite(kernels_image, .init = gpu_open, .fini = gpu_close);

/* This driver is the fake, but does not say so. */
Test(kernels_image, the_error_names_a_build_without_nvcc)
{
	struct error err = ERROR_NULL;

	setenv("FSDP_LIBCUDA", DRIVER_UNDECLARED, 1);
	cr_assert(eq(int, kernels_image_toolkit, 0));
	cr_assert(eq(int, kernels_load(&err), -ENOSYS));
	cr_assert(strstr(err.msg, "nvcc was not found when it was built") !=
			  NULL,
		  "%s", err.msg);
}

Test(kernels_image, the_fake_driver_has_its_own_kernels)
{
	struct error err = ERROR_NULL;

	cr_assert(eq(int, kernels_load(&err), 0), "%s", err.msg);
}
