#include "broker/session/death.h"
#include "broker/base/deadline.h"
#include "broker/base/log.h"
#include "broker/session/session.h"
#include "broker/session/sessions.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS 1000

void deaths_deinit(struct deaths *deaths)
{
	while (deaths->n_waiting > 0) {
		int pidfd = deaths->waiting[--deaths->n_waiting].pidfd;

		if (pidfd >= 0)
			close(pidfd);
	}
}

/* Writes a line about a process that failed, or else about one of which it is
 * unknown. */
static void log_one(const struct deaths *deaths)
{
	enum process_end named_kind = PROCESS_END_UNKNOWN;
	const struct death *named = NULL;
	char how[PROCESS_END_SIZE];

	for (uint32_t i = 0; i < deaths->n_waiting; i++) {
		const struct death *death = &deaths->waiting[i];
		char end[PROCESS_END_SIZE];
		enum process_end kind =
			process_describe_end(death->pidfd, death->pid, end);

		if (kind == PROCESS_END_NORMAL || (named && kind <= named_kind))
			continue;
		named = death;
		named_kind = kind;
		strcpy(how, end);
	}
	if (named)
		log_line(LOG_LEVEL_INFO,
			 "process %d (%s) of uid %u %s without a goodbye (%llu "
			 "so far)",
			 (int)named->pid, named->command, named->uid, how,
			 (unsigned long long)deaths->n);
}

static void on_deadline(void *data, uint32_t index)
{
	struct deaths *deaths = data;

	(void)index;
	log_one(deaths);
	deaths_deinit(deaths);
}

void death_note(const struct session *session)
{
	const struct session_record *record = session_record(session);
	struct deaths *deaths = &session->sessions->deaths;
	struct death *death = &deaths->waiting[deaths->n_waiting];
	struct deadline deadline = {
		.at_ms = now_ms() + WAIT_MS,
		.fn = on_deadline,
		.data = deaths,
		.position = &deaths->position,
	};

	deaths->n++;
	if (deaths->n_waiting == DEATHS_MAX)
		return;
	if (!deaths->position &&
	    deadlines_add(&session->sessions->base->deadlines, &deadline,
			  NULL) < 0)
		return;
	death->pidfd = fcntl(session->pidfd, F_DUPFD_CLOEXEC, 3);
	death->pid = (pid_t)record->pid;
	death->uid = record->uid;
	memcpy(death->command, record->command, sizeof(death->command));
	deaths->n_waiting++;
}
