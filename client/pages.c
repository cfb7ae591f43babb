#include "client/pages.h"
#include "client/begun.h"
#include "client/client.h"
#include <string.h>

/* Request the next page before this one is decoded, so that the broker makes it
 * while the caller looks at this one. If this fails, the page is requested when
 * it is needed. */
static void ask_for_next(struct pages *pages, uint64_t cursor)
{
	*pages->cursor = cursor;
	if (cursor && client_check(pages->client, NULL) == 0)
		(void)connection_begin(&pages->client->connection,
				       pages->request, &pages->call, NULL);
}

static int get_anew(struct pages *pages, struct error *err)
{
	const char *reply = (const char *)&pages->received.reply;
	uint64_t cursor;
	int r = client_call(pages->client, pages->request, &pages->received,
			    err);

	if (r < 0)
		return r;
	memcpy(&cursor, reply + pages->next_offset, sizeof(cursor));
	ask_for_next(pages, cursor);
	return 0;
}

static int get_next(struct pages *pages, struct error *err)
{
	struct connection *connection = &pages->client->connection;
	struct call *call = pages->call;
	uint64_t cursor = *pages->cursor;
	int r = client_check(pages->client, err);

	/* In a forked child the connection must not be used, and the call
	 * belongs to the parent. */
	pages->call = NULL;
	if (r == 0)
		r = connection_await(connection, call, err);
	if (r < 0)
		return r;
	ask_for_next(pages, call_peek(call, pages->next_offset));
	r = connection_take(connection, call, &pages->received, err);
	if (r != CALL_AGAIN)
		return r;
	*pages->cursor = cursor;
	return get_anew(pages, err);
}

static void abandon(struct pages *pages)
{
	if (pages->call && client_check(pages->client, NULL) == 0)
		connection_abandon(&pages->client->connection, pages->call);
	pages->call = NULL;
}

/* Free the current page. Returns false if it was the last one. */
static bool leave(struct pages *pages)
{
	received_deinit(&pages->received);
	pages->has_page = false;
	return *pages->cursor != 0 && pages->r == 0;
}

bool pages_next(struct pages *pages)
{
	struct error *err = error_of_thread();

	if (!pages->has_page || leave(pages)) {
		pages->r = pages->call ? get_next(pages, err)
				       : get_anew(pages, err);
		pages->has_page = pages->r == 0;
	}
	if (!pages->has_page)
		abandon(pages);
	return pages->has_page;
}
