#include "daemon.h"
#include "fsdp.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 10000
/* The value is that of systemd/fsdpd.service.in. */
#define SERVICE_NICE -10

/* Print the log of the broker, which has failed to start. */
static void show_log(const char *dir)
{
	char path[256], line[512];
	FILE *file;

	snprintf(path, sizeof(path), "%s/fsdpd.log", dir);
	file = fopen(path, "r");
	if (!file)
		return;
	while (fgets(line, sizeof(line), file))
		fprintf(stderr, "    %s", line);
	fclose(file);
}

static void __attribute__((noreturn))
run(const struct daemon *daemon, const struct bench *bench, const char *config,
    const struct daemon_options *options)
{
	char log[256];
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (options->is_unpinned)
		unpin(bench);
	else
		pin(bench->server_cpu);
	/* Only root may raise the priority. */
	if (options->is_service)
		(void)setpriority(PRIO_PROCESS, 0, SERVICE_NICE);
	snprintf(log, sizeof(log), "%s/fsdpd.log", bench->dir);
	fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd >= 0)
		dup2(fd, STDERR_FILENO);
	/* With these variables fsdpd would assume that systemd has started
	 * it. */
	if (options->notify_socket)
		setenv("NOTIFY_SOCKET", options->notify_socket, 1);
	else
		unsetenv("NOTIFY_SOCKET");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_PID");
	unsetenv("WATCHDOG_USEC");
	if (options->is_supervised)
		execl(bench->fsdpd, bench->fsdpd, "--supervised", "--socket",
		      daemon->socket, "--config", config, (char *)NULL);
	else
		execl(bench->fsdpd, bench->fsdpd, "--socket", daemon->socket,
		      "--config", config, (char *)NULL);
	fprintf(stderr, "run %s: %s\n", bench->fsdpd, strerror(errno));
	_exit(127);
}

static void wait_ready(const struct daemon *daemon, const char *dir)
{
	struct fsdp_connect_options options = {.path = daemon->socket,
					       .reconnect_ms = 1};
	uint64_t end = now_ns() + START_MS * 1000000ull;
	struct fsdp_client *client;

	while (fsdp_connect(&options, &client) < 0) {
		if (waitpid(daemon->pid, NULL, WNOHANG) != 0 ||
		    now_ns() > end) {
			show_log(dir);
			die("fsdpd does not answer: %s", fsdp_error());
		}
		sleep_us(2000);
	}
	fsdp_close(client);
}

void daemon_start(struct daemon *daemon, const struct bench *bench,
		  const struct daemon_options *options)
{
	char config[256];
	FILE *file;
	int n;

	n = snprintf(daemon->socket, sizeof(daemon->socket), "%s/fsdpd.sock",
		     bench->dir);
	if (n >= (int)sizeof(daemon->socket))
		die("TMPDIR is too long for a socket: %s", bench->dir);
	snprintf(config, sizeof(config), "%s/fsdpd.conf", bench->dir);
	file = fopen(config, "w");
	if (!file)
		die("open %s: %m", config);
	fputs(options->config ? options->config : "", file);
	fclose(file);
	daemon->pid = sys(fork(), "fork");
	if (daemon->pid == 0)
		run(daemon, bench, config, options);
	wait_ready(daemon, bench->dir);
}

void daemon_stop(struct daemon *daemon)
{
	kill(daemon->pid, SIGTERM);
	sys(waitpid(daemon->pid, NULL, 0), "wait for fsdpd");
	unlink(daemon->socket);
}

static pid_t parent_of(const char *pid)
{
	char path[280], line[512];
	const char *after;
	FILE *file;
	int parent = 0;

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);
	file = fopen(path, "r");
	if (!file)
		return 0;
	if (fgets(line, sizeof(line), file)) {
		after = strrchr(line, ')');
		if (after)
			sscanf(after, ") %*c %d", &parent);
	}
	fclose(file);
	return parent;
}

pid_t process_child(pid_t pid)
{
	DIR *dir = opendir("/proc");
	struct dirent *entry;
	pid_t child = 0;

	if (!dir)
		die("open /proc: %m");
	while (child == 0 && (entry = readdir(dir)))
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
		    parent_of(entry->d_name) == pid)
			child = atoi(entry->d_name);
	closedir(dir);
	return child;
}

static uint64_t thread_switches(pid_t pid, const char *thread)
{
	char path[320], line[256];
	unsigned long n = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%s/status", pid, thread);
	file = fopen(path, "r");
	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1)
			break;
	fclose(file);
	return n;
}

uint64_t process_switches(pid_t pid, uint32_t *ret_n_threads)
{
	char path[64];
	struct dirent *entry;
	uint64_t n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	if (!dir)
		die("open %s: %m", path);
	*ret_n_threads = 0;
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		n += thread_switches(pid, entry->d_name);
		++*ret_n_threads;
	}
	closedir(dir);
	return n;
}

/* Chunks are the memfds called "fsdpd-chunk" and the like:
 * "/memfd:...chunk". */
uint64_t process_rss(pid_t pid)
{
	char path[64], line[512];
	bool is_chunk = false;
	uint64_t kib = 0;
	unsigned long n;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/smaps", pid);
	file = fopen(path, "r");
	if (!file)
		die("open %s: %m", path);
	while (fgets(line, sizeof(line), file)) {
		if (strchr(line, '-') && strchr(line, '-') < strchr(line, ' '))
			is_chunk = strstr(line, "/memfd:fsdp-chunk") ||
				   strstr(line, "/memfd:fsdp-bundle");
		else if (!is_chunk && sscanf(line, "Rss: %lu kB", &n) == 1)
			kib += n;
	}
	fclose(file);
	return kib * 1024;
}
