/*
 * Fixture of ready fences: a broker with a GPU, and clients of two users.
 */
#pragma once
#include "tests/unit/broker/device_fixture.h"

static struct broker *broker;
static struct client alice, bob, carol;
static struct device_uuid gpu;

static void fence_set_up(void)
{
	gpu_open();
	broker = broker_make();
	client_open(&alice, broker, 1000, 0);
	client_open(&bob, broker, 1001, 0);
	client_open(&carol, broker, 1000, 0);
	gpu = broker_gpu(broker, 0);
}
