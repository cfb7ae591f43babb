/*
 * Training with sharded parameters: start it once per rank.
 *
 *     for r in 0 1 2 3; do mlp --world 4 --rank $r --out w.bin & done; wait
 *
 * Each layer is a group. Forward and backward make a layer whole one ahead of
 * its use and let go of it behind; gradients are reduced while the layer below
 * is computed. Every rank updates its own shards and commits the step. A rank
 * that is killed is simply started again: the others notice, join anew, and
 * all go on from the last step that everybody committed.
 *
 * `mlp --alone --world 4` trains the same model in one process without fsdpd,
 * adding the gradients of four batches in the order that fsdpd documents: the
 * weights come out the same, bit by bit.
 */
#include "mlp_model.h"

#include <errno.h>
#include <fsdp.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RATE 0.2f

struct options {
	const char *name, *out;
	uint32_t world, rank;
	uint64_t n_steps;
	uint64_t dies_at; /* kill ourselves in this step; 0: do not */
	bool is_alone;
};

/* One rank at work. */
struct trainer {
	const struct options *options;
	struct fsdp_comm *comm;
	struct fsdp_group *groups[MLP_LAYERS];
	struct fsdp_work whole[MLP_LAYERS], reduced[MLP_LAYERS];
	struct mlp_activations activations;
	float delta[MLP_BATCH][MLP_WIDEST];
	float loss;
};

/* --- groups -------------------------------------------------------------- */

static int register_layer(struct trainer *trainer, int layer)
{
	/* Both layouts, to show both: the flat one is gathered by copies. */
	struct fsdp_policy policy = {
		.layout = layer % 2 ? FSDP_LAYOUT_FLAT : FSDP_LAYOUT_IN_PLACE,
	};
	int64_t n_in = mlp_widths[layer], n_out = mlp_widths[layer + 1];
	struct fsdp_param_spec params[] = {
		{.name = "weight", .spec = {FSDP_F32, 2, {n_out, n_in}}},
		{.name = "bias", .spec = {FSDP_F32, 1, {n_out}}},
	};
	char name[16];

	snprintf(name, sizeof(name), "layer%d", layer);
	return fsdp_group_register(trainer->comm, name, params, 2, &policy,
				   &trainer->groups[layer]);
}

/* This rank's part of the initial weights. */
static int initialise(struct trainer *trainer, int layer)
{
	struct fsdp_shard shard;
	int64_t first;
	float *next;
	int r;

	for (int param = 0; param < 2; param++) {
		r = fsdp_shard(trainer->groups[layer], (size_t)param, &shard);
		if (r < 0)
			return r;
		next = shard.next;
		first = shard.start * (param ? 1 : shard.shape[1]);
		for (uint64_t i = 0; i < shard.numel; i++)
			next[i] = mlp_initial(layer, param, first + (int64_t)i);
	}
	return 0;
}

static int commit(struct trainer *trainer, uint64_t step)
{
	struct fsdp_work work;
	int r = fsdp_commit(trainer->comm, step, &work);

	return r < 0 ? r : fsdp_wait(&work, -1);
}

/* --- a step -------------------------------------------------------------- */

static int unshard(struct trainer *trainer, int layer)
{
	if (layer < 0 || layer >= MLP_LAYERS)
		return 0;
	return fsdp_unshard(trainer->groups[layer], &trainer->whole[layer]);
}

static int whole_layer(struct trainer *trainer, int layer,
		       struct mlp_layer *ret)
{
	struct fsdp_param weight, bias;
	int r = fsdp_wait(&trainer->whole[layer], -1);

	if (r == 0)
		r = fsdp_param(trainer->groups[layer], 0, &weight);
	if (r == 0)
		r = fsdp_param(trainer->groups[layer], 1, &bias);
	if (r < 0)
		return r;
	*ret = (struct mlp_layer){weight.data, bias.data};
	return 0;
}

static int forward(struct trainer *trainer)
{
	struct mlp_layer layer;
	int r = unshard(trainer, 0);

	for (int l = 0; r == 0 && l < MLP_LAYERS; l++) {
		r = unshard(trainer, l + 1);
		if (r == 0)
			r = whole_layer(trainer, l, &layer);
		if (r < 0)
			return r;
		mlp_forward(l, &layer, &trainer->activations);
		/* The last one is needed again at once. */
		if (l + 1 < MLP_LAYERS)
			r = fsdp_reshard(trainer->groups[l], 0);
	}
	return r;
}

static int backward_layer(struct trainer *trainer, int l)
{
	struct fsdp_group *group = trainer->groups[l];
	struct mlp_gradient gradient;
	struct mlp_layer layer;
	int r = unshard(trainer, l - 1);

	if (r == 0)
		r = whole_layer(trainer, l, &layer);
	if (r == 0)
		r = fsdp_input(group, -1);
	if (r < 0)
		return r;
	gradient.weight = fsdp_input_data(group, 0);
	gradient.bias = fsdp_input_data(group, 1);
	mlp_backward(l, &layer, &trainer->activations, trainer->delta,
		     &gradient);
	r = fsdp_reduce(group, NULL, &trainer->reduced[l]);
	return r < 0 ? r : fsdp_reshard(group, 0);
}

