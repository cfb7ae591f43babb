#include "broker/comm/call.h"
#include "broker/base/deadline.h"
#include "broker/comm/comm.h"
#include "broker/comm/group.h"
#include <assert.h>
#include <stddef.h>

void calls_append(struct calls *calls, struct call *call)
{
	if (calls->last)
		calls->last->next = call;
	else
		calls->first = call;
	calls->last = call;
}

void calls_remove(struct calls *calls, struct call *call)
{
	struct call *prev = NULL, *at = calls->first;

	while (at != call) {
		assert(at);
		prev = at;
		at = at->next;
	}
	if (prev)
		prev->next = call->next;
	else
		calls->first = call->next;
	if (calls->last == call)
		calls->last = prev;
}

struct call *calls_find(const struct calls *calls, const struct group *group,
			uint64_t sequence)
{
	struct call *call = calls->first;

	while (call && (call->group != group || call->sequence != sequence))
		call = call->next;
	return call;
}

struct call *calls_next(const struct calls *calls, uint32_t rank)
{
	struct call *call = calls->first;

	while (call && (call->made & rank_bit(rank)))
		call = call->next;
	return call;
}

uint32_t calls_count(const struct calls *calls)
{
	const struct call *call = calls->first;
	uint32_t n = 0;

	for (; call; call = call->next)
		n++;
	return n;
}

void call_note_made(struct call *call, uint32_t rank)
{
	call->made |= rank_bit(rank);
	if (call->next)
		call->next->since_ms = now_ms();
	comm_wake(call->group->comm);
}

static void note_late(struct late_call *late, struct call *call,
		      uint64_t since_ms, bool is_waiting)
{
	if (late->call && late->since_ms <= since_ms)
		return;
	*late = (struct late_call){call, since_ms, is_waiting};
}

struct late_call calls_find_late(const struct calls *calls,
				 const struct comm *comm)
{
	struct call *call = calls->first;
	struct late_call late = {0};
	uint64_t missing = 0;

	for (; call; call = call->next) {
		if (comm_all(comm) & ~call->made & ~missing)
			note_late(&late, call, call->since_ms, false);
		missing |= ~call->made;
		if (call->waits_since_ms)
			note_late(&late, call, call->waits_since_ms, true);
	}
	return late;
}

uint64_t calls_deadline(const struct calls *calls, const struct comm *comm)
{
	struct late_call late = calls_find_late(calls, comm);

	if (!late.call)
		return UINT64_MAX;
	return late.since_ms + (uint64_t)comm->timeout_ms;
}
