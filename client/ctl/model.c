/* Opens a model: one safetensors file, several, or an index. */
#include "client/ctl/model.h"

#include "client/ctl/document.h"
#include "proto/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX_SUFFIX ".safetensors.index.json"

static int out_of_memory(struct error *err)
{
	return error_nomem(err, "the model");
}

/* Consumes `path`, also on failure. */
static int add_file(struct model *model, char *path, struct error *err)
{
	struct model_file *files =
		reallocarray(model->files, model->n_files + 1, sizeof(*files));
	struct model_file *file;
	int r;

	if (files)
		model->files = files;
	if (!files || !path) {
		free(path);
		return out_of_memory(err);
	}
	file = &files[model->n_files++];
	*file = (struct model_file){.path = path,
				    .input = INPUT_NULL,
				    .safetensors = SAFETENSORS_NULL};
	r = input_open(path, &file->input, err);
	if (r < 0)
		return r;
	r = safetensors_read(file->input.fd, &file->safetensors, err);
	if (r < 0)
		return error_wrap(err, r, "%s", path);
	model->n_tensors += file->safetensors.n_entries;
	model->data_size += file->safetensors.data_size;
	if (file->safetensors.metadata &&
	    json_object_update(model->metadata, file->safetensors.metadata))
		return out_of_memory(err);
	return 0;
}

/* --- the index ----------------------------------------------------------- */

static bool is_index(const char *path)
{
	size_t size = strlen(path), suffix = strlen(INDEX_SUFFIX);

	return size >= suffix &&
	       strcmp(path + size - suffix, INDEX_SUFFIX) == 0;
}

/* Adds a file in the directory of the index. A name that leads to another
 * directory is refused. */
static int add_beside(struct model *model, const char *index,
		      const char *tensor, const char *name, struct error *err)
{
	const char *slash = strrchr(index, '/');
	int size = slash ? (int)(slash + 1 - index) : 0;
	char *path;

	if (!name || !*name || strchr(name, '/'))
		return error_set(
			err, -EINVAL,
			"%s: the file of tensor '%.64s' must be the name of a "
			"file in the same directory, without '/'",
			index, tensor);
	for (size_t i = 0; i < model->n_files; i++)
		if (strcmp(model->files[i].path + size, name) == 0)
			return 0;
	if (asprintf(&path, "%.*s%s", size, index, name) < 0)
		path = NULL;
	return add_file(model, path, err);
}

static int add_index(struct model *model, const char *path, json_t **ret_map,
		     struct error *err)
{
	json_t *index, *map, *file;
	struct stat status;
	const char *tensor;
	int r = document_read(path, &index, &status, err);

	if (r < 0)
		return r;
	map = json_object_get(index, "weight_map");
	if (!json_is_object(map))
		r = error_set(err, -EINVAL,
			      "%s is not the index of a model: it has no "
			      "object \"weight_map\"",
			      path);
	else if (json_object_size(map) == 0)
		r = error_set(err, -EINVAL,
			      "cannot read %s: its \"weight_map\" names no "
			      "file; download the index again, or give the "
			      "files",
			      path);
	json_object_foreach(map, tensor, file)
	{
		if (r == 0)
			r = add_beside(model, path, tensor,
				       json_string_value(file), err);
	}
	*ret_map = json_incref(map);
	json_decref(index);
	return r;
}

/* --- which tensor is where ----------------------------------------------- */

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int check_tensor(json_t *seen, const struct model_file *file,
			const char *name, struct error *err)
{
	const char *other = json_string_value(json_object_get(seen, name));

	if (other)
		return error_set(err, -EINVAL,
				 "tensor '%s' is in two files, %s and %s; "
				 "leave one of them out",
				 name, other, file->path);
	if (json_object_set_new(seen, name, json_string(file->path)))
		return out_of_memory(err);
	return 0;
}

static int check_map(json_t *seen, json_t *map, struct error *err)
{
	const char *name;
	json_t *file;

	json_object_foreach(map, name, file)
	{
		const char *path =
			json_string_value(json_object_get(seen, name));

		if (!path || strcmp(base_name(path), json_string_value(file)))
			return error_set(err, -EINVAL,
					 "the index says that tensor '%.64s' "
					 "is in %s, but it is not there",
					 name, json_string_value(file));
	}
	return 0;
}

/* Checks that no tensor is in two files, and that `map`, the weight map of the
 * index, is right. `map` is NULL if there is no index. */
static int check_tensors(const struct model *model, json_t *map,
			 struct error *err)
{
	json_t *seen = json_object();
	int r = seen ? 0 : out_of_memory(err);

	for (size_t f = 0; r == 0 && f < model->n_files; f++) {
		const struct model_file *file = &model->files[f];

		for (size_t i = 0; r == 0 && i < file->safetensors.n_entries;
		     i++)
			r = check_tensor(seen, file,
					 file->safetensors.entries[i].name,
					 err);
	}
	if (r == 0)
		r = check_map(seen, map, err);
	json_decref(seen);
	return r;
}

int model_open(char *const *paths, size_t n_paths, struct model *ret,
	       struct error *err)
{
	struct model model = {.metadata = json_object()};
	json_t *map = NULL;
	int r = model.metadata ? 0 : out_of_memory(err);

	if (r == 0 && n_paths == 1 && is_index(paths[0]))
		r = add_index(&model, paths[0], &map, err);
	else
		for (size_t i = 0; r == 0 && i < n_paths; i++)
			r = add_file(&model, strdup(paths[i]), err);
	if (r == 0)
		r = check_tensors(&model, map, err);
	json_decref(map);
	if (r < 0) {
		model_close(&model);
		return r;
	}
	*ret = model;
	return 0;
}

void model_close(struct model *model)
{
	for (size_t i = 0; i < model->n_files; i++) {
		safetensors_deinit(&model->files[i].safetensors);
		input_close(&model->files[i].input);
		free(model->files[i].path);
	}
	free(model->files);
	json_decref(model->metadata);
	*model = MODEL_NULL;
}
