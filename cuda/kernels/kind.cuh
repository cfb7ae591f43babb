/*
 * The kinds for which device code is instantiated (cuda/kernels.h describes
 * their arithmetic). A grad-out that adds is a kind of its own, since it needs
 * more registers.
 */
#pragma once

enum {
	KIND_COPY,
	KIND_CHUNK_CAT,
	KIND_GRAD_OUT,
	KIND_GRAD_ADD,
};

#define IS_GRAD(kind) ((kind) == KIND_GRAD_OUT || (kind) == KIND_GRAD_ADD)
