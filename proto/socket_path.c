/*
 * Any user can make a directory in /tmp, and a false broker there could read
 * what its clients store. So both sides check the owner and the mode of the
 * directory.
 */
#include "proto/socket_path.h"

#include "proto/error.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME             "fsdpd.sock"
#define SYSTEM_PATH      "/run/fsdpd/" NAME
#define USERS_SIZE       32 /* /tmp/fsdpd-4294967295 */
#define OTHERS_MAY_WRITE (S_IWGRP | S_IWOTH)

/* Returns NULL if the variable is not set or is empty. */
static const char *variable(const char *name)
{
	const char *value = secure_getenv(name);

	return value && *value ? value : NULL;
}

const char *socket_path_runtime_directory(void)
{
	const char *directory = variable("XDG_RUNTIME_DIR");
	struct stat st;

	if (directory && stat(directory, &st) == 0 && st.st_uid != geteuid())
		return NULL;
	return directory;
}

/* If `directory` is NULL, `name` is the whole path. */
static int join(const char *directory, const char *name,
		char ret[SOCKET_PATH_SIZE], struct error *err)
{
	int n = snprintf(ret, SOCKET_PATH_SIZE, "%s%s%s",
			 directory ? directory : "", directory ? "/" : "",
			 name);

	if (n >= 0 && n < SOCKET_PATH_SIZE)
		return 0;
	return error_set(err, -ENAMETOOLONG,
			 "cannot use the socket %s%s%s: its path has more than "
			 "%d bytes; set FSDP_SOCKET to a shorter one",
			 directory ? directory : "", directory ? "/" : "", name,
			 SOCKET_PATH_SIZE - 1);
}

/* Returns the directory of this user's socket without XDG_RUNTIME_DIR. */
static void users_directory(char ret[USERS_SIZE])
{
	snprintf(ret, USERS_SIZE, "/tmp/fsdpd-%u", (unsigned int)geteuid());
}

static bool is_ours(const char *directory)
{
	struct stat st;

	return lstat(directory, &st) == 0 && S_ISDIR(st.st_mode) &&
	       st.st_uid == geteuid() && !(st.st_mode & OTHERS_MAY_WRITE);
}

static int make_ours(const char *directory, struct error *err)
{
	if (mkdir(directory, 0700) < 0 && errno != EEXIST)
		return error_set(err, -errno,
				 "cannot make the directory %s for the socket: "
				 "%s; set XDG_RUNTIME_DIR or FSDP_SOCKET",
				 directory, strerrordesc_np(errno));
	if (is_ours(directory))
		return 0;
	return error_set(err, -EPERM,
			 "cannot use %s for the socket: it is not a directory "
			 "to which only uid %u may write; remove it, or set "
			 "XDG_RUNTIME_DIR or FSDP_SOCKET",
			 directory, (unsigned int)geteuid());
}

int socket_path_to_listen(char ret[SOCKET_PATH_SIZE], struct error *err)
{
	const char *directory = socket_path_runtime_directory();
	const char *path = variable("FSDP_SOCKET");
	char users[USERS_SIZE];
	int r;

	if (path)
		return join(NULL, path, ret, err);
	if (directory)
		return join(directory, NAME, ret, err);
	if (geteuid() == 0)
		return join(NULL, SYSTEM_PATH, ret, err);
	users_directory(users);
	r = make_ours(users, err);
	return r < 0 ? r : join(users, NAME, ret, err);
}

int socket_path_to_connect(char ret[SOCKET_PATH_SIZE], struct error *err)
{
	const char *directory = socket_path_runtime_directory();
	const char *path = variable("FSDP_SOCKET");
	char users[USERS_SIZE];
	int r;

	if (path)
		return join(NULL, path, ret, err);
	if (directory) {
		r = join(directory, NAME, ret, err);
		if (r < 0 || access(ret, F_OK) == 0)
			return r;
	}
	users_directory(users);
	if (geteuid() != 0 && is_ours(users)) {
		r = join(users, NAME, ret, err);
		if (r < 0 || access(ret, F_OK) == 0)
			return r;
	}
	return join(NULL, SYSTEM_PATH, ret, err);
}
