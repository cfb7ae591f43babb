#include "cuda/pinned.h"
#include "cuda/context.h"
#include <inttypes.h>

int pinned_open(const struct device *device, void *pages, uint64_t size,
		struct pinned *ret, struct error *err)
{
	CUresult result;
	int r = context_enter(device, err);

	if (r < 0)
		return r;
	result = cu.MemHostRegister(pages, size, CU_MEMHOSTREGISTER_PORTABLE);
	context_leave();
	if (result == CUDA_SUCCESS)
		*ret = (struct pinned){device, pages};
	return driver_error(err, result,
			    "cannot pin %" PRIu64
			    " bytes of host memory for %s",
			    size, device->name);
}

void pinned_close(struct pinned *pinned)
{
	/* If this fails, the pages stay pinned until the process ends. */
	if (pinned->device && context_enter(pinned->device, NULL) == 0) {
		(void)cu.MemHostUnregister(pinned->pages);
		context_leave();
	}
	*pinned = PINNED_NULL;
}
