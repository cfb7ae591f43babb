/*
 * save: writes published names to a directory.
 *
 * Contents that the directory has already are not written again: their digests
 * are compared with those of earlier saves, including an incomplete one. Each
 * entry is held while it is written, so its file has one version.
 */
#include "client/ctl/archive.h"
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/bundles.h"
#include "client/ctl/contents.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/listing.h"
#include "client/ctl/metadata.h"
#include "client/ctl/output.h"
#include "client/ctl/progress.h"
#include "client/ctl/safetensors.h"
#include "client/ctl/transfer.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/name.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* How often the partial index is written. If a save is interrupted, the next
 * one writes the files again that the partial index does not list. */
#define INDEX_EVERY_NS 1000000000ull

/* How often a name that was replaced meanwhile is held anew. */
#define MAX_TRIES 100

struct save {
	struct fsdp_client *client;
	const struct args *args;
	const char *directory, *prefix;
	json_t *old; /* entries of earlier saves */
	/* the new index: entries of this save, and older ones of other names */
	json_t *entries;
	json_t *names;        /* the names of this save: {name: null} */
	uint64_t last_number; /* the largest number of a file name */
	uint64_t index_ns;    /* the time of the last partial index */
	struct progress progress;
	uint64_t n_written, n_kept, n_failed, size;
};

/* One bundle or tensor that is being saved. */
struct item {
	const char *name;
	/* the tensor, or one member of the bundle */
	const struct listed *listed;
	struct listing listing; /* if it was listed again */
	struct fsdp_tensor **tensors;
	size_t n;
	uint64_t *digests;
	json_t *metadata;
	char *header; /* of the file */
	size_t header_size;
	struct transfer *transfer;
};

static int out_of_memory(struct error *err)
{
	return error_nomem(err, "the save");
}

/* --- one item ------------------------------------------------------------ */

static const char *file_name(const struct item *item, size_t i)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	size_t skip = name_is_bundle(item->name) ? strlen(item->name) : 0;

	fsdp_tensor_info(item->tensors[i], &info);
	return skip ? info.name + skip : item->name;
}

static bool is_of(const struct fsdp_tensor *tensor, const struct listed *listed)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};

	fsdp_tensor_info(tensor, &info);
	return info.slot == listed->info.slot &&
	       info.generation == listed->info.generation;
}

/* Returns whether the listed version is the one that is held. */
static bool has_listed(const struct item *item)
{
	for (size_t i = 0; item->listed && i < item->n; i++) {
		if (is_of(item->tensors[i], item->listed))
			return true;
	}
	return false;
}

/* Lists the name again. Sets item->listed to NULL if another version than the
 * one that is held is published now. */
static int list_again(struct save *save, struct item *item, struct error *err)
{
	struct listing *listing = &item->listing;
	int r;

	listing_deinit(listing);
	item->listed = NULL;
	r = fsdp_list(save->client, item->name, listing_add, listing);
	if (r < 0)
		return broker_walk_failed(err, r);
	for (size_t i = 0; item->n && i < listing->n_entries; i++) {
		if (is_of(item->tensors[0], &listing->entries[i]))
			item->listed = &listing->entries[i];
	}
	if (item->listed && item->listed->entry.flags & FSDP_TIED)
		return error_set(err, -ENOENT, "'%s' is tied", item->name);
	return 0;
}

static void release(struct item *item)
{
	for (size_t i = 0; i < item->n; i++)
		fsdp_free(item->tensors[i]);
	free(item->tensors);
	item->tensors = NULL;
	item->n = 0;
}

/* Holds the version whose attributes are listed: a name that is replaced after
 * it was listed is listed again, because it may have become private. */
static int hold(struct save *save, struct item *item, struct error *err)
{
	for (int i = 0; i < MAX_TRIES; i++) {
		int r = contents_hold(save->client, item->name, NULL,
				      &item->tensors, &item->n, err);

		if (r == 0 && !has_listed(item))
			r = list_again(save, item, err);
		if (r < 0 || item->listed)
			return r;
		release(item);
	}
	return error_set(err, -EAGAIN,
			 "cannot save '%s': it is replaced too often; save it "
			 "again later",
			 item->name);
}

