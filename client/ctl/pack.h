/*
 * Writes the elements of a tensor with any strides in row-major order, as all
 * file formats need them. They can be cast on the way.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct error;
struct tensor_type;

/* Receives the next bytes. */
typedef int pack_fn(void *data, const void *bytes, size_t size,
		    struct error *err);

/*
 * Passes the elements at `elements` to `write`. The type must be valid. `cast`
 * is 0 or DTYPE_F32; DTYPE_F32 requires a dtype that cast_is_known() accepts.
 */
int pack_write(const void *elements, const struct tensor_type *type,
	       uint32_t cast, pack_fn *write, void *data, struct error *err);
