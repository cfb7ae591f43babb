/* The model that mlp.c trains; see mlp_model.h. */
#include "mlp_model.h"

#include <math.h>
#include <string.h>

/* Some of these widths cannot be divided evenly among four ranks. */
const int mlp_widths[MLP_LAYERS + 1] = {12, 46, 34, 5};

/* Hash three numbers to [-1, 1), with the same result in every rank and run. */
static float noise(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) +
		     b * UINT64_C(0xbf58476d1ce4e5b9) +
		     c * UINT64_C(0x94d049bb133111eb);

	x = (x ^ (x >> 31)) * UINT64_C(0x7fb5d329728ea185);
	x = (x ^ (x >> 27)) * UINT64_C(0x81dadef4bc2dd44d);
	x ^= x >> 33;
	return (float)(x >> 40) / (float)(1 << 23) - 1;
}

float mlp_initial(int layer, int is_bias, int64_t i)
{
	if (is_bias)
		return 0;
	return noise(1, (uint64_t)layer, (uint64_t)i) /
	       sqrtf((float)mlp_widths[layer]);
}

/* The function to be learned: sines of sums of neighbouring inputs. */
static float target(const float *x, int i)
{
	return sinf(2 * x[i] + x[i + 1]) * x[i + 2];
}

void mlp_batch(uint64_t step, uint32_t rank, struct mlp_activations *ret,
	       float ret_wanted[MLP_BATCH][MLP_WIDEST])
{
	uint64_t sample = (step << 16) + (uint64_t)rank * MLP_BATCH;
	float *x;
	int i, s;

	for (s = 0; s < MLP_BATCH; s++) {
		x = ret->values[0][s];
		for (i = 0; i < mlp_widths[0]; i++)
			x[i] = noise(2, sample + (uint64_t)s, (uint64_t)i);
		for (i = 0; i < mlp_widths[MLP_LAYERS]; i++)
			ret_wanted[s][i] = target(x, i);
	}
}

void mlp_forward(int layer, const struct mlp_layer *parameters,
		 struct mlp_activations *activations)
{
	int n_in = mlp_widths[layer], n_out = mlp_widths[layer + 1];
	const float *x, *w;
	float *y, sum;
	int s, o, i;

	for (s = 0; s < MLP_BATCH; s++) {
		x = activations->values[layer][s];
		y = activations->values[layer + 1][s];
		for (o = 0; o < n_out; o++) {
			w = &parameters->weight[(long)o * n_in];
			sum = parameters->bias[o];
			for (i = 0; i < n_in; i++)
				sum += w[i] * x[i];
			y[o] = layer + 1 < MLP_LAYERS ? tanhf(sum) : sum;
		}
	}
}

float mlp_loss(const struct mlp_activations *activations,
	       float wanted[MLP_BATCH][MLP_WIDEST],
	       float ret_delta[MLP_BATCH][MLP_WIDEST])
{
	int n_out = mlp_widths[MLP_LAYERS];
	float difference, sum = 0;
	int s, o;

	for (s = 0; s < MLP_BATCH; s++) {
		for (o = 0; o < n_out; o++) {
			difference = activations->values[MLP_LAYERS][s][o] -
				     wanted[s][o];
			sum += difference * difference;
			ret_delta[s][o] =
				2 * difference / (float)(n_out * MLP_BATCH);
		}
	}
	return sum / (float)(n_out * MLP_BATCH);
}

/* Add the gradients of one sample, and replace `delta` by the derivative with
 * respect to the layer's inputs. */
static void backward_sample(int layer, const struct mlp_layer *parameters,
			    const float *x, const float *y, float *delta,
			    const struct mlp_gradient *ret)
{
	int n_in = mlp_widths[layer], n_out = mlp_widths[layer + 1];
	float below[MLP_WIDEST] = {0};
	int o, i;

	for (o = 0; o < n_out; o++) {
		float d = delta[o];

		if (layer + 1 < MLP_LAYERS)
			d *= 1 - y[o] * y[o];
		ret->bias[o] += d;
		for (i = 0; i < n_in; i++) {
			ret->weight[o * n_in + i] += d * x[i];
			below[i] += d * parameters->weight[o * n_in + i];
		}
	}
	memcpy(delta, below, sizeof(below));
}

void mlp_backward(int layer, const struct mlp_layer *parameters,
		  const struct mlp_activations *activations,
		  float delta[MLP_BATCH][MLP_WIDEST],
		  const struct mlp_gradient *ret)
{
	size_t n_out = (size_t)mlp_widths[layer + 1];
	size_t n_in = (size_t)mlp_widths[layer];

	memset(ret->weight, 0, n_out * n_in * sizeof(float));
	memset(ret->bias, 0, n_out * sizeof(float));
	for (int s = 0; s < MLP_BATCH; s++)
		backward_sample(
			layer, parameters, activations->values[layer][s],
			activations->values[layer + 1][s], delta[s], ret);
}
