/*
 * Tests on which paths brokers listen and clients connect. If the test cannot
 * become another user, it leaves out the parts that write to /tmp, because a
 * broker of this user may use them.
 */
#include "proto/socket_path.h"

#include "proto/error.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[SOCKET_PATH_SIZE];
static char users[64]; /* directory of the user that the test has become */

static void forget(void)
{
	unsetenv("FSDP_SOCKET");
	unsetenv("XDG_RUNTIME_DIR");
}

/* Become a user that no other process has, and that has no socket yet. */
static void become_user(void)
{
	unsigned int uid = 0x40000000u + (unsigned int)getpid();

	if (geteuid() != 0)
		cr_skip_test("only root can become another user");
	forget();
	snprintf(users, sizeof(users), "/tmp/fsdpd-%u", uid);
	cr_assert(zero(int, seteuid(uid)));
}

static void become_root(void)
{
	cr_assert(zero(int, seteuid(0)));
	snprintf(path, sizeof(path), "%s/fsdpd.sock", users);
	(void)unlink(path);
	(void)rmdir(users);
	(void)unlink(users);
}

static void make_file(const char *name)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	cr_assert(ge(int, fd, 0));
	close(fd);
}

static void expect_system(void)
{
	cr_assert(zero(int, socket_path_to_connect(path, NULL)));
	cr_expect(eq(str, path, "/run/fsdpd/fsdpd.sock"));
}

static void expect_users(void)
{
	char wanted[SOCKET_PATH_SIZE];

	snprintf(wanted, sizeof(wanted), "%s/fsdpd.sock", users);
	cr_assert(zero(int, socket_path_to_listen(path, NULL)));
	cr_expect(eq(str, path, wanted));
}

Test(socket_path, the_variable_is_used_by_broker_and_client)
{
	setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
	setenv("FSDP_SOCKET", "/x/y", 1);
	cr_assert(zero(int, socket_path_to_listen(path, NULL)));
	cr_expect(eq(str, path, "/x/y"));
	cr_assert(zero(int, socket_path_to_connect(path, NULL)));
	cr_expect(eq(str, path, "/x/y"));
}

Test(socket_path, an_empty_variable_counts_as_unset)
{
	char directory[] = "/tmp/fsdpd-path-XXXXXX", wanted[64];

	cr_assert(mkdtemp(directory) != NULL);
	setenv("XDG_RUNTIME_DIR", directory, 1);
	setenv("FSDP_SOCKET", "", 1);
	snprintf(wanted, sizeof(wanted), "%s/fsdpd.sock", directory);
	cr_assert(zero(int, socket_path_to_listen(path, NULL)));
	cr_expect(eq(str, path, wanted));
	make_file(wanted);
	cr_assert(zero(int, socket_path_to_connect(path, NULL)));
	cr_expect(eq(str, path, wanted));
	unlink(wanted);
	rmdir(directory);
}

Test(socket_path, a_runtime_directory_of_another_user_counts_as_unset)
{
	char directory[] = "/tmp/fsdpd-path-XXXXXX", socket[64];

	if (geteuid() != 0)
		cr_skip_test("only root can give a directory to another user");
	forget();
	cr_assert(mkdtemp(directory) != NULL);
	cr_assert(zero(int, chown(directory, 65533, 65533)));
	setenv("XDG_RUNTIME_DIR", directory, 1);
	snprintf(socket, sizeof(socket), "%s/fsdpd.sock", directory);
	make_file(socket);
	expect_system();
	cr_assert(zero(int, socket_path_to_listen(path, NULL)));
	cr_expect(eq(str, path, "/run/fsdpd/fsdpd.sock"));
	unlink(socket);
	rmdir(directory);
}

Test(socket_path, a_path_that_is_too_long_is_refused)
{
	struct error err = ERROR_NULL;
	char name[200];

	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	setenv("FSDP_SOCKET", name, 1);
	cr_expect(eq(int, socket_path_to_listen(path, &err), -ENAMETOOLONG));
	cr_expect(ne(ptr, strstr(err.msg, "107 bytes"), NULL));
	cr_expect(eq(int, socket_path_to_connect(path, NULL), -ENAMETOOLONG));
}

Test(socket_path, a_user_without_a_runtime_directory_uses_a_directory_in_tmp)
{
	struct stat st;

	become_user();
	expect_system(); /* the user has no directory yet */
	expect_users();
	cr_assert(zero(int, stat(users, &st)));
	cr_expect(eq(u32, st.st_uid, geteuid()));
	cr_expect(eq(u32, st.st_mode & 07777, 0700));
	make_file(path);
	expect_users(); /* a restarted broker uses the path again */
	cr_assert(zero(int, socket_path_to_connect(path, NULL)));
	cr_expect(eq(int, strncmp(path, users, strlen(users)), 0));
	become_root();
}

Test(socket_path, a_directory_of_another_user_is_not_trusted)
{
	struct error err = ERROR_NULL;

	become_user();
	cr_assert(zero(int, seteuid(0)));
	cr_assert(zero(int, mkdir(users, 0755)));
	snprintf(path, sizeof(path), "%s/fsdpd.sock", users);
	make_file(path);
	cr_assert(zero(int, seteuid(0x40000000u + (unsigned int)getpid())));
	cr_expect(eq(int, socket_path_to_listen(path, &err), -EPERM));
	cr_expect(ne(ptr, strstr(err.msg, users), NULL), "%s", err.msg);
	expect_system();
	become_root();
}

Test(socket_path, a_link_or_a_directory_that_others_may_write_is_not_trusted)
{
	become_user();
	cr_assert(zero(int, mkdir(users, 0700)));
	cr_assert(zero(int, chmod(users, 0770)));
	cr_expect(eq(int, socket_path_to_listen(path, NULL), -EPERM));
	cr_assert(zero(int, rmdir(users)));
	cr_assert(zero(int, symlink("/", users)));
	cr_expect(eq(int, socket_path_to_listen(path, NULL), -EPERM));
	expect_system();
	become_root();
}

Test(socket_path, root_uses_the_socket_of_the_system)
{
	if (geteuid() != 0)
		cr_skip_test("only root is root");
	forget();
	cr_assert(zero(int, socket_path_to_listen(path, NULL)));
	cr_expect(eq(str, path, "/run/fsdpd/fsdpd.sock"));
	expect_system();
}
