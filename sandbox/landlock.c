/*
 * The C library has no functions for Landlock. Each version (ABI) has more
 * rights than the one before, so only rights that this kernel supports are
 * requested.
 */
#include "sandbox/landlock.h"
#include "proto/error.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The oldest headers that we build with do not have these. */
#define FS_TRUNCATE     (UINT64_C(1) << 14) /* ABI 3 */
#define FS_IOCTL_DEV    (UINT64_C(1) << 15) /* ABI 5 */
#define NET_CONNECT_TCP (UINT64_C(1) << 1)  /* ABI 4 */

#define READ                                                                   \
	(LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE |           \
	 LANDLOCK_ACCESS_FS_READ_DIR)
#define OWN (UINT64_MAX)
/* The rights that a file can have if it is not a directory. */
#define OF_FILE                                                                \
	(LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE |           \
	 LANDLOCK_ACCESS_FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL_DEV)

struct ruleset_attr {
	uint64_t handled_access_fs;
	uint64_t handled_access_net; /* since ABI 4 */
};

static uint64_t known_access(long abi)
{
	uint64_t known = (LANDLOCK_ACCESS_FS_REFER << 1) - 1;

	if (abi < 2)
		known &= ~(uint64_t)LANDLOCK_ACCESS_FS_REFER;
	if (abi >= 3)
		known |= FS_TRUNCATE;
	if (abi >= 5)
		known |= FS_IOCTL_DEV;
	return known;
}

static int make_ruleset(struct ruleset_attr *ret, struct error *err)
{
#ifdef FSDP_NO_SANDBOX
	return error_set(err, -EOPNOTSUPP,
			 "no rules for files: this build writes reports");
#endif
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0,
			   LANDLOCK_CREATE_RULESET_VERSION);
	size_t size = abi < 4 ? sizeof(uint64_t) : sizeof(*ret);
	int fd;

	if (abi < 0)
		return error_set(err, -EOPNOTSUPP,
				 "no rules for files: this process gets no "
				 "Landlock: %s",
				 strerrordesc_np(errno));
	ret->handled_access_fs = known_access(abi);
	ret->handled_access_net = abi < 4 ? 0 : NET_CONNECT_TCP;
	fd = (int)syscall(SYS_landlock_create_ruleset, ret, size, 0);
	return fd < 0 ? error_errno(err, -errno, "cannot make rules for files")
		      : fd;
}

static uint64_t access_of(enum landlock_use use)
{
	switch (use) {
	case LANDLOCK_READ:
		return READ;
	case LANDLOCK_OWN:
		return OWN;
	}
	return 0;
}

static int add(int rules, uint64_t known, const struct landlock_rule *rule,
	       struct error *err)
{
	struct landlock_path_beneath_attr attr = {
		.allowed_access = access_of(rule->use) & known,
		.parent_fd = open(rule->path, O_PATH | O_CLOEXEC),
	};
	struct stat st;
	int r = 0;

	if (attr.parent_fd < 0)
		return 0;
	if (fstat(attr.parent_fd, &st) == 0 && !S_ISDIR(st.st_mode))
		attr.allowed_access &= OF_FILE;
	if (syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH,
		    &attr, 0) < 0)
		r = error_errno(err, -errno, "cannot make a rule for %s",
				rule->path);
	close(attr.parent_fd);
	return r;
}

static int restrict_self(int rules, struct error *err)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    syscall(SYS_landlock_restrict_self, rules, 0) < 0)
		return error_errno(err, -errno,
				   "cannot restrict this process to its files "
				   "(Landlock)");
	return 0;
}

int landlock_enter(const struct landlock_rule *rules, size_t n,
		   struct error *err)
{
	struct ruleset_attr attr = {0};
	int fd = make_ruleset(&attr, err);
	int r = fd < 0 ? fd : 0;

	for (size_t i = 0; r == 0 && i < n; i++)
		r = add(fd, attr.handled_access_fs, &rules[i], err);
	if (r == 0)
		r = restrict_self(fd, err);
	if (fd >= 0)
		close(fd);
	return r;
}
