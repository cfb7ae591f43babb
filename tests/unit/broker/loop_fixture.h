/*
 * Runs an event loop until something has happened.
 */
#pragma once
#include <uv.h>

/* Run what is due, and then wait a little for more. UV_RUN_ONCE could wait for
 * ever: libuv before version 1.45 runs the timers that are due and then waits
 * for the next event nevertheless. */
void loop_step(uv_loop_t *loop);
