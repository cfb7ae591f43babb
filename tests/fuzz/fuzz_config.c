/*
 * Reads a configuration file, a drop-in and a setting of the command line,
 * which are separated by bytes of 0. Each is refused with a sentence, or gives
 * a configuration whose printed values are accepted and printed as the same.
 */
#include "broker/base/config.h"
#include "proto/error.h"
#include "tests/fuzz/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Takes the bytes up to the next 0, and skips the 0. */
static size_t part(const uint8_t **data, size_t *size, const uint8_t **ret)
{
	const uint8_t *end = *size ? memchr(*data, 0, *size) : NULL;
	size_t n = end ? (size_t)(end - *data) : *size;

	*ret = *data;
	*data += end ? n + 1 : n;
	*size -= end ? n + 1 : n;
	return n;
}

static void load(const struct config_source *source, struct config *ret)
{
	struct error err = ERROR_NULL;
	int r = config_load(ret, source, &err);

	if (r < 0)
		abort();
}

/* Prints no blanks, because the lines that were read may have had the maximal
 * length already. */
static void print_all(const struct config *config, FILE *file)
{
	const char *section = "";
	struct config_entry entry;

	for (size_t i = 0; config_entry(config, i, &entry); i++) {
		/* Some values are empty, such as a group that is not set. */
		if (!*entry.value)
			continue;
		if (strcmp(section, entry.section) != 0)
			fprintf(file, "[%s]\n", entry.section);
		section = entry.section;
		fprintf(file, "%s=%s\n", entry.name, entry.value);
	}
}

/* Returns the configuration as text, which the caller frees. */
static char *print(const struct config *config)
{
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	if (!file)
		abort();
	print_all(config, file);
	if (fclose(file) != 0)
		abort();
	return text;
}

static void check_printed(const struct config *config)
{
	char path[256], *text = print(config), *again;
	struct config_source source = {.path = path};
	struct config reread;

	scratch_write("again", (const uint8_t *)text, strlen(text));
	(void)snprintf(path, sizeof(path), "%s", scratch_path("again"));
	load(&source, &reread);
	again = print(&reread);
	if (strcmp(text, again) != 0)
		abort();
	config_deinit(&reread);
	free(text);
	free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *bytes;
	char path[256], text[512];
	const char *settings[] = {text};
	struct config_source source = {.path = path, .settings = settings};
	struct error err = ERROR_NULL;
	struct config config;
	size_t n;
	int r;

	n = part(&data, &size, &bytes);
	scratch_write("conf", bytes, n);
	n = part(&data, &size, &bytes);
	scratch_write("conf.d/10.conf", bytes, n);
	n = part(&data, &size, &bytes);
	source.n_settings = n > 0 && n < sizeof(text);
	(void)snprintf(text, sizeof(text), "%.*s", (int)n, (const char *)bytes);
	(void)snprintf(path, sizeof(path), "%s", scratch_path("conf"));
	r = config_load(&config, &source, &err);
	if (r < 0 && (r != err.code || !err.msg[0]))
		abort();
	if (r < 0)
		return 0;
	check_printed(&config);
	config_deinit(&config);
	return 0;
}
