/*
 * The connection to the broker. Errors of libfsdp become errors of our kind.
 */
#pragma once
#include <stdbool.h>

struct args;
struct error;
struct fsdp_client;

/* Connects with the options of the command line. If there is no broker, the
 * error says how to start one. */
int broker_connect(const struct args *args, struct fsdp_client **ret,
		   struct error *err);

/* Returns `code`, and sets the error to the library's sentence about its call
 * that failed. */
int broker_failed(struct error *err, int code);
/* Does the same for a call that failed while it listed items. Our callbacks
 * return no error but -ENOMEM. */
int broker_walk_failed(struct error *err, int code);

/* Returns whether an error of one name concerns all others, too: the broker is
 * gone, or a signal came. */
bool broker_ends(int code);
