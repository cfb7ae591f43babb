/*
 * Starts and stops fsdpd. It is ready when it accepts a connection. The loop
 * that tries to connect has an end, but no test depends on its duration.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/patience.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void show_log(const struct daemon *daemon)
{
	char path[64], line[512];
	FILE *file;

	snprintf(path, sizeof(path), "%s/log", daemon->dir);
	file = fopen(path, "r");
	if (!file)
		return;
	while (fgets(line, sizeof(line), file))
		fprintf(stderr, "    %s", line);
	fclose(file);
}

static void __attribute__((noreturn, format(printf, 2, 3)))
give_up(const struct daemon *daemon, const char *format, ...)
{
	va_list args;

	fputs("daemon: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	show_log(daemon);
	abort();
}

static void nap(void)
{
	const struct timespec ms = {.tv_nsec = 1000000};

	nanosleep(&ms, NULL);
}

/* The default would be chunks of 64 MiB, which the kernel would have to clear
 * for each test. */
#define SMALL "[memory]\nchunk_min = 4M\n"

/* Returns whether the variable "NAME=value" has the name with which the other
 * string begins, which may be another such variable. */
static bool has_name(const char *variable, const char *name)
{
	size_t size = strcspn(name, "=");

	return strncmp(variable, name, size) == 0 && variable[size] == '=';
}

static bool is_inherited(const char *variable, const char *const *own)
{
	static const char *const names[] = {
		"NOTIFY_SOCKET",  "LISTEN_FDS",     "LISTEN_PID",
		"LISTEN_FDNAMES", "WATCHDOG_USEC",  "WATCHDOG_PID",
		"FSDP_SOCKET",    "JOURNAL_STREAM", "FSDP_WORKER",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (has_name(variable, names[i]))
			return false;
	}
	for (; own && *own; own++) {
		if (has_name(variable, *own))
			return false;
	}
	return true;
}

static size_t count(const char *const *list)
{
	size_t n = 0;

	while (list && list[n])
		n++;
	return n;
}

/* Returns the daemon's environment, in memory that the caller must free. */
static const char **make_environment(const char *const *own)
{
	const char *const *all = (const char *const *)environ;
	const char **made = calloc(count(all) + count(own) + 1, sizeof(*made));
	size_t n = 0;

	if (!made)
		abort();
	for (; *all; all++) {
		if (is_inherited(*all, own))
			made[n++] = *all;
	}
	for (; own && *own; own++)
		made[n++] = *own;
	return made;
}

const char *daemon_program(void)
{
	static char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

	if (n < 0)
		abort();
	path[n] = '\0';
	strcpy(strrchr(path, '/') + 1, "fsdpd");
	return path;
}

bool daemon_preload(const char *fake, char ret[PATH_MAX])
{
	const char *program = daemon_program();
	int folder = (int)(strrchr(program, '/') - program);

	return snprintf(ret, PATH_MAX, "LD_PRELOAD=%.*s/fakes/lib%s.so", folder,
			program, fake) < PATH_MAX &&
	       access(strchr(ret, '=') + 1, R_OK) == 0;
}

/* vfork() copies nothing of this process, which takes 2.4 ms of CPU time under
 * AddressSanitizer; and fork() would be that of sanitized_fork.c. The child
 * must not change our memory. */
static pid_t start_program(const char *const *argv, const char *const *env,
			   int log)
{
	pid_t pid = vfork();

	if (pid != 0)
		return pid;
	(void)prctl(PR_SET_PDEATHSIG, SIGTERM);
	(void)dup2(log, STDERR_FILENO);
	(void)execve(*argv, (char *const *)argv, (char *const *)env);
	(void)dprintf(STDERR_FILENO, "%s: %s\n", *argv, strerror(errno));
	_exit(127);
}

static pid_t start_daemon(const struct daemon *daemon,
			  const struct daemon_options *options)
{
	const char **env = make_environment(options->env);
	char config[64], log[64];
	const char *argv[] = {
		daemon_program(),
		"--socket",
		daemon->socket,
		"--config",
		config,
		options->is_supervised ? "--supervised" : NULL,
		NULL,
	};
	pid_t pid;
	int fd;

	snprintf(config, sizeof(config), "%s/conf", daemon->dir);
	snprintf(log, sizeof(log), "%s/log", daemon->dir);
	fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0)
		give_up(daemon, "%s: %s", log, strerror(errno));
	pid = start_program(argv, env, fd);
	close(fd);
	free(env);
	return pid;
}

