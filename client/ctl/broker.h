/*
 * The connection to the broker, and its errors as ours.
 */
#pragma once

struct args;
struct error;
struct fsdp_client;

/* Connect as the options say. If there is no broker, the error says how to
 * start one. */
int broker_connect(const struct args *args, struct fsdp_client **ret,
		   struct error *err);

/* What the library said about its call that failed with `code`. */
int broker_failed(struct error *err, int code);
/* The same of a list that ended early; its callbacks return -ENOMEM only. */
int broker_walk_failed(struct error *err, int code);
