/*
 * Tests that each run has a word of its own from its begin to its end, and that
 * a run works without one if no word is free.
 */
#include "broker/broker.h"
#include "broker/comm/comm.h"
#include "broker/comm/verdict.h"
#include "tests/lib/check.h"

static struct broker broker;
static struct comm comms[TABLE_RUNS + 1];

static void setup(void)
{
	broker_link(&broker);
	cr_assert(zero(int, table_create(&broker.store.table, NULL)));
	verdicts_clear(&broker.store.table);
	for (uint32_t i = 0; i <= TABLE_RUNS; i++)
		comms[i] = (struct comm){.comms = &broker.comms, .id = i + 1};
}

static void teardown(void)
{
	table_close(&broker.store.table);
}

TestSuite(verdict, .init = setup, .fini = teardown);

static bool is_alive(const struct comm *comm)
{
	return comm->verdict &&
	       table_is_alive(&broker.store.table, comm->verdict, comm->id);
}

Test(verdict, a_run_is_alive_until_it_fails)
{
	verdict_open(&comms[0]);
	verdict_open(&comms[1]);
	cr_expect(ne(u32, comms[0].verdict, comms[1].verdict));
	cr_expect(is_alive(&comms[0]));
	verdict_fail(&comms[0]);
	cr_expect(not(is_alive(&comms[0])));
	cr_expect(is_alive(&comms[1]));
}

Test(verdict, a_run_that_reuses_a_word_is_independent_of_the_earlier_run)
{
	uint32_t word;

	verdict_open(&comms[0]);
	word = comms[0].verdict;
	verdict_close(&comms[0]);
	cr_expect(zero(u32, comms[0].verdict));
	verdict_open(&comms[1]);
	cr_assert(eq(u32, comms[1].verdict, word));
	cr_expect(is_alive(&comms[1]));
	cr_expect(not(table_is_alive(&broker.store.table, word, comms[0].id)));
	/* It has no word any more. */
	verdict_fail(&comms[0]);
	cr_expect(is_alive(&comms[1]));
}

Test(verdict, a_run_gets_no_word_when_all_are_in_use)
{
	for (uint32_t i = 0; i + 1 < TABLE_RUNS; i++) {
		verdict_open(&comms[i]);
		cr_assert(is_alive(&comms[i]));
	}
	verdict_open(&comms[TABLE_RUNS]);
	cr_expect(zero(u32, comms[TABLE_RUNS].verdict));
	verdict_fail(&comms[TABLE_RUNS]);
	verdict_close(&comms[3]);
	verdict_open(&comms[TABLE_RUNS]);
	cr_expect(is_alive(&comms[TABLE_RUNS]));
}

Test(verdict, after_a_restart_runs_that_continue_are_alive)
{
	verdict_open(&comms[0]);
	verdict_open(&comms[1]);
	verdict_open(&comms[2]);
	broker.comms.first = &comms[1];
	verdicts_adopt(&broker.comms);
	cr_expect(not(is_alive(&comms[0])));
	cr_expect(is_alive(&comms[1]));
	cr_expect(not(is_alive(&comms[2])));
}
