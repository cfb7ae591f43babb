/*
 * Reading the configuration again, while the broker runs.
 *
 * A thread reads, since files and the look-up of users may block. If anything
 * is wrong, the values stay as they were. Otherwise all of them are taken at
 * once, between two requests. Limits that are lowered end nothing that is
 * there: they refuse what would be more.
 */
#pragma once
#include "broker/base/config.h"
#include "proto/error.h"
#include "proto/message_part.h"
#include <stdbool.h>
#include <uv.h>

struct broker;

/* Requests that wait for the end of a reload wait for this name. */
#define RELOAD_KEY "//reload"

struct reload {
	struct broker *broker;
	uv_work_t work;
	bool is_running;
	/* It was asked for while one was running, whose thread may have read
	 * the files already. */
	bool is_wanted_again;
	/* What the thread has read. */
	struct config next;
	/* Of the last one; code 0: it was taken. */
	struct error failure;
	/* What it changed: lines without the last newline. */
	char report[MESSAGE_MAX_NOTE + 1];
};

/* Start to read; RELOAD_KEY is woken when it is done. */
void reload_start(struct broker *broker);
