/*
 * restore: publishes what save has written.
 *
 * A name is skipped if it is published as it was saved, which the digests of
 * its tensors show; if none was recorded, the contents are read. So a restore
 * that was interrupted can be run again. Nothing is published before its
 * digests were checked.
 */
#include "client/ctl/archive.h"
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/contents.h"
#include "client/ctl/filler.h"
#include "client/ctl/format.h"
#include "client/ctl/input.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/listing.h"
#include "client/ctl/loader.h"
#include "client/ctl/metadata.h"
#include "client/ctl/owner.h"
#include "client/ctl/progress.h"
#include "client/ctl/safetensors.h"
#include "client/ctl/table.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"
#include "proto/name.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct restore {
	struct fsdp_client *client;
	const struct args *args;
	const char *directory;
	json_t *present; /* {name of a tensor: what describe() returns} */
	uint64_t uid;    /* the user whose entries are being restored */
	struct progress progress;
	uint64_t n_restored, n_kept, n_failed, n_foreign, size;
};

/* One entry that is being restored. */
struct item {
	const char *name;
	const json_t *entry;
	char *path;
	struct input input; /* borrows `path` */
	struct safetensors file;
	struct fsdp_access access;
	struct fsdp_device device;
	uint64_t ttl_ms;
	uint32_t flags;
};

static int out_of_memory(struct error *err)
{
	return error_nomem(err, "the restore");
}

static uint64_t number_of(const json_t *entry, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(entry, key));
}

/* --- is it there already? ------------------------------------------------ */

/* Describes all that makes a published tensor the same as a saved one. */
static json_t *describe(const struct tensor_type *type, uint64_t digest,
			bool is_member)
{
	return json_pack("[o, b]", archive_make_tensor(type, digest),
			 is_member);
}

static int note_present(const struct fsdp_entry *entry, void *data)
{
	struct tensor_type type = {.dtype = entry->info->dtype,
				   .n_dims = entry->info->n_dims};

	memcpy(type.shape, entry->info->shape, sizeof(type.shape));
	return json_object_set_new(
		       data, entry->info->name,
		       describe(&type, entry->digest, entry->bundle != 0))
		       ? -ENOMEM
		       : 0;
}

/* Describes a tensor by its contents. Returns NULL if they cannot be read. */
static json_t *describe_contents(const struct restore *restore,
				 const char *name, bool is_member,
				 struct error *err)
{
	struct fsdp_tensor *tensor;
	struct tensor_type type;
	uint64_t digest;
	int r = fsdp_get(restore->client, &name, 1, NULL, &tensor);

	if (r < 0) {
		broker_failed(err, r);
		return NULL;
	}
	contents_type(tensor, &type);
	r = contents_digest(tensor, &digest, err);
	fsdp_free(tensor);
	return r < 0 ? NULL : describe(&type, digest, is_member);
}

/* Returns whether the published tensor `name` is as it was saved. Programs that
 * publish tensors need not record digests. The error is set if it cannot be
 * read. */
static bool is_tensor_present(const struct restore *restore, const char *name,
			      const json_t *tensor, bool is_member,
			      struct error *err)
{
	json_t *present = json_object_get(restore->present, name);
	struct tensor_type type;
	uint64_t digest;
	json_t *saved, *unknown;
	bool r;

	if (archive_read_tensor(tensor, &type, &digest, NULL) < 0)
		return false;
	saved = describe(&type, digest, is_member);
	unknown = describe(&type, 0, is_member);
	if (json_equal(present, unknown))
		present = describe_contents(restore, name, is_member, err);
	else
		json_incref(present);
	r = saved && json_equal(present, saved);
	json_decref(present);
	json_decref(saved);
	json_decref(unknown);
	return r;
}

/* Returns whether the bundle has the saved metadata, and no other members than
 * those that were saved. The error is set if it cannot be read. */
