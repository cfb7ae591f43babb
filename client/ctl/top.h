/*
 * What top shows: the counters of the broker with their rates, and one list of
 * rows, sorted by any of its columns.
 *
 * Only the list that is shown is asked from the broker, so that watching a
 * broker with a million tensors costs nothing unless they are looked at.
 */
#pragma once
#include "client/ctl/args.h"
#include "client/ctl/counters.h"
#include "client/ctl/rows.h"
#include "client/fsdp.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct error;

/* Requests that a session had made. */
struct top_session {
	uint64_t session, n_requests;
};

struct top_sessions {
	struct top_session *items;
	size_t n, n_room;
};

struct top {
	struct fsdp_client *client;
	enum top_view view;
	struct counters counters, before;
	uint64_t ns, before_ns; /* when they were read; 0: not yet */
	struct rows rows; /* the caller may set how many are kept, and order */
	struct top_sessions sessions, sessions_before; /* for their rates */
};

/* The name of a view, as for --view. */
const char *top_view_name(enum top_view view);

/* Show another view, sorted as is usual there, without rows until the next
 * top_read(). */
void top_set_view(struct top *top, enum top_view view);
/* Sort by the next column that has a title, or by the column of that title.
 * Returns false if there is no such column. */
void top_sort_next(struct top *top);
bool top_sort_by(struct top *top, const char *title);

/* Ask the broker. */
int top_read(struct top *top, struct error *err);
/* The summary, an empty line, the titles and the rows, as lines not longer than
 * `width` (0: as long as they are). */
int top_print(struct top *top, int width, FILE *file, struct error *err);
/* Lines before the rows. */
#define TOP_HEAD 7
void top_deinit(struct top *top);
