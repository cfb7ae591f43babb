/* Leaks: one line for each kind of object. Contexts are not counted, because
 * other code of the process may use the primary one. */
#include "tests/fakes/cuda/leak.h"
#include "tests/fakes/cuda/handle.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/reservation.h"
#include "tests/fakes/cuda/settings.h"
#include <stdio.h>

static void say(const char *what, unsigned int n)
{
	if (n > 0)
		fprintf(stderr, "fakecuda: leaked: %u %s\n", n, what);
}

void leak_report(void)
{
	if (!settings()->does_report_leaks)
		return;
	say("streams", handle_count(HANDLE_STREAM));
	say("events", handle_count(HANDLE_EVENT));
	say("VMM allocations", handle_count(HANDLE_ALLOCATION));
	say("libraries", handle_count(HANDLE_LIBRARY));
	say("VMM mappings", mapping_count(MAPPING_VMM));
	say("address reservations", reservation_count());
	say("device allocations", mapping_count(MAPPING_ALLOC));
	say("open IPC handles", mapping_count(MAPPING_IPC));
	say("host allocations", mapping_count(MAPPING_HOST));
	say("host registrations", mapping_count(MAPPING_REGISTERED));
}
