/*
 * The memory of tensors, in tests that run on the host and on devices. It is
 * host memory or, if FSDP_TEST_DEVICES is set in the environment, memory of the
 * first device.
 */
#pragma once
#include "client/fsdp.h"
#include <stdbool.h>
#include <stddef.h>

/* Returns whether this run of the tests uses devices. */
bool are_on_devices(void);
/* Skips a test of Criterion on devices. */
#define host_memory_only(why)                                                  \
	do {                                                                   \
		if (are_on_devices())                                          \
			cr_skip_test(why);                                     \
	} while (0)

struct fsdp_device memory_device(void);
/* Calls fsdp_alloc() for the memory of memory_device(). */
int memory_alloc(struct fsdp_client *client, const struct fsdp_spec *specs,
		 size_t n, const struct fsdp_access *access, int32_t timeout_ms,
		 struct fsdp_tensor **ret);

/* These read or write the bytes of a held tensor. An error ends the process. */
void memory_read(void *to, const struct fsdp_tensor *tensor, size_t offset,
		 size_t size);
void memory_write(struct fsdp_tensor *tensor, size_t offset, const void *from,
		  size_t size);

/* --- in a rank, which on devices has one of its own ---------------------- */

/* Changes the options with which a rank joins; from now on its memory is where
 * they say. If FSDP_TEST_EXECUTOR=worker is set, fsdp-worker is the
 * executor. */
void memory_of_rank(uint32_t rank, struct fsdp_comm_options *options);

/* Maps or allocates host memory that stands for `size` bytes of the rank at
 * `data`. */
void *memory_view(const void *data, size_t size);
void memory_drop_view(void *view);
/* Copies the host memory's contents to `data`, and then drops the view. */
void memory_put_view(void *data, void *view, size_t size);
