/*
 * Who may do what with memory of an access class.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct error;
struct holdings;

#define CREDENTIALS_MAX_GROUPS 64

/* Of a process, as the kernel reported them. */
struct credentials {
	uid_t uid;
	gid_t gid; /* the primary group */
	uint32_t n_groups;
	gid_t groups[CREDENTIALS_MAX_GROUPS]; /* the other ones */
};

/* Is `gid` the primary group, or one of the others? */
bool credentials_have_group(const struct credentials *credentials, gid_t gid);

enum access { ACCESS_READ = 4, ACCESS_WRITE = 2 };

/* May it access memory of this class? Root may. */
bool access_is_allowed(const struct credentials *credentials,
		       const struct access_class *class, enum access access);

/* May it see the holders of what `uid` owns, and remove it? The owner and root
 * may. */
bool access_is_owner(const struct credentials *credentials, uint32_t uid);

/* The access class of memory that a request makes, with defaults filled in.
 * -EPERM: the process is not in that group. */
int access_resolve(const struct credentials *credentials,
		   const struct access_class *asked, struct access_class *ret,
		   struct error *err);

/*
 * May the session read memory of this class under `name`, and does it trust the
 * publisher? Unless the request names a trusted uid, it trusts its own uid,
 * root, and the owner of the name's first component. -EACCES.
 */
int access_check_reader(const struct holdings *holdings,
			const struct access_class *class, const char *name,
			const uint32_t *trusted_uid, struct error *err);
