/*
 * Tests that our declarations of the CUDA driver's interface are those of
 * cuda.h.
 */
#include "cuda/driver_api.h"

#include "tests/lib/check.h"
#include "tests/unit/cuda/driver_api_facts.h"
#include <string.h>

const struct fact *driver_api_facts(void)
{
	static const struct fact facts[] = {DRIVER_API_FACTS};

	return facts;
}

Test(driver_api, constants_and_layouts_equal_those_of_cuda_h)
{
	const struct fact *theirs = driver_api_toolkit_facts();

	for (const struct fact *ours = driver_api_facts(); ours->name;
	     ours++, theirs++) {
		cr_assert(eq(str, (char *)ours->name, (char *)theirs->name));
		cr_expect(eq(llong, ours->value, theirs->value), "%s",
			  ours->name);
	}
}

Test(driver_api, versions_of_functions_equal_those_of_cuda_h)
{
	const struct fact *theirs = driver_api_toolkit_facts();

	for (const struct fact *ours = driver_api_facts(); ours->name;
	     ours++, theirs++) {
		/* Our declaration differs on purpose; driver_functions.h says
		 * why. */
		if (!ours->symbol || !strcmp(ours->name, "cuEventElapsedTime"))
			continue;
		cr_expect(
			eq(str, (char *)ours->symbol, (char *)theirs->symbol));
	}
}
