/*
 * Tests the broker's notes.
 */
#include "broker/base/log.h"
#include "proto/message_part.h"
#include "tests/lib/check.h"
#include <stdio.h>
#include <string.h>

TestSuite(log, .timeout = 300);

Test(log, keeps_notes_but_not_other_lines)
{
	log_line(LOG_LEVEL_INFO, "a line");
	cr_expect(eq(str, (char *)log_notes(), ""));
	log_note(LOG_LEVEL_WARNING, "note %d", 1);
	log_note(LOG_LEVEL_WARNING, "note %d", 2);
	cr_expect(eq(str, (char *)log_notes(), "note 1\nnote 2"));
	log_clear_notes();
	cr_expect(eq(str, (char *)log_notes(), ""));
}

Test(log, drops_the_oldest_notes_to_store_a_new_note)
{
	char last[16];

	for (int i = 0; i < MESSAGE_MAX_NOTE; i++)
		log_note(LOG_LEVEL_WARNING, "note %d", i);
	(void)snprintf(last, sizeof(last), "note %d", MESSAGE_MAX_NOTE - 1);
	cr_expect(lt(sz, strlen(log_notes()), MESSAGE_MAX_NOTE + 1));
	cr_expect(zero(int, strncmp(log_notes(), "note ", 5)));
	cr_expect(eq(str, strrchr(log_notes(), '\n') + 1, last));
}
