/*
 * Tests the sandbox of a running broker, which is on unless the configuration
 * disables it, and works from start to end.
 */
#include "client/fsdp.h"
#include "client/fsdp_admin.h"
#include "tests/lib/daemon.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

static struct daemon broker;

static void stop(void)
{
	daemon_stop(&broker);
}

TestSuite(sandbox, .fini = stop, .timeout = 30);

/* Start a broker that tries personality(0), which changes nothing. */
static void start(const char *config)
{
	char setting[64];
	const char *const env[] = {setting, NULL};

	snprintf(setting, sizeof(setting), "FSDP_SANDBOX_TRY=%d",
		 SYS_personality);
	daemon_start_with(&broker, &(struct daemon_options){.config = config,
							    .env = env});
}

static bool log_has(const char *text)
{
	char path[64], line[512];
	bool is_found = false;
	FILE *file;

	snprintf(path, sizeof(path), "%s/log", broker.dir);
	file = fopen(path, "re");
	cr_assert(file != NULL);
	while (!is_found && fgets(line, sizeof(line), file))
		is_found = strstr(line, text) != NULL;
	fclose(file);
	return is_found;
}

/* Returns "Seccomp:" of the process, which is 2 with a filter. */
static int filter_mode(void)
{
	char path[64], line[256];
	int mode = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)broker.pid);
	file = fopen(path, "re");
	cr_assert(file != NULL);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "Seccomp: %d", &mode) == 1)
			break;
	}
	fclose(file);
	return mode;
}

Test(sandbox, is_on_and_refuses_a_call_in_the_broker)
{
	start("[access]\n");
	if (log_has("no sandbox"))
		cr_skip_test("a build with sanitizers has none");
	cr_expect(log_has("Operation not permitted"));
	cr_expect(eq(int, filter_mode(), 2));
}

Test(sandbox, can_be_left_out)
{
	int inherited;
	FILE *file = popen("sed -n 's/^Seccomp:.//p' /proc/self/status", "r");

	cr_assert(file != NULL);
	cr_assert(eq(int, fscanf(file, "%d", &inherited), 1));
	pclose(file);
	start("[access]\nsandbox = no\n");
	cr_expect(not(log_has("system call")));
	cr_expect(eq(int, filter_mode(), inherited));
}

Test(sandbox, is_kept_by_a_reload_which_says_so)
{
	struct fsdp_connect_options options = {.struct_size = sizeof(options)};
	char report[FSDP_RELOAD_REPORT_SIZE];
	struct fsdp_client *client;

	start("[access]\n");
	options.path = daemon_socket(&broker);
	cr_assert(zero(int, fsdp_connect(&options, &client)));
	daemon_write_config(&broker, "[access]\nsandbox = no\n");
	cr_assert(zero(int, fsdp_reload(client, report, sizeof(report))));
	cr_expect(eq(str, report,
		     "sandbox = no (was yes)\n"
		     "sandbox counts when fsdpd is started again"));
	fsdp_close(client);
}
