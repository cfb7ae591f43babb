/*
 * A connection as another user, which only root can make.
 *
 * The broker knows a client by its user and groups at the time of the
 * connection. So the process takes on those of the other for that moment only,
 * and opens files as root before and after. The library could not connect again
 * as the other: a broker that is restarted meanwhile ends the session.
 */
#pragma once
#include <jansson.h>
#include <sys/types.h>

struct args;
struct error;
struct fsdp_client;

/* `gids` is an array of numbers: groups besides those that the user has here
 * (with none of them, the user need not be known here). */
int owner_connect(const struct args *args, uid_t uid, const json_t *gids,
		  struct fsdp_client **ret, struct error *err);
