/*
 * The worker does what the messages of the link ask for, until the link is
 * closed.
 */
#pragma once
#include <stdint.h>

struct error;

/* Send the greeting, and then work. Returns 0 when the link was closed; no job
 * is touched afterwards. A message that is not a job and cannot be done is
 * reported on stderr; jobs that need it will fail. -EPROTO: the other side does
 * not speak job.h. */
int worker_run(int sock_fd, uint32_t n_threads, struct error *err);
