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
	if (r < 0)
		return error_set(err, r, "cannot set up the event loop: %s",
				 uv_strerror(r));
	return meter_init(&loop->meter, &loop->uv, err);
}

void loop_stop(struct loop *loop)
{
	uv_handle_t *idle = (uv_handle_t *)&loop->idle;

	/* A handle that was never initialised has no loop. */
	if (idle->loop && !uv_is_closing(idle))
		uv_close(idle, NULL);
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

static void on_idle(uv_idle_t *idle)
{
	struct loop *loop = idle->data;
	struct deferred *handler;

	meter_begin(&loop->meter);
	for (handler = loop->first; handler; handler = handler->next) {
		if (!handler->is_wanted)
			continue;
		handler->is_wanted = false;
		if (handler->run(handler->data))
			handler->is_wanted = true;
		(void)meter_end(&loop->meter, handler->task);
	}
	for (handler = loop->first; handler; handler = handler->next) {
		if (handler->is_wanted)
			return;
	}
	uv_idle_stop(idle);
}

void loop_defer(struct loop *loop, struct deferred *handler)
{
	if (loop->is_stopping)
		return;
	handler->is_wanted = true;
	uv_idle_start(&loop->idle, on_idle);
}
