/*
 * The model that mlp.c trains: a small perceptron, its data, and its
 * derivatives, in plain C. This file does not use fsdpd.
 *
 * Layer l maps mlp_widths[l] inputs to mlp_widths[l + 1] outputs by
 * y = tanh(w x + b), without tanh in the last layer. The shape of weights is
 * [out][in].
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

/* Activations of one batch: values[0] are the inputs, values[l + 1] the outputs
 * of layer l. */
struct mlp_activations {
	float values[MLP_LAYERS + 1][MLP_BATCH][MLP_WIDEST];
};

/* Return the initial value of element `i` of a layer's bias (`is_bias`) or
 * weight. */
float mlp_initial(int layer, int is_bias, int64_t i);

/* Make the inputs and the wanted outputs of one rank's batch at one step. */
void mlp_batch(uint64_t step, uint32_t rank, struct mlp_activations *ret,
	       float ret_wanted[MLP_BATCH][MLP_WIDEST]);

void mlp_forward(int layer, const struct mlp_layer *parameters,
		 struct mlp_activations *activations);

/* Return the mean squared error; `ret_delta` is its derivative with respect to
 * the outputs. */
float mlp_loss(const struct mlp_activations *activations,
	       float wanted[MLP_BATCH][MLP_WIDEST],
	       float ret_delta[MLP_BATCH][MLP_WIDEST]);

/*
 * Before the call, `delta` is the derivative with respect to the layer's
 * outputs, and after it, with respect to its inputs. The gradients are those of
 * this batch alone.
 */
void mlp_backward(int layer, const struct mlp_layer *parameters,
		  const struct mlp_activations *activations,
		  float delta[MLP_BATCH][MLP_WIDEST],
		  const struct mlp_gradient *ret);
