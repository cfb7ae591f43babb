/*
 * Standard input, output and error.
 *
 * A program may be started without them, and its first files then get their
 * numbers: what it prints would be written into a file of tensors, or into its
 * connection to the broker.
 */
#pragma once

/* Opens /dev/null in place of each of the three that is closed. Reading it, or
 * writing to it, fails as it does with a closed one. Call this before anything
 * else is opened. */
void std_fds_open(void);
