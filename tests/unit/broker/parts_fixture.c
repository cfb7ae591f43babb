#include "tests/unit/broker/parts_fixture.h"
#include "broker/broker.h"

static void limit(struct config *config)
{
	config->memory_max = UINT64_C(64) << 20;
	config->memory_reserve = 0;
	config->chunk_min = UINT64_C(2) << 20;
	config->warm_ms = 3600 * 1000;
	config->quota_bytes = config->memory_max;
}

static void on_closer(void *data, uint32_t uid)
{
	struct broker *self = data;

	peers_resume(&self->sessions, uid);
}

int parts_open(struct broker *self, struct error *err)
{
	struct base *base = &self->base;
	int r = loop_open(&base->loop, err);

	if (r < 0)
		return r;
	broker_link(self);
	r = config_init(&base->config, err);
	limit(&base->config);
	if (r == 0)
		r = closer_init(&base->closer, &base->loop.uv, on_closer, self,
				err);
	if (r == 0)
		r = deadlines_init(&base->deadlines, &base->loop.uv, NULL, err);
	return r;
}
