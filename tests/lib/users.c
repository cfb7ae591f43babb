/* This file starts a broker and connects users to it. */
#include "tests/lib/users.h"
#include <sys/stat.h>
#include <unistd.h>

struct daemon users_daemon;

void users_start(const char *config)
{
	const struct daemon_options options = {.config = config};

	daemon_start_with(&users_daemon, &options);
	cr_assert(zero(int, chmod(users_daemon.dir, 0755)));
}

void users_stop(void)
{
	daemon_stop(&users_daemon);
}

struct wire *connect_as(uid_t uid)
{
	bool is_root = getuid() == 0;
	struct wire *wire;

	if (is_root)
		cr_assert(zero(int, seteuid(uid)));
	wire = wire_connect(daemon_socket(&users_daemon));
	if (is_root)
		cr_assert(zero(int, seteuid(0)));
	cr_assert(ne(ptr, wire, NULL));
	return wire;
}

struct wire *open_as(uid_t uid)
{
	struct wire *wire = connect_as(uid);

	wire_must(wire, wire_hello(wire, 0));
	return wire;
}

struct wire *open_bob(void)
{
	return getuid() == 0 ? open_as(BOB) : NULL;
}

void check_bob(struct wire *bob)
{
	struct tensor_place place;

	if (!bob)
		return;
	wire_must(bob, wire_alloc(bob, 64, NULL, 0, &place));
	wire_must(bob, wire_release(bob, &place.ref));
}