static bool is_bundle_present(const struct restore *restore,
			      const struct item *item, struct error *err)
{
	struct fsdp_tensor **tensors = NULL;
	json_t *metadata = NULL;
	size_t n = 0;
	bool r = contents_hold(restore->client, item->name, NULL, &tensors, &n,
			       err) == 0 &&
		 metadata_take(item->name, tensors, &n, &metadata, NULL) == 0 &&
		 n == json_object_size(
			      json_object_get(item->entry, "tensors")) &&
		 json_equal(metadata, json_object_get(item->entry, "metadata"));

	for (size_t i = 0; i < n; i++)
		fsdp_free(tensors[i]);
	free(tensors);
	json_decref(metadata);
	return r;
}

/* Returns whether the entry is published as it was saved. `*ret_exists` tells
 * whether at least one of its names exists. The error is set if one cannot be
 * read. */
static bool is_present(const struct restore *restore, const struct item *item,
		       bool *ret_exists, struct error *err)
{
	json_t *tensors = json_object_get(item->entry, "tensors"), *tensor;
	bool is_bundle = name_is_bundle(item->name), is_same = true;
	char full[2 * FSDP_MAX_NAME + 2];
	json_t *metadata = NULL;
	const char *name;

	snprintf(full, sizeof(full), "%s" SAFETENSORS_METADATA, item->name);
	if (is_bundle)
		metadata = json_object_get(restore->present, full);
	*ret_exists = metadata != NULL;
	if (metadata) /* a tensor of that name need not be in a bundle */
		is_same = json_is_true(json_array_get(metadata, 1));
	json_object_foreach(tensors, name, tensor)
	{
		snprintf(full, sizeof(full), "%s%s",
			 is_bundle ? item->name : "", name);
		*ret_exists |= json_object_get(restore->present, full) != NULL;
		is_same = is_same && is_tensor_present(restore, full, tensor,
						       is_bundle, err);
	}
	if (*ret_exists && is_same && is_bundle)
		is_same = is_bundle_present(restore, item, err);
	/* It may have expired since the names were listed. */
	*ret_exists = *ret_exists && err->code != -ENOENT;
	return *ret_exists && is_same;
}

/* --- one entry ----------------------------------------------------------- */

/* Replaces the type in the file by the type of the index, which save may have
 * stored as bytes. */
static int check_tensor(const struct item *item,
			struct safetensors_entry *entry, struct error *err)
{
	const json_t *tensor = json_object_get(
		json_object_get(item->entry, "tensors"), entry->name);
	struct tensor_type type, in_file;
	uint64_t digest;
	int r;

	if (!tensor)
		return error_set(
			err, -EBADMSG,
			"%s has a tensor '%s' that is not in the index",
			item->path, entry->name);
	r = archive_read_tensor(tensor, &type, &digest, err);
	if (r < 0)
		return r;
	in_file = archive_file_type(&type);
	if (memcmp(&in_file, &entry->type, sizeof(in_file)) != 0)
		return error_set(err, -EBADMSG,
				 "tensor '%s' of %s has another dtype or shape "
				 "than in the index",
				 entry->name, item->path);
	entry->type = type;
	return 0;
}

static int check_file(struct item *item, struct error *err)
{
	int r = 0;

	if (item->file.n_entries !=
	    json_object_size(json_object_get(item->entry, "tensors")))
		return error_set(
			err, -EBADMSG,
			"%s does not have as many tensors as the index says",
			item->path);
	for (size_t i = 0; r == 0 && i < item->file.n_entries; i++)
		r = check_tensor(item, &item->file.entries[i], err);
	return r;
}

static int open_item(const struct restore *restore, struct item *item,
		     struct error *err)
{
	const json_t *entry = item->entry;
	int r;

	item->access = (struct fsdp_access){
		.gid = (uint32_t)number_of(entry, "gid"),
		.mode = (uint32_t)number_of(entry, "mode")};
	item->ttl_ms = number_of(entry, "ttl_left_ms");
	item->flags = args_has(restore->args, ARG_REPLACE) ? FSDP_REPLACE : 0;
	r = fsdp_device_parse(
		json_string_value(json_object_get(entry, "device")),
		&item->device);
	if (r < 0)
		return broker_failed(err, r);
	item->path =
		archive_path(restore->directory,
			     json_string_value(json_object_get(entry, "file")));
	if (!item->path)
		return out_of_memory(err);
	r = input_open(item->path, &item->input, err);
	if (r < 0)
		return r;
	r = safetensors_read(item->input.fd, &item->file, err);
	if (r < 0)
		return error_wrap(err, r, "%s", item->path);
	return check_file(item, err);
}

