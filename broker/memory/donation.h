/*
 * A descriptor that came with a request and is claimed to be memory of a
 * device.
 *
 * The driver verifies the claim, on a thread, since that may take long. The
 * request is parked meanwhile, and the descriptor with it: it is closed when
 * the request is over, since a chunk has a descriptor of its own
 * (shared_chunk.h).
 */
#pragma once
#include <stdint.h>

struct device;
struct donation;
struct error;
struct pools;

/* Take `fd`, which `uid` sent (consumed, also on failure). */
int donation_new(struct pools *pools, uint32_t uid, int fd,
		 struct donation **ret, struct error *err);
/* NULL is allowed. */
void donation_drop(struct donation *donation);

/* Return the descriptor, which is borrowed. */
int donation_fd(const struct donation *donation);

/*
 * Is it memory of the device, of that size? Repeated calls have the same
 * arguments. POOL_OK, or POOL_WAIT: call again after wake_room().
 * Negative: it is not (cuda/vmm.h).
 */
int donation_check(struct donation *donation, const struct device *device,
		   uint64_t size, struct error *err);
