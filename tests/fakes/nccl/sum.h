/*
 * Sums over the ranks: in f32 for f16, bf16 and f32, in f64 for f64, in 64 bits
 * that wrap for integers. They are computed in the order of the ranks, and
 * rounded once. The real library's order depends on its algorithm, and it
 * rounds with every addition.
 */
#pragma once
#include "tests/fakes/nccl/api.h"
#include <stdint.h>

/* Returns 0 if the type cannot be summed (8-bit floats). */
size_t sum_type_size(ncclDataType_t type);
/* Returns the element's value. */
double sum_load(ncclDataType_t type, const void *element);

struct sum {
	ncclDataType_t type;
	uint32_t n_inputs;
	const void *const *inputs;
	const double *factors; /* of the inputs */
	uint32_t divisor;      /* of the sum */
};

void sum_run(const struct sum *sum, void *out, size_t n);
