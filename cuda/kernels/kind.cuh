/*
 * What device code is instantiated for (cuda/kernels.h has the arithmetic): a
 * grad-out that adds is another one, which needs other registers.
 */
#pragma once

enum {
	KIND_COPY,
	KIND_CHUNK_CAT,
	KIND_GRAD_OUT,
	KIND_GRAD_ADD,
};

#define IS_GRAD(kind) ((kind) == KIND_GRAD_OUT || (kind) == KIND_GRAD_ADD)
