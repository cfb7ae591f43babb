/*
 * The views of top. Each consists of the broker's counters with their rates,
 * and of one list of rows, which can be sorted by any of its columns.
 *
 * Only the list that is shown is requested from the broker. So watching a
 * broker with a million tensors is cheap unless the tensors are shown.
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

/* The number of requests of a session when the sessions were read. */
struct top_session {
	uint64_t session, n_requests;
};

struct top_sessions {
	struct top_session *items;
	size_t n, capacity;
};

struct top {
	struct fsdp_client *client;
	enum top_view view;
	struct counters counters, before;
	uint64_t ns, before_ns; /* time of the readings; 0: none yet */
	struct rows rows;       /* the caller may set the order and n_max */
	/* for rates of requests */
	struct top_sessions sessions, sessions_before;
};

/* Returns the name of a view, which --view accepts. */
const char *top_view_name(enum top_view view);

/* Changes to another view and its usual order. The view has no rows until the
 * next top_read(). */
void top_set_view(struct top *top, enum top_view view);
/* These sort by the next column, or by the column of that title. top_sort_by()
 * returns false if there is no such column. */
void top_sort_next(struct top *top);
bool top_sort_by(struct top *top, const char *title);
/* The size of a buffer for the titles of all columns of a view. */
#define TOP_TITLES 128
/* Writes the titles of the columns, as "NAME, BYTES, ...". */
void top_list_titles(const struct top *top, char ret[TOP_TITLES]);

/* Reads the counters and the rows of the view from the broker. */
int top_read(struct top *top, struct error *err);
/* Prints the summary, an empty line, the titles and the rows, in lines of at
 * most `width` characters (0: no limit). */
int top_print(struct top *top, int width, FILE *file, struct error *err);
/* The number of lines before the rows. */
#define TOP_HEAD 7
void top_deinit(struct top *top);
