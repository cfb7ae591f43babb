/*
 * What the broker gives up for good once it listens: system calls and files
 * that neither it nor fsdp-worker needs. A CUDA driver needs more than anybody
 * has listed, so on a node with one only a list of calls is refused.
 */
#pragma once

#include <stdbool.h>

struct broker;

/* What status reports. */
enum confine_calls {
	CONFINE_NO_CALLS = 0,
	CONFINE_SOME_CALLS = 1, /* those of a list are refused */
	CONFINE_CALLS = 2,      /* all are refused but those of a list */
};

struct confinement {
	enum confine_calls calls;
	bool has_files;
};

/* Before the event loop is opened, so that libuv does not come to rely on what
 * broker_confine() will give up. If it fails, that fails and reports it. */
void broker_give_up_rings(const struct broker *broker);

/* Before the first thread starts: the threads and fsdp-worker inherit it, and
 * fsdp-worker gives up more. The broker works without it just as well, so
 * failures are logged only. */
void broker_confine(struct broker *broker);
