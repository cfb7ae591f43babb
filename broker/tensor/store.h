/*
 * The store: the tensors of a node and everything that keeps them.
 */
#pragma once
#include "broker/base/base.h"
#include "broker/catalog/catalog.h"
#include "broker/memory/devices.h"
#include "broker/memory/pool.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/channel.h"
#include "broker/tensor/chore.h"
#include "broker/tensor/events.h"
#include "broker/tensor/evictable.h"
#include "broker/tensor/holdings.h"
#include "broker/tensor/limbo.h"
#include "shm/table.h"
#include <stdint.h>

struct store {
	struct base *base; /* borrowed */
	struct catalog catalog;
	struct table table;
	struct devices devices;
	struct pools pools;
	struct limbo limbo;
	struct evictables evictables;
	struct events events;
	struct chores chores;
	struct channels channels;
	struct bundle bundles[CATALOG_BUNDLES]; /* indexed by record */
	/* The holdings of sessions, borrowed; indexed by record. */
	struct holdings *holdings[CATALOG_MAX_SESSIONS + 1];
	uint32_t n_leased; /* grants that leases have still to make */
	/* of the deadline of unused first components */
	uint32_t prefix_position;
	/* Counters since the start of the broker. */
	uint64_t n_published, n_evicted, n_freed_slots, n_tainted;
};
