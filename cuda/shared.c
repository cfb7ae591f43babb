/*
 * This file opens objects once, and counts their users.
 *
 * An object stays in the list while it is being closed, so that its successor
 * cannot be opened earlier: some drivers refuse a handle that is still mapped,
 * and host pages that are still registered.
 */
#include "cuda/shared.h"
#include "cuda/driver.h"
#include "proto/error.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct shared *find_same(const struct shared_list *list,
				const struct shared *like)
{
	struct shared *shared;

	if (!list->kind->is_same)
		return NULL;
	for (shared = list->first; shared; shared = shared->next)
		if (list->kind->is_same(shared, like))
			return shared;
	return NULL;
}

static struct shared *insert(struct shared_list *list,
			     const struct shared *like)
{
	struct shared *shared = malloc(list->kind->size);

	if (!shared)
		return NULL;
	memcpy(shared, like, list->kind->size);
	*shared = (struct shared){
		.next = list->first, .n_users = 1, .state = SHARED_OPENING};
	list->first = shared;
	return shared;
}

static void remove_and_free(struct shared_list *list, struct shared *shared)
{
	struct shared **at = &list->first;

	while (*at != shared)
		at = &(*at)->next;
	*at = shared->next;
	free(shared);
}

/* The lock is held before and after, but not during the driver call. */
static int open_first(struct shared_list *list, struct shared *shared,
		      struct error *err)
{
	int r;

	pthread_mutex_unlock(&list->lock);
	r = list->kind->open(shared, err);
	pthread_mutex_lock(&list->lock);
	shared->state = SHARED_OPEN;
	if (r < 0)
		remove_and_free(list, shared);
	pthread_cond_broadcast(&list->changed);
	return r;
}

static int open_locked(struct shared_list *list, const struct shared *like,
		       struct shared **ret, struct error *err)
{
	struct shared *shared;
	int r;

	while ((shared = find_same(list, like))) {
		if (shared->state == SHARED_OPEN) {
			shared->n_users++;
			*ret = shared;
			return 0;
		}
		pthread_cond_wait(&list->changed, &list->lock);
	}
	shared = insert(list, like);
	if (!shared)
		return error_nomem(err, "a record of %zu bytes",
				   list->kind->size);
	r = open_first(list, shared, err);
	if (r == 0)
		*ret = shared;
	return r;
}

int shared_open(struct shared_list *list, const struct shared *like,
		struct shared **ret, struct error *err)
{
	int r = driver_load(err);

	/* In a forked child the lock may be held forever. */
	if (r < 0)
		return r;
	pthread_mutex_lock(&list->lock);
	r = open_locked(list, like, ret, err);
	pthread_mutex_unlock(&list->lock);
	return r;
}

struct shared *shared_find(struct shared_list *list,
			   bool (*is_wanted)(const struct shared *shared,
					     const void *what),
			   const void *what)
{
	struct shared *shared;

	if (driver_load(NULL) < 0)
		return NULL;
	pthread_mutex_lock(&list->lock);
	for (shared = list->first; shared; shared = shared->next)
		if (shared->state == SHARED_OPEN && is_wanted(shared, what)) {
			shared->n_users++;
			break;
		}
	pthread_mutex_unlock(&list->lock);
	return shared;
}

void shared_close(struct shared_list *list, struct shared *shared)
{
	if (driver_load(NULL) < 0)
		return;
	pthread_mutex_lock(&list->lock);
	assert(shared->state == SHARED_OPEN && shared->n_users > 0);
	if (--shared->n_users == 0) {
		shared->state = SHARED_CLOSING;
		pthread_mutex_unlock(&list->lock);
		list->kind->close(shared);
		pthread_mutex_lock(&list->lock);
		remove_and_free(list, shared);
		pthread_cond_broadcast(&list->changed);
	}
	pthread_mutex_unlock(&list->lock);
}
