/*
 * Tests which charges accounts make and refuse, and that the size of the
 * machine limits root.
 */
#include "broker/base/account.h"
#include "broker/base/config.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <string.h>

static const struct config config = {
	.memory_max = 1000,
	.quota_bytes = 100,
	.quota_device_bytes = 50,
	.quota_slots = 7,
	.quota_sessions = 6,
	.quota_waiting = 5,
	.quota_queue = 4,
	.quota_prefixes = 3,
	.quota_chunks = 2,
	.quota_grants = 9,
	.quota_refs = 10,
	.quota_tickets = 8,
	.quota_bundles = 11,
	.quota_groups = 12,
	.quota_timelines = 13,
};

Test(account,
     a_charge_beyond_the_limit_is_refused_and_leaves_the_account_unchanged)
{
	struct error err = ERROR_NULL;
	struct accounts accounts;
	struct account *account;

	accounts_init(&accounts, &config);
	account = accounts_get(&accounts, 1000);
	cr_assert(zero(int, account_charge(&accounts, account, ACCOUNT_BYTES,
					   60, NULL)));
	cr_expect(
		eq(int,
		   account_charge(&accounts, account, ACCOUNT_BYTES, 41, &err),
		   -EDQUOT));
	cr_expect(strstr(err.msg, "uid 1000 has 60 bytes") != NULL);
	cr_expect(strstr(err.msg, "quota_bytes") != NULL);
	cr_expect(eq(int,
		     account_charge(&accounts, account, ACCOUNT_BYTES,
				    UINT64_MAX, NULL),
		     -EDQUOT));
	cr_expect(zero(int, account_charge(&accounts, account, ACCOUNT_BYTES,
					   40, NULL)));
	account_refund(account, ACCOUNT_BYTES, 100);
	cr_expect(zero(u64, account->used[ACCOUNT_BYTES]));
	accounts_deinit(&accounts);
}

Test(account, the_error_names_the_configuration_key_to_raise)
{
	const struct config unset = {.memory_max = 100, .quota_bytes = 100};
	const struct config *const configs[] = {&config, &unset};
	const uint32_t uids[] = {0, 1000};
	struct error err = ERROR_NULL;
	struct accounts accounts;

	for (size_t i = 0; i < 2; i++) {
		struct account *account;

		accounts_init(&accounts, configs[i]);
		account = accounts_get(&accounts, uids[i]);
		cr_expect(eq(int,
			     account_charge(&accounts, account, ACCOUNT_BYTES,
					    1001, &err),
			     -EDQUOT));
		cr_expect(strstr(err.msg, "have memory_max raised") != NULL,
			  "%s", err.msg);
		accounts_deinit(&accounts);
	}
}

Test(account, each_kind_has_its_own_limit)
{
	const uint64_t limits[ACCOUNT_N] = {100, 50, 7,  6, 5,  4,  3,
					    2,   9,  10, 8, 11, 12, 13};
	struct accounts accounts;
	struct account *account;
	uint32_t kind;

	accounts_init(&accounts, &config);
	account = accounts_get(&accounts, 1000);
	for (kind = 0; kind < ACCOUNT_N; kind++) {
		cr_expect(eq(u64, account_limit(&accounts, account, kind),
			     limits[kind]));
		cr_expect(zero(int, account_charge(&accounts, account, kind,
						   limits[kind], NULL)));
		cr_expect(eq(int,
			     account_charge(&accounts, account, kind, 1, NULL),
			     -EDQUOT));
	}
	accounts_deinit(&accounts);
}

Test(account, root_may_use_all_memory_but_has_the_other_limits)
{
	struct accounts accounts;
	struct account *root;

	accounts_init(&accounts, &config);
	root = accounts_get(&accounts, 0);
	cr_expect(zero(int, account_charge(&accounts, root, ACCOUNT_BYTES, 1000,
					   NULL)));
	cr_expect(eq(int,
		     account_charge(&accounts, root, ACCOUNT_BYTES, 1, NULL),
		     -EDQUOT));
	cr_expect(
		zero(int, account_charge(&accounts, root, ACCOUNT_DEVICE_BYTES,
					 UINT64_C(1) << 60, NULL)));
	cr_expect(eq(int,
		     account_charge(&accounts, root, ACCOUNT_SLOTS, 8, NULL),
		     -EDQUOT));
	accounts_deinit(&accounts);
}

/* Otherwise lists and metrics would show a limit of 1 PiB. */
Test(account, the_largest_quota_of_device_memory_is_no_limit)
{
	struct config unlimited = config;
	struct accounts accounts;
	struct account *account;

	unlimited.quota_device_bytes = CONFIG_MAX_SIZE;
	accounts_init(&accounts, &unlimited);
	account = accounts_get(&accounts, 1000);
	cr_expect(eq(u64,
		     account_limit(&accounts, account, ACCOUNT_DEVICE_BYTES),
		     UINT64_MAX));
	accounts_deinit(&accounts);
}

Test(account, users_in_one_hash_bucket_have_separate_accounts)
{
	struct accounts accounts;
	struct account *one, *other;

	accounts_init(&accounts, &config);
	one = accounts_get(&accounts, 5);
	other = accounts_get(&accounts, 5 + 256);
	cr_expect(ne(ptr, one, other));
	cr_expect(eq(ptr, accounts_get(&accounts, 5), one));
	cr_expect(eq(u32, other->uid, 261));
	accounts_deinit(&accounts);
	cr_expect(eq(ptr, accounts.buckets[5], NULL));
}

Test(account, adopted_objects_are_charged_even_beyond_the_limit)
{
	struct accounts accounts;
	struct account *account;

	accounts_init(&accounts, &config);
	account = accounts_get(&accounts, 1000);
	account_charge_adopted(account, ACCOUNT_SLOTS, 50);
	cr_expect(eq(int,
		     account_charge(&accounts, account, ACCOUNT_SLOTS, 1, NULL),
		     -EDQUOT));
	account_refund(account, ACCOUNT_SLOTS, 44);
	cr_expect(zero(int, account_charge(&accounts, account, ACCOUNT_SLOTS, 1,
					   NULL)));
	accounts_deinit(&accounts);
}
