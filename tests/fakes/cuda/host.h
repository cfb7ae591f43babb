/* Host memory that devices reach. With the process's lock. */
#pragma once

struct context;

/* All of a context that ends. */
void host_free_all(struct context *context);
