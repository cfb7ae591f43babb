/* Connects to the broker. */
#include "client/ctl/broker.h"

#include "client/ctl/args.h"
#include "client/ctl/interrupt.h"
#include "client/fsdp.h"
#include "proto/error.h"

#include <errno.h>
#include <string.h>

/* The default limit of ten seconds would look like a hang to a person at a
 * terminal. */
#define RECONNECT_MS 3000

int broker_failed(struct error *err, int code)
{
	const char *sentence = fsdp_error();

	if (code == -EINTR && interrupt_check(err) < 0)
		return code;
	if (!*sentence)
		return error_set(err, code, "%s", strerror(-code));
	return error_set(err, code, "%s", sentence);
}

int broker_walk_failed(struct error *err, int code)
{
	if (code == -ENOMEM)
		return error_nomem(err, "the reply");
	return broker_failed(err, code);
}

bool broker_ends(int code)
{
	return code == -EINTR || code == -ECONNREFUSED || code == -ECONNRESET;
}

/* A verb that notes signals must not wait for a broker that is away. */
static int is_interrupted(void *data)
{
	(void)data;
	return interrupt_check(NULL);
}

int broker_connect(const struct args *args, struct fsdp_client **ret,
		   struct error *err)
{
	struct fsdp_connect_options options = {.path = args->socket,
					       .reconnect_ms = RECONNECT_MS,
					       .interrupted = is_interrupted};
	int r = fsdp_connect(&options, ret);

	if (r == -ENOENT || r == -ECONNREFUSED)
		return error_set(err, r,
				 "%s or --socket; 'fsdpd --supervised' starts "
				 "one, or, where it is installed as a service, "
				 "'systemctl start fsdpd.socket'",
				 fsdp_error());
	if (r < 0)
		return broker_failed(err, r);
	return 0;
}
