/*
 * The fsdp-workers of a test's brokers, present and former ones. The plan of
 * deaths in their environment identifies them (chaos.h).
 */
#pragma once

struct workers {
	unsigned int n;
	unsigned int n_with_chunks; /* workers that received memory to which
				       they can write */
};

struct workers workers_count(const char *plan);
