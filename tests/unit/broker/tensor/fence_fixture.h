/*
 * Fixture of ready fences: a broker with a GPU, and clients of two users.
 */
#pragma once
#include "tests/unit/broker/device_fixture.h"

static struct client carol;
static struct device_uuid gpu;

static void fence_set_up(void)
{
	gpu_open();
	broker_set_up();
	client_open(&carol, broker, 1000, 0);
	gpu = broker_gpu(broker, 0);
}
