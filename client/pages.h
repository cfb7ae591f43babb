/*
 * Lists are fetched page by page. An item that changes between two pages may be
 * seen twice or not at all. The broker makes the next page while the caller
 * looks at one.
 *
 *	struct pages pages = PAGES(client, &request, comms);
 *	const struct comms_reply *page = &pages.received.reply.comms;
 *
 *	pages_for_each (&pages, page, item)
 *		pages.r = show(item, fn, data);
 *	return pages.r;
 */
#pragma once
#include "client/connection.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fsdp_client;

struct pages {
	struct fsdp_client *client;
	struct request *request;
	uint64_t *cursor;   /* the cursor in the request */
	size_t next_offset; /* offset of the next cursor in struct reply */
	bool has_page;
	struct received received; /* the current page */
	/* the request for the next page; NULL: it was not sent */
	struct call *call;
	/* The return value of the list. A nonzero value ends it: an error, or
	 * the result of the caller's function. */
	int r;
};

#define PAGES(CLIENT, REQUEST, noun)                                           \
	{                                                                      \
		.client = (CLIENT), .request = (REQUEST),                      \
		.cursor = &(REQUEST)->noun.cursor,                             \
		.next_offset = offsetof(struct reply, noun.next_cursor),       \
	}

/* Free the current page, and get the next one. Returns false if there is none,
 * or on failure (`r`). */
bool pages_next(struct pages *pages);

#define pages_for_each(pages, page, item)                                      \
	while (pages_next(pages))                                              \
		for (__typeof__(&*(page)->items) item = (page)->items;         \
		     item < (page)->items + (page)->n_items &&                 \
		     (pages)->r == 0;                                          \
		     item++)
