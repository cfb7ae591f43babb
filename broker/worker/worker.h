/*
 * The worker: does what comes over the link until that is closed.
 */
#pragma once
#include <stdint.h>

struct error;

/* Says hello first. 0: the link was closed; then no job is touched any more.
 * What is no job and cannot be done is said on stderr: jobs that need it fail
 * for it. -EPROTO: the other side does not speak job.h. */
int worker_run(int sock_fd, uint32_t n_threads, struct error *err);
