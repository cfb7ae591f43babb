/*
 * Training with sharded parameters: start it once per rank.
 *
 *     for r in 0 1 2 3; do mlp --world 4 --rank $r --out w.bin & done; wait
 *
 * Each layer is a group. Forward and backward unshard a layer while the one
 * before is computed, and reshard it after its use; gradients are reduced while
 * the layer below is computed. Every rank updates its own shards and commits
 * the step. If a rank is killed, start it again: the others notice its death
 * and join again, and all continue from the last step that all ranks committed.
 *
 * `mlp --alone --world 4` trains the same model in one process without fsdpd.
 * It adds the gradients of four batches in the order that docs/fsdp.md
 * describes, so the weights are the same, bit by bit.
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
#include <time.h>
#include <unistd.h>

#define RATE 0.2f

struct options {
	const char *name, *out;
	const char *device;  /* a GPU's UUID or ordinal; NULL: host memory */
	const char *id_file; /* file for the NCCL id; NULL: one node */
	uint64_t local;      /* ranks on this node; 0: all */
	enum fsdp_executor executor; /* which process does the work */
	bool offload; /* on devices: keep the shards on the host */
	uint64_t world, rank, n_steps;
	uint64_t dies_at; /* kill this process in this step; 0: never */
	bool is_alone;
};

/* The state of one rank. */
struct trainer {
	const struct options *options;
	struct fsdp_comm *comm;
	struct fsdp_group *groups[MLP_LAYERS];
	struct fsdp_work whole[MLP_LAYERS], reduced[MLP_LAYERS];
	struct mlp_activations activations;
	/* Copies of parameters and gradients that are on a device. */
	float weight[MLP_WIDEST * MLP_WIDEST], bias[MLP_WIDEST];
	float weight_grad[MLP_WIDEST * MLP_WIDEST], bias_grad[MLP_WIDEST];
	/* of the last run that this rank joined */
	uint8_t nccl_id[FSDP_NCCL_ID_SIZE];
	float delta[MLP_BATCH][MLP_WIDEST];
	float loss;
};

/* --- memory -------------------------------------------------------------- */

/* Return floats that the CPU can read. This example computes on the CPU, so
 * those on a device are copied. NULL: the copy failed. */
static const float *read_floats(const struct trainer *trainer,
				struct fsdp_group *group, const void *from,
				uint64_t n, float *copy)
{
	if (!trainer->options->device)
		return from;
	if (fsdp_group_get(group, copy, from, n * sizeof(*copy)) < 0)
		return NULL;
	return copy;
}

static int write_floats(struct fsdp_group *group, void *to, const float *from,
			uint64_t n)
{
	if (to == from)
		return 0;
	return fsdp_group_put(group, to, from, n * sizeof(*from));
}

/* --- groups -------------------------------------------------------------- */