/* Checks that the bytes have the digest of the saved tensor. */
static int check_digest(const struct item *item, size_t i, uint64_t digest,
			struct error *err)
{
	const char *name = item->file.entries[i].name;
	const json_t *tensor =
		json_object_get(json_object_get(item->entry, "tensors"), name);
	struct tensor_type type;
	uint64_t wanted;
	int r = archive_read_tensor(tensor, &type, &wanted, err);

	if (r < 0 || digest == wanted)
		return r;
	return error_set(err, -EBADMSG,
			 "tensor '%s' of %s is damaged: its XXH3 is %016" PRIx64
			 ", and was %016" PRIx64 " when it was saved",
			 name, item->path, digest, wanted);
}

static int restore_bundle(struct restore *restore, struct item *item,
			  struct error *err)
{
	bool is_on_device = strcmp(json_string_value(json_object_get(
					   item->entry, "device")),
				   "host") != 0;
	struct fsdp_bundle_options options = {
		.access = item->access,
		.size_hint = loader_size(&item->file, is_on_device),
		.flags = item->flags,
		.ttl_ms = item->ttl_ms,
		.device = item->device};
	struct loader loader;
	uint64_t version;
	int r = loader_begin(&loader, restore->client, item->name, &options,
			     item->file.n_entries, &restore->progress, err);

	if (r == 0)
		r = loader_add(&loader, &item->input, &item->file, err);
	if (r == 0)
		r = loader_wait(&loader, err);
	for (size_t i = 0; r == 0 && i < loader.n; i++)
		r = check_digest(item, i, loader.digests[i], err);
	if (r == 0)
		r = loader_commit(&loader,
				  json_object_get(item->entry, "metadata"),
				  &version, err);
	loader_deinit(&loader);
	return r;
}

static int fill_tensor(struct restore *restore, const struct item *item,
		       struct fsdp_tensor *tensor, struct error *err)
{
	struct filler filler;
	uint64_t digest = 0;
	int r = filler_start(&restore->progress, &filler, err);

	if (r < 0)
		return r;
	r = filler_add(&filler, &item->input, item->file.entries, &tensor, 1,
		       &digest, err);
	if (r == 0)
		r = filler_wait(&filler, err);
	filler_stop(&filler);
	if (r == 0)
		r = check_digest(item, 0, digest, err);
	if (r < 0)
		return r;
	r = fsdp_set_digests(&tensor, &digest, 1);
	return r < 0 ? broker_failed(err, r) : 0;
}

static int restore_tensor(struct restore *restore, struct item *item,
			  struct error *err)
{
	const struct tensor_type *type = &item->file.entries[0].type;
	struct fsdp_spec spec = {.dtype = (enum fsdp_dtype)type->dtype,
				 .n_dims = type->n_dims};
	struct fsdp_publication publication = {.name = item->name,
					       .flags = item->flags,
					       .ttl_ms = item->ttl_ms};
	int r;

	if (item->file.n_entries != 1)
		return error_set(err, -EBADMSG,
				 "%s does not contain exactly one tensor",
				 item->path);
	if (json_is_true(json_object_get(item->entry, "evictable")))
		publication.flags |= FSDP_EVICTABLE;
	memcpy(spec.shape, type->shape, sizeof(spec.shape));
	r = fsdp_alloc_on(restore->client, &item->device, &spec, 1,
			  &item->access, 0, &publication.tensor);
	if (r < 0)
		return broker_failed(err, r);
	r = fill_tensor(restore, item, publication.tensor, err);
	if (r == 0) {
		r = fsdp_publish(restore->client, &publication, 1);
		if (r < 0)
			broker_failed(err, r);
	}
	fsdp_free(publication.tensor);
	return r;
}

static int restore_item(struct restore *restore, struct item *item,
			struct error *err)
{
	struct error unread = ERROR_NULL;
	bool exists;
	int r;

