/*
 * Handles Ctrl-C and SIGTERM while a verb has unfinished files or bundles. The
 * signal is noted, loops check for it, and the tool cleans up before it dies of
 * it. A second signal kills the tool at once.
 */
#pragma once

struct error;

/* From now on signals are noted, and do not end the process. */
void interrupt_catch(void);
/* Returns -EINTR with a sentence if a signal was noted. */
int interrupt_check(struct error *err);
/* Ends the process by the signal that was noted, as a shell expects. Returns if
 * there was no signal. */
void interrupt_die(void);
