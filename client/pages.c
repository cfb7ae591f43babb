#include "client/pages.h"
#include "client/client.h"
#include <string.h>

/* False: this was the last page. */
static bool leave(struct pages *pages)
{
	const char *reply = (const char *)&pages->received.reply;

	memcpy(pages->cursor, reply + pages->next_offset,
	       sizeof(*pages->cursor));
	received_deinit(&pages->received);
	pages->has_page = false;
	return *pages->cursor != 0 && pages->r == 0;
}

bool pages_next(struct pages *pages)
{
	struct error *err = error_of_thread();

	if (pages->has_page && !leave(pages))
		return false;
	pages->r = client_call(pages->client, pages->request, &pages->received,
			       err);
	pages->has_page = pages->r == 0;
	return pages->has_page;
}
