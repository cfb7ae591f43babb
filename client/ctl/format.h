/*
 * Formats and parses numbers for people: sizes, times, shapes.
 *
 * The functions that format fill a small buffer of the caller and return it, so
 * that they can be used inside an argument list. Those that parse accept what a
 * person would type, and refuse what could have two meanings.
 */
#pragma once
#include "client/fsdp.h"
#include <stddef.h>
#include <stdint.h>

struct error;
struct tensor_type;

#define FORMAT_SIZE  32  /* size of the buffer for most functions */
#define FORMAT_SHAPE 192 /* size of the buffer for format_shape() */

/* "4096". */
const char *format_number(uint64_t n, char buffer[FORMAT_SIZE]);
/* "512 B", "1.5 KiB", "13.4 GiB". */
const char *format_size(uint64_t size, char buffer[FORMAT_SIZE]);
/* "1 tensor", "2 tensors"; `noun` is a singular that takes an s. */
const char *format_count(uint64_t n, const char *noun,
			 char buffer[FORMAT_SIZE]);
/* Formats an age: "250 ms", "12 s", "5 min", "3 h", "9 d". */
const char *format_age(uint64_t ms, char buffer[FORMAT_SIZE]);
/* Formats a duration: "12.3 us", "4.56 ms". */
const char *format_ns(uint64_t ns, char buffer[FORMAT_SIZE]);
/* "[4096, 128]"; "[]" for a 0-d tensor. */
const char *format_shape(const int64_t *shape, uint32_t n_dims,
			 char buffer[FORMAT_SHAPE]);

/* Formats the place of a tensor, in short: "host" or "GPU-01234567", followed
 * by "donated" or "legacy" and by "(tainted)" if these apply. */
const char *format_place(const struct fsdp_info *info, enum fsdp_shared shared,
			 char buffer[FORMAT_SIZE]);
/* Formats the name of a user, or the number if the user has no name. */
const char *format_user(uint32_t uid, char buffer[FORMAT_SIZE]);
/* "", "donated", "legacy". */
const char *format_shared(enum fsdp_shared shared);

/* Returns the time of CLOCK_MONOTONIC in nanoseconds. */
uint64_t format_now_ns(void);

/* Parses a whole number of decimal digits only. */
int format_read_number(const char *text, uint64_t *ret, struct error *err);
/* Parses a time in milliseconds, or with the suffix ms, s, m or h: "30s". */
int format_read_time(const char *text, uint64_t *ret_ms, struct error *err);
/* Parses a size in bytes, or with the suffix K, M, G or T, which are powers of
 * 1024: "512M". */
int format_read_size(const char *text, uint64_t *ret, struct error *err);
/* Parses "4096,128" into the shape of `type`; "" is the shape of a 0-d
 * tensor. */
int format_read_shape(const char *text, struct tensor_type *type,
		      struct error *err);
