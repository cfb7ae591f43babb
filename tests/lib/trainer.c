/*
 * This file is the part of a rank in tests of collectives.
 */
#include "tests/lib/trainer.h"
#include "tests/lib/chaos.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct crew crew;
static struct trainer self;

void crew_set(const struct crew *set)
{
	crew = *set;
}

struct trainer *trainer(void)
{
	return &self;
}

/* --- memory -------------------------------------------------------------- */

/* Returns whether the rank's shards and gradients are in host memory although
 * everything else is on devices. */
static bool is_offloaded(size_t layer)
{
	return getenv("FSDP_TEST_OFFLOAD") || crew.layers[layer].policy.offload;
}

/* These do the same as memory_view() and so on, for shards and gradients. */
static void *view_of_shard(size_t layer, const void *data, size_t size)
{
	return is_offloaded(layer) ? (void *)(uintptr_t)data
				   : memory_view(data, size);
}

static void drop_shard_view(size_t layer, void *view)
{
	if (!is_offloaded(layer))
		memory_drop_view(view);
}

static void put_shard_view(size_t layer, void *data, void *view, size_t size)
{
	if (!is_offloaded(layer))
		memory_put_view(data, view, size);
}

/* --- values -------------------------------------------------------------- */

/* Frozen parameters keep the values that were committed first. */
static double value_of(size_t layer, size_t param, uint64_t index,
		       uint64_t step)
{
	if (crew.layers[layer].params[param].is_frozen)
		step = 1;
	return (double)((index * 7 + param * 13 + layer * 5 + step * 3) % 127);
}

double gradient_of(uint32_t rank, size_t param, uint64_t index, uint32_t round)
{
	return (double)((index * 3 + param + rank * 5 + round * 11) % 17) - 8;
}

