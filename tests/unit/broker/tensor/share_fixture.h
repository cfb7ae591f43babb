/*
 * Sessions that share device memory with a broker in the test's own process
 * (device_fixture.h).
 */
#pragma once
#include "cuda/handle.h"
#include "cuda/vmm.h"
#include "tests/unit/broker/device_fixture.h"
#include <linux/kcmp.h>
#include <sys/mman.h>

#define MIB (UINT64_C(1) << 20)

/* The memory to share: 100 bytes of an allocation by default. */
struct sharing {
	struct device_uuid device;
	uint32_t gid, mode;
	bool has_handle;
	struct handle handle;
	int fd; /* -1 if no descriptor is sent */
	uint64_t size;
	struct share_item item;
};

/* Describe the `n`th allocation of a process, as if from cudaMalloc(). */
struct sharing sharing_of(const struct device_uuid *device, uint64_t n,
			  uint64_t size);

/* Describe memory as if from the driver's virtual memory management. */
struct sharing donation_of(const struct device_uuid *device, uint64_t size);

/* Send the request. The reply may come later. */
void client_send_share(struct client *client, const struct sharing *sharing);

/* Returns the code. */
int client_share_reply(struct client *client, const struct sharing *sharing,
		       struct reply *ret);

int client_share(struct client *client, const struct sharing *sharing,
		 struct slot_ref *ret);

int client_get_trusted(struct client *client, const char *name, uint32_t uid,
		       struct slot_ref *ret);

/* Make a view of 10 bytes of a tensor that is held. */
int client_view(struct client *client, const struct slot_ref *base,
		struct slot_ref *ret);

/* Returns whether the kernel can tell which descriptors refer to the same open
 * file. */
bool has_kcmp(void);
