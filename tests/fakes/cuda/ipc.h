/* Legacy handles of device memory. */
#pragma once

struct mapping;

/* Its memory is freed: nobody can open it any more. With the process's lock. */
void ipc_forget(const struct mapping *mapping);
