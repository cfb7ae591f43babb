/* Host memory that devices can access. The caller of each function holds the
 * process's lock. */
#pragma once

struct context;

/* Frees all host memory of a context that ends. */
void host_free_all(struct context *context);
