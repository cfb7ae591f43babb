/*
 * test_driver_api compares our declarations with this file, which includes the
 * toolkit's header. It also declares our functions once more, which compiles
 * only if they are the same.
 */
#include <cuda.h>

#include "cuda/driver_functions.h"
#include "tests/unit/cuda/driver_api_facts.h"

const struct fact *driver_api_toolkit_facts(void)
{
	static const struct fact facts[] = {DRIVER_API_FACTS};

	return facts;
}
