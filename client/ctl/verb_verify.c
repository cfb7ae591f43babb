/*
 * verify: checks that tensors still have the contents with which they were
 * loaded.
 *
 * The tensors of a batch are held while they are checked. A name that was
 * replaced or removed since it was listed is skipped. A tainted tensor, whose
 * contents were lost, is damaged. One that cannot be read now is counted.
 */
#include "client/ctl/args.h"
#include "client/ctl/broker.h"
#include "client/ctl/contents.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/listing.h"
#include "client/ctl/progress.h"
#include "client/ctl/table.h"
#include "client/ctl/transfer.h"
#include "client/ctl/verb.h"
#include "client/fsdp.h"
#include "proto/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct verify {
	struct fsdp_client *client;
	const struct args *args;
	struct transfer *transfer;
	struct progress progress;
	uint64_t n_verified, n_unknown, n_passed_over, n_unread, n_bytes;
	/* of the last tensor that could not be read, without its name */
	char unread_cause[ERROR_MSG_SIZE];
	json_t *damaged; /* names of damaged tensors */
};

/* Tensors that are held, with their rows of the list. */
struct batch {
	size_t n;
	/* NULL if the contents could not be read */
	const struct listed *listed[FSDP_MAX_BATCH];
	struct fsdp_tensor *tensors[FSDP_MAX_BATCH];
	uint64_t digests[FSDP_MAX_BATCH];
};

static bool is_same(const struct fsdp_tensor *tensor,
		    const struct listed *listed)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};

	fsdp_tensor_info(tensor, &info);
	return info.slot == listed->info.slot &&
	       info.generation == listed->info.generation;
}

/* Writes the sentence without the name that it may contain. */
static void cut_name(const char *sentence, const char *name,
		     char ret[ERROR_MSG_SIZE])
{
	const char *at = strstr(sentence, name);
	size_t n = at ? (size_t)(at - sentence) : strlen(sentence);

	snprintf(ret, ERROR_MSG_SIZE, "%.*s%s", (int)n, sentence,
		 at ? at + strlen(name) : "");
}

/* Counts a tensor that cannot be read, for example because it is not written
 * yet or is on a device that this process does not see. Tensors in a row often
 * have the same cause, which is printed once. Returns the error if the others
 * cannot be read either. */
static int note_unread(struct verify *verify, const char *name, int r,
		       struct error *err)
{
	char cause[ERROR_MSG_SIZE];

	if (broker_ends(r))
		return r;
	cut_name(err->msg, name, cause);
	table_clean(err->msg);
	if (strcmp(verify->unread_cause, cause) != 0)
		fprintf(stderr, "fsdpctl: cannot verify '%s': %s\n", name,
			err->msg);
	memcpy(verify->unread_cause, cause, sizeof(cause));
	verify->n_unread++;
	*err = ERROR_NULL;
	return 0;
}

/* Holds one tensor at a time, because a batch would fail if one of its names is
 * gone. */
static int hold(struct verify *verify, struct batch *batch,
		const struct listed *listed, struct error *err)
{
	const struct fsdp_get_options options = {.struct_size = sizeof(options),
						 .accepts_tainted = true};
	struct fsdp_tensor *tensor = NULL;
	int r = fsdp_get(verify->client, &listed->info.name, 1, &options,
			 &tensor);

	if (r == -ENOENT) {
		verify->n_passed_over++;
		return 0;
	}
	if (r < 0)
		return note_unread(verify, listed->info.name,
				   broker_failed(err, r), err);
	if (!is_same(tensor, listed)) {
		verify->n_passed_over++;
		fsdp_free(tensor);
		return 0;
	}
	batch->listed[batch->n] = listed;
	batch->tensors[batch->n++] = tensor;
	return 0;
}

static int add_damaged(struct verify *verify, const char *name,
		       struct error *err)
{
	if (json_array_append_new(verify->damaged, document_text(name)))
		return error_nomem(err, "the document");
	return 0;
}

static int begin_digest(struct verify *verify, struct batch *batch, size_t i,
			struct error *err)
{
	struct transfer_job job = {
		.direction = TRANSFER_DIGEST,
		.fd = -1,
		.memory =
			(void *)(uintptr_t)contents_address(batch->tensors[i]),
		.size = batch->listed[i]->info.size,
		.ret_digest = &batch->digests[i]};
	int r;

	if (job.memory || job.size == 0)
		return transfer_add(verify->transfer, &job, err);
	r = contents_digest(batch->tensors[i], &batch->digests[i], err);
	/* Without contents the digest stays 0, which was recorded for none. */
	if (r == 0 || r == -EOWNERDEAD)
		return 0;
	r = note_unread(verify, batch->listed[i]->info.name, r, err);
	batch->listed[i] = NULL;
	return r;
}

