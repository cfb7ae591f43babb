/*
 * The limit on the descriptors of this process.
 */
#pragma once

struct config;
struct rlimit;

/* Raise the soft limit to the hard one. It protects programs that use select(),
 * which neither the broker nor its supervisor does; `ret_first` is what
 * children get back, and is left as it is if the kernel does not tell. */
void descriptors_raise(struct rlimit *ret_first);

/* Note it if the limit is too low for the configuration. */
void descriptors_check(const struct config *config);
