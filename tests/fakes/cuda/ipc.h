/* Legacy handles of device memory. */
#pragma once

struct mapping;

/* Called when the memory is freed, so that no process can open it any more. The
 * caller holds the process's lock. */
void ipc_forget(const struct mapping *mapping);
