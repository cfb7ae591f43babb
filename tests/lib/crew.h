/*
 * A broker of its own for each test, with small chunks, a client of it
 * (client.h), and ranks that train in the communicator "test".
 */
#pragma once
#include "tests/lib/client.h"
#include "tests/lib/ranks.h"
#include "tests/lib/trainer.h"
#include <string.h>

#define LAYER(name_, params_, ...)                                             \
	{                                                                      \
		.name = name_, .params = params_,                              \
		.n = sizeof(params_) / sizeof(*(params_)), __VA_ARGS__         \
	}

extern struct ranks ranks;

void crew_setup(void);
void crew_teardown(void);

/* Returns the sentence that the rank received last. */
const char *sentence(uint32_t rank);

#define assert_says(rank, what)                                                \
	cr_assert(ne(ptr, strstr(sentence(rank), (what)), NULL), "\"%s\"",     \
		  sentence(rank))

/* Returns the entry of the only communicator. */
struct fsdp_comm_entry comm_entry(void);
/* Tell all ranks to leave; then only the kept groups have memory. */
void expect_memory_back(void);
/* Stop the worker until it gets SIGCONT. Returns its pid. */
pid_t freeze_worker(void);
