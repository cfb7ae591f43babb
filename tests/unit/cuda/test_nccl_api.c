/*
 * Tests that our declarations of NCCL's interface are those of nccl.h.
 */
#include "cuda/nccl_api.h"

#include "tests/lib/check.h"
#include "tests/unit/cuda/nccl_api_facts.h"
#include <string.h>

const struct fact *nccl_api_facts(void)
{
	static const struct fact facts[] = {NCCL_API_FACTS};

	return facts;
}

const void *nccl_api_config(size_t *ret_size)
{
	static const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

	*ret_size = sizeof(config);
	return &config;
}

Test(nccl_api, constants_and_layouts_equal_those_of_nccl_h)
{
	const struct fact *theirs = nccl_api_toolkit_facts();

	for (const struct fact *ours = nccl_api_facts(); ours->name;
	     ours++, theirs++) {
		cr_assert(eq(str, (char *)ours->name, (char *)theirs->name));
		cr_expect(eq(llong, ours->value, theirs->value), "%s",
			  ours->name);
	}
}

Test(nccl_api, an_initial_configuration_equals_that_of_nccl_h)
{
	size_t size, their_size;
	const void *config = nccl_api_config(&size);
	const void *theirs = nccl_api_toolkit_config(&their_size);

	cr_assert(eq(sz, size, their_size));
	cr_expect(zero(int, memcmp(config, theirs, size)));
}
