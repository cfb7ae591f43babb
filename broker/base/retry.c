#include "broker/base/retry.h"

int retry_plan(struct retry *retry, uint32_t first_ms, uint32_t last_ms,
	       struct error *err)
{
	struct deadline deadline = {
		.fn = retry->fn,
		.data = retry->data,
		.position = &retry->position,
	};

	if (retry->position)
		return 0;
	if (retry->wait_ms == 0)
		retry->wait_ms = first_ms;
	deadline.at_ms = now_ms() + retry->wait_ms;
	if (retry->wait_ms < last_ms)
		retry->wait_ms *= 2;
	return deadlines_add(retry->deadlines, &deadline, err);
}

void retry_reset(struct retry *retry)
{
	retry->wait_ms = 0;
}

void retry_stop(struct retry *retry)
{
	deadlines_remove(retry->deadlines, &retry->position);
}
