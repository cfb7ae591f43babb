#include "broker/confine.h"
#include "broker/broker.h"
#include "cuda/driver.h"
#include "proto/error.h"
#include "sandbox/landlock.h"
#include "sandbox/sandbox.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RULES 24

struct places {
	size_t n;
	struct landlock_rule rules[MAX_RULES];
	char folders[MAX_RULES][PATH_MAX];
};

static void add(struct places *places, const char *path, enum landlock_use use)
{
	places->rules[places->n++] = (struct landlock_rule){path, use};
}

/* Add a rule for the folder of a file, which may be replaced by a new file of
 * the same name. */
static void add_folder_of(struct places *places, const char *path,
			  enum landlock_use use)
{
	char *folder = places->folders[places->n];
	char *end;

	if (!path || snprintf(folder, PATH_MAX, "%s", path) >= PATH_MAX)
		return;
	end = strrchr(folder, '/');
	if (!end)
		strcpy(folder, ".");
	else
		end[end == folder] = '\0';
	add(places, folder, use);
}

/* Add the files that are only read: the worker with its libraries, the
 * configuration, users and groups, processes, and memory limits. */
static void add_read(struct places *places, const struct broker *broker)
{
	static const char *const folders[] = {
		"/usr", "/lib", "/lib64", "/etc", "/sys", "/proc", "/dev/null",
		/* libnss_systemd and sssd; a reload looks up names, too */
		"/run/systemd/userdb", "/run/userdb", "/var/lib/sss"};
	const char *config = broker->config_source.path;
	char worker[PATH_MAX] = "";

	for (size_t i = 0; i < sizeof(folders) / sizeof(*folders); i++)
		add(places, folders[i], LANDLOCK_READ);
	add_folder_of(places, config ? config : CONFIG_DEFAULT_PATH,
		      LANDLOCK_READ);
	(void)engine_find_program(worker, NULL);
	add_folder_of(places, worker, LANDLOCK_READ);
}

#ifdef FSDP_TEST_POINTS
/* Add the files of a test that failpoints read and write. */
static void add_test(struct places *places)
{
	static const char *const files[] = {"FSDP_POINTS_LOG", "FSDP_KILL_PLAN",
					    "FSDP_STOP_PLAN", "FSDP_FAIL_PLAN",
					    "FSDP_KILL_TOKEN"};

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
		add_folder_of(places, getenv(files[i]), LANDLOCK_OWN);
}
#else
static void add_test(struct places *places)
{
	(void)places;
}
#endif

static int give_up_files(const struct broker *broker, struct error *err)
{
	struct places *places = calloc(1, sizeof(*places));
	int r;

	if (!places)
		return error_nomem(err, "the rules for files");
	add_read(places, broker);
	/* The broker removes its own socket when it ends. */
	add_folder_of(places, broker->sessions.listener.path, LANDLOCK_OWN);
	add_test(places);
	r = landlock_enter(places->rules, places->n, err);
	free(places);
	return r;
}

/* Log the result. Returns true if the step succeeded. */
static bool report(int r, const char *done, const struct error *err)
{
	if (r == 0)
		log_line(LOG_LEVEL_INFO, "the sandbox %s", done);
	else if (r == -EOPNOTSUPP)
		log_line(LOG_LEVEL_INFO, "%s", err->msg);
	else
		log_note(LOG_LEVEL_WARNING, "%s", err->msg);
	return r == 0;
}

static void confine_beside_driver(struct confinement *confinement)
{
	struct error err = ERROR_NULL;
	int r = sandbox_enter(SANDBOX_BROKER_DEVICES, &err);

	if (report(r, "refuses the system calls that no CUDA driver can need",
		   &err))
		confinement->calls = CONFINE_SOME_CALLS;
}

void broker_give_up_rings(const struct broker *broker)
{
	if (broker->base.config.sandbox)
		(void)sandbox_enter(SANDBOX_LOOP, NULL);
}

void broker_confine(struct broker *broker)
{
	struct confinement *confinement = &broker->confinement;
	struct error err = ERROR_NULL;
	int r;

	broker->engine.has_no_sandbox = !broker->base.config.sandbox;
	if (!broker->base.config.sandbox)
		return;
	if (driver_is_installed()) {
		confine_beside_driver(confinement);
		return;
	}
	/* Files come first, since the calls that restrict them are not allowed
	 * afterwards. */
	r = give_up_files(broker, &err);
	confinement->has_files =
		report(r,
		       "allows opening only files of the system, of the "
		       "configuration and of the socket",
		       &err);
	r = sandbox_enter(SANDBOX_BROKER, &err);
	if (report(r,
		   "allows only the system calls that a node without a CUDA "
		   "driver needs",
		   &err))
		confinement->calls = CONFINE_CALLS;
}
