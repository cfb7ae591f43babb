/*
 * Tests the sandbox of a running broker. It is on unless the configuration
 * disables it, from the start of the broker to its end.
 */
#include "client/fsdp.h"
#include "client/fsdp_admin.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/device.h"
#include "tests/lib/ranks.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct daemon broker;

static void stop(void)
{
	daemon_stop(&broker);
}

TestSuite(sandbox, .fini = stop, .timeout = 300);

/* Start a broker that tries a system call. `driver`: "FSDP_LIBCUDA=PATH". */
static void start_trying(const char *config, int call, const char *driver)
{
	char setting[64];
	const char *const env[] = {setting, driver, NULL};

	snprintf(setting, sizeof(setting), "FSDP_SANDBOX_TRY=%d", call);
	daemon_start_with(&broker, &(struct daemon_options){.config = config,
							    .env = env});
}

/* personality(0) changes nothing. */
static void start(const char *config)
{
	start_trying(config, SYS_personality, "FSDP_LIBCUDA=/none");
}

static bool log_has(const char *text)
{
	return daemon_log_has(&broker, text);
}

static struct fsdp_client *connect_client(void)
{
	const struct fsdp_connect_options options = {
		.struct_size = sizeof(options), .path = daemon_socket(&broker)};
	struct fsdp_client *client;

	cr_assert(zero(int, fsdp_connect(&options, &client)));
	return client;
}

static void expect_status(const char *name, uint64_t value)
{
	struct fsdp_client *client = connect_client();

	cr_expect(eq(u64, status_value(client, name), value), "%s", name);
	fsdp_close(client);
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

Test(sandbox, is_active_and_refuses_a_call_in_the_broker)
{
	start("[access]\n");
	if (log_has("no sandbox"))
		cr_skip_test("a build with sanitizers has none");
	cr_expect(log_has("Operation not permitted"));
	cr_expect(eq(int, filter_mode(), 2));
	expect_status("sandbox_calls", 2);
}

/* libuv aborts if it loses a ring that it has. */
Test(sandbox, allows_the_event_loop_no_io_uring)
{
	char preload[PATH_MAX];
	const char *const env[] = {preload, "FSDP_LIBCUDA=/none", NULL};

	if (!daemon_preload("ring_loop", preload))
		cr_skip_test("sanitizers must be loaded first");
	daemon_start_with(&broker, &(struct daemon_options){
					   .config = "[access]\n", .env = env});
	if (log_has("no sandbox"))
		cr_skip_test("a build for coverage has none");
	cr_expect(log_has("the loop's ring: Operation not permitted"));
}

Test(sandbox, of_a_node_without_a_driver_refuses_calls_that_are_not_listed)
{
	start_trying("[access]\n", SYS_setuid, "FSDP_LIBCUDA=/none");
	if (log_has("no sandbox"))
		cr_skip_test("a build with sanitizers has none");
	cr_expect(log_has(strerror(ENOSYS)));
}

static void start_with_driver(int call)
{
	char driver[PATH_MAX];

	if (!getenv("FSDP_LIBCUDA"))
		cr_skip_test("CTest names the fake driver");
	snprintf(driver, sizeof(driver), "FSDP_LIBCUDA=%s",
		 getenv("FSDP_LIBCUDA"));
	start_trying("[access]\n", call, driver);
	if (log_has("no sandbox"))
		cr_skip_test("a build with sanitizers has none");
}

Test(sandbox, with_a_driver_allows_other_calls_and_files)
{
	/* The kernel refuses this call for its NULL pointer, so the filter has
	 * permitted it. */
	start_with_driver(SYS_symlinkat);
	cr_expect(log_has("Bad address"));
	expect_status("sandbox_calls", 1);
	expect_status("sandbox_files", 0);
}

Test(sandbox, with_a_driver_leaves_no_way_to_make_namespaces_unseen)
{
	start_with_driver(SYS_clone3);
	cr_expect(log_has(strerror(ENOSYS)));
}

/* The broker looks for devices once it is confined. */
Test(sandbox, with_a_driver_allows_it_to_open_its_files)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {4096}};
	char home[] = "/tmp/fsdpd-home-XXXXXX", setting[64], command[128];
	const char *const env[] = {setting, NULL};
	struct fsdp_device gpu;
	struct fsdp_tensor *tensor;
	struct fsdp_client *client;

	if (!getenv("FSDP_LIBCUDA"))
		cr_skip_test("CTest names the fake driver");
	cr_assert(mkdtemp(home) != NULL);
	snprintf(setting, sizeof(setting), "FAKECUDA_HOME=%s", home);
	daemon_start_with(&broker, &(struct daemon_options){
					   .config = "[access]\n", .env = env});
	client = connect_client();
	gpu = gpu_name(0);
	cr_expect(zero(int, fsdp_alloc_on(client, &gpu, &spec, 1, NULL, -1,
					  &tensor)),
		  "%s", fsdp_error());
	cr_expect(not(log_has("fake CUDA driver: /")));
	fsdp_close(client);
	snprintf(command, sizeof(command),
		 "test -d %s/.nv; s=$?; rm -r %s; exit $s", home, home);
	cr_expect(zero(int, system(command)), "the driver has no cache");
}