static void drop(struct item *item)
{
	transfer_stop(item->transfer);
	release(item);
	listing_deinit(&item->listing);
	free(item->digests);
	free(item->header);
	json_decref(item->metadata);
}

static int make_header(struct item *item, struct error *err)
{
	struct safetensors_item *items = calloc(item->n + 1, sizeof(*items));
	int r;

	if (!items)
		return out_of_memory(err);
	for (size_t i = 0; i < item->n; i++) {
		struct tensor_type type;

		contents_type(item->tensors[i], &type);
		items[i].name = file_name(item, i);
		items[i].type = archive_file_type(&type);
	}
	r = safetensors_make_header(items, item->n, item->metadata,
				    &item->header, &item->header_size, err);
	free(items);
	return r;
}

/* Holds the item and makes the header of its file. */
static int prepare(struct save *save, struct item *item, struct error *err)
{
	int r = hold(save, item, err);

	if (r < 0)
		return r;
	r = metadata_take(item->name, item->tensors, &item->n, &item->metadata,
			  err);
	if (r == 0)
		r = make_header(item, err);
	if (r < 0)
		return error_wrap(err, r, "'%s'", item->name);
	item->digests = calloc(item->n + 1, sizeof(*item->digests));
	return item->digests ? 0 : out_of_memory(err);
}

/* --- is it there already? ------------------------------------------------ */

static int digest_item(struct item *item, struct error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < item->n; i++) {
		const void *memory = contents_address(item->tensors[i]);
		struct fsdp_info info = {.struct_size = sizeof(info)};
		struct transfer_job job = {.direction = TRANSFER_DIGEST,
					   .fd = -1,
					   .memory = (void *)(uintptr_t)memory,
					   .ret_digest = &item->digests[i]};

		fsdp_tensor_info(item->tensors[i], &info);
		job.size = info.size;
		r = memory ? transfer_add(item->transfer, &job, err)
			   : contents_digest(item->tensors[i],
					     &item->digests[i], err);
	}
	return r < 0 ? r : transfer_wait(item->transfer, err);
}

static json_t *make_tensors(const struct item *item)
{
	json_t *tensors = json_object();

	for (size_t i = 0; i < item->n; i++) {
		struct tensor_type type;

		contents_type(item->tensors[i], &type);
		if (json_object_set_new(
			    tensors, file_name(item, i),
			    archive_make_tensor(&type, item->digests[i]))) {
			json_decref(tensors);
			return NULL;
		}
	}
	return tensors;
}

static bool has_size(const char *directory, const json_t *entry)
{
	char *path = archive_path(
		directory, json_string_value(json_object_get(entry, "file")));
	struct stat status;
	bool r = path && stat(path, &status) == 0 &&
		 status.st_size ==
			 json_integer_value(json_object_get(entry, "size"));

	free(path);
	return r;
}

/* Finds the entry of an earlier save with the same tensors and metadata, whose
 * file can be used again. Returns NULL if there is none. */
static const json_t *find_old(const struct save *save, struct item *item,
			      struct error *err)
{
	const json_t *old = json_object_get(save->old, item->name);
	json_t *tensors;
	bool is_same;

	if (!old || !has_size(save->directory, old) ||
	    !json_equal(json_object_get(old, "metadata"), item->metadata) ||
	    json_object_size(json_object_get(old, "tensors")) != item->n ||
	    digest_item(item, err) < 0)
		return NULL;
	tensors = make_tensors(item);
	is_same =
		tensors && json_equal(tensors, json_object_get(old, "tensors"));
	json_decref(tensors);
	return is_same ? old : NULL;
}

/* --- writing ------------------------------------------------------------- */

/* Writes contents that are not contiguous in host memory. */
struct sink {
	struct output *output;
	uint64_t offset;
	XXH3_state_t *state;
};

static int sink_write(void *data, const void *bytes, size_t size,
		      struct error *err)
{
	struct sink *sink = data;
	const char *p = bytes;
	int r = interrupt_check(err);

	XXH3_64bits_update(sink->state, bytes, size);
	while (r == 0 && size) {
		ssize_t n =
			pwrite(sink->output->fd, p, size, (off_t)sink->offset);

		if (n < 0 && errno != EINTR)
			return error_errno(err, -errno, "cannot write %s",
					   sink->output->name);
		if (n < 0)
			continue;
		p += n;
		size -= (size_t)n;
		sink->offset += (uint64_t)n;
	}
	return r;
}

