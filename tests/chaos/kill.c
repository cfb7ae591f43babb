/*
 * Kills processes, and stops processes for a while.
 */
#include "tests/chaos/storm.h"
#include "tests/lib/ranks.h"
#include <errno.h>

/* The supervisor gives up at the fifth death within 10 s. Other deaths may be
 * added, because the kernel and failing calls end brokers, too. */
#define BROKER_REST_MS 3400

void kill_client(struct storm *storm)
{
	pid_t *pid = &storm->clients[draw(&storm->chance, STORM_CLIENTS)];
	int end = child_kill(*pid);

	must(end == SIGKILL || end == -SOAK_LOST);
	*pid = 0;
	storm->tally.clients++;
	storm_revive(storm);
}

void kill_rank(struct storm *storm)
{
	pid_t *pid = &storm->ranks[draw(&storm->chance, STORM_RANKS)];
	int end = child_kill(*pid);

	must(end == SIGKILL || end == -EXACT_LOST);
	*pid = 0;
	storm->tally.ranks++;
	storm_revive(storm);
}

void kill_worker(struct storm *storm)
{
	pid_t pid = worker_pid(&storm->chaos.daemon);

	if (pid == 0 || kill(pid, SIGKILL) < 0)
		return;
	storm->tally.workers++;
}

bool broker_may_die(struct storm *storm)
{
	uint64_t now = clock_ms();

	if (now < storm->broker_rest_ms)
		return false;
	storm->broker_rest_ms = now + BROKER_REST_MS;
	return true;
}

/* Kill the broker at a random failpoint, or at a random moment if the build has
 * no failpoints. */
void kill_broker(struct storm *storm)
{
	static const char *const points[] = {
		"catalog.commit",
		"catalog.committed",
		"verb.publish.done",
		"verb.publish.committed",
		"verb.get.done",
		"verb.get.committed",
		"verb.alloc.done",
		"publish.replaced",
		"bundle.flipped",
		"verb.redeem.done",
		"verb.release.committed",
		"slot.freed",
		"peer.send",
		"verb.bundle_commit.done",
		"session.rung",
		"fdstore.put",
		"fdstore.remove",
	};
	uint32_t i = draw(&storm->chance, sizeof(points) / sizeof(points[0]));

	if (!broker_may_die(storm))
		return;
	storm->tally.brokers++;
	if (chaos_has_points() && draw(&storm->chance, 2))
		plan_death(storm->chaos.plan, points[i],
			   1 + draw(&storm->chance, 3));
	else
		daemon_kill_broker(&storm->chaos.daemon);
}

/* --- stopped processes --------------------------------------------------- */

/* Stop a process for a while. Meanwhile the other processes continue, and the
 * broker may be killed. */
static void stop(struct storm *storm, pid_t pid)
{
	if (pid == 0 || kill(pid, SIGSTOP) < 0)
		return;
	storm->tally.stops++;
	storm_await(storm, draw(&storm->chance, 100));
	if (draw(&storm->chance, 4) == 0)
		kill_broker(storm);
	storm_await(storm, draw(&storm->chance, 100));
	must(kill(pid, SIGCONT) == 0 || errno == ESRCH);
}

void stop_client(struct storm *storm)
{
	stop(storm, storm->clients[draw(&storm->chance, STORM_CLIENTS)]);
}

void stop_rank(struct storm *storm)
{
	stop(storm, storm->ranks[draw(&storm->chance, STORM_RANKS)]);
}

void stop_worker(struct storm *storm)
{
	stop(storm, worker_pid(&storm->chaos.daemon));
}

/* Clients cannot continue without the broker, so the pause has a fixed time. */
void stop_broker(struct storm *storm)
{
	pid_t pid = daemon_broker_pid(&storm->chaos.daemon);

	if (kill(pid, SIGSTOP) < 0)
		return;
	storm->tally.stops++;
	nap_ms(1 + draw(&storm->chance, 100));
	if (draw(&storm->chance, 4) == 0)
		kill_client(storm);
	must(kill(pid, SIGCONT) == 0 || errno == ESRCH);
}
