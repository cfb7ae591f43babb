/*
 * The elements of a tensor in row-major order, whatever its strides, and cast
 * on the way if asked for: what every file format wants.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct error;
struct tensor_type;

/* Takes the next bytes. */
typedef int pack_fn(void *data, const void *bytes, size_t size,
		    struct error *err);

/*
 * Give the elements at `elements`, of a checked type, to `write`. `cast` is 0
 * or DTYPE_F32; then the dtype is one that cast.h knows.
 */
int pack_write(const void *elements, const struct tensor_type *type,
	       uint32_t cast, pack_fn *write, void *data, struct error *err);