static int register_layer(struct trainer *trainer, int layer)
{
	/* The layers alternate between both layouts. A flat layer is gathered
	 * by copies. */
	struct fsdp_policy policy = {
		.layout = layer % 2 ? FSDP_LAYOUT_FLAT : FSDP_LAYOUT_IN_PLACE,
		.offload = trainer->options->offload,
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

/* Write this rank's part of the initial weights. */
static int initialise(struct trainer *trainer, int layer)
{
	float values[MLP_WIDEST * MLP_WIDEST];
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	int64_t first;
	int r;

	for (int param = 0; param < 2; param++) {
		r = fsdp_shard(trainer->groups[layer], (size_t)param, &shard);
		if (r < 0)
			return r;
		first = shard.start * (param ? 1 : shard.shape[1]);
		for (uint64_t i = 0; i < shard.numel; i++)
			values[i] =
				mlp_initial(layer, param, first + (int64_t)i);
		r = fsdp_group_put(trainer->groups[layer], shard.next, values,
				   shard.numel * sizeof(*values));
		if (r < 0)
			return r;
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
	struct fsdp_param weight = {.struct_size = sizeof(weight)};
	struct fsdp_param bias = {.struct_size = sizeof(bias)};
	int r = fsdp_wait(&trainer->whole[layer], -1);

	if (r == 0)
		r = fsdp_param(trainer->groups[layer], 0, &weight);
	if (r == 0)
		r = fsdp_param(trainer->groups[layer], 1, &bias);
	if (r < 0)
		return r;
	*ret = (struct mlp_layer){
		read_floats(trainer, trainer->groups[layer], weight.data,
			    weight.numel, trainer->weight),
		read_floats(trainer, trainer->groups[layer], bias.data,
			    bias.numel, trainer->bias),
	};
	return ret->weight && ret->bias ? 0 : -EIO;
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
		/* The last layer is needed again at once. */
		if (l + 1 < MLP_LAYERS)
			r = fsdp_reshard(trainer->groups[l], 0);
	}
	return r;
}

static int hand_in(struct trainer *trainer, int l,
		   const struct mlp_gradient *gradient)
{
	struct fsdp_group *group = trainer->groups[l];
	uint64_t n_out = (uint64_t)mlp_widths[l + 1];
	int r;

	r = write_floats(group, fsdp_input_data(group, 0), gradient->weight,
			 n_out * (uint64_t)mlp_widths[l]);
	if (r == 0)
		r = write_floats(group, fsdp_input_data(group, 1),
				 gradient->bias, n_out);
	return r < 0 ? r : fsdp_reduce(group, NULL, &trainer->reduced[l]);
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
	gradient = (struct mlp_gradient){fsdp_input_data(group, 0),
					 fsdp_input_data(group, 1)};
	if (trainer->options->device)
		gradient = (struct mlp_gradient){trainer->weight_grad,
						 trainer->bias_grad};
	mlp_backward(l, &layer, &trainer->activations, trainer->delta,
		     &gradient);
	r = hand_in(trainer, l, &gradient);
	return r < 0 ? r : fsdp_reshard(group, 0);
}

/* Do gradient descent on this rank's shards. */
static int update(struct trainer *trainer, int layer)
{
	struct fsdp_group *group = trainer->groups[layer];
	float copies[2][MLP_WIDEST * MLP_WIDEST];
	float next[MLP_WIDEST * MLP_WIDEST];
	const float *current, *grad;
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	int r = fsdp_wait(&trainer->reduced[layer], -1);

	for (size_t param = 0; r == 0 && param < 2; param++) {
		r = fsdp_shard(group, param, &shard);
		if (r < 0)
			return r;
		current = read_floats(trainer, group, shard.current,
				      shard.numel, copies[0]);
		grad = read_floats(trainer, group, shard.grad, shard.numel,
				   copies[1]);
		if (shard.numel && (!current || !grad))
			return -EIO;
		for (uint64_t i = 0; i < shard.numel; i++)
			next[i] = current[i] - RATE * grad[i];
		r = fsdp_group_put(group, shard.next, next,
				   shard.numel * sizeof(*next));
	}
	return r;
}

static int train_step(struct trainer *trainer, uint64_t step)
{
	float wanted[MLP_BATCH][MLP_WIDEST];
	int r;

	mlp_batch(step, (uint32_t)trainer->options->rank, &trainer->activations,
		  wanted);
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
	/* Step 1 committed the initial weights, so numbers are one higher. */
	return r < 0 ? r : commit(trainer, step + 1);
}

/* --- the result ---------------------------------------------------------- */

static int save_floats(FILE *file, const float *values, size_t n)
{
	if (file && fwrite(values, sizeof(*values), n, file) != n)
		return -errno;
	return 0;
}

/* Unshard each layer, which all ranks must do. `file` is NULL in ranks that do
 * not write. */
static int write_weights(struct trainer *trainer, FILE *file)
{
	struct fsdp_param param = {.struct_size = sizeof(param)};
	const float *values;
	int r = 0;

	for (int l = 0; r == 0 && l < MLP_LAYERS; l++) {
		r = unshard(trainer, l);
		if (r == 0)
			r = fsdp_wait(&trainer->whole[l], -1);
		for (size_t p = 0; r == 0 && p < 2; p++) {
			r = fsdp_param(trainer->groups[l], p, &param);
			if (r < 0)
				break;
			values = read_floats(trainer, trainer->groups[l],
					     param.data, param.numel,
					     trainer->weight);
			r = values ? save_floats(file, values, param.numel)
				   : -EIO;
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

/* --- one run, from the last committed step to the end -------------------- */

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
		printf("rank %" PRIu64 ": going on from step %" PRIu64 "\n",
		       options->rank, step - 1);
	for (; r == 0 && step <= options->n_steps; step++)
		r = train_step(trainer, step);
	return r < 0 ? r : save(trainer);
}

/* --- devices and nodes --------------------------------------------------- */

struct choice {
	const char *wanted;
	struct fsdp_device *ret;
	bool is_found;
};

static int choose(const struct fsdp_device_entry *entry, void *data)
{
	struct choice *choice = data;
	char number[16];

	snprintf(number, sizeof(number), "%" PRId32, entry->ordinal);
	if (strcmp(number, choice->wanted) == 0) {
		*choice->ret = entry->device;
		choice->is_found = true;
	}
	return choice->is_found;
}

/* Find a GPU by its UUID, or by its ordinal in this process. */
static int find_device(const char *wanted, struct fsdp_device *ret)
{
	struct choice choice = {wanted, ret, false};
	int r;

	if (strncmp(wanted, "GPU-", 4) == 0 || strncmp(wanted, "MIG-", 4) == 0)
		return fsdp_device_parse(wanted, ret);
	r = fsdp_devices(choose, &choice);
	return r < 0 ? r : choice.is_found ? 0 : -ENODEV;
}

/* Distribute a new NCCL id by a file on a file system that all nodes share.
 * Each run needs a new id, so a rank that waits for one ignores the id of its
 * last run. */
static int spread_id(struct trainer *trainer)
{
	const struct options *options = trainer->options;
	uint8_t id[FSDP_NCCL_ID_SIZE];
	char path[4096];
	FILE *file;
	int r;

	r = fsdp_nccl_id(id);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s.new", options->id_file);
	file = fopen(path, "w");
	if (!file)
		return -errno;
	r = fwrite(id, sizeof(id), 1, file) == 1 ? 0 : -EIO;
	if (fclose(file) != 0 || r < 0 || rename(path, options->id_file) < 0)
		return -EIO;
	memcpy(trainer->nccl_id, id, sizeof(id));
	return 0;
}

static int await_id(struct trainer *trainer)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	uint8_t id[FSDP_NCCL_ID_SIZE];
	bool is_new = false;
	FILE *file;

	while (!is_new) {
		file = fopen(trainer->options->id_file, "r");
		is_new = file && fread(id, sizeof(id), 1, file) == 1 &&
			 memcmp(id, trainer->nccl_id, sizeof(id)) != 0;
		if (file)
			fclose(file);
		if (!is_new)
			nanosleep(&pause, NULL);
	}
	memcpy(trainer->nccl_id, id, sizeof(id));
	return 0;
}

static int join(struct trainer *trainer, struct fsdp_client *client)
{
	const struct options *options = trainer->options;
	struct fsdp_comm_options join = {
		.n_local = (uint32_t)options->local,
		.executor = options->executor,
	};
	struct fsdp_device device;
	int r = 0;

	if (options->device) {
		r = find_device(options->device, &device);
		join.device = &device;
	}
	if (r == 0 && options->id_file) {
		r = options->rank == 0 ? spread_id(trainer) : await_id(trainer);
		join.nccl_id = trainer->nccl_id;
	}
	if (r < 0)
		return r;
	r = fsdp_comm_join(client, options->name, (uint32_t)options->world,
			   (uint32_t)options->rank, &join, &trainer->comm);
	/* All ranks have the id now. A rank that looks for the file later
	 * belongs to the next run. */
	if (r == 0 && options->id_file && options->rank == 0)
		(void)unlink(options->id_file);
	return r;
}

static int train(const struct options *options)
{
	struct trainer trainer = {.options = options};
	struct fsdp_client *client;
	int r = fsdp_connect(NULL, &client);

	if (r < 0)
		goto out;
	do {
		r = join(&trainer, client);
		if (r < 0)
			continue; /* a rank may have died; join again */
		r = run(&trainer);
		if (r < 0)
			fprintf(stderr, "rank %" PRIu64 ": %s\n", options->rank,
				fsdp_error());
		fsdp_comm_leave(trainer.comm);
	} while (r == -ECONNABORTED); /* a rank died; all join again */
	fsdp_close(client);
out:
	if (r < 0)
		fprintf(stderr, "mlp: rank %" PRIu64 ": %s\n", options->rank,
			fsdp_error());
	else
		printf("rank %" PRIu64 ": loss %.6f after %" PRIu64
		       " steps, committed as step %" PRIu64
		       " (1: the initial weights)\n",
		       options->rank, (double)trainer.loss, options->n_steps,
		       options->n_steps + 1);
	return r;
}

/* --- without fsdpd ------------------------------------------------------- */

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
		step_alone(&weights, step, (uint32_t)options->world);
	file = fopen(options->out ? options->out : "/dev/null", "w");
	if (!file)
		return -errno;
	for (l = 0; r == 0 && l < MLP_LAYERS; l++) {
		r = save_floats(file, weights.weight[l], n_weights(l));
		if (r == 0)
			r = save_floats(file, weights.bias[l],
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
	      "           [--out FILE] [--die-at STEP] [--device GPU]\n"
	      "           [--local N --id FILE] [--executor rank|worker]\n"
	      "           [--offload]\n"
	      "       mlp --alone --world N [--steps N] [--out FILE]\n",
	      stderr);
	return 2;
}

/* Parse optarg as a number, and accept nothing else. */
static bool take_number(uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(optarg, &end, 10);
	return *optarg >= '0' && *optarg <= '9' && !*end && !errno;
}

static bool take_executor(enum fsdp_executor *ret)
{
	*ret = strcmp(optarg, "worker") == 0 ? FSDP_EXECUTOR_WORKER
					     : FSDP_EXECUTOR_RANK;
	return *ret == FSDP_EXECUTOR_WORKER || strcmp(optarg, "rank") == 0;
}

static bool parse(int argc, char **argv, struct options *ret)
{
	static const struct option longs[] = {
		{"alone", no_argument, NULL, 'a'},
		{"device", required_argument, NULL, 'g'},
		{"die-at", required_argument, NULL, 'd'},
		{"executor", required_argument, NULL, 'e'},
		{"id", required_argument, NULL, 'i'},
		{"local", required_argument, NULL, 'l'},
		{"name", required_argument, NULL, 'n'},
		{"offload", no_argument, NULL, 'f'},
		{"out", required_argument, NULL, 'o'},
		{"rank", required_argument, NULL, 'r'},
		{"steps", required_argument, NULL, 's'},
		{"world", required_argument, NULL, 'w'},
		{0},
	};
	bool is_right = true;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 'a':
			ret->is_alone = true;
			break;
		case 'd':
			is_right &= take_number(&ret->dies_at);
			break;
		case 'g':
			ret->device = optarg;
			break;
		case 'f':
			ret->offload = true;
			break;
		case 'e':
			is_right &= take_executor(&ret->executor);
			break;
		case 'i':
			ret->id_file = optarg;
			break;
		case 'l':
			is_right &= take_number(&ret->local);
			break;
		case 'n':
			ret->name = optarg;
			break;
		case 'o':
			ret->out = optarg;
			break;
		case 'r':
			is_right &= take_number(&ret->rank);
			break;
		case 's':
			is_right &= take_number(&ret->n_steps);
			break;
		case 'w':
			is_right &= take_number(&ret->world);
			break;
		default:
			return false;
		}
	}
	return is_right && optind == argc && ret->world > 0 && ret->n_steps > 0;
}

int main(int argc, char **argv)
{
	struct options options = {.name = "mlp", .n_steps = 50};
	int r;

	if (!parse(argc, argv, &options))
		return usage();
	/* Streams that share a hardware queue wait for each other, and by
	 * default there are 8 queues. Set this before the first call of
	 * CUDA. */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	r = options.is_alone ? train_alone(&options) : train(&options);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
