/*
 * Running an event loop until something has happened.
 */
#pragma once
#include <uv.h>

/* Run what is due, and wait a little for more. UV_RUN_ONCE may wait for ever:
 * before version 1.45 libuv runs the timers that are due and then waits for
 * the next event all the same. */
void loop_step(uv_loop_t *loop);
