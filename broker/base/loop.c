#include "broker/base/loop.h"
#include "proto/error.h"
#include <string.h>

int loop_open(struct loop *loop, struct error *err)
{
	int r = uv_loop_init(&loop->uv);

	if (r < 0)
		return error_set(err, r, "cannot make an event loop: %s",
				 uv_strerror(r));
	loop->uv.data = loop;
	r = uv_idle_init(&loop->uv, &loop->idle);
	loop->idle.data = loop;
	if (r == 0)
		r = uv_timer_init(&loop->uv, &loop->pause);
	loop->pause.data = loop;
	if (r < 0)
		return error_set(err, r, "cannot set up the event loop: %s",
				 uv_strerror(r));
	return meter_init(&loop->meter, &loop->uv, err);
}

void loop_stop(struct loop *loop)
{
	uv_handle_t *handles[] = {(uv_handle_t *)&loop->idle,
				  (uv_handle_t *)&loop->pause};

	/* A handle that was never initialised has no loop. */
	for (size_t i = 0; i < 2; i++)
		if (handles[i]->loop && !uv_is_closing(handles[i]))
			uv_close(handles[i], NULL);
	meter_stop(&loop->meter);
}

void loop_close(struct loop *loop)
{
	(void)uv_loop_close(&loop->uv);
}

void loop_add(struct loop *loop, struct deferred *handler)
{
	handler->next = NULL;
	if (loop->last)
		loop->last->next = handler;
	else
		loop->first = handler;
	loop->last = handler;
}

static void on_idle(uv_idle_t *idle);

static bool may_run(const struct loop *loop, const struct deferred *handler)
{
	return handler->is_wanted &&
	       !(handler->is_long &&
		 uv_is_active((const uv_handle_t *)&loop->pause));
}

/* Runs the idle callback for as long as a handler may run. */
static void update_idle(struct loop *loop)
{
	const struct deferred *handler = loop->first;

	while (handler && !may_run(loop, handler))
		handler = handler->next;
	if (handler)
		uv_idle_start(&loop->idle, on_idle);
	else
		uv_idle_stop(&loop->idle);
}

static void on_pause_end(uv_timer_t *timer)
{
	update_idle(timer->data);
}

static void pause_long(struct loop *loop, uint64_t ns)
{
	/* libuv counts from the time at which it last read the clock. */
	uv_update_time(&loop->uv);
	(void)uv_timer_start(&loop->pause, on_pause_end, ns / 1000000 + 1, 0);
}

static void on_idle(uv_idle_t *idle)
{
	struct loop *loop = idle->data;
	bool has_more = false; /* of long work */
	uint64_t pause_ns;

	meter_begin(&loop->meter);
	pace_begin(&loop->pace);
	for (struct deferred *handler = loop->first; handler;
	     handler = handler->next) {
		if (!may_run(loop, handler))
			continue;
		handler->is_wanted = false;
		if (handler->run(handler->data)) {
			handler->is_wanted = true;
			has_more |= handler->is_long;
		}
		(void)meter_end(&loop->meter, handler->task);
	}
	pause_ns = has_more ? pace_end(&loop->pace) : 0;
	if (pause_ns > 0 && !loop->is_stopping)
		pause_long(loop, pause_ns);
	update_idle(loop);
}

void loop_defer(struct loop *loop, struct deferred *handler)
{
	if (loop->is_stopping)
		return;
	handler->is_wanted = true;
	update_idle(loop);
}
