/*
 * What NCCL's double tells tests (tests/fakes/nccl/api.h); it is loaded.
 */
#pragma once
#include "tests/lib/chaos.h"
#include <dlfcn.h>
#include <stdlib.h>

static inline void count_registrations(unsigned int *ret_made,
				       unsigned int *ret_left)
{
	void *nccl = dlopen(getenv("FSDP_LIBNCCL"), RTLD_NOW | RTLD_NOLOAD);
	void (*count)(unsigned int *made, unsigned int *left);

	must(nccl != NULL);
	*(void **)&count = dlsym(nccl, "fake_nccl_registrations");
	must(count != NULL);
	count(ret_made, ret_left);
	dlclose(nccl);
}
