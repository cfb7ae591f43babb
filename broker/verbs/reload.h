/*
 * Reloading the configuration while the broker runs.
 *
 * A thread reads the files, since reading and looking up users may block. If
 * anything is wrong, the values stay as they were. Otherwise all of them are
 * replaced at once, between two requests. A lowered limit does not end anything
 * that exists: it refuses additions.
 */
#pragma once
#include "broker/base/config.h"
#include "proto/error.h"
#include "proto/message_part.h"
#include <stdbool.h>
#include <uv.h>

struct broker;

/* The key of requests that wait for the end of a reload. */
#define RELOAD_KEY "//reload"

struct reload {
	struct broker *broker;
	uv_work_t work;
	bool is_running;
	/* Another reload was requested during one whose thread may have read
	 * the files already. */
	bool is_wanted_again;
	/* The configuration that the thread has read. */
	struct config next;
	/* The error of the last reload; code 0 if it succeeded. */
	struct error failure;
	/* The changes of the last reload, in lines without the last newline. */
	char report[MESSAGE_MAX_NOTE + 1];
};

/* Start a reload. RELOAD_KEY is woken when it is done. */
void reload_start(struct broker *broker);
