/*
 * Ctrl-C (or SIGTERM) while something half done would be left behind: the
 * signal is noted, loops look at it, and the tool dies of it after it has
 * cleaned up. A second signal kills at once.
 */
#pragma once

struct error;

/* From now on note signals instead of dying of them. */
void interrupt_catch(void);
/* -EINTR with a sentence if one came. */
int interrupt_check(struct error *err);
/* If one came, die of it, as the shell expects. Otherwise come back. */
void interrupt_die(void);
