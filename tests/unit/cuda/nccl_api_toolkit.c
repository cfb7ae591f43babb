/*
 * test_nccl_api compares our declarations with this file, which includes NCCL's
 * header. It also declares our functions once more, which compiles only if they
 * are the same.
 */
#include <cuda.h>
#include <nccl.h>

#include "cuda/nccl_functions.h"
#include "tests/unit/cuda/nccl_api_facts.h"

const struct fact *nccl_api_toolkit_facts(void)
{
	static const struct fact facts[] = {NCCL_API_FACTS};

	return facts;
}

const void *nccl_api_toolkit_config(size_t *ret_size)
{
	static const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

	*ret_size = sizeof(config);
	return &config;
}
