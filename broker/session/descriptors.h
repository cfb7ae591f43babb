/*
 * The limit on the descriptors of this process.
 */
#pragma once

struct config;
struct rlimit;

/* Raise the soft limit to the hard one. (The soft limit protects programs that
 * use select(), which neither the broker nor its supervisor does.) `*ret_first`
 * is the earlier limit, which children get back; it is unchanged if the limit
 * cannot be read. */
void descriptors_raise(struct rlimit *ret_first);

/* Add a note to the log if the limit is too low for the configuration. */
void descriptors_check(const struct config *config);
