/*
 * Objects that a process opens once for any number of users: registered pages
 * (fence.h), memory and events of other processes (ipc.h, event_ipc.h).
 *
 * The first user opens the object, the last closes it, and those in between are
 * counted. PyTorch does the same for opened memory under one mutex. Here no
 * lock is held during a driver call, which takes milliseconds and can wait for
 * a stream that waits for another thread of ours. A thread that wants an object
 * which is being opened or closed waits for the outcome; threads that want
 * other objects do not.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

enum shared_state { SHARED_OPENING, SHARED_OPEN, SHARED_CLOSING };

/* The object has this as its first member. */
struct shared {
	struct shared *next;
	uint32_t n_users;
	enum shared_state state;
};

struct shared_kind {
	size_t size; /* bytes of the object */
	/* NULL if all objects differ. */
	bool (*is_same)(const struct shared *a, const struct shared *b);
	/* On failure, nothing is left that close() would have to undo. */
	int (*open)(struct shared *shared, struct error *err);
	void (*close)(struct shared *shared);
};

/* A list is never freed. */
struct shared_list {
	const struct shared_kind *kind;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct shared *first;
};

#define SHARED_LIST_INIT(kind_)                                                \
	{                                                                      \
		.kind = (kind_), .lock = PTHREAD_MUTEX_INITIALIZER,            \
		.changed = PTHREAD_COND_INITIALIZER                            \
	}

/*
 * Finds the object in the list that is the same as `like`, and adds a user. If
 * there is no such object, a copy of `like` is opened. The caller gives it back
 * by shared_close(). Returns -ECHILD in a forked child. If open() fails,
 * nothing is left, and the threads that waited for it try to open the object
 * themselves.
 */
int shared_open(struct shared_list *list, const struct shared *like,
		struct shared **ret, struct error *err);

/* Adds a user to an open object that `is_wanted`, and returns it, or NULL. */
struct shared *shared_find(struct shared_list *list,
			   bool (*is_wanted)(const struct shared *shared,
					     const void *what),
			   const void *what);

/* Drops a user. It does nothing in a forked child, because the objects belong
 * to the parent. */
void shared_close(struct shared_list *list, struct shared *shared);
