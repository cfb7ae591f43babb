/*
 * For host memory, tests access the pages directly, as the programs do for
 * which they stand.
 */
#include "tests/lib/memory.h"
#include "tests/lib/chaos.h"
#include "tests/lib/device.h"
#include <string.h>

bool are_on_devices(void)
{
	return getenv("FSDP_TEST_DEVICES");
}

struct fsdp_device memory_device(void)
{
	return are_on_devices() ? gpu_name(0) : (struct fsdp_device){0};
}

int memory_alloc(struct fsdp_client *client, const struct fsdp_spec *specs,
		 size_t n, const struct fsdp_access *access, int32_t timeout_ms,
		 struct fsdp_tensor **ret)
{
	const struct fsdp_device device = memory_device();

	return fsdp_alloc_on(client, &device, specs, n, access, timeout_ms,
			     ret);
}

void memory_read(void *to, const struct fsdp_tensor *tensor, size_t offset,
		 size_t size)
{
	if (are_on_devices())
		must(fsdp_copy_out(to, (struct fsdp_tensor *)tensor, offset,
				   size) == 0);
	else
		memcpy(to, (const char *)fsdp_data(tensor) + offset, size);
}

void memory_write(struct fsdp_tensor *tensor, size_t offset, const void *from,
		  size_t size)
{
	if (are_on_devices())
		must(fsdp_copy_in(tensor, offset, from, size) == 0);
	else
		memcpy((char *)fsdp_data_mut(tensor) + offset, from, size);
}

/* --- ranks --------------------------------------------------------------- */

static const struct device *own; /* the device of this rank */

/* NCCL accepts ranks that share a device only if they seem to be on different
 * nodes. */
static void share_device(uint32_t rank)
{
	char text[32];

	(void)snprintf(text, sizeof(text), "node-%u", rank);
	setenv("NCCL_HOSTID", text, 1);
}

static bool is_by_worker(void)
{
	const char *executor = getenv("FSDP_TEST_EXECUTOR");

	return executor && strcmp(executor, "worker") == 0;
}

void memory_of_rank(uint32_t rank, struct fsdp_comm_options *options)
{
	static struct fsdp_device name;

	if (is_by_worker())
		options->executor = FSDP_EXECUTOR_WORKER;
	if (!are_on_devices())
		return;
	if (rank >= n_gpus())
		share_device(rank);
	own = gpu_nth(rank % n_gpus());
	name = gpu_name(rank % n_gpus());
	options->device = &name;
}

void *memory_view(const void *data, size_t size)
{
	void *copy;

	if (!are_on_devices())
		return (void *)(uintptr_t)data;
	copy = malloc(size + 1);
	must(copy);
	if (size > 0)
		gpu_get(own, copy, data, size);
	return copy;
}

void memory_drop_view(void *view)
{
	if (are_on_devices())
		free(view);
}

void memory_put_view(void *data, void *view, size_t size)
{
	if (are_on_devices() && size > 0)
		gpu_put(own, data, view, size);
	memory_drop_view(view);
}
