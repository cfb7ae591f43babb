/*
 * The fsdp-workers of a test's brokers, the one that is and those that were:
 * known by the plan of deaths that is in their environment (chaos.h).
 */
#pragma once

struct workers {
	unsigned int n;
	unsigned int n_with_chunks; /* were told of what they could write to */
};

struct workers workers_count(const char *plan);
