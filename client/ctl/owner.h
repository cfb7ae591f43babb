/*
 * Connects to the broker as another user. Only root can do that.
 *
 * The broker identifies a client by its user and groups at the time of the
 * connection. So the process takes the identity of the other user only while it
 * connects, to the broker that root would choose, and opens files as root
 * before and after. The library cannot connect again with this identity, so the
 * session ends if the broker is restarted.
 */
#pragma once
#include <jansson.h>
#include <sys/types.h>

struct args;
struct error;
struct fsdp_client;

/* `gids` is an array of group numbers in addition to the user's own groups. The
 * user must be known on this node unless the array has a group. */
int owner_connect(const struct args *args, uid_t uid, const json_t *gids,
		  struct fsdp_client **ret, struct error *err);
