/*
 * Tests a configuration that is read again: what it changes, what happens after
 * a mistake, and which users may request it.
 */
#include "client/fsdp.h"
#include "tests/lib/users.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

TestSuite(reload, .fini = users_stop, .timeout = 300);

static struct fsdp_client *client;
static char report[FSDP_RELOAD_REPORT_SIZE];

static void start_client(const char *config)
{
	struct fsdp_connect_options options = {.struct_size = sizeof(options)};

	users_start(config);
	options.path = users_daemon.socket;
	cr_assert(zero(int, fsdp_connect(&options, &client)), "%s",
		  fsdp_error());
}

/* The value and origin that the test expects of a key, as "VALUE ORIGIN". */
struct wanted {
	const char *name;
	char text[256];
};

static int find(const struct fsdp_config_entry *entry, void *data)
{
	struct wanted *wanted = data;

	if (strcmp(entry->name, wanted->name) == 0)
		snprintf(wanted->text, sizeof(wanted->text), "%s %s",
			 entry->value,
			 strrchr(entry->origin, '/')
				 ? strrchr(entry->origin, '/') + 1
				 : entry->origin);
	return 0;
}

static const char *value_of(const char *name)
{
	static struct wanted wanted;

	wanted = (struct wanted){.name = name};
	cr_assert(zero(int, fsdp_config(client, find, &wanted)), "%s",
		  fsdp_error());
	return wanted.text;
}

static void expect_value(const char *name, const char *text)
{
	cr_expect(eq(str, (char *)value_of(name), (char *)text));
}

static void expect_in(const char *text, const char *part)
{
	cr_expect(strstr(text, part) != NULL, "%s: %s", part, text);
}

static void reload(const char *config)
{
	daemon_write_config(&users_daemon, config);
	cr_assert(zero(int, fsdp_reload(client, report, sizeof(report))), "%s",
		  fsdp_error());
}

Test(reload, applies_new_limits_at_once)
{
	struct wire *alice;

	start_client("[quota]\nquota_slots = 2\n");
	alice = open_as(ALICE);
	wire_must(alice, wire_alloc(alice, 64, NULL, 0, NULL));
	wire_must(alice, wire_alloc(alice, 64, NULL, 0, NULL));
	cr_assert(eq(int, wire_alloc(alice, 64, NULL, 0, NULL), -EDQUOT));
	reload("[quota]\n\nquota_slots = 3\n[memory]\nwarm_ms = 1m\n");
	cr_expect(eq(str, report,
		     "warm_ms = 1m (was 30s)\nquota_slots = 3 (was 2)"));
	expect_value("quota_slots", "3 conf:3");
	expect_value("warm_ms", "1m conf:5");
	expect_value("quota_chunks", "256 default");
	wire_must(alice, wire_alloc(alice, 64, NULL, 0, NULL));
	reload("[quota]\nquota_slots = 1\n");
	cr_assert(eq(int, wire_alloc(alice, 64, NULL, 0, NULL), -EDQUOT));
	wire_says(alice, "3");
	reload("[quota]\nquota_slots = 1\n");
	cr_expect(eq(str, report, "nothing has changed"));
	wire_close(alice);
	fsdp_close(client);
}

Test(reload, reports_that_a_key_has_no_value)
{
	start_client("");
	reload("[access]\nadmin_group = 61200\n");
	cr_expect(eq(str, report, "admin_group = 61200 (was none)"));
	reload("");
	cr_expect(eq(str, report, "admin_group = none (was 61200)"));
	fsdp_close(client);
}

Test(reload, of_an_invalid_file_names_the_line_and_changes_nothing)
{
	start_client("[quota]\nquota_slots = 2\n");
	daemon_write_config(&users_daemon,
			    "[quota]\nquota_slots = 5\nslots = 1\n");
	cr_assert(
		eq(int, fsdp_reload(client, report, sizeof(report)), -EINVAL));
	expect_in(fsdp_error(), "conf:3: there is no key \"slots\"");
	expect_value("quota_slots", "2 conf:2");
	reload("[quota]\nquota_slots = 5\n");
	expect_value("quota_slots", "5 conf:2");
	fsdp_close(client);
}

