/*
 * The default path of the socket. Brokers and clients try these in order:
 *
 *   $FSDP_SOCKET
 *   $XDG_RUNTIME_DIR/fsdpd.sock   a user's own broker
 *   /tmp/fsdpd-UID/fsdpd.sock     the same, where XDG_RUNTIME_DIR is not set
 *   /run/fsdpd/fsdpd.sock         root's, and the system's
 *
 * An empty variable counts as not set, and so does XDG_RUNTIME_DIR if the
 * directory is another user's. A program with the rights of another
 * user (setuid) ignores the variables.
 */
#pragma once

struct error;

#define SOCKET_PATH_SIZE 108 /* the size of sun_path */

/* Returns NULL if XDG_RUNTIME_DIR is not set, or is another user's: su leaves
 * the variable to root. */
const char *socket_path_runtime_directory(void);

/* Finds the first path that this user may use. Makes /tmp/fsdpd-UID; returns
 * -EPERM if it exists and others can write to it. */
int socket_path_to_listen(char ret[SOCKET_PATH_SIZE], struct error *err);

/* Finds the first path that exists, or else the last one. The one in /tmp is
 * used only if its directory is owned by this user and not writable by
 * others. */
int socket_path_to_connect(char ret[SOCKET_PATH_SIZE], struct error *err);
