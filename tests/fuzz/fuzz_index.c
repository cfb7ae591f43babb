/*
 * Reads the index of a model in several files, and the index of saved names.
 * Each is refused with a sentence, or names only files in its directory.
 *
 * The first byte chooses one of the two; the rest is the JSON. A model's files
 * are "a.safetensors" with tensor "w" and "b.safetensors" with "v".
 */
#include "client/ctl/archive.h"
#include "client/ctl/model.h"
#include "proto/error.h"
#include "tests/fuzz/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INDEX "m.safetensors.index.json"

static void write_file(const char *path, const char *tensor)
{
	uint8_t file[256] = {0};
	uint64_t size;
	int n = snprintf((char *)file + 8, sizeof(file) - 8,
			 "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],"
			 "\"data_offsets\":[0,4]}}",
			 tensor);

	size = (uint64_t)n;
	memcpy(file, &size, sizeof(size));
	scratch_write(path, file, 8 + (size_t)n + 4);
}

static void expect_refusal(int r, const struct error *err)
{
	if (r != err->code || !err->msg[0])
		abort();
}

static void open_model(void)
{
	struct error err = ERROR_NULL;
	char path[256], *paths[] = {path};
	struct model model;
	int r;

	(void)snprintf(path, sizeof(path), "%s", scratch_path(INDEX));
	r = model_open(paths, 1, &model, &err);
	if (r < 0) {
		expect_refusal(r, &err);
		return;
	}
	for (size_t i = 0; i < model.n_files; i++) {
		const char *folder = scratch_folder();

		if (strncmp(model.files[i].path, folder, strlen(folder)) != 0 ||
		    strstr(model.files[i].path, ".."))
			abort();
	}
	if (model.n_tensors > 2)
		abort();
	model_close(&model);
}

static void check_entry(const json_t *entry)
{
	const char *file = json_string_value(json_object_get(entry, "file"));

	if (!file || strchr(file, '/') || strcmp(file, "..") == 0)
		abort();
}

static void open_archive(void)
{
	struct error err = ERROR_NULL;
	json_t *entries, *entry;
	const char *name;
	struct stat status;
	int r = archive_read(scratch_folder(), ARCHIVE_INDEX, &entries, &status,
			     &err);

	if (r < 0) {
		expect_refusal(r, &err);
		return;
	}
	json_object_foreach(entries, name, entry) check_entry(entry);
	json_decref(entries);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int is_ready;

	if (!is_ready) {
		write_file("a.safetensors", "w");
		write_file("b.safetensors", "v");
		is_ready = 1;
	}
	if (size < 1)
		return 0;
	if (data[0] % 2 == 0) {
		scratch_write(INDEX, data + 1, size - 1);
		open_model();
	} else {
		scratch_write(ARCHIVE_INDEX, data + 1, size - 1);
		open_archive();
	}
	return 0;
}
