/* Legacy handles of device memory. */
#pragma once

struct mapping;

/* Its memory is freed, so no process can open it any more. The caller holds the
 * process's lock. */
void ipc_forget(const struct mapping *mapping);
