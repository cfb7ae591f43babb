#include "tests/unit/broker/loop_fixture.h"
#include <poll.h>

/* An event that comes before the loop watches its descriptor is seen in the
 * next step. */
#define WAIT_MS 1

void loop_step(uv_loop_t *loop)
{
	struct pollfd pollfd = {.fd = uv_backend_fd(loop), .events = POLLIN};

	(void)uv_run(loop, UV_RUN_NOWAIT);
	if (uv_backend_timeout(loop) != 0)
		(void)poll(&pollfd, 1, WAIT_MS);
}
