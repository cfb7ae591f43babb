/*
 * The model that mlp.c trains: a small perceptron, its data, and its
 * derivatives, in plain C. Nothing here knows of fsdpd.
 *
 * Layer l maps mlp_widths[l] inputs to mlp_widths[l + 1] outputs:
 * y = tanh(w x + b), without tanh in the last one. Weights are [out][in].
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define MLP_LAYERS 3
#define MLP_WIDEST 48
#define MLP_BATCH  16 /* samples per rank and step */

extern const int mlp_widths[MLP_LAYERS + 1];

struct mlp_layer {
	const float *weight, *bias;
};

struct mlp_gradient {
	float *weight, *bias;
};

/* Activations of one batch: [0] the inputs, [l + 1] what layer l gave. */
struct mlp_activations {
	float values[MLP_LAYERS + 1][MLP_BATCH][MLP_WIDEST];
};

/* What element `i` of a layer's weight (`is_bias`: bias) begins with. */
float mlp_initial(int layer, int is_bias, int64_t i);

/* The inputs and the wanted outputs of one rank's batch at one step. */
void mlp_batch(uint64_t step, uint32_t rank, struct mlp_activations *ret,
	       float ret_wanted[MLP_BATCH][MLP_WIDEST]);

void mlp_forward(int layer, const struct mlp_layer *parameters,
		 struct mlp_activations *activations);

/* Mean squared error; `ret_delta` is its derivative by the outputs. */
float mlp_loss(const struct mlp_activations *activations,
	       float wanted[MLP_BATCH][MLP_WIDEST],
	       float ret_delta[MLP_BATCH][MLP_WIDEST]);

/*
 * `delta`: the derivative by the layer's outputs, in; by its inputs, out. The
 * gradients are those of this batch alone.
 */
void mlp_backward(int layer, const struct mlp_layer *parameters,
		  const struct mlp_activations *activations,
		  float delta[MLP_BATCH][MLP_WIDEST],
		  const struct mlp_gradient *ret);