/* Plain gradient descent on this rank's shards. */
static int update(struct trainer *trainer, int layer)
{
	const float *current, *grad;
	struct fsdp_shard shard;
	float *next;
	int r = fsdp_wait(&trainer->reduced[layer], -1);

	for (size_t param = 0; r == 0 && param < 2; param++) {
		r = fsdp_shard(trainer->groups[layer], param, &shard);
		if (r < 0)
			return r;
		current = shard.current;
		next = shard.next;
		grad = shard.grad;
		for (uint64_t i = 0; i < shard.numel; i++)
			next[i] = current[i] - RATE * grad[i];
	}
	return r;
}

static int train_step(struct trainer *trainer, uint64_t step)
{
	float wanted[MLP_BATCH][MLP_WIDEST];
	int r;

	mlp_batch(step, trainer->options->rank, &trainer->activations, wanted);
	r = forward(trainer);
	if (r < 0)
		return r;
	trainer->loss = mlp_loss(&trainer->activations, wanted, trainer->delta);
	for (int l = MLP_LAYERS - 1; r == 0 && l >= 0; l--) {
		if (trainer->options->dies_at == step && l == 0)
			raise(SIGKILL);
		r = backward_layer(trainer, l);
	}
	for (int l = 0; r == 0 && l < MLP_LAYERS; l++)
		r = update(trainer, l);
	/* Step 1 was the initial weights. */
	return r < 0 ? r : commit(trainer, step + 1);
}

/* --- the result ---------------------------------------------------------- */

static int write_floats(FILE *file, const float *values, size_t n)
{
	if (file && fwrite(values, sizeof(*values), n, file) != n)
		return -errno;
	return 0;
}

/* All ranks make each layer whole; `file` is NULL in those that do not write.
 */
static int write_weights(struct trainer *trainer, FILE *file)
{
	struct fsdp_param param;
	int r = 0;

	for (int l = 0; r == 0 && l < MLP_LAYERS; l++) {
		r = unshard(trainer, l);
		if (r == 0)
			r = fsdp_wait(&trainer->whole[l], -1);
		for (size_t p = 0; r == 0 && p < 2; p++) {
			r = fsdp_param(trainer->groups[l], p, &param);
			if (r == 0)
				r = write_floats(file, param.data, param.numel);
		}
		if (r == 0)
			r = fsdp_reshard(trainer->groups[l], 0);
	}
	return r;
}

static int save(struct trainer *trainer)
{
	const struct options *options = trainer->options;
	FILE *file = NULL;
	int r;

	if (options->out && options->rank == 0) {
		file = fopen(options->out, "w");
		if (!file)
			return -errno;
	}
	r = write_weights(trainer, file);
	if (file && fclose(file) != 0 && r == 0)
		r = -errno;
	return r;
}

/* --- one run, from the last committed step to the end --------------------- */

static int run(struct trainer *trainer)
{
	const struct options *options = trainer->options;
	uint64_t step = fsdp_comm_step(trainer->comm);
	int r = 0;

	for (int l = 0; r == 0 && l < MLP_LAYERS; l++)
		r = register_layer(trainer, l);
	if (r == 0 && step == 0) {
		for (int l = 0; r == 0 && l < MLP_LAYERS; l++)
			r = initialise(trainer, l);
		step = 1;
		if (r == 0)
			r = commit(trainer, step);
	}
	if (r == 0)
		printf("rank %" PRIu32 ": going on from step %" PRIu64 "\n",
		       options->rank, step - 1);
	for (; r == 0 && step <= options->n_steps; step++)
		r = train_step(trainer, step);
	return r < 0 ? r : save(trainer);
}

static int train(const struct options *options)
{
	struct trainer trainer = {.options = options};
	struct fsdp_client *client;
	int r = fsdp_connect(NULL, &client);

	if (r < 0)
		goto out;
	do {
		r = fsdp_comm_join(client, options->name, options->world,
				   options->rank, NULL, &trainer.comm);
		if (r < 0)
			continue; /* died one who had joined? once more */
		r = run(&trainer);
		if (r < 0)
			fprintf(stderr, "rank %" PRIu32 ": %s\n", options->rank,
				fsdp_error());
		fsdp_comm_leave(trainer.comm);
	} while (r == -ECONNABORTED); /* somebody died: once more, together */
	fsdp_close(client);
out:
	if (r < 0)
		fprintf(stderr, "mlp: rank %" PRIu32 ": %s\n", options->rank,
			fsdp_error());
	else
		printf("rank %" PRIu32 ": loss %.6f after %" PRIu64 " steps\n",
		       options->rank, (double)trainer.loss, options->n_steps);
	return r;
}

