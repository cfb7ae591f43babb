/*
 * The fsdp-workers of a test's brokers, present and former ones. They are
 * identified by the plan of deaths in their environment (chaos.h).
 */
#pragma once

struct workers {
	unsigned int n;
	/* workers that received memory to which they can write */
	unsigned int n_with_chunks;
};

struct workers workers_count(const char *plan);
