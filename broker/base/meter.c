/*
 * libuv counts the time that it waits in the kernel; all other time between two
 * prepare callbacks is work.
 */
#include "broker/base/meter.h"
#include "proto/error.h"

static void on_prepare(uv_prepare_t *prepare)
{
	struct meter *meter = prepare->data;
	uint64_t idle_ns = uv_metrics_idle_time(prepare->loop);
	uint64_t now_ns = uv_hrtime();
	uint64_t busy_ns = now_ns - meter->at_ns - (idle_ns - meter->idle_ns);

	if (meter->at_ns > 0 && busy_ns > meter->longest_ns)
		meter->longest_ns = busy_ns;
	meter->at_ns = now_ns;
	meter->idle_ns = idle_ns;
}

int meter_init(struct meter *meter, uv_loop_t *loop, struct error *err)
{
	int r;

	r = uv_loop_configure(loop, UV_METRICS_IDLE_TIME);
	if (r == 0)
		r = uv_prepare_init(loop, &meter->prepare);
	meter->prepare.data = meter;
	if (r == 0)
		r = uv_prepare_start(&meter->prepare, on_prepare);
	if (r < 0)
		return error_set(err, r, "cannot measure the event loop: %s",
				 uv_strerror(r));
	uv_unref((uv_handle_t *)&meter->prepare);
	return 0;
}

void meter_stop(struct meter *meter)
{
	uv_handle_t *handle = (uv_handle_t *)&meter->prepare;

	if (handle->loop && !uv_is_closing(handle))
		uv_close(handle, NULL);
}

void meter_reset(struct meter *meter)
{
	meter->longest_ns = 0;
}
