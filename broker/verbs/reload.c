#include "broker/verbs/reload.h"
#include "broker/base/config_keys.h"
#include "broker/broker.h"
#include "broker/session/descriptors.h"
#include "broker/tensor/prefix.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Add a line to the report and to the log. */
static void __attribute__((format(printf, 2, 3)))
report(struct reload *reload, const char *format, ...)
{
	size_t used = strlen(reload->report);
	char line[256];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	log_line(LOG_LEVEL_INFO, "configuration: %s", line);
	if (used + strlen(line) + 2 > sizeof(reload->report))
		return;
	sprintf(reload->report + used, "%s%s", used ? "\n" : "", line);
}

/* Only admin_group may have no value. */
static const char *value_or_none(const char *value)
{
	return *value ? value : "none";
}

static void report_keys(struct reload *reload, const struct config *old)
{
	char before[CONFIG_VALUE_SIZE], after[CONFIG_VALUE_SIZE];

	for (size_t i = 0; i < config_n_keys; i++) {
		const struct config_key *key = &config_keys[i];

		config_key_print(old, key, before);
		config_key_print(&reload->next, key, after);
		if (strcmp(before, after) != 0)
			report(reload, "%s = %s (was %s)", key->name,
			       value_or_none(after), value_or_none(before));
	}
}

static const struct config_prefix *find(const struct config *config,
					const struct config_prefix *like)
{
	for (size_t i = 0; i < config->n_prefixes; i++) {
		const struct config_prefix *prefix = &config->prefixes[i];

		if (strcmp(prefix->name, like->name) == 0)
			return prefix;
	}
	return NULL;
}

static void report_prefixes(struct reload *reload, const struct config *old)
{
	const struct config_prefix *prefix, *other;
	size_t i;

	for (i = 0; i < reload->next.n_prefixes; i++) {
		prefix = &reload->next.prefixes[i];
		other = find(old, prefix);
		if (!other || other->uid != prefix->uid)
			report(reload, "prefix %s belongs to uid %u",
			       prefix->name, prefix->uid);
	}
	for (i = 0; i < old->n_prefixes; i++) {
		prefix = &old->prefixes[i];
		if (!find(&reload->next, prefix))
			report(reload,
			       "prefix %s has no configured owner any more",
			       prefix->name);
	}
}

static void take(struct reload *reload)
{
	struct broker *broker = reload->broker;
	struct config old = broker->base.config;

	if (prefix_reconfigure(&broker->store, &reload->next,
			       &reload->failure) < 0) {
		config_deinit(&reload->next);
		return;
	}
	report_keys(reload, &old);
	report_prefixes(reload, &old);
	if (old.sandbox != reload->next.sandbox)
		report(reload, "the new value of sandbox takes effect when "
			       "fsdpd is restarted");
	if (!*reload->report)
		report(reload, "nothing has changed");
	config_deinit(&old);
	descriptors_check(&broker->base.config);
	pools_look_again(&broker->store.pools);
	/* Requests that wait for memory may be able to continue. */
	wake_room(&broker->base.wake);
}

static void on_read(uv_work_t *work, int status)
{
	struct reload *reload = work->data;
	struct broker *broker = reload->broker;

	(void)status;
	reload->is_running = false;
	if (broker->base.loop.is_stopping) {
		if (reload->failure.code == 0)
			config_deinit(&reload->next);
		return;
	}
	reload->report[0] = '\0';
	if (reload->failure.code == 0)
		take(reload);
	if (reload->failure.code < 0)
		log_line(LOG_LEVEL_ERROR,
			 "cannot reload the configuration: %s; the old values "
			 "remain in use",
			 reload->failure.msg);
	if (reload->is_wanted_again)
		reload_start(broker);
	else
		wake_name(&broker->base.wake, RELOAD_KEY);
}

static void read_again(uv_work_t *work)
{
	struct reload *reload = work->data;

	reload->failure = ERROR_NULL;
	(void)config_load(&reload->next, &reload->broker->config_source,
			  &reload->failure);
}

void reload_start(struct broker *broker)
{
	struct reload *reload = &broker->reload;

	reload->is_wanted_again = reload->is_running;
	if (reload->is_running || broker->base.loop.is_stopping)
		return;
	reload->is_running = true;
	reload->broker = broker;
	reload->work.data = reload;
	/* This fails only if there is no function to run. */
	(void)uv_queue_work(&broker->base.loop.uv, &reload->work, read_again,
			    on_read);
}
