/*
 * libuv counts the time that it waits in the kernel; all other time between two
 * prepare callbacks is work.
 */
#include "broker/base/meter.h"
#include "proto/error.h"

/* Returns the time between the two, or 0, since the clock may step back a
 * little (ticks.h). */
static uint64_t between(uint64_t begin_ns, uint64_t end_ns)
{
	return end_ns > begin_ns ? end_ns - begin_ns : 0;
}

static void end_iteration(struct meter *meter, uint64_t now_ns,
			  uint64_t waited_ns)
{
	uint64_t busy_ns = between(meter->at_ns + waited_ns, now_ns);

	if (busy_ns > meter->longest_ns)
		meter->longest_ns = busy_ns;
	histogram_add(&meter->iterations, busy_ns);
	meter->task_ns[METER_OTHER] += between(meter->piece_ns, busy_ns);
}

static void on_prepare(uv_prepare_t *prepare)
{
	struct meter *meter = prepare->data;
	uint64_t idle_ns = uv_metrics_idle_time(prepare->loop);
	uint64_t now_ns = ticks_now(&meter->ticks);

	if (meter->at_ns > 0)
		end_iteration(meter, now_ns, idle_ns - meter->idle_ns);
	ticks_sync(&meter->ticks);
	meter->at_ns = now_ns;
	meter->idle_ns = idle_ns;
	meter->lap_ns = 0;
	meter->piece_ns = 0;
}

int meter_init(struct meter *meter, uv_loop_t *loop, struct error *err)
{
	int r;

	ticks_init(&meter->ticks);
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

void meter_begin(struct meter *meter)
{
	if (!meter->lap_ns)
		meter->lap_ns = ticks_now(&meter->ticks);
}

uint64_t meter_end(struct meter *meter, enum meter_task task)
{
	uint64_t now_ns = ticks_now(&meter->ticks);
	uint64_t ns = meter->lap_ns ? between(meter->lap_ns, now_ns) : 0;

	meter->lap_ns = now_ns;
	meter->piece_ns += ns;
	meter->task_ns[task] += ns;
	return ns;
}

void meter_request(struct meter *meter, uint16_t kind)
{
	histogram_add(&meter->requests[kind <= MESSAGE_MAX ? kind : 0],
		      meter_end(meter, METER_REQUESTS));
}

uint64_t meter_waited(const struct meter *meter)
{
	return uv_metrics_idle_time(meter->prepare.loop);
}

uint64_t meter_now(const struct meter *meter)
{
	return ticks_now(&meter->ticks);
}

void meter_parked(struct meter *meter, uint16_t kind, uint64_t since_ns)
{
	histogram_add(&meter->parked[kind <= MESSAGE_MAX ? kind : 0],
		      between(since_ns, ticks_now(&meter->ticks)));
}
