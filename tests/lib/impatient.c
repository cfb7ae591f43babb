#include "tests/lib/impatient.h"
#include "tests/lib/chaos.h"
#include <errno.h>

struct fsdp_client *connect_impatiently(const char *path, int32_t reconnect_ms)
{
	const struct fsdp_connect_options options = {
		.path = path, .reconnect_ms = reconnect_ms};
	struct fsdp_client *client = NULL;
	int r;

	do
		r = fsdp_connect(&options, &client);
	while (r == -ETIMEDOUT);
	must(r == 0);
	return client;
}