static int digest_batch(struct verify *verify, struct batch *batch,
			struct error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < batch->n; i++)
		r = begin_digest(verify, batch, i, err);
	if (r == 0)
		r = transfer_wait(verify->transfer, err);
	for (size_t i = 0; r == 0 && i < batch->n; i++) {
		const struct listed *listed = batch->listed[i];

		if (!listed)
			continue;
		verify->n_verified++;
		verify->n_bytes += listed->info.size;
		if (batch->digests[i] != listed->entry.digest)
			r = add_damaged(verify, listed->info.name, err);
	}
	return r;
}

static int verify_some(struct verify *verify, const struct listing *listing,
		       size_t *at, struct error *err)
{
	struct batch batch = {0};
	int r = 0;

	for (; r == 0 && *at < listing->n_entries && batch.n < FSDP_MAX_BATCH;
	     ++*at) {
		const struct listed *listed = &listing->entries[*at];

		if (listed->entry.digest)
			r = hold(verify, &batch, listed, err);
		else
			verify->n_unknown++;
	}
	if (r == 0)
		r = digest_batch(verify, &batch, err);
	if (r < 0)
		transfer_stop(verify->transfer);
	if (r < 0)
		verify->transfer = NULL;
	for (size_t i = 0; i < batch.n; i++)
		fsdp_free(batch.tensors[i]);
	return r;
}

static int report(const struct verify *verify, struct error *err)
{
	char size[FORMAT_SIZE], count[FORMAT_SIZE];
	const json_t *name;
	size_t i;

	if (args_has(verify->args, ARG_JSON))
		return document_print(
			json_pack("{s:o, s:o, s:o, s:o, s:o, s:O}", "verified",
				  document_number(verify->n_verified), "bytes",
				  document_number(verify->n_bytes),
				  "without_digest",
				  document_number(verify->n_unknown),
				  "passed_over",
				  document_number(verify->n_passed_over),
				  "unread", document_number(verify->n_unread),
				  "damaged", verify->damaged),
			err);
	json_array_foreach(verify->damaged, i, name)
		printf("damaged: %s\n", json_string_value(name));
	printf("%s verified, %s",
	       format_count(verify->n_verified, "tensor", count),
	       format_size(verify->n_bytes, size));
	if (verify->n_unknown)
		printf("; %" PRIu64 " without a digest", verify->n_unknown);
	if (verify->n_passed_over)
		printf("; %" PRIu64 " replaced meanwhile",
		       verify->n_passed_over);
	if (verify->n_unread)
		printf("; %" PRIu64 " could not be read", verify->n_unread);
	putchar('\n');
	return 0;
}

static int check_result(const struct verify *verify, struct error *err)
{
	size_t n = json_array_size(verify->damaged);
	char count[FORMAT_SIZE];

	if (n > 0)
		return error_set(
			err, -EBADMSG,
			"the contents of %zu of %s are not those that were "
			"loaded; load them again",
			n, format_count(verify->n_verified, "tensor", count));
	if (verify->n_unread)
		return error_set(
			err, -EIO,
			"cannot read %s; the messages above name the causes",
			format_count(verify->n_unread, "tensor", count));
	if (verify->n_verified == 0 && verify->args->n_operands > 0)
		return error_set(err, -ENODATA,
				 "no tensor below '%s' has a digest: fsdpctl "
				 "load, put and restore record them",
				 verify->args->operands[0]);
	return 0;
}

static int verify_all(struct verify *verify, const struct listing *listing,
		      struct error *err)
{
	uint64_t size = 0;
	int r;

	for (size_t i = 0; i < listing->n_entries; i++)
		if (listing->entries[i].entry.digest)
			size += listing->entries[i].info.size;
	progress_init(&verify->progress, "verify", size,
		      args_has(verify->args, ARG_QUIET));
	r = transfer_start(&verify->progress, &verify->transfer, err);
	for (size_t at = 0; r == 0 && at < listing->n_entries;)
		r = verify_some(verify, listing, &at, err);
	transfer_stop(verify->transfer);
	progress_deinit(&verify->progress);
	if (r == 0)
		r = report(verify, err);
	return r < 0 ? r : check_result(verify, err);
}

static int run_verify(struct fsdp_client *client, const struct args *args,
		      struct error *err)
{
	const char *prefix = args->n_operands ? args->operands[0] : NULL;
	struct verify verify = {
		.client = client, .args = args, .damaged = json_array()};
	struct listing listing = LISTING_NULL;
	int r = fsdp_list(client, prefix, listing_add, &listing);

	if (r < 0)
		r = broker_walk_failed(err, r);
	if (r == 0 && listing.n_entries == 0 && prefix)
		r = error_set(err, -ENOENT, "no name begins with '%s'", prefix);
	listing_sort(&listing);
	if (r == 0)
		r = verify_all(&verify, &listing, err);
	json_decref(verify.damaged);
	listing_deinit(&listing);
	return r;
}

const struct verb verbs_verify[] = {
	{.name = "verify",
	 .operands = "[PREFIX]",
	 .summary = "compare the contents of tensors with their digests",
	 .accepts = ARG_BIT(ARG_QUIET) | ARG_BIT(ARG_JSON),
	 .n_max = 1,
	 .run = run_verify},
	{0}};
