/*
 * A broker and raw connections of several users: one process plays them all by
 * its effective uid, which is what the kernel tells the broker.
 */
#pragma once
#include "tests/lib/daemon.h"
#include "tests/lib/wire.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>
#include <sys/types.h>

#define ALICE 61001
#define BOB   61002
#define MIB   (INT64_C(1) << 20)

/* The broker, to which all users may connect. */
extern struct daemon users_daemon;

/* NULL: no configuration. */
void users_start(const char *config);
void users_stop(void);

/* A connection of this user, or of ourselves if we cannot be others; and one
 * after its hello. */
struct wire *connect_as(uid_t uid);
struct wire *open_as(uid_t uid);

/* Another user, who must not notice anything. NULL: we cannot be others. */
struct wire *open_bob(void);
void check_bob(struct wire *bob);
