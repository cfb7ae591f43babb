/*
 * Access to memory by its access class, which is decided as for files.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct error;
struct holdings;

#define CREDENTIALS_MAX_GROUPS 64

/* The credentials of a process, as the kernel reported them. */
struct credentials {
	uid_t uid;
	gid_t gid; /* the primary group */
	uint32_t n_groups;
	gid_t groups[CREDENTIALS_MAX_GROUPS]; /* the supplementary groups */
};

/* Returns whether `gid` is the primary group or a supplementary group. */
bool credentials_have_group(const struct credentials *credentials, gid_t gid);

enum access { ACCESS_READ = 4, ACCESS_WRITE = 2 };

/* Returns whether the process may access memory of this class. Root may. */
bool access_is_allowed(const struct credentials *credentials,
		       const struct access_class *class, enum access access);

/* Returns whether the process may see the holders of objects that `uid` owns,
 * and remove these objects. The owner and root may. */
bool access_is_owner(const struct credentials *credentials, uint32_t uid);

/* Returns the access class of memory that a request makes, with defaults filled
 * in. -EPERM: the process is not in the requested group. */
int access_resolve(const struct credentials *credentials,
		   const struct access_class *asked, struct access_class *ret,
		   struct error *err);

/*
 * Checks that the session may read memory of this class under `name`, and that
 * it trusts the publisher. Unless the request names a trusted uid, the session
 * trusts its own uid, root, and the owner of the name's first component.
 * -EACCES: the access is refused, or the publisher is not trusted.
 */
int access_check_reader(const struct holdings *holdings,
			const struct access_class *class, const char *name,
			const uint32_t *trusted_uid, struct error *err);
