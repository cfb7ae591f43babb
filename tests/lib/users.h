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
#include <sys/stat.h>
#include <unistd.h>

#define ALICE 61001
#define BOB   61002
#define MIB   (INT64_C(1) << 20)

static struct daemon daemon_;

static inline void start(const char *config)
{
	const struct daemon_options options = {.config = config};

	daemon_start_with(&daemon_, &options);
	cr_assert(zero(int, chmod(daemon_.dir, 0755)));
}

static inline void teardown(void)
{
	daemon_stop(&daemon_);
}

/* A connection of this user; of ourselves if we cannot be others. */
static inline struct wire *connect_as(uid_t uid)
{
	bool is_root = getuid() == 0;
	struct wire *wire;

	if (is_root)
		cr_assert(zero(int, seteuid(uid)));
	wire = wire_connect(daemon_socket(&daemon_));
	if (is_root)
		cr_assert(zero(int, seteuid(0)));
	cr_assert(ne(ptr, wire, NULL));
	return wire;
}

static inline struct wire *open_as(uid_t uid)
{
	struct wire *wire = connect_as(uid);

	cr_assert(zero(int, wire_hello(wire, 0)), "%s", wire_sentence(wire));
	return wire;
}

/* Somebody else, who must not notice anything. NULL: we cannot be others. */
static inline struct wire *open_bob(void)
{
	return getuid() == 0 ? open_as(BOB) : NULL;
}

static inline void check_bob(struct wire *bob)
{
	struct tensor_place place;

	if (!bob)
		return;
	cr_assert(zero(int, wire_alloc(bob, 64, NULL, 0, &place)), "%s",
		  wire_sentence(bob));
	cr_assert(zero(int, wire_release(bob, &place.ref, 1)));
}

static inline void says(const struct wire *wire, const char *what)
{
	cr_assert(ne(ptr, strstr(wire_sentence(wire), what), NULL),
		  "\"%s\" does not say \"%s\"", wire_sentence(wire), what);
}

static inline void must(struct wire *wire, int r)
{
	cr_assert(zero(int, r), "%s", wire_sentence(wire));
}
