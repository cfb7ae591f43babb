/*
 * Where the tensors of tests are that can be run with both: in host memory or,
 * with FSDP_TEST_DEVICES set in the environment, on the first device.
 */
#pragma once
#include "client/fsdp.h"
#include <stdbool.h>
#include <stddef.h>

/* Is this run of the tests one on devices? */
bool are_on_devices(void);
/* In a test of Criterion's. */
#define host_memory_only(why)                                                  \
	do {                                                                   \
		if (are_on_devices())                                          \
			cr_skip_test(why);                                     \
	} while (0)

struct fsdp_device memory_device(void);
/* fsdp_alloc() there. */
int memory_alloc(struct fsdp_client *client, const struct fsdp_spec *specs,
		 size_t n, const struct fsdp_access *access, int32_t timeout_ms,
		 struct fsdp_tensor **ret);

/* Bytes of a tensor that is held, from its first one on; what cannot be done
 * ends the process. */
void memory_read(void *to, const struct fsdp_tensor *tensor, size_t offset,
		 size_t size);
void memory_write(struct fsdp_tensor *tensor, size_t offset, const void *from,
		  size_t size);

/* --- in a rank, which on devices has one of its own ---------------------- */

/* It joins with these options: from now on its memory is there. With
 * FSDP_TEST_HOME=worker fsdp-worker is the executor. */
void memory_of_rank(uint32_t rank, struct fsdp_comm_options *options);

/* Host memory that stands for `size` bytes of the rank's at `data`. */
void *memory_view(const void *data, size_t size);
void memory_drop_view(void *view);
/* The same; what is in it goes to `data` first. */
void memory_put_view(void *data, void *view, size_t size);
