#include "broker/worker/device_gate.h"
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

int device_gate_take(struct device_gate *gate, int fd, struct error *err)
{
	if (gate->timelines.pages) {
		close(fd);
		return error_set(err, -EEXIST, "its timelines are known");
	}
	return timelines_open(&gate->timelines, fd, false, err);
}

static bool is_written(const struct device_gate *gate,
		       const struct device_share *share)
{
	return timeline_has_reached(
		timelines_load(&gate->timelines, share->timeline),
		share->value);
}

/* One page of this process. */
static int want_counter(struct device_gate *gate, const struct device *device,
			struct error *err)
{
	void *page;
	int r;

	if (gate->counter)
		return 0;
	page = mmap(NULL, TIMELINE_SIZE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return error_errno(err, -errno, "cannot make a counter");
	r = fence_map(device, page, TIMELINE_SIZE, false, &gate->map, err);
	if (r < 0)
		munmap(page, TIMELINE_SIZE);
	else
		gate->counter = page;
	return r;
}

int device_gate_wait(struct device_gate *gate, const struct device *device,
		     CUstream stream, struct device_share *share,
		     struct error *err)
{
	int r;

	if (!share->timeline || is_written(gate, share))
		return 0;
	r = want_counter(gate, device, err);
	if (r == 0)
		r = fence_wait(&gate->map, stream, 0, gate->n_waits + 1, err);
	if (r == 0)
		share->gate = ++gate->n_waits;
	return r;
}

bool device_gate_open(struct device_gate *gate,
		      const struct device_share *share)
{
	if (share->gate <= gate->n_open)
		return true;
	if (!is_written(gate, share))
		return false;
	gate->n_open = share->gate;
	atomic_store(gate->counter, gate->n_open);
	return true;
}

void device_gate_end(struct device_gate *gate)
{
	if (gate->counter)
		atomic_store(gate->counter, FENCE_POISON);
}

void device_gate_close(struct device_gate *gate)
{
	fence_unmap(&gate->map);
	if (gate->counter)
		munmap((void *)gate->counter, TIMELINE_SIZE);
}
