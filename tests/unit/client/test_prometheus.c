/*
 * Tests the text for Prometheus with objects that an idle broker does not have:
 * communicators, pools of several chunks, and accounts without a limit.
 */
#include "client/monitor/prometheus.h"
#include "client/monitor/snapshot.h"
#include "tests/lib/check.h"
#include <stdlib.h>
#include <string.h>

static struct snapshot snapshot;
static char *text;

static void init(void)
{
	snapshot = SNAPSHOT_NULL;
}

static void fini(void)
{
	snapshot_deinit(&snapshot);
	free(text);
	text = NULL;
}

TestSuite(prometheus, .init = init, .fini = fini, .timeout = 300);

static bool shows(const char *line)
{
	size_t size;
	FILE *file;

	free(text);
	file = open_memstream(&text, &size);
	prometheus_write(file, &snapshot);
	fclose(file);
	return strstr(text, line);
}

static struct fsdp_comm_entry *add_comm(const char *name)
{
	struct fsdp_comm_entry *comm = snapshot_append(
		&snapshot.comms, &snapshot.n_comms, sizeof(*comm));

	comm->name = strdup(name);
	comm->note = strdup("");
	return comm;
}

static struct fsdp_chunk *add_chunk(uint32_t uid, uint32_t gid, uint32_t mode)
{
	struct fsdp_chunk *chunk = snapshot_append(
		&snapshot.chunks, &snapshot.n_chunks, sizeof(*chunk));

	chunk->uid = uid;
	chunk->gid = gid;
	chunk->mode = mode;
	chunk->size = 100;
	chunk->used = 10;
	return chunk;
}

Test(prometheus, values_of_communicators_are_shown)
{
	struct fsdp_comm_entry *comm = add_comm("run");

	comm->uid = 7;
	comm->step = 51;
	comm->n_joined = 4;
	comm->n_bytes = 4096;
	comm->n_in_flight = 2;
#define OF "{uid=\"7\",communicator=\"run\"}"
	cr_assert(shows("\nfsdpd_communicator_step" OF " 51\n"));
	cr_assert(shows("\nfsdpd_communicator_ranks" OF " 4\n"));
	cr_assert(shows("\nfsdpd_communicator_shard_bytes" OF " 4096\n"));
	cr_assert(shows("\nfsdpd_communicator_gathers_in_flight" OF " 2\n"));
#undef OF
}

Test(prometheus, labels_are_escaped)
{
	add_comm("a\"b\\c\nd");
	cr_assert(shows("communicator=\"a\\\"b\\\\c\\nd\"} 0\n"));
}

Test(prometheus, chunks_of_one_access_class_are_shown_as_one_pool)
{
	add_chunk(1, 2, 0640);
	add_chunk(1, 2, 0600);
	add_chunk(1, 2, 0640);
	add_chunk(1, 3, 0640);
	add_chunk(1, 2, 0640)->device.uuid[0] = 1;
#define OF "{device=\"host\",uid=\"1\",gid="
	cr_assert(shows("_size_bytes" OF "\"2\",mode=\"0640\"} 200\n"));
	cr_assert(shows("_used_bytes" OF "\"2\",mode=\"0640\"} 20\n"));
	cr_assert(shows("_size_bytes" OF "\"2\",mode=\"0600\"} 100\n"));
	cr_assert(shows("_size_bytes" OF "\"3\",mode=\"0640\"} 100\n"));
#undef OF
	cr_assert(shows("{device=\"GPU-01000000-"));
}

Test(prometheus, a_missing_limit_is_shown_as_infinite)
{
	struct fsdp_account *account = snapshot_append(
		&snapshot.accounts, &snapshot.n_accounts, sizeof(*account));

	account->uid = 7;
	account->max_bytes = UINT64_MAX;
	account->max_device_bytes = 5;
#define OF "fsdpd_user_memory_limit_bytes{uid=\"7\",where="
	cr_assert(shows(OF "\"host\"} +Inf\n"));
	cr_assert(shows(OF "\"device\"} 5\n"));
#undef OF
}
