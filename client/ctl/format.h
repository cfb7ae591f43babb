/*
 * Numbers as people read and type them: sizes, times, shapes.
 *
 * Writers fill a small buffer of the caller's and return it, so that they can
 * be used inside an argument list. Readers accept what a person would type
 * and nothing that could mean two things.
 */
#pragma once
#include "client/fsdp.h"
#include <stddef.h>
#include <stdint.h>

struct error;
struct tensor_type;

#define FORMAT_SIZE  32  /* buffer of most of the next */
#define FORMAT_SHAPE 192 /* buffer of format_shape() */

/* "4096". */
const char *format_number(uint64_t n, char buffer[FORMAT_SIZE]);
/* "512 B", "1.5 KiB", "13.4 GiB". */
const char *format_size(uint64_t size, char buffer[FORMAT_SIZE]);
/* "1 tensor", "2 tensors"; `noun` is a singular that takes an s. */
const char *format_count(uint64_t n, const char *noun,
			 char buffer[FORMAT_SIZE]);
/* "250 ms", "12 s", "5 min", "3 h", "9 d": how old something is. */
const char *format_age(uint64_t ms, char buffer[FORMAT_SIZE]);
/* "12.3 us", "4.56 ms": how long something took. */
const char *format_ns(uint64_t ns, char buffer[FORMAT_SIZE]);
/* "[4096, 128]"; "[]" for a 0-d tensor. */
const char *format_shape(const int64_t *shape, uint32_t n_dims,
			 char buffer[FORMAT_SHAPE]);

/* Where a tensor is, in short: "host", "GPU-01234567"; and whether its memory
 * was "donated" or is "legacy", and it is "(tainted)". */
const char *format_place(const struct fsdp_info *info, enum fsdp_shared shared,
			 char buffer[FORMAT_SIZE]);
/* The name of a user, or the number. */
const char *format_user(uint32_t uid, char buffer[FORMAT_SIZE]);
/* "", "donated", "legacy". */
const char *format_shared(enum fsdp_shared shared);

/* The nanoseconds of the monotonic clock. */
uint64_t format_now_ns(void);

/* A whole number, decimal digits only. */
int format_read_number(const char *text, uint64_t *ret, struct error *err);
/* A time in milliseconds, or with ms, s, m or h behind it: "30s". */
int format_read_time(const char *text, uint64_t *ret_ms, struct error *err);
/* Bytes, or with K, M, G or T behind it, which are binary: "512M". */
int format_read_size(const char *text, uint64_t *ret, struct error *err);
/* "4096,128" into the shape of `type`; "" is 0-d. */
int format_read_shape(const char *text, struct tensor_type *type,
		      struct error *err);
