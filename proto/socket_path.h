/*
 * Where a broker listens, and where clients look for it, when nobody names a
 * socket. One rule for both:
 *
 *   $FSDP_SOCKET
 *   $XDG_RUNTIME_DIR/fsdpd.sock   a user's own broker
 *   /tmp/fsdpd-UID/fsdpd.sock     the same, where XDG_RUNTIME_DIR is not set
 *   /run/fsdpd/fsdpd.sock         root's, and the system's
 *
 * A variable that is empty counts as not set; a program with the rights of
 * another user (setuid) reads none.
 */
#pragma once

struct error;

#define SOCKET_PATH_SIZE 108 /* that of sun_path */

/* The first that is this user's. Makes /tmp/fsdpd-UID; -EPERM: it is there, and
 * others could write to it. */
int socket_path_to_listen(char ret[SOCKET_PATH_SIZE], struct error *err);

/* The first at which there is something, or the last; one in /tmp only if its
 * directory is this user's alone. */
int socket_path_to_connect(char ret[SOCKET_PATH_SIZE], struct error *err);
