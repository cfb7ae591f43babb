/*
 * The steps of a get by name, for calls that wait and for those that do not.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct answer;
struct error;
struct fsdp_client;
struct fsdp_get_options;
struct fsdp_tensor;

/* All from the cache, or none; no system call. */
bool get_known(struct fsdp_client *client, const char *const *names, size_t n,
	       const struct fsdp_get_options *options,
	       struct fsdp_tensor **ret);

/* What to ask the broker for; borrows the names. */
struct request get_request(const char *const *names, size_t n,
			   const struct fsdp_get_options *options);

/* Handles of what it granted; consumes the answer, also on failure. */
int get_adopt(struct fsdp_client *client, struct answer *answer,
	      const char *const *names, size_t n,
	      const struct fsdp_get_options *options, struct fsdp_tensor **got,
	      struct error *err);

/* `got` are held, but those on a device may not be written: wait for it as
 * `options` say, since `start_ms`. On failure they are freed. */
int get_await(struct fsdp_tensor **got, size_t n,
	      const struct fsdp_get_options *options, int64_t start_ms,
	      struct fsdp_tensor **ret, struct error *err);
