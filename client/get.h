/*
 * The steps of a get by name, which may wait (get.c) or not (pending.c).
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

/* Refuse options that only a get of a bundle can have (-EINVAL). */
int get_check(const struct fsdp_get_options *options, struct error *err);

/* Acquire all tensors from the cache, without a system call. Returns false, and
 * acquires no tensor, if one is missing or not newer than requested. */
bool get_desc(struct fsdp_client *client, const char *const *names, size_t n,
	      const struct fsdp_get_options *options, struct fsdp_tensor **ret);

/* Make the request to the broker, which borrows the names. */
struct request get_request(const char *const *names, size_t n,
			   const struct fsdp_get_options *options);

/* Make handles of the tensors that the broker granted. Consumes the reply, also
 * on failure. */
int get_adopt(struct fsdp_client *client, struct received *received,
	      const char *const *names, size_t n,
	      const struct fsdp_get_options *options, struct fsdp_tensor **got,
	      struct error *err);

/* Wait until the tensors of `got`, which are held, are written, as `options`
 * say. `start_ms` is when the get began. On failure the tensors are freed. */
int get_await(struct fsdp_tensor **got, size_t n,
	      const struct fsdp_get_options *options, int64_t start_ms,
	      struct fsdp_tensor **ret, struct error *err);
