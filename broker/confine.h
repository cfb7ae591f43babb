/*
 * Confinement: system calls and files that neither the broker nor fsdp-worker
 * needs are given up for good when the broker listens. A CUDA driver may need
 * more than is known, so on a node with a driver only a list of calls is
 * refused.
 */
#pragma once

#include <stdbool.h>

struct broker;

/* The confinement as status reports it. */
enum confine_calls {
	CONFINE_NO_CALLS = 0,
	CONFINE_SOME_CALLS = 1, /* the calls of a list are refused */
	CONFINE_CALLS = 2,      /* all are refused except those of a list */
};

struct confinement {
	enum confine_calls calls;
	bool has_files;
};

/* Give up io_uring before the event loop is opened, so that libuv does not rely
 * on calls that broker_confine() will give up. If this fails, broker_confine()
 * fails, too, and reports it. */
void broker_give_up_rings(const struct broker *broker);

/* Enter the sandbox before the first thread starts. The threads and fsdp-worker
 * inherit it, and fsdp-worker gives up more. The broker also works without it,
 * so failures are only logged. */
void broker_confine(struct broker *broker);
