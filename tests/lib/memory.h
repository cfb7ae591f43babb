/*
 * The memory of tensors in tests that run on the host and on devices. It is
 * host memory or, if FSDP_TEST_DEVICES is set in the environment, on the first
 * device.
 */
#pragma once
#include "client/fsdp.h"
#include <stdbool.h>
#include <stddef.h>

/* Does this run of the tests use devices? */
bool are_on_devices(void);
/* This assertion is for tests of Criterion. */
#define host_memory_only(why)                                                  \
	do {                                                                   \
		if (are_on_devices())                                          \
			cr_skip_test(why);                                     \
	} while (0)

struct fsdp_device memory_device(void);
/* Call fsdp_alloc() for that memory. */
int memory_alloc(struct fsdp_client *client, const struct fsdp_spec *specs,
		 size_t n, const struct fsdp_access *access, int32_t timeout_ms,
		 struct fsdp_tensor **ret);

/* Read or write the bytes of a held tensor, from its first one on. An error
 * ends the process. */
void memory_read(void *to, const struct fsdp_tensor *tensor, size_t offset,
		 size_t size);
void memory_write(struct fsdp_tensor *tensor, size_t offset, const void *from,
		  size_t size);

/* --- in a rank, which on devices has one of its own ---------------------- */

/* A rank joins with these options, and has its memory there from now on. If
 * FSDP_TEST_EXECUTOR=worker is set, fsdp-worker is the executor. */
void memory_of_rank(uint32_t rank, struct fsdp_comm_options *options);

/* Map or allocate host memory that stands for `size` bytes of the rank at
 * `data`. */
void *memory_view(const void *data, size_t size);
void memory_drop_view(void *view);
/* Do the same, and copy the host memory's contents to `data` first. */
void memory_put_view(void *data, void *view, size_t size);
