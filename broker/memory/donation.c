/*
 * Donations: a work of the pool that asks the driver.
 */
#include "broker/memory/donation.h"
#include "broker/base/base.h"
#include "broker/memory/pool_impl.h"
#include "cuda/vmm.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <stdlib.h>

struct donation {
	struct pools *pools;
	uint32_t uid;    /* the user that sent the descriptor */
	int fd;          /* owned */
	bool is_asked;   /* the driver was asked */
	bool is_checked; /* the driver has replied: `result` is valid */
	bool is_dropped;
	int result;
	struct error err;
};

int donation_new(struct pools *pools, uint32_t uid, int fd,
		 struct donation **ret, struct error *err)
{
	struct donation *donation = NULL;

	if (failpoint_fail("donation.malloc") == 0)
		donation = calloc(1, sizeof(*donation));
	if (!donation) {
		closer_put(&pools->base->closer, uid, fd);
		return error_nomem(err, "a donation of memory");
	}
	donation->pools = pools;
	donation->uid = uid;
	donation->fd = fd;
	*ret = donation;
	return 0;
}

static void destroy(struct donation *donation)
{
	closer_put(&donation->pools->base->closer, donation->uid, donation->fd);
	free(donation);
}

void donation_drop(struct donation *donation)
{
	if (!donation)
		return;
	donation->is_dropped = true;
	/* A thread may still use the donation; then its end frees it. */
	if (!donation->is_asked || donation->is_checked)
		destroy(donation);
}

int donation_fd(const struct donation *donation)
{
	return donation->fd;
}

static void run_check(struct pool_work *work)
{
	work->result = device_check_shareable(work->device, &work->err);
	if (work->result == 0)
		work->result = vmm_check(work->device, work->fd, work->size,
					 &work->err);
}

static void done_check(struct pool_work *work)
{
	struct donation *donation = work->donation;
	struct pools *pools = donation->pools;

	donation->is_checked = true;
	donation->result = work->result;
	donation->err = work->err;
	if (donation->is_dropped)
		destroy(donation);
	failpoint("share.checked");
	wake_room(&pools->base->wake);
	free(work);
}

static const struct pool_work_kind work_check = {run_check, done_check};

/* Asks the driver, as soon as a thread is free. */
static int ask(struct donation *donation, const struct device *device,
	       uint64_t size, struct error *err)
{
	struct pools *pools = donation->pools;
	struct pool_source *source = pool_source_get(pools, &device->uuid);
	struct pool_work *work;

	if (!pool_has_thread(pools))
		return POOL_WAIT;
	work = source ? pool_work_new(source, &work_check, 0) : NULL;
	if (!work)
		return error_nomem(err, "a donation");
	work->donation = donation;
	work->device = device;
	work->fd = donation->fd;
	work->size = size;
	donation->is_asked = true;
	pool_work_queue(work);
	return POOL_WAIT;
}

int donation_check(struct donation *donation, const struct device *device,
		   uint64_t size, struct error *err)
{
	if (!donation->is_asked)
		return ask(donation, device, size, err);
	if (!donation->is_checked)
		return POOL_WAIT;
	if (donation->result < 0)
		return error_set(err, donation->result, "%s",
				 donation->err.msg);
	return POOL_OK;
}
