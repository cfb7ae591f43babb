/*
 * Descriptors whose last close blocks until the test ends the wait.
 */
#pragma once

/* Makes a TCP socket whose last close takes an hour: it lingers, has data to
 * send, and no process reads at its other end (`ret_end`). Skips the test if
 * there is no loopback network. */
int make_lingering(int *ret_end);

/* Makes a socket, which the caller owns, in which `fd` waits to be received.
 * The function consumes `fd`. */
int put_in_socket(int fd);