/* Waits for the end of a connection that we have ended: the broker then has
 * begun to serve, or has died. A broker that only listens may still be
 * starting. */
static void await_service(int fd)
{
	char byte;

	(void)shutdown(fd, SHUT_WR);
	(void)!read(fd, &byte, 1);
}

static bool is_answering(const struct daemon *daemon)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool is_connected;

	strcpy(address.sun_path, daemon->socket);
	is_connected = connect(fd, (const struct sockaddr *)&address,
			       sizeof(address)) == 0;
	/* A supervisor listens even while its brokers die again and again. */
	if (is_connected && !daemon->is_supervised)
		await_service(fd);
	close(fd);
	return is_connected;
}

void daemon_write_config(const struct daemon *daemon, const char *text)
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "%s/conf", daemon->dir);
	file = fopen(path, "w");
	if (!file)
		give_up(daemon, "%s: %s", path, strerror(errno));
	fputs(text ? text : SMALL, file);
	fclose(file);
}

static void launch(struct daemon *daemon, const struct daemon_options *options)
{
	daemon->pid = start_daemon(daemon, options);
	for (int i = 0; !is_answering(daemon); i++) {
		if (i > PATIENCE_MS || waitpid(daemon->pid, NULL, WNOHANG) != 0)
			give_up(daemon, "fsdpd does not start");
		nap();
	}
}

/* Processes that use the fake driver share the files of this folder. */
static void open_devices(struct daemon *daemon)
{
	if (!getenv("FSDP_TEST_DEVICES") || getenv("FAKECUDA_DIR"))
		return;
	strcpy(daemon->devices, "/dev/shm/fsdp-gpu-XXXXXX");
	if (!mkdtemp(daemon->devices))
		give_up(daemon, "mkdtemp: %s", strerror(errno));
	setenv("FAKECUDA_DIR", daemon->devices, 1);
	setenv("FAKECUDA_DEVICES", "8", 1);
}

static void remove_directory(const struct daemon *daemon)
{
	static const char *const names[] = {"sock", "conf", "log"};
	char path[64];

	for (size_t i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s", daemon->dir, names[i]);
		(void)unlink(path);
	}
	(void)rmdir(daemon->dir);
}

static void close_devices(struct daemon *daemon)
{
	DIR *dir = *daemon->devices ? opendir(daemon->devices) : NULL;

	if (!dir)
		return;
	for (struct dirent *entry; (entry = readdir(dir));)
		(void)unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	(void)rmdir(daemon->devices);
	unsetenv("FAKECUDA_DIR");
}

/* --- tests that end without their teardown -------------------------------- */

#define MAX_STARTED 16

/* Daemons that this process has started and not stopped. */
static struct daemon started[MAX_STARTED];
static pid_t starter;

static void remove_started(void)
{
	for (int i = 0; i < MAX_STARTED && getpid() == starter; i++) {
		if (!*started[i].dir)
			continue;
		remove_directory(&started[i]);
		close_devices(&started[i]);
	}
}

/* A test that is skipped or fails ends without its teardown. */
static void note_started(const struct daemon *daemon)
{
	int i = 0;

	if (!starter) {
		starter = getpid();
		(void)atexit(remove_started);
	}
	while (i < MAX_STARTED && *started[i].dir)
		i++;
	if (i < MAX_STARTED)
		started[i] = *daemon;
}

static void note_stopped(const struct daemon *daemon)
{
	for (int i = 0; i < MAX_STARTED; i++) {
		if (strcmp(started[i].dir, daemon->dir) == 0)
			*started[i].dir = '\0';
	}
}

/* --- starting and stopping ------------------------------------------------ */

void daemon_start_with(struct daemon *daemon,
		       const struct daemon_options *options)
{
	*daemon = (struct daemon){.is_supervised = options->is_supervised,
				  .dir = "/tmp/fsdpd-test-XXXXXX"};
	if (!mkdtemp(daemon->dir))
		give_up(daemon, "mkdtemp: %s", strerror(errno));
	open_devices(daemon);
	note_started(daemon);
	snprintf(daemon->socket, sizeof(daemon->socket), "%s/sock",
		 daemon->dir);
	daemon_write_config(daemon, options->config);
	launch(daemon, options);
}

