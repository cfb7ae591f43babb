#include "broker/comm/verdict.h"
#include "broker/comm/comm.h"
#include "broker/tensor/store.h"
#include "shm/table.h"

void verdicts_clear(struct table *table)
{
	for (uint32_t i = 0; i < TABLE_RUNS; i++)
		table_set_verdict(table, i, 0);
}

void verdicts_adopt(const struct comms *comms)
{
	bool is_used[TABLE_RUNS] = {false};

	for (const struct comm *comm = comms->first; comm; comm = comm->next)
		is_used[comm->verdict] = true;
	for (uint32_t i = 0; i < TABLE_RUNS; i++) {
		if (!is_used[i])
			table_set_verdict(&comms->store->table, i, 0);
	}
}

static bool is_free(const struct table *table, uint32_t i)
{
	/* Relaxed order is enough, since no other process writes the word. */
	return atomic_load_explicit(&table->header->verdicts[i],
				    memory_order_relaxed) == 0;
}

void verdict_open(struct comm *comm)
{
	struct table *table = &comm->comms->store->table;
	uint32_t i = 1;

	while (i < TABLE_RUNS && !is_free(table, i))
		i++;
	if (i == TABLE_RUNS)
		return;
	comm->verdict = i;
	table_set_verdict(table, i, table_verdict(comm->id, false));
}

void verdict_fail(const struct comm *comm)
{
	if (comm->verdict)
		table_set_verdict(&comm->comms->store->table, comm->verdict,
				  table_verdict(comm->id, true));
}

void verdict_close(struct comm *comm)
{
	if (comm->verdict)
		table_set_verdict(&comm->comms->store->table, comm->verdict, 0);
	comm->verdict = 0;
}
