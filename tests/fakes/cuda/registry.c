/* The registry of kernels, and two kernels for the fake's own tests. */
#include "tests/fakes/cuda/registry.h"
#include <string.h>

static struct fake_kernel *kernels;

void registry_add(struct fake_kernel *kernel)
{
	kernel->next = kernels;
	kernels = kernel;
}

const struct fake_kernel *registry_find(const char *name)
{
	const struct fake_kernel *kernel = kernels;

	while (kernel && strcmp(kernel->name, name) != 0)
		kernel = kernel->next;
	return kernel;
}

/* The kernel does words[i] += value, for n words of 32 bits. */
static void run_add(void **params, const struct fake_launch *launch)
{
	uint32_t *words = (uint32_t *)(uintptr_t) * (CUdeviceptr *)params[0];
	uint64_t n = *(uint64_t *)params[1];
	uint32_t value = *(uint32_t *)params[2];

	(void)launch;
	for (uint64_t i = 0; i < n; i++)
		words[i] += value;
}

static struct fake_kernel add = {
	.name = "fake_add",
	.fn = run_add,
	.n_params = 3,
	.sizes = {sizeof(CUdeviceptr), sizeof(uint64_t), sizeof(uint32_t)},
};

static void run_trap(void **params, const struct fake_launch *launch)
{
	(void)params;
	(void)launch;
	fake_trap(CUDA_ERROR_LAUNCH_FAILED);
}

static struct fake_kernel trap = {.name = "fake_trap", .fn = run_trap};

__attribute__((constructor)) static void add_own(void)
{
	registry_add(&add);
	registry_add(&trap);
}
