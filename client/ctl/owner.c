/* Connects as another user. */
#include "client/ctl/owner.h"

#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "proto/error.h"
#include "proto/socket_path.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_GROUPS 256

struct identity {
	uid_t uid;
	gid_t gid;
	gid_t groups[MAX_GROUPS];
	int n_groups;
};

static bool has_group(const struct identity *identity, gid_t gid)
{
	for (int i = 0; i < identity->n_groups; i++) {
		if (identity->groups[i] == gid)
			return true;
	}
	return false;
}

static void add_groups(struct identity *identity, const json_t *gids)
{
	for (size_t i = 0; i < json_array_size(gids); i++) {
		gid_t gid = (gid_t)json_integer_value(json_array_get(gids, i));

		if (identity->n_groups < MAX_GROUPS &&
		    !has_group(identity, gid))
			identity->groups[identity->n_groups++] = gid;
	}
}

static int find_identity(uid_t uid, const json_t *gids, struct identity *ret,
			 struct error *err)
{
	const struct passwd *user = getpwuid(uid);

	*ret = (struct identity){.uid = uid};
	if (user) {
		ret->gid = user->pw_gid;
		ret->n_groups = MAX_GROUPS;
		if (getgrouplist(user->pw_name, user->pw_gid, ret->groups,
				 &ret->n_groups) < 0)
			return error_set(err, -E2BIG,
					 "user %s is in more than %d groups",
					 user->pw_name, MAX_GROUPS);
	}
	add_groups(ret, gids);
	if (!user && ret->n_groups > 0)
		ret->gid = ret->groups[0];
	return 0;
}

/* Sets the identity of the process. This order works for root, and root can
 * restore its own identity later, because its real uid stays 0. */
static int take_on(const struct identity *identity)
{
	if (seteuid(0) < 0 ||
	    setgroups((size_t)identity->n_groups, identity->groups) < 0 ||
	    setegid(identity->gid) < 0 || seteuid(identity->uid) < 0)
		return -errno;
	return 0;
}

static int read_own(struct identity *ret)
{
	*ret = (struct identity){.uid = geteuid(), .gid = getegid()};
	ret->n_groups = getgroups(MAX_GROUPS, ret->groups);
	return ret->n_groups < 0 ? -errno : 0;
}

int owner_connect(const struct args *args, uid_t uid, const json_t *gids,
		  struct fsdp_client **ret, struct error *err)
{
	char path[SOCKET_PATH_SIZE];
	struct args with_path = *args;
	struct identity own, other;
	int r = read_own(&own);

	if (r < 0)
		return error_errno(err, r,
				   "cannot read the groups of this process");
	r = find_identity(uid, gids, &other, err);
	/* the other user may have a broker of their own at the default path */
	if (r == 0 && !args->socket) {
		r = socket_path_to_connect(path, err);
		with_path.socket = path;
	}
	if (r < 0)
		return r;
	r = take_on(&other);
	if (r == 0)
		r = broker_connect(&with_path, ret, err);
	else
		error_errno(err, r, "cannot connect as uid %u", uid);
	/* continuing would use the rights of the wrong user */
	if (take_on(&own) < 0)
		abort();
	return r < 0 ? error_wrap(err, r, "as uid %u", uid) : 0;
}
