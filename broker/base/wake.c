/*
 * The calls of the hooks, and the key of a user.
 */
#include "broker/base/wake.h"
#include <inttypes.h>
#include <stdio.h>

void wake_room(const struct wake *wake)
{
	wake->on_room(wake->data);
}

void wake_name(const struct wake *wake, const char *name)
{
	wake->on_name(wake->data, name);
}

void wake_round(const struct wake *wake)
{
	wake->on_round(wake->data);
}

void wake_short(const struct wake *wake, const uint32_t *uid)
{
	wake->on_short(wake->data, uid);
}

void wake_uid_key(uint32_t uid, char ret[WAKE_UID_KEY_SIZE])
{
	/* This cannot be a name, since no name begins with a slash. */
	snprintf(ret, WAKE_UID_KEY_SIZE, "//uid/%" PRIu32, uid);
}

void wake_uid(const struct wake *wake, uint32_t uid)
{
	char key[WAKE_UID_KEY_SIZE];

	wake_uid_key(uid, key);
	wake_name(wake, key);
}
