/*
 * A descriptor in a request that claims to be memory of a device.
 *
 * The driver verifies the claim, on a thread, since that may take long. The
 * request is parked meanwhile, with the descriptor, which is closed when the
 * request ends: a chunk has a descriptor of its own (shared_chunk.h).
 */
#pragma once
#include <stdint.h>

struct device;
struct donation;
struct error;
struct pools;

/* Takes `fd`, which `uid` sent (consumed, also on failure). */
int donation_new(struct pools *pools, uint32_t uid, int fd,
		 struct donation **ret, struct error *err);
/* Drops the donation, which may be NULL. */
void donation_drop(struct donation *donation);

/* Returns the descriptor, which is borrowed. */
int donation_fd(const struct donation *donation);

/*
 * Checks that the descriptor is memory of the device, of that size. Repeated
 * calls have the same arguments. Returns POOL_OK, or POOL_WAIT: call again
 * after wake_room(). Negative: the claim is wrong (cuda/vmm.h), or the check
 * failed.
 */
int donation_check(struct donation *donation, const struct device *device,
		   uint64_t size, struct error *err);
