#include "tests/lib/crew.h"
#include "tests/lib/chaos.h"
#include <criterion/new/assert.h>
#include <signal.h>

#define CONFIG "[memory]\nchunk_min = 4M\nchunk_max = 4M\n"

struct ranks ranks;
static uint64_t live_before; /* bytes, before any rank joined */

static const char *live(void)
{
	return are_on_devices() ? "device_bytes_live" : "bytes_live";
}

void crew_setup(void)
{
	daemon_start_with(&daemon_, &(struct daemon_options){.config = CONFIG});
	client = connect_to(&daemon_, 0);
	live_before = status_value(client, live());
}

void crew_teardown(void)
{
	ranks_stop(&ranks);
	client_teardown();
}

const char *sentence(uint32_t rank)
{
	return ranks.notes[rank].sentence;
}

static int note_comm(const struct fsdp_comm_entry *entry, void *data)
{
	*(struct fsdp_comm_entry *)data = *entry;
	return 1;
}

struct fsdp_comm_entry comm_entry(void)
{
	struct fsdp_comm_entry entry = {0};

	cr_assert(eq(int, fsdp_comms(client, note_comm, &entry), 1), "%s",
		  fsdp_error());
	return entry;
}

void expect_memory_back(void)
{
	uint64_t kept;

	cr_assert(eq(int, ranks_run(&ranks, trainer_leave), 0));
	for (int i = 0; i < 20000 && comm_entry().state != FSDP_COMM_KEPT; i++)
		nap_ms(1);
	cr_assert(eq(int, comm_entry().state, FSDP_COMM_KEPT));
	kept = comm_entry().n_bytes;
	/* On devices blocks are larger than requested. */
	if (!are_on_devices())
		cr_assert(status_await(client, live(), live_before + kept));
	cr_assert(eq(int, fsdp_comm_remove(client, "test"), 0), "%s",
		  fsdp_error());
	cr_assert(status_await(client, live(), live_before));
}

pid_t freeze_worker(void)
{
	pid_t worker = worker_await(&daemon_, 0);

	must(kill(worker, SIGSTOP) == 0);
	return worker;
}
