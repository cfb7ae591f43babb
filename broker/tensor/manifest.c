/*
 * Manifests are copied on the loop and encoded on a thread.
 */
#include "broker/tensor/manifest.h"
#include "broker/base/account.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/place.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/name.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COPY_STEP 64

struct manifest_work {
	uv_work_t req;
	struct store *store;
	/* the user's, whose is_listing is set by this work */
	struct account *account;
	uint32_t bundle;
	uint32_t next; /* the member to copy next */
	/* Owned; the thread sets their names. */
	struct places_reply places;
	/* Owned; the names of all members, one after another, each with its
	 * final 0. */
	char *names;
	size_t names_size, capacity; /* bytes used, and allocated */
	int fd;                      /* the manifest's file; -1: not made yet */
	uint64_t size;               /* size of the manifest's file */
	int result;
	/* the thread has failed; the loop may read result and err */
	bool has_failed;
	struct error err;
};

/* --- on a thread --------------------------------------------------------- */

static int write_all(int fd, const uint8_t *bytes, size_t size,
		     struct error *err)
{
	size_t done = 0;
	ssize_t n;

	while (done < size) {
		n = pwrite(fd, bytes + done, size - done, (off_t)done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return error_errno(err, -errno,
					   "cannot write a manifest");
		done += (size_t)n;
	}
	return 0;
}

/* Makes a sealed memfd of these bytes. Its descriptor is read-only, since the
 * kernel refuses to map a write-sealed file through a writable descriptor, even
 * for reading. */
static int make_memfd(const uint8_t *bytes, size_t size, int *ret_fd,
		      struct error *err)
{
	int fd, r;

	r = memfd_create_sealed("fsdpd-manifest", size, MEMFD_SEAL_SIZE, &fd,
				err);
	if (r < 0)
		return r;
	r = write_all(fd, bytes, size, err);
	if (r == 0)
		r = memfd_seal_write(fd, err);
	if (r == 0)
		r = memfd_open_readonly(fd, ret_fd, err);
	close(fd);
	return r;
}

static void run(uv_work_t *req)
{
	struct manifest_work *work = req->data;
	const char *name = work->names;
	uint8_t *bytes;
	size_t size;

	for (uint32_t i = 0; i < work->places.n_places; i++) {
		work->places.places[i].name = name;
		name += strlen(name) + 1;
	}
	work->result = places_encode(&work->places, &bytes, &size, &work->err);
	/* The thread frees them, since freeing so much memory takes time,
	 * too. */
	free(work->places.places);
	free(work->names);
	work->places.places = NULL;
	work->names = NULL;
	if (work->result < 0)
		return;
	work->size = size;
	work->result = make_memfd(bytes, size, &work->fd, &work->err);
	free(bytes);
}

/* --- in the loop --------------------------------------------------------- */

static void work_free(struct manifest_work *work)
{
	if (work->fd >= 0)
		close(work->fd);
	free(work->places.places);
	free(work->names);
	free(work);
}

/* Lets the user's next manifest begin. */
static void end_turn(struct manifest_work *work)
{
	work->account->is_listing = false;
	wake_uid(&work->store->base->wake, work->account->uid);
}

static void done(uv_work_t *req, int status)
{
	struct manifest_work *work = req->data;
	struct bundle *bundle = &work->store->bundles[work->bundle];
	struct bundle_record *record =
		catalog_bundle(&work->store->catalog, work->bundle);

	(void)status; /* the work is never cancelled */
	failpoint("manifest.made");
	end_turn(work);
	/* A failure is kept until it is reported, unless the manifest was
	 * dropped. */
	work->has_failed = work->result < 0;
	if (bundle->manifest == work && work->has_failed)
		return;
	if (bundle->manifest == work) {
		bundle->manifest = NULL;
		record->manifest_fd = work->fd;
		bundle->manifest_size = work->size;
		work->fd = -1;
	}
	work_free(work);
}

/* Copies the next member. Returns false if memory ran out. */
static bool copy_one(struct manifest_work *work)
{
	const struct catalog *catalog = &work->store->catalog;
	struct places_reply *places = &work->places;
	uint32_t slot = work->next;
	char *names = work->names;

	if (work->capacity - work->names_size <= NAME_MAX_SIZE) {
		names = realloc(names, work->capacity * 2 + NAME_MAX_SIZE + 1);
		if (!names)
			return false;
		work->names = names;
		work->capacity = work->capacity * 2 + NAME_MAX_SIZE + 1;
	}
	names += work->names_size;
	slot_place(work->store, slot, names,
		   &places->places[places->n_places++]);
	work->names_size += strlen(names) + 1;
	work->next = catalog_slot(catalog, slot)->bundle_link.next;
	return true;
}

static void give_to_thread(struct manifest_work *work)
{
	int r;

	work->req.data = work;
	r = uv_queue_work(&work->store->base->loop.uv, &work->req, run, done);
	/* uv_queue_work() fails only without a work function. */
	assert(r == 0);
}

static bool copy_some(void *data, uint32_t unused)
{
	struct manifest_work *work = data;

	(void)unused;
	for (int i = 0; i < COPY_STEP && work->next; i++) {
		if (copy_one(work))
			continue;
		work->result = error_nomem(&work->err, "a manifest");
		work->has_failed = true;
		end_turn(work);
		return false;
	}
	if (work->next)
		return true;
	give_to_thread(work);
	return false;
}

static int report_failure(struct bundle *bundle, struct error *err)
{
	struct manifest_work *work = bundle->manifest;
	int r = error_set(err, work->result, "%s", work->err.msg);

	bundle->manifest = NULL;
	work_free(work);
	return r;
}

static int begin(struct store *store, uint32_t index, struct account *account,
		 struct error *err)
{
	const struct list *members =
		&catalog_bundle(&store->catalog, index)->members;
	struct bundle *bundle = &store->bundles[index];
	struct manifest_work *work = calloc(1, sizeof(*work));

