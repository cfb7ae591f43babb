/*
 * Liveness checks of ranks: a rank that sleeps until other ranks have done
 * something looks whether their processes are ending (shm/liveness.h).
 */
#pragma once
#include <stdint.h>

struct error;
struct fsdp_comm;

/*
 * Look after a sleep until `until_ns` in which this rank waited for `ranks` (0:
 * any of them), unless a signal ended the sleep early. The whole wait began at
 * `since_ns`. Returns whether to sleep on until `end_ns` (1 or 0), or -EINTR
 * after a signal.
 */
int comm_check_liveness(struct fsdp_comm *comm, uint64_t ranks,
			int64_t since_ns, int64_t until_ns, int64_t end_ns,
			struct error *err);