void daemon_start(struct daemon *daemon)
{
	const struct daemon_options options = {0};

	daemon_start_with(daemon, &options);
}

void daemon_start_supervised(struct daemon *daemon)
{
	const struct daemon_options options = {.is_supervised = true};

	daemon_start_with(daemon, &options);
}

void daemon_restart(struct daemon *daemon)
{
	const struct daemon_options options = {
		.is_supervised = daemon->is_supervised,
	};

	launch(daemon, &options);
}

void daemon_stop(struct daemon *daemon)
{
	int status = 0;

	if (daemon->pid > 0) {
		kill(daemon->pid, SIGTERM);
		if (waitpid(daemon->pid, &status, 0) < 0)
			give_up(daemon, "waitpid: %s", strerror(errno));
		daemon->pid = 0;
	}
	if (status != 0)
		give_up(daemon, "fsdpd ended with wait status %#x", status);
	if (*daemon->dir) {
		remove_directory(daemon);
		close_devices(daemon);
		note_stopped(daemon);
	}
	*daemon->dir = '\0';
}

/* Returns the only child of the supervisor, or 0 if it has none now. */
static pid_t child_of(pid_t parent)
{
	char path[64];
	int child = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)parent,
		 (int)parent);
	file = fopen(path, "r");
	if (!file)
		return 0;
	if (fscanf(file, "%d", &child) != 1)
		child = 0;
	fclose(file);
	return child;
}

pid_t daemon_broker_pid(const struct daemon *daemon)
{
	pid_t child = daemon->pid;

	for (int i = 0; daemon->is_supervised; i++) {
		child = child_of(daemon->pid);
		if (child > 0)
			break;
		if (i > PATIENCE_MS)
			give_up(daemon, "the supervisor starts no broker");
		nap();
	}
	return child;
}

void daemon_wait_death(struct daemon *daemon, pid_t broker_pid)
{
	struct pollfd pollfd = {.events = POLLIN};

	if (!daemon->is_supervised) {
		if (waitpid(broker_pid, NULL, 0) < 0)
			give_up(daemon, "waitpid: %s", strerror(errno));
		daemon->pid = 0;
		return;
	}
	pollfd.fd = (int)syscall(SYS_pidfd_open, broker_pid, 0);
	if (pollfd.fd < 0) /* the process has exited already */
		return;
	if (poll(&pollfd, 1, PATIENCE_MS) != 1)
		give_up(daemon, "broker %d does not die", (int)broker_pid);
	close(pollfd.fd);
}

void daemon_kill_broker(struct daemon *daemon)
{
	pid_t pid = daemon_broker_pid(daemon);

	kill(pid, SIGKILL);
	daemon_wait_death(daemon, pid);
}

static bool has_line(FILE *file, const char *text)
{
	char line[512];
	bool is_found = false;

	while (fgets(line, sizeof(line), file))
		is_found = is_found || strstr(line, text);
	return is_found;
}

bool daemon_log_has(const struct daemon *daemon, const char *text)
{
	char path[64];
	bool is_found;
	FILE *file;

	snprintf(path, sizeof(path), "%s/log", daemon->dir);
	file = fopen(path, "re");
	if (!file)
		give_up(daemon, "cannot read %s", path);
	is_found = has_line(file, text);
	fclose(file);
	return is_found;
}

bool daemon_shows(const struct daemon *daemon, const char *arguments,
		  const char *text)
{
	const char *program = daemon_program();
	int folder = (int)(strrchr(program, '/') - program);
	char command[2 * PATH_MAX];
	bool is_found;
	FILE *file;

	snprintf(command, sizeof(command), "%.*s/fsdpctl --socket %s %s",
		 folder, program, daemon->socket, arguments);
	file = popen(command, "re");
	if (!file)
		give_up(daemon, "cannot start %s", command);
	is_found = has_line(file, text);
	if (pclose(file) != 0)
		give_up(daemon, "%s failed", command);
	return is_found;
}

const char *daemon_socket(const struct daemon *daemon)
{
	return daemon->socket;
}
