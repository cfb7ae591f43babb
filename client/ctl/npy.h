/*
 * numpy's .npy files. A line of Python describes dtype and shape, and the
 * elements follow.
 *
 * LAYOUT
 *   offset size  meaning
 *        0    6  "\x93NUMPY"
 *        6    2  version: 1, 2 or 3, and 0
 *        8    2  bytes of header H, little-endian (4 bytes in versions 2, 3)
 *       10    H  {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
 *                spaces, '\n'; the data begin at a multiple of 64
 *
 * Only types that a tensor can have are accepted: plain dtypes, little-endian,
 * in C order. A small parser that knows exactly these three keys reads the
 * header; no Python is run.
 */
#pragma once
#include "proto/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

#define NPY_MAX_HEADER  65536
#define NPY_HEADER_SIZE 320 /* the maximum that npy_make_header() writes */

struct npy {
	struct tensor_type type;
	uint64_t offset; /* of the elements */
	uint64_t size;
};

/*
 * Parses and checks the beginning of a file of `file_size` bytes. `head` is its
 * first `head_size` bytes: at least NPY_MAX_HEADER bytes or the whole file.
 */
int npy_parse(const uint8_t *head, size_t head_size, uint64_t file_size,
	      struct npy *ret, struct error *err);

/* Reads and checks the header of the file `fd`. */
int npy_read(int fd, struct npy *ret, struct error *err);

/* Returns whether the format has this dtype. It has neither bf16 nor 8-bit
 * floats. */
bool npy_holds(uint32_t dtype);

/* Writes the header of a valid type. Returns its size, a multiple of 64. */
size_t npy_make_header(const struct tensor_type *type,
		       char buffer[NPY_HEADER_SIZE]);