	if (number_of(item->entry, "uid") != restore->uid)
		return 0;
	if (is_present(restore, item, &exists, &unread)) {
		restore->n_kept++;
		return 0;
	}
	r = interrupt_check(err); /* it may have ended the comparison */
	if (r < 0)
		return r;
	if (exists && unread.code < 0 &&
	    !args_has(restore->args, ARG_REPLACE)) {
		*err = unread;
		return error_wrap(err, unread.code,
				  "it exists, and its contents cannot be read");
	}
	if (exists && !args_has(restore->args, ARG_REPLACE))
		return error_set(err, -EEXIST,
				 "'%s' exists with different contents: restore "
				 "with --replace, or remove it",
				 item->name);
	r = open_item(restore, item, err);
	if (r < 0)
		return r;
	r = name_is_bundle(item->name) ? restore_bundle(restore, item, err)
				       : restore_tensor(restore, item, err);
	if (r < 0)
		return r;
	restore->n_restored++;
	restore->size += item->file.data_size;
	return interrupt_check(err);
}

/* Prints the cause for which `n` names cannot be restored, so that one user's
 * names cannot keep those of the others from being restored. Returns the error
 * if no other name can be restored either. */
static int note_failure(struct restore *restore, uint64_t n,
			struct error *cause, struct error *err)
{
	if (broker_ends(cause->code))
		return error_set(err, cause->code, "%s", cause->msg);
	table_clean(cause->msg);
	fprintf(stderr, "fsdpctl: %s\n", cause->msg);
	restore->n_failed += n;
	return 0;
}

static int restore_entry(struct restore *restore, const char *name,
			 const json_t *entry, struct error *err)
{
	struct item item = {.name = name,
			    .entry = entry,
			    .input = INPUT_NULL,
			    .file = SAFETENSORS_NULL};
	struct error cause = ERROR_NULL;
	int r = restore_item(restore, &item, &cause);

	safetensors_deinit(&item.file);
	input_close(&item.input);
	free(item.path);
	if (r == 0)
		return 0;
	error_wrap(&cause, r, "cannot restore '%s'", name);
	return note_failure(restore, 1, &cause, err);
}

/* --- all of them --------------------------------------------------------- */

static int report(const struct restore *restore, struct error *err)
{
	char names[FORMAT_SIZE];

	if (restore->n_foreign)
		return error_set(
			err, -EPERM,
			"cannot restore %s of other users: uid %u cannot "
			"allocate memory for them; restore these as their "
			"users or as root",
			format_count(restore->n_foreign, "name", names),
			geteuid());
	if (restore->n_failed)
		return error_set(
			err, -EIO,
			"cannot restore %s; the messages above name the causes",
			format_count(restore->n_failed, "name", names));
	return archive_report(
		restore->args,
		&(struct archive_result){"restored", restore->n_restored,
					 restore->n_kept, restore->size,
					 progress_seconds(&restore->progress)},
		err);
}

/* Root publishes only from an index that no other user can have written,
 * because it publishes as every user. */
static int check_trust(const struct restore *restore, const struct stat *index,
		       struct error *err)
{
	if (geteuid() != 0 ||
	    (index->st_uid == 0 && (index->st_mode & 022) == 0))
		return 0;
	return error_set(err, -EPERM,
			 "cannot restore as root: %s/" ARCHIVE_INDEX " could "
			 "have been written by uid %u or group %u, not only by "
			 "root; if you trust it, chown it to root, with mode "
			 "0600",
			 restore->directory, index->st_uid, index->st_gid);
}

static int read_index(const struct restore *restore, json_t **ret,
		      struct error *err)
{
	struct stat status;
	int r = archive_read(restore->directory, ARCHIVE_INDEX, ret, &status,
			     err);

	if (r == -ENOENT)
		return error_set(err, r,
				 "%s has no " ARCHIVE_INDEX
				 ": nothing was saved there, or the save was "
				 "interrupted and must be run again",
				 restore->directory);
	return r < 0 ? r : check_trust(restore, &status, err);
}

/* Restores the entries of one user. */
static int restore_user(struct restore *restore, json_t *entries, uint64_t uid,
			struct error *err)
{
	json_t *entry;
	const char *name;
	int r = 0;