Test(sandbox, can_be_disabled)
{
	int inherited;
	FILE *file = popen("sed -n 's/^Seccomp:.//p' /proc/self/status", "r");

	cr_assert(file != NULL);
	cr_assert(eq(int, fscanf(file, "%d", &inherited), 1));
	pclose(file);
	start("[access]\nsandbox = no\n");
	cr_expect(not(log_has("system call")));
	cr_expect(eq(int, filter_mode(), inherited));
	expect_status("sandbox_calls", 0);
	expect_status("sandbox_files", 0);
}

Test(sandbox, is_kept_by_a_reload_which_reports_it)
{
	char report[FSDP_RELOAD_REPORT_SIZE];
	struct fsdp_client *client;

	start("[access]\n");
	client = connect_client();
	daemon_write_config(&broker, "[access]\nsandbox = no\n");
	cr_assert(zero(int, fsdp_reload(client, report, sizeof(report))));
	cr_expect(eq(str, report,
		     "sandbox = no (was yes)\n"
		     "the new value of sandbox takes effect when fsdpd is "
		     "restarted"));
	fsdp_close(client);
}

/* Write a drop-in that is a link to a file outside of the configuration's
 * folder, and have the configuration read again. */
static int reload_from_elsewhere(char report[FSDP_RELOAD_REPORT_SIZE])
{
	char elsewhere[] = "/tmp/fsdpd-elsewhere-XXXXXX";
	char folder[64], path[128];
	struct fsdp_client *client = connect_client();
	int fd = mkstemp(elsewhere);
	int r;

	cr_assert(ge(int, fd, 0));
	close(fd);
	snprintf(folder, sizeof(folder), "%s/conf.d", broker.dir);
	cr_assert(zero(int, mkdir(folder, 0700)));
	snprintf(path, sizeof(path), "%s/site.conf", folder);
	cr_assert(zero(int, symlink(elsewhere, path)));
	r = fsdp_reload(client, report, FSDP_RELOAD_REPORT_SIZE);
	fsdp_close(client);
	unlink(elsewhere);
	unlink(path);
	rmdir(folder);
	return r;
}

Test(sandbox, allows_the_configuration_to_be_read_only_from_its_folder)
{
	char report[FSDP_RELOAD_REPORT_SIZE];

	start("[access]\n");
	if (!log_has("allows opening"))
		cr_skip_test("no Landlock in this kernel or build");
	expect_status("sandbox_files", 1);
	cr_assert(eq(int, reload_from_elsewhere(report), -EACCES));
	cr_expect(strstr(fsdp_error(), "site.conf: Permission denied") != NULL,
		  "%s", fsdp_error());
}

Test(sandbox, if_disabled_allows_the_configuration_to_be_read_from_anywhere)
{
	char report[FSDP_RELOAD_REPORT_SIZE];

	start("[access]\nsandbox = no\n");
	cr_assert(zero(int, reload_from_elsewhere(report)), "%s", fsdp_error());
}
