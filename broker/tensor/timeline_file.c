/*
 * Timeline files: how they are made, kept and ended.
 */
#include "broker/tensor/timeline_file.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/memfd.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/* Files are named by the id of the session, which is never reused, unlike its
 * record. */
static void name_of(const struct holdings *holdings,
		    char ret[FDSTORE_NAME_SIZE])
{
	snprintf(ret, FDSTORE_NAME_SIZE, "t%" PRIu64,
		 holdings_record(holdings)->id);
}

static int charge(const struct holdings *holdings, struct error *err)
{
	struct store *store = holdings->store;

	if (store->pools.n_timelines >= TIMELINE_FILES_MAX)
		return error_set(err, -ENFILE,
				 "%d processes have timelines for their work "
				 "on devices already, which is the limit: end "
				 "some",
				 TIMELINE_FILES_MAX);
	return account_charge(&store->base->accounts, holdings->account,
			      ACCOUNT_TIMELINES, 1, err);
}

int timeline_file_make(struct holdings *holdings, struct error *err)
{
	struct store *store = holdings->store;
	struct timelines timelines = TIMELINES_NULL;
	char name[FDSTORE_NAME_SIZE];
	int r;

	r = charge(holdings, err);
	if (r < 0)
		return r;
	r = timelines_create(&timelines, err);
	if (r == 0) {
		name_of(holdings, name);
		r = fdstore_put(&store->base->fdstore, timelines.fd, name, err);
	}
	if (r != 0) {
		timelines_close(&timelines);
		account_refund(holdings->account, ACCOUNT_TIMELINES, 1);
		return r;
	}
	failpoint("timeline_file.stored");
	holdings->timelines = timelines;
	store->pools.n_timelines++;
	return 0;
}

int timeline_file_fd(struct holdings *holdings, bool is_writable, int *ret_fd,
		     struct error *err)
{
	int r;

	if (!is_writable && holdings->timelines_readonly_fd < 0) {
		r = memfd_open_readonly(holdings->timelines.fd,
					&holdings->timelines_readonly_fd, err);
		if (r < 0)
			return r;
	}
	*ret_fd = is_writable ? holdings->timelines.fd
			      : holdings->timelines_readonly_fd;
	return 0;
}

bool timeline_file_has_reached(const struct holdings *holdings,
			       uint32_t timeline, uint64_t value)
{
	return holdings->timelines.pages &&
	       timeline_has_reached(
		       timelines_load(&holdings->timelines, timeline), value);
}

void timeline_file_adopt(struct holdings *holdings)
{
	struct store *store = holdings->store;
	struct error err = ERROR_NULL;
	char name[FDSTORE_NAME_SIZE];
	int fd;

	name_of(holdings, name);
	fd = fdstore_take(&store->base->fdstore, name);
	if (fd < 0)
		return;
	/* Without a mapping the broker cannot poison the counters, so processes
	 * that wait for them wait until they end. */
	if (timelines_open(&holdings->timelines, fd, true, &err) < 0) {
		log_line(LOG_LEVEL_WARNING,
			 "ignoring the timelines of session %" PRIu64 ": %s",
			 holdings_record(holdings)->id, err.msg);
		return;
	}
	account_charge_adopted(holdings->account, ACCOUNT_TIMELINES, 1);
	store->pools.n_timelines++;
}

void timeline_file_drop_strays(struct store *store)
{
	fdstore_drop_rest(&store->base->fdstore, "t");
}

void timeline_file_end(struct holdings *holdings)
{
	struct store *store = holdings->store;
	char name[FDSTORE_NAME_SIZE];

	if (!holdings->timelines.pages)
		return;
	timelines_poison(&holdings->timelines);
	failpoint("timeline_file.poisoned");
	name_of(holdings, name);
	fdstore_remove(&store->base->fdstore, name);
	timelines_close(&holdings->timelines);
	account_refund(holdings->account, ACCOUNT_TIMELINES, 1);
	store->pools.n_timelines--;
}