	restore->uid = uid;
	json_object_foreach(entries, name, entry)
	{
		if (r == 0)
			r = restore_entry(restore, name, entry, err);
	}
	return r;
}

/* Makes {uid as text: array of the groups of its entries}. */
static int list_owners(json_t *entries, json_t **ret, struct error *err)
{
	json_t *owners = json_object(), *entry, *gids;
	const char *name;
	char uid[24];

	json_object_foreach(entries, name, entry)
	{
		snprintf(uid, sizeof(uid), "%" PRIu64, number_of(entry, "uid"));
		gids = json_object_get(owners, uid);
		if (!gids) {
			gids = json_array();
			if (json_object_set_new(owners, uid, gids) < 0)
				goto fail;
		}
		if (json_array_append(gids, json_object_get(entry, "gid")) < 0)
			goto fail;
	}
	*ret = owners;
	return 0;
fail:
	json_decref(owners);
	return out_of_memory(err);
}

/* Restores the entries as their user, who then owns the names and is charged
 * for them. */
static int restore_as(struct restore *restore, json_t *entries, uint64_t uid,
		      const json_t *gids, struct error *err)
{
	struct fsdp_client *own = restore->client;
	struct error cause = ERROR_NULL;
	int r = owner_connect(restore->args, (uid_t)uid, gids, &restore->client,
			      &cause);

	if (r < 0)
		return note_failure(restore, json_array_size(gids), &cause,
				    err);
	r = restore_user(restore, entries, uid, err);
	fsdp_close(restore->client);
	restore->client = own;
	return r;
}

static uint64_t count_foreign(json_t *entries)
{
	json_t *entry;
	const char *name;
	uint64_t n = 0;

	json_object_foreach(entries, name, entry)
	{
		n += number_of(entry, "uid") != geteuid();
	}
	return n;
}

/* Restores the entries of the caller first, and then, if it is root, those of
 * the others. */
static int restore_users(struct restore *restore, json_t *entries,
			 struct error *err)
{
	int r = restore_user(restore, entries, geteuid(), err);
	json_t *owners = NULL, *gids;
	const char *uid;

	if (r < 0)
		return r;
	if (geteuid() != 0) {
		restore->n_foreign = count_foreign(entries);
		return 0;
	}
	r = list_owners(entries, &owners, err);
	if (r < 0)
		return r;
	json_object_foreach(owners, uid, gids)
	{
		if (r == 0 && strcmp(uid, "0") != 0)
			r = restore_as(restore, entries,
				       strtoull(uid, NULL, 10), gids, err);
	}
	json_decref(owners);
	return r;
}

static int restore_all(struct restore *restore, json_t *entries,
		       struct error *err)
{
	uint64_t size = 0;
	json_t *entry;
	const char *name;
	int r = fsdp_list(restore->client, NULL, note_present,
			  restore->present);

	if (r < 0)
		return broker_walk_failed(err, r);
	json_object_foreach(entries, name, entry)
	{
		size += number_of(entry, "size");
	}
	progress_init(&restore->progress, "restore", size,
		      args_has(restore->args, ARG_QUIET));
	interrupt_catch();
	r = restore_users(restore, entries, err);
	progress_deinit(&restore->progress);
	return r < 0 ? r : report(restore, err);
}

static int run_restore(struct fsdp_client *client, const struct args *args,
		       struct error *err)
{
	struct restore restore = {.client = client,
				  .args = args,
				  .directory = args->operands[0],
				  .present = json_object()};
	json_t *entries = NULL;
	int r = restore.present ? read_index(&restore, &entries, err)
				: out_of_memory(err);

	if (r == 0)
		r = restore_all(&restore, entries, err);
	json_decref(entries);
	json_decref(restore.present);
	return r;
}

const struct verb verbs_restore[] = {
	{.name = "restore",
	 .operands = "DIRECTORY",
	 .summary = "publish what save wrote to a directory",
	 .accepts =
		 ARG_BIT(ARG_REPLACE) | ARG_BIT(ARG_QUIET) | ARG_BIT(ARG_JSON),
	 .n_min = 1,
	 .n_max = 1,
	 .run = run_restore},
	{0}};