static void store(enum fsdp_dtype dtype, void *data, uint64_t i, double value)
{
	float single = (float)value;
	uint32_t bits;

	switch (dtype) {
	case FSDP_F32:
		((float *)data)[i] = single;
		return;
	case FSDP_F64:
		((double *)data)[i] = value;
		return;
	case FSDP_I32:
		((int32_t *)data)[i] = (int32_t)value;
		return;
	case FSDP_BF16:
		memcpy(&bits, &single, sizeof(bits));
		((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
		return;
	default:
		must(!"a dtype of the tests");
	}
}

static double load(enum fsdp_dtype dtype, const void *data, uint64_t i)
{
	uint32_t bits;
	float single;

	switch (dtype) {
	case FSDP_F32:
		return ((const float *)data)[i];
	case FSDP_F64:
		return ((const double *)data)[i];
	case FSDP_I32:
		return ((const int32_t *)data)[i];
	case FSDP_BF16:
		bits = (uint32_t)((const uint16_t *)data)[i] << 16;
		memcpy(&single, &bits, sizeof(single));
		return single;
	default:
		must(!"a dtype of the tests");
		return 0;
	}
}

/* --- shards -------------------------------------------------------------- */

static uint32_t n_shards(void)
{
	return crew.options.n_shards ? crew.options.n_shards : rank_world();
}

/* Returns the index in the whole parameter of element `i` of this rank's
 * shard. */
static uint64_t whole_index(const struct fsdp_param_spec *param,
			    const struct fsdp_shard *shard, uint64_t i)
{
	const struct fsdp_spec *spec = &param->spec;
	uint32_t dim = (uint32_t)param->shard_dim;
	int64_t n = n_shards();
	uint64_t index = 0, stride = 1;
	int64_t chunk, at;

	for (uint32_t d = spec->n_dims; d-- > 0;) {
		at = (int64_t)(i % (uint64_t)shard->shape[d]);
		i /= (uint64_t)shard->shape[d];
		if (d == dim) {
			chunk = (spec->shape[d] + n - 1) / n;
			at += chunk * (int64_t)(rank_self() % (uint32_t)n);
		}
		index += (uint64_t)at * stride;
		stride *= (uint64_t)spec->shape[d];
	}
	return index;
}

static void fill_shards(size_t layer, uint64_t step)
{
	const struct fsdp_param_spec *params = crew.layers[layer].params;
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	uint64_t index;
	size_t size;
	void *view;

	for (size_t p = 0; p < crew.layers[layer].n; p++) {
		must(fsdp_shard(self.groups[layer], p, &shard) == 0);
		size = shard.numel * fsdp_dtype_size(shard.dtype);
		view = view_of_shard(layer, shard.next, size);
		for (uint64_t i = 0; i < shard.numel; i++) {
			index = whole_index(&params[p], &shard, i);
			store(shard.dtype, view, i,
			      value_of(layer, p, index, step));
		}
		put_shard_view(layer, shard.next, view, size);
	}
}

/* --- life ---------------------------------------------------------------- */

static int register_layer(size_t layer)
{
	const struct layer *it = &crew.layers[layer];
	struct fsdp_policy policy = it->policy;

	policy.offload = is_offloaded(layer);
	return fsdp_group_register(self.comm, it->name, it->params, it->n,
				   &policy, &self.groups[layer]);
}

int trainer_join(void)
{
	struct fsdp_connect_options options = {
		.path = daemon_socket(crew.daemon),
	};
	struct fsdp_comm_options join = crew.options;
	int r = 0;

	memory_of_rank(rank_self(), &join);
	if (!self.client)
		r = fsdp_connect(&options, &self.client);
	if (r == 0)
		r = fsdp_comm_join(self.client, crew.comm, rank_world(),
				   rank_self(), &join, &self.comm);
	for (size_t i = 0; r == 0 && i < crew.n_layers; i++)
		r = register_layer(i);
	if (r == 0)
		self.step = fsdp_comm_step(self.comm);
	return rank_note(r);
}

int trainer_join_patiently(void)
{
	int r;

	do
		r = trainer_join();
	while (r == -ETIMEDOUT);
	return r;
}

int trainer_leave(void)
{
	fsdp_comm_leave(self.comm);
	fsdp_close(self.client);
	self = (struct trainer){0};
	return 0;
}

int trainer_commit(void)
{
	struct fsdp_work work;
	int r;

	for (size_t i = 0; i < crew.n_layers; i++)
		fill_shards(i, self.step + 1);
	r = fsdp_commit(self.comm, self.step + 1, &work);
	if (r == 0)
		r = fsdp_wait(&work, -1);
	if (r == 0)
		self.step++;
	return rank_note(r);
}

int trainer_begin(size_t layer)
{
	return rank_note(fsdp_unshard(self.groups[layer], &self.works[layer]));
}

int trainer_await(size_t layer)
{
	return rank_note(fsdp_wait(&self.works[layer], -1));
}

int trainer_unshard(size_t layer)
{
	int r = trainer_begin(layer);

	return r < 0 ? r : trainer_await(layer);
}

int trainer_reshard(size_t layer)
{
	int r = fsdp_reshard(self.groups[layer], 0);

	/* A reshard is a one-way request. The ping makes sure that the broker
	 * has handled it. */
	return rank_note(r < 0 ? r : fsdp_ping(self.client));
}

static bool is_whole(size_t layer, size_t p)
{
	struct fsdp_param param = {.struct_size = sizeof(param)};
	double expected, seen;
	bool is_right = true;
	void *view;

	must(fsdp_param(self.groups[layer], p, &param) == 0);
	view = memory_view(param.data,
			   param.numel * fsdp_dtype_size(param.dtype));
	for (uint64_t i = 0; i < param.numel && is_right; i++) {
		expected = value_of(layer, p, i, self.step);
		seen = load(param.dtype, view, i);
		is_right = seen == expected;
		if (!is_right)
			fprintf(stderr,
				"rank %u: layer %zu, param %zu [%llu] is %g, "
				"not %g\n",
				rank_self(), layer, p, (unsigned long long)i,
				seen, expected);
	}
	memory_drop_view(view);
	return is_right;
}

bool trainer_sees_whole(size_t layer)
{
	for (size_t p = 0; p < crew.layers[layer].n; p++) {
		if (!is_whole(layer, p))
			return false;
	}
	return true;
}

/* --- gradients ----------------------------------------------------------- */

static enum fsdp_dtype input_dtype(const struct layer *layer, size_t p)
{
	enum fsdp_dtype stored = layer->params[p].spec.dtype;

	if (stored == FSDP_I32)
		return stored;
	if (layer->policy.input_dtype)
		return layer->policy.input_dtype;
	return layer->policy.param_dtype ? layer->policy.param_dtype : stored;
}

static uint64_t numel_of(const struct fsdp_spec *spec)
{
	uint64_t numel = 1;

	for (uint32_t d = 0; d < spec->n_dims; d++)
		numel *= (uint64_t)spec->shape[d];
	return numel;
}

static void fill_input(size_t layer, uint32_t round)
{
	const struct layer *it = &crew.layers[layer];
	uint64_t numel;
	void *data, *view;
	size_t size;

	for (size_t p = 0; p < it->n; p++) {
		data = fsdp_input_data(self.groups[layer], p);
		must(!data == it->params[p].is_frozen);
		if (!data)
			continue;
		numel = numel_of(&it->params[p].spec);
		size = numel * fsdp_dtype_size(input_dtype(it, p));
		view = memory_view(data, size);
		for (uint64_t i = 0; i < numel; i++)
			store(input_dtype(it, p), view, i,
			      gradient_of(rank_self(), p, i, round));
		memory_put_view(data, view, size);
	}
}

int trainer_fill_input(size_t layer, uint32_t round)
{
	int r = fsdp_input(self.groups[layer], -1);

	if (r == 0)
		fill_input(layer, round);
	return rank_note(r);
}

int trainer_reduce(size_t layer, uint32_t round,
		   const struct fsdp_reduce_options *options, bool waits)
{
	struct fsdp_work work;
	int r = trainer_fill_input(layer, round);

	if (r == 0)
		r = fsdp_reduce(self.groups[layer], options, &work);
	if (r == 0 && waits)
		r = fsdp_wait(&work, -1);
	return rank_note(r);
}

static bool are_gradients(size_t layer, size_t p, expect_fn *expect)
{
	const struct fsdp_param_spec *param = &crew.layers[layer].params[p];
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	double expected, seen;
	bool is_right = true;
	uint64_t index;
	void *view;

	must(fsdp_shard(self.groups[layer], p, &shard) == 0);
	must(!shard.grad == param->is_frozen);
	if (!shard.grad)
		return true;
	view = view_of_shard(layer, shard.grad,
			     shard.numel * fsdp_dtype_size(shard.dtype));
	for (uint64_t i = 0; i < shard.numel && is_right; i++) {
		index = whole_index(param, &shard, i);
		expected = expect(p, index);
		seen = load(shard.dtype, view, i);
		is_right = seen == expected;
		if (!is_right)
			fprintf(stderr,
				"rank %u: gradient of layer %zu, param %zu "
				"[%llu] is %g, not %g\n",
				rank_self(), layer, p,
				(unsigned long long)index, seen, expected);
	}
	drop_shard_view(layer, view);
	return is_right;
}

bool trainer_sees_gradients(size_t layer, expect_fn *expect)
{
	for (size_t p = 0; p < crew.layers[layer].n; p++) {
		if (!are_gradients(layer, p, expect))
			return false;
	}
	return true;
}
