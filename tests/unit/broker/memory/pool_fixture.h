/*
 * A broker that has only the parts that pools need: the loop, the catalog, the
 * table and accounts.
 */
#pragma once
#include "broker/broker.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/unit/broker/loop_fixture.h"
#include <stdlib.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static const struct access_class alice = {1000, 1000, 0600};
static const struct access_class bob = {1001, 1001, 0600};

static inline struct broker *setup(void)
{
	struct broker *broker = calloc(1, sizeof(*broker));

	cr_assert(broker != NULL);
	broker->base.config = (struct config){
		.memory_max = 64 * MIB,
		.chunk_min = 4 * MIB,
		.chunk_max = 16 * MIB,
		.warm_ms = 1000000,
		.quota_bytes = 1024 * MIB,
		.quota_chunks = 16,
	};
	cr_assert(zero(int, uv_loop_init(&broker->base.loop.uv)));
	broker_link(broker);
	cr_assert(zero(int, deadlines_init(&broker->base.deadlines,
					   &broker->base.loop.uv, NULL, NULL)));
	cr_assert(zero(int, catalog_create(&broker->store.catalog, NULL)));
	cr_assert(zero(int, table_create(&broker->store.table, NULL)));
	accounts_init(&broker->base.accounts, &broker->base.config);
	pools_init(&broker->store.pools);
	return broker;
}

static inline void teardown(struct broker *broker)
{
	deadlines_stop(&broker->base.deadlines);
	uv_run(&broker->base.loop.uv, UV_RUN_DEFAULT);
	pools_deinit(&broker->store.pools);
	accounts_deinit(&broker->base.accounts);
	table_close(&broker->store.table);
	catalog_close(&broker->store.catalog);
	fdstore_close(&broker->base.fdstore);
	cr_expect(zero(int, uv_loop_close(&broker->base.loop.uv)));
	free(broker);
}

/* Try again while the pool says POOL_WAIT, as a parked request does. */
static inline int try_alloc(struct broker *broker,
			    const struct access_class *access, uint32_t bundle,
			    const uint64_t *sizes, uint32_t n,
			    uint32_t *ret_blocks, struct error *err)
{
	struct pool_request request = {
		.access = *access,
		.bundle = bundle,
		.n = n,
		.sizes = sizes,
	};
	int r;

	for (;;) {
		r = pool_alloc(&broker->store.pools, &request, ret_blocks, err);
		catalog_commit(&broker->store.catalog);
		if (r != POOL_WAIT)
			return r;
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	}
}

static inline uint32_t alloc(struct broker *broker,
			     const struct access_class *access, uint64_t size)
{
	struct error err = ERROR_NULL;
	uint32_t block = 0;

	cr_assert(
		zero(int, try_alloc(broker, access, 0, &size, 1, &block, &err)),
		"%s", err.msg);
	return block;
}

static inline void release(struct broker *broker, uint32_t block)
{
	pool_release(&broker->store.pools, block);
	catalog_commit(&broker->store.catalog);
}

static inline struct block_record *block_at(struct broker *broker,
					    uint32_t block)
{
	return catalog_block(&broker->store.catalog, block);
}

static inline uint64_t chunk_size(struct broker *broker, uint32_t block)
{
	return catalog_chunk(&broker->store.catalog,
			     block_at(broker, block)->chunk)
		->size;
}

static inline void run_until_empty(struct broker *broker)
{
	while (broker->store.pools.host.total_size > 0)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
}

static inline uint32_t make_bundle(struct broker *broker)
{
	uint32_t bundle = catalog_alloc(&broker->store.catalog, SECTION_BUNDLE);

	catalog_bundle(&broker->store.catalog, bundle)->state = BUNDLE_STAGED;
	catalog_bundle(&broker->store.catalog, bundle)->owner_uid = getuid();
	catalog_commit(&broker->store.catalog);
	return bundle;
}

static inline uint32_t alloc_member(struct broker *broker, uint32_t bundle)
{
	uint64_t size = MIB;
	uint32_t block = 0;

	cr_assert(zero(int, try_alloc(broker, &alice, bundle, &size, 1, &block,
				      NULL)));
	return block;
}

/* Try again while the pool says POOL_WAIT, as a parked commit does. */
static inline int seal(struct broker *broker, uint32_t bundle,
		       struct error *err)
{
	int r;

	while ((r = pool_seal_bundle(&broker->store.pools, bundle, err)) ==
	       POOL_WAIT)
		loop_step(&broker->base.loop.uv);
	return r;
}
