/* Reads the counters of the broker. There are about 100, so a linear search is
 * cheap. */
#include "client/ctl/counters.h"

#include "client/ctl/broker.h"
#include "client/fsdp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int keep(const char *name, uint64_t value, void *data)
{
	struct counters *counters = data;
	struct counter *list =
		reallocarray(counters->list, counters->n + 1, sizeof(*list));

	if (!list)
		return -ENOMEM;
	counters->list = list;
	list[counters->n] = (struct counter){strdup(name), value};
	return list[counters->n++].name ? 0 : -ENOMEM;
}

int counters_read(struct fsdp_client *client, struct counters *ret,
		  struct error *err)
{
	struct counters counters = COUNTERS_NULL;
	int r = fsdp_status(client, keep, &counters, &counters.note);

	if (r < 0) {
		counters_deinit(&counters);
		return broker_walk_failed(err, r);
	}
	*ret = counters;
	return 0;
}

void counters_deinit(struct counters *counters)
{
	for (size_t i = 0; i < counters->n; i++)
		free(counters->list[i].name);
	free(counters->list);
	free(counters->note);
	*counters = COUNTERS_NULL;
}

uint64_t counters_find(const struct counters *counters, const char *name)
{
	for (size_t i = 0; i < counters->n; i++)
		if (strcmp(counters->list[i].name, name) == 0)
			return counters->list[i].value;
	return 0;
}