static int write_elsewhere(struct fsdp_tensor *tensor, struct output *output,
			   uint64_t offset, uint64_t *ret_digest,
			   struct error *err)
{
	struct sink sink = {output, offset, XXH3_createState()};
	int r;

	if (!sink.state)
		return out_of_memory(err);
	XXH3_64bits_reset(sink.state);
	r = contents_write(tensor, 0, sink_write, &sink, err);
	*ret_digest = XXH3_64bits_digest(sink.state);
	XXH3_freeState(sink.state);
	return r;
}

static int write_tensor(struct item *item, size_t i, struct output *output,
			uint64_t offset, uint64_t size, struct error *err)
{
	const void *memory = contents_address(item->tensors[i]);
	struct transfer_job job = {.direction = TRANSFER_WRITE,
				   .fd = output->fd,
				   .path = output->name,
				   .offset = offset,
				   .memory = (void *)(uintptr_t)memory,
				   .size = size,
				   .ret_digest = &item->digests[i]};

	if (memory || size == 0)
		return transfer_add(item->transfer, &job, err);
	return write_elsewhere(item->tensors[i], output, offset,
			       &item->digests[i], err);
}

static int write_contents(struct item *item, struct output *output,
			  uint64_t *ret_size, struct error *err)
{
	int r = output_write(output, item->header, item->header_size, err);

	*ret_size = item->header_size;
	for (size_t i = 0; r == 0 && i < item->n; i++) {
		struct tensor_type type;
		uint64_t size;

		contents_type(item->tensors[i], &type);
		size = tensor_type_numel(&type) * dtype_size(type.dtype);
		r = write_tensor(item, i, output, *ret_size, size, err);
		*ret_size += size;
	}
	return r < 0 ? r : transfer_wait(item->transfer, err);
}

static int write_file(const struct save *save, struct item *item,
		      const char *name, uint64_t *ret_size, struct error *err)
{
	char *path = archive_path(save->directory, name);
	struct output output = OUTPUT_NULL;
	/* tensors of mode 0600 must not become readable for others in a file */
	int r = path ? output_open_private(path, &output, err)
		     : out_of_memory(err);

	if (r == 0)
		r = write_contents(item, &output, ret_size, err);
	/* stop all threads that write before the file is closed */
	transfer_stop(item->transfer);
	item->transfer = NULL;
	if (r == 0)
		r = output_commit(&output, err);
	output_close(&output);
	free(path);
	return r;
}

/* --- the index ----------------------------------------------------------- */

/* Adds the entry to the new index. Everything but the contents may have changed
 * since an earlier save. */
static int add_entry(struct save *save, const struct item *item,
		     const char *file, uint64_t size, struct error *err)
{
	const struct fsdp_entry *entry = &item->listed->entry;
	json_t *tensors = make_tensors(item), *object;
	char device[FSDP_DEVICE_TEXT];

	fsdp_device_format(&item->listed->info.device, device);
	object = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:b, s:s, s:O, s:o}",
			   "file", file, "size", document_number(size), "uid",
			   document_number(entry->uid), "gid",
			   document_number(entry->gid), "mode",
			   document_number(entry->mode), "ttl_left_ms",
			   document_number(entry->ttl_left_ms), "evictable",
			   !!(entry->flags & FSDP_EVICTABLE), "device", device,
			   "metadata", item->metadata, "tensors", tensors);
	if (json_object_set_new(save->entries, item->name, object) ||
	    json_object_set_new(save->names, item->name, json_null()))
		return out_of_memory(err);
	return 0;
}

static int write_partial(struct save *save, struct error *err)
{
	uint64_t now_ns = format_now_ns();

	if (now_ns - save->index_ns < INDEX_EVERY_NS)
		return 0;
	save->index_ns = now_ns;
	return archive_write(save->directory, save->entries, err);
}