	if (work)
		work->places.places =
			calloc(members->n, sizeof(*work->places.places));
	if (!work || !work->places.places) {
		free(work);
		return error_nomem(err, "a manifest");
	}
	work->store = store;
	work->account = account;
	work->bundle = index;
	work->next = members->first;
	work->fd = -1;
	account->is_listing = true;
	bundle->manifest = work;
	bundle->copying = (struct chore){.step = copy_some, .data = work};
	if (members->n > COPY_STEP)
		chore_begin(store, &bundle->copying);
	else
		(void)copy_some(work, 0);
	return work->has_failed ? report_failure(bundle, err) : MANIFEST_WAIT;
}

int manifest_make(struct store *store, uint32_t index, struct error *err)
{
	const struct bundle_record *record =
		catalog_bundle(&store->catalog, index);
	struct bundle *bundle = &store->bundles[index];
	struct account *account;

	if (record->manifest_fd >= 0)
		return MANIFEST_OK;
	if (bundle->manifest && bundle->manifest->has_failed)
		return report_failure(bundle, err);
	if (bundle->manifest)
		return MANIFEST_WAIT;
	account = accounts_get(&store->base->accounts, record->owner_uid);
	if (!account)
		return error_nomem(err, "uid %u", record->owner_uid);
	if (account->is_listing)
		return MANIFEST_WAIT;
	return begin(store, index, account, err);
}

void manifest_drop(struct store *store, uint32_t index)
{
	struct bundle_record *record = catalog_bundle(&store->catalog, index);
	struct bundle *bundle = &store->bundles[index];
	struct manifest_work *work = bundle->manifest;

	if (record->manifest_fd >= 0)
		close(record->manifest_fd);
	record->manifest_fd = -1;
	bundle->manifest = NULL;
	if (!work)
		return;
	/* If the thread is working, done() frees the work when it finds that
	 * the manifest was dropped. */
	if (bundle->copying.is_queued) {
		chore_end(store, &bundle->copying);
		end_turn(work);
		work_free(work);
	} else if (work->has_failed) {
		work_free(work);
	}
}

void manifest_forget_member(struct store *store, uint32_t slot)
{
	const struct slot_record *record = catalog_slot(&store->catalog, slot);
	struct manifest_work *work = store->bundles[record->bundle].manifest;

	if (work && work->next == slot)
		work->next = record->bundle_link.next;
}
