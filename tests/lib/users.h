/*
 * A broker and raw connections of several users. One process acts as all of
 * them by its effective uid, which the kernel reports to the broker.
 */
#pragma once
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/wire.h"
#include <string.h>
#include <sys/types.h>

#define ALICE 61001
#define BOB   61002
#define MIB   (INT64_C(1) << 20)

/* The broker. All users may connect to it. */
extern struct daemon users_daemon;

/* Starts the broker; NULL means without a configuration. */
void users_start(const char *config);
void users_stop(void);

/* Connects as this user, or as ourselves if we cannot change the uid. The
 * second function also sends hello. */
struct wire *connect_as(uid_t uid);
struct wire *open_as(uid_t uid);

/* Makes a connection of another user, which must not notice anything of the
 * test. Returns NULL if we cannot change the uid. */
struct wire *open_bob(void);
void check_bob(struct wire *bob);