static int save_held(struct save *save, struct item *item, struct error *err)
{
	const json_t *old;
	char file[64];
	uint64_t size = 0;
	int r = transfer_start(&save->progress, &item->transfer, err);

	if (r < 0)
		return r;
	old = find_old(save, item, err);
	if (err->code)
		return err->code;
	if (old) {
		save->n_kept++;
		return add_entry(
			save, item,
			json_string_value(json_object_get(old, "file")),
			(uint64_t)json_integer_value(
				json_object_get(old, "size")),
			err);
	}
	snprintf(file, sizeof(file), "%05" PRIu64 ARCHIVE_SUFFIX,
		 ++save->last_number);
	r = write_file(save, item, file, &size, err);
	if (r == 0)
		r = add_entry(save, item, file, size, err);
	if (r < 0)
		return r;
	save->n_written++;
	save->size += size;
	return write_partial(save, err);
}

/* Saves one name. A name that was removed meanwhile is skipped. For one that
 * cannot be read, or has contents that no file can hold, the error is printed
 * and the save continues. `listed` is NULL for a name that the list lacks. */
static int save_one(struct save *save, const char *name,
		    const struct listed *listed, struct error *err)
{
	struct item item = {.name = name, .listed = listed};
	struct error cause = ERROR_NULL;
	int r = prepare(save, &item, &cause);

	if (r < 0) {
		drop(&item);
		/* it was removed, or belongs to another user now */
		if (r == -ENOENT || (r == -EACCES && !listed))
			return 0;
		table_clean(cause.msg);
		fprintf(stderr, "fsdpctl: not saved: %s\n", cause.msg);
		save->n_failed++;
		/* keep the entry of an earlier save */
		return json_object_set_new(save->names, name, json_null())
			       ? out_of_memory(err)
			       : 0;
	}
	r = save_held(save, &item, err);
	drop(&item);
	return r;
}

/* --- all of them --------------------------------------------------------- */

/* Adds a name to the listing, unless it is tied: then it ends with its session,
 * and cannot be restored. */
static int add_untied(const struct fsdp_entry *entry, void *data)
{
	return entry->flags & FSDP_TIED ? 0 : listing_add(entry, data);
}

static int save_bundles(struct save *save, const struct listing *listing,
			struct error *err)
{
	struct bundles bundles = BUNDLES_NULL;
	int r = bundles_collect(listing, save->prefix, &bundles);

	if (r < 0)
		r = broker_walk_failed(err, r);
	bundles_sort(&bundles, SORT_NAME);
	for (size_t i = 0; r == 0 && i < bundles.n; i++)
		r = save_one(save, bundles.list[i].name,
			     &bundles.list[i].member, err);
	bundles_deinit(&bundles);
	return r;
}

static int save_tensors(struct save *save, const struct listing *listing,
			struct error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < listing->n_entries; i++) {
		const struct listed *listed = &listing->entries[i];

		if (!listed->entry.bundle)
			r = save_one(save, listed->info.name, listed, err);
	}
	return r;
}

/* Saves names of earlier saves that the list lacks, if they are published: a
 * name that is replaced while the broker lists may be missing. */
static int save_unlisted(struct save *save, struct error *err)
{
	json_t *entry;
	const char *name;
	int r = 0;

	json_object_foreach(save->old, name, entry)
	{
		if (r == 0 &&
		    strncmp(name, save->prefix, strlen(save->prefix)) == 0 &&
		    !json_object_get(save->names, name))
			r = save_one(save, name, NULL, err);
	}
	return r;
}

/* Removes the entries of names that no longer exist from the index, and then
 * their files. */
static int finish(struct save *save, struct error *err)
{
	json_t *entry;
	const char *name;
	void *next;
	int r;

	json_object_foreach_safe(save->entries, next, name, entry)
	{
		if (strncmp(name, save->prefix, strlen(save->prefix)) == 0 &&
		    !json_object_get(save->names, name))
			json_object_del(save->entries, name);
	}
	r = archive_commit(save->directory, save->entries, err);
	if (r < 0)
		return r;
	failpoint("save.committed");
	return archive_remove_unused(save->directory, save->entries, err);
}

