/*
 * A descriptor that came with a request, which says that it is memory of a
 * device.
 *
 * Whether it is, the driver says, on a thread, since it may take its time. The
 * request waits meanwhile, and the descriptor with it: it is closed when the
 * request is over, and a chunk has its own (shared_chunk.h).
 */
#pragma once
#include <stdint.h>

struct broker;
struct device;
struct donation;
struct error;

/* `uid` sent `fd`, which is consumed, also on failure. */
int donation_new(struct broker *broker, uint32_t uid, int fd,
		 struct donation **ret, struct error *err);
/* NULL is fine. */
void donation_drop(struct donation *donation);

/* Borrowed. */
int donation_fd(const struct donation *donation);

/*
 * Is it memory of the device, of that size? The same is asked every time.
 * POOL_OK, or POOL_WAIT: again when room is woken (waiter.h). Negative: it is
 * not (cuda/vmm.h).
 */
int donation_check(struct donation *donation, const struct device *device,
		   uint64_t size, struct error *err);
