/* Tests the memory of collectives. It is allocated, charged to a user, and sent
 * to ranks, and the broker evicts tensors for it. */
#include "broker/tensor/storage.h"
#include "broker/verbs/places.h"
#include "tests/unit/broker/broker_fixture.h"

#define MIB (UINT64_C(1) << 20)

static struct error err;

static void set_up(void)
{
	broker = broker_make();
	client_open(&alice, broker, 1000, 0);
}

TestSuite(storage, .init = set_up, .timeout = 300);

static int make_all(uint64_t size, uint32_t n, uint32_t *ret_slots)
{
	struct storage_request request = {
		.access = {.uid = 1000, .gid = 1000, .mode = 0600},
		.uid = 1000,
		.size = size,
	};
	int r;

	while ((r = storage_make_all(&broker->store, &request, n, ret_slots,
				     &err)) == POOL_WAIT)
		loop_step(&broker->base.loop.uv);
	return r;
}

static int make(uint64_t size, uint32_t *ret_slot)
{
	return make_all(size, 1, ret_slot);
}

Test(storage, consists_of_bytes_that_only_a_pin_keeps)
{
	struct tensor_type type;
	uint32_t slot = 0;

	cr_assert(eq(int, make(1000, &slot), POOL_OK), "%s", err.msg);
	slot_describe(&broker->store, slot, &type, NULL);
	cr_expect(eq(u32, type.dtype, DTYPE_U8));
	cr_expect(eq(u32, type.n_dims, 1));
	cr_expect(eq(i64, type.shape[0], 1000));
	cr_expect(eq(int, slot_state(&broker->store, slot), SLOT_LIMBO));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_BYTES), 1024));
	cr_expect(zero(u32, broker->store.catalog.header->limbo.n));
	cr_expect(zero(u64, broker->store.catalog.header->journal_size));
	cr_assert(slot_unpin(&broker->store, slot));
	assert_empty(broker, 1000);
}

Test(storage, of_size_zero_has_one_byte)
{
	uint32_t slot = 0;

	cr_assert(eq(int, make(0, &slot), POOL_OK));
	cr_expect(eq(u64, catalog_slot(&broker->store.catalog, slot)->size, 1));
}

/* The catalog has space for the shapes of only two slots: the first one, and
 * one more. */
Test(storage, for_several_slots_is_allocated_completely_or_not_at_all)
{
	struct catalog *catalog = &broker->store.catalog;
	uint64_t *top = &catalog->header->blob_top, before = *top;
	uint64_t end = before - catalog_blob_bytes(catalog) + (64 << 10) * MIB;
	uint32_t slots[3];

	cr_assert(eq(int, make(1000, &slots[0]), POOL_OK));
	*top = end - (*top - before);
	cr_assert(slot_unpin(&broker->store, slots[0]));
	catalog_commit(catalog);
	cr_expect(eq(int, make_all(1000, 3, slots), -ENOSPC));
	assert_empty(broker, 1000);
	cr_assert(eq(int, make_all(1000, 2, slots), POOL_OK));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_BYTES), 2 * 1024));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_SLOTS), 2));
}

Test(storage, a_size_that_can_never_fit_is_refused)
{
	uint32_t slot = 0;

	cr_assert(eq(int, make(65 * MIB, &slot), -EDQUOT));
	cr_expect(strstr(err.msg, "whole quota") != NULL, "%s", err.msg);
	broker->base.config.quota_bytes = 128 * MIB;
	cr_assert(eq(int, make(65 * MIB, &slot), -ENOMEM));
	cr_expect(zero(u32, slot));
	assert_empty(broker, 1000);
}

Test(storage, a_temporary_lack_of_memory_is_reported_and_changes_nothing)
{
	uint32_t first = 0, second = 0;

	cr_assert(eq(int, make(40 * MIB, &first), POOL_OK));
	cr_assert(eq(int, make(40 * MIB, &second), POOL_FULL));
	cr_expect(eq(int, err.code, -EDQUOT), "%s", err.msg);
	broker->base.config.quota_bytes = 128 * MIB;
	cr_assert(eq(int, make(40 * MIB, &second), POOL_FULL));
	cr_expect(eq(int, err.code, -ENOMEM), "%s", err.msg);
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_BYTES), 40 * MIB));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_SLOTS), 1));
	cr_assert(slot_unpin(&broker->store, first));
	cr_assert(eq(int, make(40 * MIB, &second), POOL_OK));
}

Test(storage, a_request_at_the_quota_of_chunks_can_be_retried)
{
	uint32_t first = 0, second = 0;

	broker->base.config.quota_chunks = 1;
	cr_assert(eq(int, make(1 * MIB, &first), POOL_OK));
	cr_assert(eq(int, make(40 * MIB, &second), POOL_FULL));
	cr_expect(eq(int, err.code, -EDQUOT), "%s", err.msg);
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_SLOTS), 1));
	broker->base.config.quota_chunks = 2;
	cr_assert(eq(int, make(40 * MIB, &second), POOL_OK), "%s", err.msg);
}

/* Make a tensor of alice without holds. */
static struct slot_ref put_evictable(uint64_t size)
{
	struct slot_ref ref = client_alloc(&alice, size);

	cr_assert(gt(long,
		     client_publish(&alice, &ref, "e", PUBLISH_EVICTABLE, 0),
		     0));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	return ref;
}

Test(storage, evicts_tensors_before_it_reports_a_lack_of_memory)
{
	struct slot_ref ref = put_evictable(40 * MIB);
	uint32_t slot = 0;

	cr_assert(eq(int, word_state(broker, &ref), SLOT_PUBLISHED));
	cr_assert(eq(int, make(40 * MIB, &slot), POOL_OK), "%s", err.msg);
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
}

Test(storage, tensors_released_without_a_doorbell_are_freed_for_a_request)
{
	struct slot_ref ref = client_alloc(&alice, 40 * MIB);
	uint32_t slot = 0;

	client_publish(&alice, &ref, "", 0, 0);
	cr_assert(client_release(&alice, &ref));
	cr_assert(eq(int, make(40 * MIB, &slot), POOL_OK), "%s", err.msg);
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
}

Test(storage, that_is_granted_outlives_its_pin_until_it_is_released)
{
	struct tensor_place place;
	struct reply reply = {.kind = MESSAGE_PING};
	struct verb_call call = {
		.broker = broker,
		.session = alice.session,
		.reply = &reply,
	};
	uint32_t slot = 0;

	cr_assert(eq(int, make(1000, &slot), POOL_OK));
	verb_grant_places(&call, &slot, 1, &place);
	cr_expect(eq(u32, place.ref.slot, slot));
	cr_expect(eq(u64, place.size, 1000));
	cr_expect(ne(u32, place.chunk, 0));
	cr_assert(not(slot_unpin(&broker->store, slot)));
	cr_assert(zero(int, client_release_n(&alice, &place.ref, 1)), "%s",
		  alice.sentence);
	cr_assert(eq(int, word_state(broker, &place.ref), SLOT_FREE));
	client_close(&alice);
	assert_empty(broker, 1000);
}