static bool is_before(const struct stat *file, const struct stat *other)
{
	const struct timespec *a = &file->st_mtim, *b = &other->st_mtim;

	return a->tv_sec < b->tv_sec ||
	       (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

static int read_old(struct save *save, struct error *err)
{
	const char *const indexes[] = {ARCHIVE_INDEX, ARCHIVE_PARTIAL};
	struct stat status[2] = {0};
	json_t *entry;
	const char *name;
	bool is_stale;

	for (size_t i = 0; i < 2; i++) {
		json_t *entries = NULL;
		int r = archive_read(save->directory, indexes[i], &entries,
				     &status[i], err);

		if (r == -ENOENT)
			*err = ERROR_NULL;
		else if (r < 0)
			return r;
		/* Earlier versions could leave an older partial index. */
		is_stale = i == 1 && is_before(&status[1], &status[0]);
		if (entries && !is_stale &&
		    json_object_update(save->old, entries)) {
			json_decref(entries);
			return out_of_memory(err);
		}
		json_decref(entries);
	}
	json_object_foreach(save->old, name, entry)
	{
		const char *file =
			json_string_value(json_object_get(entry, "file"));
		uint64_t number = strtoull(file, NULL, 10);

		if (number > save->last_number)
			save->last_number = number;
	}
	/* keep the entries of names that this save does not cover */
	return json_object_update(save->entries, save->old) ? out_of_memory(err)
							    : 0;
}

static int report(const struct save *save, struct error *err)
{
	char names[FORMAT_SIZE];

	if (save->n_failed)
		return error_set(
			err, -EIO,
			"cannot save %s; the messages above name the causes",
			format_count(save->n_failed, "name", names));
	return archive_report(
		save->args,
		&(struct archive_result){"written", save->n_written,
					 save->n_kept, save->size,
					 progress_seconds(&save->progress)},
		err);
}

/* Refuses to save nothing: a mistyped prefix must not look like a backup, and a
 * broker that has lost everything must not empty one. */
static int nothing_to_save(const struct save *save, struct error *err)
{
	if (*save->prefix)
		return error_set(err, -ENOENT,
				 "no name that can be saved begins with '%s': "
				 "%s was not changed",
				 save->prefix, save->directory);
	return error_set(err, -ENOENT,
			 "no name that can be saved is published: %s was "
			 "not changed",
			 save->directory);
}

static int save_all(struct save *save, const struct listing *listing,
		    struct error *err)
{
	uint64_t size = 0;
	int r = read_old(save, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < listing->n_entries; i++)
		size += listing->entries[i].info.size;
	progress_init(&save->progress, "save", size,
		      args_has(save->args, ARG_QUIET));
	interrupt_catch();
	r = save_bundles(save, listing, err);
	if (r == 0)
		r = save_tensors(save, listing, err);
	if (r == 0)
		r = save_unlisted(save, err);
	progress_deinit(&save->progress);
	if (r == 0 && !json_object_size(save->names))
		return nothing_to_save(save, err);
	if (r == 0)
		return finish(save, err);
	/* Lets the next save use the files that are complete. */
	(void)archive_write(save->directory, save->entries, NULL);
	return r;
}

static int run_save(struct fsdp_client *client, const struct args *args,
		    struct error *err)
{
	struct save save = {.client = client,
			    .args = args,
			    .directory = args->operands[0],
			    .prefix = args->n_operands > 1 ? args->operands[1]
							   : "",
			    .old = json_object(),
			    .entries = json_object(),
			    .names = json_object()};
	struct listing listing = LISTING_NULL;
	int lock_fd = -1;
	int r = fsdp_list(client, save.prefix, add_untied, &listing);

	if (r < 0)
		r = broker_walk_failed(err, r);
	else if (listing.n_entries == 0)
		r = nothing_to_save(&save, err);
	else if (!save.old || !save.entries || !save.names)
		r = out_of_memory(err);
	else
		r = archive_lock(save.directory, &lock_fd, err);
	listing_sort(&listing);
	if (r == 0)
		r = save_all(&save, &listing, err);
	if (r == 0)
		r = report(&save, err);
	json_decref(save.old);
	json_decref(save.entries);
	json_decref(save.names);
	if (lock_fd >= 0)
		(void)close(lock_fd);
	listing_deinit(&listing);
	return r;
}

const struct verb verbs_save[] = {
	{.name = "save",
	 .operands = "DIRECTORY [PREFIX]",
	 .summary = "write what is published to a directory",
	 .accepts = ARG_BIT(ARG_QUIET) | ARG_BIT(ARG_JSON),
	 .n_min = 1,
	 .n_max = 2,
	 .run = run_save},
	{0}};