/* --- alone --------------------------------------------------------------- */

struct weights {
	float weight[MLP_LAYERS][MLP_WIDEST * MLP_WIDEST];
	float bias[MLP_LAYERS][MLP_WIDEST];
};

static size_t n_weights(int layer)
{
	return (size_t)mlp_widths[layer] * (size_t)mlp_widths[layer + 1];
}

static void gradients_of(const struct weights *weights, uint64_t step,
			 uint32_t rank, struct weights *ret)
{
	static struct mlp_activations activations;
	float wanted[MLP_BATCH][MLP_WIDEST], delta[MLP_BATCH][MLP_WIDEST];
	int l;

	mlp_batch(step, rank, &activations, wanted);
	for (l = 0; l < MLP_LAYERS; l++)
		mlp_forward(l,
			    &(struct mlp_layer){weights->weight[l],
						weights->bias[l]},
			    &activations);
	mlp_loss(&activations, wanted, delta);
	for (l = MLP_LAYERS - 1; l >= 0; l--)
		mlp_backward(
			l,
			&(struct mlp_layer){weights->weight[l],
					    weights->bias[l]},
			&activations, delta,
			&(struct mlp_gradient){ret->weight[l], ret->bias[l]});
}

static void add(float *sum, const float *values, size_t n)
{
	for (size_t i = 0; i < n; i++)
		sum[i] += values[i];
}

static void descend(float *values, const float *sum, size_t n, float world)
{
	for (size_t i = 0; i < n; i++)
		values[i] = values[i] - RATE * (sum[i] / world);
}

static void step_alone(struct weights *weights, uint64_t step, uint32_t world)
{
	static struct weights sum, more;
	int l;

	gradients_of(weights, step, 0, &sum);
	for (uint32_t rank = 1; rank < world; rank++) {
		gradients_of(weights, step, rank, &more);
		for (l = 0; l < MLP_LAYERS; l++) {
			add(sum.weight[l], more.weight[l], n_weights(l));
			add(sum.bias[l], more.bias[l], MLP_WIDEST);
		}
	}
	for (l = 0; l < MLP_LAYERS; l++) {
		descend(weights->weight[l], sum.weight[l], n_weights(l),
			(float)world);
		descend(weights->bias[l], sum.bias[l], MLP_WIDEST,
			(float)world);
	}
}

static int train_alone(const struct options *options)
{
	static struct weights weights;
	FILE *file;
	int l, r = 0;

	for (l = 0; l < MLP_LAYERS; l++) {
		for (size_t i = 0; i < n_weights(l); i++)
			weights.weight[l][i] = mlp_initial(l, 0, (int64_t)i);
	}
	for (uint64_t step = 1; step <= options->n_steps; step++)
		step_alone(&weights, step, options->world);
	file = fopen(options->out ? options->out : "/dev/null", "w");
	if (!file)
		return -errno;
	for (l = 0; r == 0 && l < MLP_LAYERS; l++) {
		r = write_floats(file, weights.weight[l], n_weights(l));
		if (r == 0)
			r = write_floats(file, weights.bias[l],
					 (size_t)mlp_widths[l + 1]);
	}
	if (fclose(file) != 0 && r == 0)
		r = -errno;
	return r;
}

/* --- main ---------------------------------------------------------------- */

static int usage(void)
{
	fputs("usage: mlp --world N --rank R [--name NAME] [--steps N]\n"
	      "           [--out FILE] [--die-at STEP]\n"
	      "       mlp --alone --world N [--steps N] [--out FILE]\n",
	      stderr);
	return 2;
}

static bool parse(int argc, char **argv, struct options *ret)
{
	static const struct option longs[] = {
		{"alone", no_argument, NULL, 'a'},
		{"die-at", required_argument, NULL, 'd'},
		{"name", required_argument, NULL, 'n'},
		{"out", required_argument, NULL, 'o'},
		{"rank", required_argument, NULL, 'r'},
		{"steps", required_argument, NULL, 's'},
		{"world", required_argument, NULL, 'w'},
		{0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 'a':
			ret->is_alone = true;
			break;
		case 'd':
			ret->dies_at = strtoull(optarg, NULL, 10);
			break;
		case 'n':
			ret->name = optarg;
			break;
		case 'o':
			ret->out = optarg;
			break;
		case 'r':
			ret->rank = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		case 's':
			ret->n_steps = strtoull(optarg, NULL, 10);
			break;
		case 'w':
			ret->world = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		default:
			return false;
		}
	}
	return optind == argc && ret->world > 0 && ret->n_steps > 0;
}

int main(int argc, char **argv)
{
	struct options options = {.name = "mlp", .n_steps = 50};
	int r;

	if (!parse(argc, argv, &options))
		return usage();
	r = options.is_alone ? train_alone(&options) : train(&options);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
