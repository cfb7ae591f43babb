#include "link.h"
#include "call.h"
#include <errno.h>
#include <stdlib.h>

int link_open(const char *path, uint64_t budget, int32_t reconnect_ms,
	      struct link **ret)
{
	struct fsdp_connect_options options = {
		.struct_size = sizeof(options),
		.path = path,
		.budget = budget,
		.reconnect_ms = reconnect_ms,
		.interrupted = call_is_interrupted,
	};
	struct link *link = malloc(sizeof(*link));
	int r;

	if (!link)
		return -ENOMEM;
	r = fsdp_connect(&options, &link->client);
	if (r < 0) {
		free(link);
		return r;
	}
	atomic_init(&link->n_users, 1);
	*ret = link;
	return 0;
}

static atomic_bool is_left_open;

void link_leave_open(void)
{
	atomic_store(&is_left_open, true);
}

bool link_is_left_open(void)
{
	return atomic_load_explicit(&is_left_open, memory_order_relaxed);
}

void link_drop(struct link *link)
{
	/* Acquire and release: the last user sees the writes of all others. */
	if (atomic_fetch_sub_explicit(&link->n_users, 1, memory_order_acq_rel) >
	    1)
		return;
	(void)fsdp_close(link->client);
	free(link);
}
