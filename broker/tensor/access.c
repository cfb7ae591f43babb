/*
 * Access classes are checked as the kernel checks files.
 */
#include "broker/tensor/access.h"
#include "broker/tensor/holdings.h"
#include "broker/tensor/prefix.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <errno.h>

/* The group that stands for every group without a mapping in our user
 * namespace. Two processes that have it need not have a group in common, so it
 * gives no access. (session/hello.c refuses the user with that number.) */
#define OVERFLOW_GID 65534

bool credentials_have_group(const struct credentials *credentials, gid_t gid)
{
	if (credentials->gid == gid)
		return true;
	for (uint32_t i = 0; i < credentials->n_groups; i++) {
		if (credentials->groups[i] == gid)
			return true;
	}
	return false;
}

bool access_is_allowed(const struct credentials *credentials,
		       const struct access_class *class, enum access access)
{
	uint32_t bits = class->mode;

	if (credentials->uid == 0)
		return true;
	/* As with files, the first class that matches decides. */
	if (class->uid == credentials->uid)
		bits >>= 6;
	else if (class->gid != OVERFLOW_GID &&
		 credentials_have_group(credentials, class->gid))
		bits >>= 3;
	return (bits & (uint32_t)access) == (uint32_t)access;
}

bool access_is_owner(const struct credentials *credentials, uint32_t uid)
{
	return credentials->uid == uid || credentials->uid == 0;
}

int access_resolve(const struct credentials *credentials,
		   const struct access_class *asked, struct access_class *ret,
		   struct error *err)
{
	*ret = (struct access_class){
		.uid = credentials->uid,
		.gid = asked->gid == GID_DEFAULT ? credentials->gid
						 : asked->gid,
		.mode = asked->mode ? asked->mode : 0600,
	};
	if (credentials->uid == 0 ||
	    credentials_have_group(credentials, ret->gid))
		return 0;
	return error_set(err, -EPERM,
			 "uid %u is not in group %u, so it cannot make memory "
			 "for it",
			 credentials->uid, ret->gid);
}

int access_check_reader(const struct holdings *holdings,
			const struct access_class *class, const char *name,
			const uint32_t *trusted_uid, struct error *err)
{
	uint32_t uid = holdings->credentials.uid;
	uint32_t owner;
	bool is_trusted;

	if (!access_is_allowed(&holdings->credentials, class, ACCESS_READ))
		return error_set(err, -EACCES,
				 "\"%s\" (uid %u, gid %u, mode %04o) is not "
				 "readable for uid %u",
				 name, class->uid, class->gid, class->mode,
				 uid);
	if (trusted_uid)
		is_trusted = class->uid == *trusted_uid;
	else
		is_trusted = class->uid == uid || class->uid == 0 ||
			     (prefix_owner(holdings->store, name, &owner) &&
			      class->uid == owner);
	if (is_trusted)
		return 0;
	return error_set(err, -EACCES,
			 "\"%s\" was published by uid %u, which this get does "
			 "not trust; pass that uid as trusted_uid to accept it",
			 name, class->uid);
}