Test(reload, is_triggered_by_a_signal_to_the_parent)
{
	struct daemon_options options = {.is_supervised = true};
	struct fsdp_connect_options connect = {.struct_size = sizeof(connect)};

	daemon_start_with(&users_daemon, &options);
	connect.path = users_daemon.socket;
	cr_assert(zero(int, fsdp_connect(&connect, &client)));
	daemon_write_config(&users_daemon, "[quota]\nquota_slots = 5\n");
	cr_assert(zero(int, kill(users_daemon.pid, SIGHUP)));
	while (strcmp(value_of("quota_slots"), "5 conf:2") != 0)
		;
	fsdp_close(client);
}

Test(reload, gives_more_memory)
{
	struct fsdp_spec spec = {FSDP_U8, 1, {MIB}};
	struct fsdp_tensor *tensors[64], *one;
	int n = 0;

	start_client("[memory]\nmemory_max = 4M\nchunk_min = 2M\n");
	while (fsdp_alloc(client, &spec, 1, NULL, 0, &tensors[n]) == 0)
		n++;
	cr_assert(lt(int, n, 64));
	reload("[memory]\nmemory_max = 64M\nchunk_min = 2M\n");
	cr_assert(zero(int, fsdp_alloc(client, &spec, 1, NULL, 0, &one)), "%s",
		  fsdp_error());
	fsdp_close(client);
}

/* A user that owns a component by configuration is not charged for it. */
Test(reload, moves_the_charge_for_first_components)
{
	struct wire *alice;

	start_client("[quota]\nquota_prefixes = 2\n");
	if (getuid() != 0)
		cr_skip_test("the test names a user by number");
	alice = open_as(ALICE);
	wire_must(alice, wire_put(alice, "one/a", 64, NULL, NULL));
	wire_must(alice, wire_put(alice, "two/a", 64, NULL, NULL));
	cr_assert(eq(int, wire_put(alice, "three/a", 64, NULL, NULL), -EDQUOT));
	reload("[quota]\nquota_prefixes = 2\n[prefixes]\none = 61001\n");
	expect_in(report, "prefix one belongs to uid 61001");
	expect_value("one", "61001 conf:4");
	wire_must(alice, wire_put(alice, "three/a", 64, NULL, NULL));
	reload("[quota]\nquota_prefixes = 3\n");
	cr_assert(eq(int, wire_put(alice, "four/a", 64, NULL, NULL), -EDQUOT));
	wire_says(alice, "owns 3 of at most 3");
	wire_close(alice);
	fsdp_close(client);
}

static uint32_t count_prefixes(struct wire *wire)
{
	wire_must(wire,
		  wire_call(wire, &(struct request){.kind = MESSAGE_PREFIXES}));
	return wire->reply.prefixes.n_items;
}

/* The deadlines were set by the earlier configuration. */
Test(reload, shortens_running_times)
{
	struct wire *wire;

	start_client("[memory]\nwarm_ms = 5h\n[quota]\nprefix_grace_ms = 5h\n");
	wire = wire_open(users_daemon.socket);
	wire_must(wire, wire_put(wire, "one/a", 64, NULL, NULL));
	wire_must(wire, wire_remove(wire, "one/a"));
	wire_goodbye(wire);
	wire = wire_open(users_daemon.socket);
	wire_wait_status(wire, "slots", 0);
	cr_assert(eq(u32, count_prefixes(wire), 1));
	cr_assert(gt(u64, wire_status(wire, "free_warm"), 0));
	reload("[memory]\nwarm_ms = 0\n[quota]\nprefix_grace_ms = 0\n");
	wire_wait_status(wire, "free_warm", 0);
	while (count_prefixes(wire) > 0)
		;
	wire_close(wire);
	fsdp_close(client);
}

Test(reload, is_refused_to_ordinary_users)
{
	struct request request = {.kind = MESSAGE_RELOAD};
	struct wire *alice;

	users_start("");
	if (getuid() != 0)
		cr_skip_test("only root can be another user");
	alice = open_as(ALICE);
	cr_expect(eq(int, wire_call(alice, &request), -EPERM));
	wire_says(alice, "admin_group");
	request.kind = MESSAGE_CONFIG;
	cr_expect(zero(int, wire_call(alice, &request)));
	wire_close(alice);
}
