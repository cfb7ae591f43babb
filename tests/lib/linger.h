/*
 * Descriptors whose last close waits until the test says so.
 */
#pragma once

/* A TCP socket whose last close takes an hour: it lingers, has data to send,
 * and nobody reads at its other end (`ret_end`). Skips the test if there is no
 * loopback network. */
int make_lingering(int *ret_end);

/* A socket (the caller's) in which `fd` (consumed) waits to be received. */
int put_in_socket(int fd);
