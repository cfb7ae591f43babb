/*
 * An fsdp-worker without a process: the link of the broker to it, over which an
 * input answers its jobs.
 */
#pragma once

struct input;

/* Do something that a worker may do: finish a job, say nonsense, or die. */
void worker_act(struct input *input);

/* Close what is left of the last one. */
void worker_clear(void);
