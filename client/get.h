/*
 * The steps of a get by name, for calls that wait and for those that do not.
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct received;
struct error;
struct fsdp_client;
struct fsdp_get_options;
struct fsdp_tensor;

/* Take all tensors from the cache, or none; no system call. */
bool get_desc(struct fsdp_client *client, const char *const *names, size_t n,
	      const struct fsdp_get_options *options, struct fsdp_tensor **ret);

/* The request to the broker; it borrows the names. */
struct request get_request(const char *const *names, size_t n,
			   const struct fsdp_get_options *options);

/* Make handles of the tensors that the broker granted; consumes the reply, also
 * on failure. */
int get_adopt(struct fsdp_client *client, struct received *received,
	      const char *const *names, size_t n,
	      const struct fsdp_get_options *options, struct fsdp_tensor **got,
	      struct error *err);

/* The tensors of `got` are held, but those on a device may not be written yet:
 * wait for them as `options` say, since `start_ms`. On failure they are freed.
 */
int get_await(struct fsdp_tensor **got, size_t n,
	      const struct fsdp_get_options *options, int64_t start_ms,
	      struct fsdp_tensor **ret, struct error *err);
