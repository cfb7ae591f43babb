/*
 * The elements of a tensor in row-major order, whatever its strides, and cast
 * on the way if asked for: what every file format wants.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct error;
struct output;
struct tensor_type;

/*
 * Write the elements at `data`, of a checked type, to `output`. `cast` is 0 or
 * DTYPE_F32; then the dtype is one that cast.h knows.
 */
int pack_write(const void *data, const struct tensor_type *type, uint32_t cast,
	       struct output *output, struct error *err);
