/*
 * Each step unshards all groups, one more than the limiter admits at a time,
 * and once more in reverse order for gradients of two microbatches.
 *
 * One group lies in place; one is flat and has a cast, a second dimension and a
 * frozen parameter; one is cast and uneven, and has inputs of a different
 * dtype.
 */
#include "tests/lib/exact.h"
#include "tests/lib/chaos.h"
#include "tests/lib/memory.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A rank that joins alone after all others have finished times out. */
#define TIMEOUT_MS 60000 /* only a rank that hangs reaches it */
#define N_BATCHES  2
#define BOUND      64

struct group_def {
	const char *name;
	size_t n;
	struct fsdp_param_spec params[EXACT_PARAMS];
	struct fsdp_policy policy;
};

static const struct group_def defs[EXACT_GROUPS] = {
	{.name = "in-place",
	 .n = 2,
	 .params = {{.name = "w", .spec = {FSDP_F32, 2, {5, 3}}},
		    {.name = "b", .spec = {FSDP_F32, 1, {7}}}}},
	{.name = "flat",
	 .n = 3,
	 .params = {{.name = "w",
		     .spec = {FSDP_F32, 2, {3, 12}},
		     .shard_dim = -1},
		    {.name = "s", .spec = {FSDP_F32, 0, {0}}},
		    {.name = "frozen",
		     .spec = {FSDP_F32, 1, {9}},
		     .is_frozen = true}},
	 .policy = {.param_dtype = FSDP_BF16,
		    .reduce_dtype = FSDP_F32,
		    .layout = FSDP_LAYOUT_FLAT}},
	{.name = "cast",
	 .n = 1,
	 .params = {{.name = "w", .spec = {FSDP_F32, 1, {33}}}},
	 .policy = {.param_dtype = FSDP_BF16, .input_dtype = FSDP_F32}},
};

static uint64_t numel(const struct fsdp_spec *spec)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < spec->n_dims; d++)
		n *= (uint64_t)spec->shape[d];
	return n;
}

/* --- what must come out -------------------------------------------------- */

/* The parameter, element and step of a gradient. */
struct location {
	size_t group, param;
	uint64_t i, step;
};

static float initial(const struct location *location)
{
	uint64_t x =
		location->i * 7 + location->param * 13 + location->group * 5;

	return (float)(x % 31) - 15;
}

/* Values that have become large are moved back towards 0. */
static float gradient(const struct location *location, uint32_t rank,
		      uint32_t batch, float value)
{
	uint64_t x = location->i * 3 + location->param + location->group * 2 +
		     location->step * 7 + (uint64_t)((int)value + 1000);

	if (fabsf(value) > BOUND)
		return value > 0 ? 2 : -2;
	return (float)((x + rank * 5 + batch * 11 + rank * batch) % 5) - 2;
}

static void advance_one(struct exact_model *model, uint32_t world,
			const struct location *location)
{
	float *value =
		&model->values[location->group][location->param][location->i];
	float sum = 0;

	if (location->step == 0) {
		*value = initial(location);
		return;
	}
	if (defs[location->group].params[location->param].is_frozen)
		return;
	for (uint32_t rank = 0; rank < world; rank++) {
		for (uint32_t batch = 0; batch < N_BATCHES; batch++)
			sum += gradient(location, rank, batch, *value);
	}
	*value -= sum;
}

/* Advances to that step of a training by `world` ranks. */
static void advance(struct exact_model *model, uint32_t world, uint64_t step)
{
	struct location location = {0};

	for (; model->step < step; model->step++) {
		location.step = model->step;
		for (size_t g = 0; g < EXACT_GROUPS; g++) {
			for (size_t p = 0; p < defs[g].n; p++) {
				location.group = g;
				location.param = p;
				for (location.i = 0;
				     location.i <
				     numel(&defs[g].params[p].spec);
				     location.i++)
					advance_one(model, world, &location);
			}
		}
	}
}

/* --- one rank ------------------------------------------------------------ */

struct self {
	struct exact_board *board;
	struct exact_rank *shared;
	uint32_t rank;
	struct fsdp_client *client;
	struct fsdp_comm *comm;
	struct fsdp_group *groups[EXACT_GROUPS];
	struct fsdp_work whole[EXACT_GROUPS], reduced[EXACT_GROUPS];
	uint64_t step; /* the last committed step */
	struct exact_model model;
};

static void __attribute__((noreturn, format(printf, 2, 3)))
give_up(const struct self *self, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "rank %u, step %" PRIu64 ", %s: ", self->rank,
		self->step, atomic_load(&self->shared->doing));
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1);
}

static void begin_call(struct self *self, const char *what)
{
	uint32_t n = atomic_fetch_add(&self->shared->n_calls, 1);

	atomic_store(&self->shared->doing, what);
	if (self->board->on_call)
		self->board->on_call(self->rank, n);
}

static int end_call(struct self *self, int r)
{
	if (r >= 0)
		return r;
	snprintf(self->shared->sentence, sizeof(self->shared->sentence), "%s",
		 fsdp_error());
	atomic_fetch_add(&self->shared->n_failures, 1);
	return r;
}

#define CALL(self, what, call) (begin_call(self, what), end_call(self, call))

static int wait_for(struct self *self, const char *what,
		    const struct fsdp_work *work)
{
	return CALL(self, what, fsdp_wait(work, -1));
}

/* --- values -------------------------------------------------------------- */

static float read_value(enum fsdp_dtype dtype, const void *data, uint64_t i)
{
	uint32_t bits;
	float value;

	if (dtype == FSDP_F32)
		return ((const float *)data)[i];
	must(dtype == FSDP_BF16);
	bits = (uint32_t)((const uint16_t *)data)[i] << 16;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* bf16 holds small integers exactly. */
static void write_value(enum fsdp_dtype dtype, void *data, uint64_t i,
			float value)
{
	uint32_t bits;

	if (dtype == FSDP_F32) {
		((float *)data)[i] = value;
		return;
	}
	memcpy(&bits, &value, sizeof(bits));
	((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
}

static void *view_of(const struct fsdp_param *param)
{
	return memory_view(param->data,
			   param->numel * fsdp_dtype_size(param->dtype));
}

/* On devices every call may report that a process has died. */
static int check_param(struct self *self, size_t g, size_t p)
{
	const struct fsdp_param_spec *spec = &defs[g].params[p];
	struct fsdp_param param = {.struct_size = sizeof(param)};
	float seen, expected;
	void *view;
	int r = end_call(self, fsdp_param(self->groups[g], p, &param));

	if (r < 0)
		return r;
	must(param.numel == numel(&spec->spec));
	view = view_of(&param);
	for (uint64_t i = 0; i < param.numel; i++) {
		seen = read_value(param.dtype, view, i);
		expected = self->model.values[g][p][i];
		if (seen != expected)
			give_up(self,
				"'%s' of group '%s' has %g at %" PRIu64
				", not %g",
				spec->name, defs[g].name, seen, i, expected);
	}
	memory_drop_view(view);
	return 0;
}

/* --- shards -------------------------------------------------------------- */

/* Returns the index in the whole parameter of this rank's `i`th element. */
static uint64_t whole_index(const struct fsdp_spec *spec, uint32_t dim,
			    const struct fsdp_shard *shard, uint64_t i)
{
	uint64_t row = 1, mine, at;

	for (uint32_t d = dim + 1; d < spec->n_dims; d++)
		row *= (uint64_t)spec->shape[d];
	if (spec->n_dims == 0)
		return i;
	mine = (uint64_t)shard->shape[dim] * row;
	at = (uint64_t)shard->start * row + i % mine;
	return i / mine * (uint64_t)spec->shape[dim] * row + at;
}

/* Computes a shard's values of the next step from the present ones and the
 * gradients. */
static void write_next(const struct self *self, size_t g, size_t p,
		       const struct fsdp_shard *shard)
{
	const struct fsdp_param_spec *spec = &defs[g].params[p];
	uint32_t dim = spec->shard_dim < 0 ? spec->spec.n_dims - 1 : 0;
	size_t size = shard->numel * sizeof(float);
	bool has_grad = self->step > 0 && !spec->is_frozen;
	float *next = memory_view(shard->next, size);
	float *current = has_grad ? memory_view(shard->current, size) : NULL;
	float *grad = has_grad ? memory_view(shard->grad, size) : NULL;
	struct location location = {g, p, 0, 0};

	for (uint64_t i = 0; i < shard->numel; i++) {
		location.i = whole_index(&spec->spec, dim, shard, i);
		if (self->step == 0)
			next[i] = initial(&location);
		else if (spec->is_frozen)
			next[i] = 77; /* a value that the broker must ignore */
		else
			next[i] = current[i] - grad[i];
	}
	memory_put_view(shard->next, next, size);
	memory_drop_view(current);
	memory_drop_view(grad);
}

static int update_param(struct self *self, size_t g, size_t p)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	int r = CALL(self, "shard", fsdp_shard(self->groups[g], p, &shard));

	if (r < 0)
		return r;
	must(shard.dtype == FSDP_F32);
	write_next(self, g, p, &shard);
	return 0;
}

static int update(struct self *self)
{
	int r = 0;

	for (size_t g = 0; r == 0 && g < EXACT_GROUPS; g++) {
		for (size_t p = 0; r == 0 && p < defs[g].n; p++)
			r = update_param(self, g, p);
	}
	return r;
}

/* --- steps --------------------------------------------------------------- */

static void raise_to(_Atomic uint64_t *value, uint64_t to)
{
	uint64_t seen = atomic_load(value);

	while (seen < to && !atomic_compare_exchange_weak(value, &seen, to))
		;
}

/* A step must not be committed before all ranks have written it. */
static void check_step(struct self *self, uint64_t step)
{
	for (uint32_t i = 0; i < self->board->world; i++) {
		if (atomic_load(&self->board->ranks[i].committing) < step)
			give_up(self,
				"step %" PRIu64 " is committed without rank %u",
				step, i);
	}
}

static int commit(struct self *self)
{
	struct fsdp_work work;
	uint64_t step = self->step + 1;
	int r = update(self);

	if (r < 0)
		return r;
	raise_to(&self->shared->committing, step);
	r = CALL(self, "commit", fsdp_commit(self->comm, step, &work));
	if (r == 0)
		r = wait_for(self, "wait for commit", &work);
	if (r < 0)
		return r;
	check_step(self, step);
	self->step = step;
	raise_to(&self->board->max_step, step);
	advance(&self->model, self->board->world, step);
	return 0;
}

static int unshard(struct self *self, size_t g)
{
	return CALL(self, "unshard",
		    fsdp_unshard(self->groups[g], &self->whole[g]));
}

/* The values of a whole parameter must be those of the committed step. */
static int look(struct self *self, size_t g)
{
	int r = wait_for(self, "wait for unshard", &self->whole[g]);

	for (size_t p = 0; r == 0 && p < defs[g].n; p++)
		r = check_param(self, g, p);
	return r;
}

static int reshard(struct self *self, size_t g, uint32_t n_mesh)
{
	return CALL(self, "reshard", fsdp_reshard(self->groups[g], n_mesh));
}

static int look_at_all(struct self *self)
{
	int r = 0;

	for (size_t g = 0; r == 0 && g < EXACT_GROUPS; g++)
		r = unshard(self, g);
	for (size_t g = 0; r == 0 && g < EXACT_GROUPS; g++) {
		r = look(self, g);
		/* In some steps the group that the backward pass needs first
		 * stays whole. */
		if (r == 0)
			r = reshard(self, g, g == 2 ? self->step % 2 : 0);
	}
	return r;
}

/* Writes the gradient of one parameter, computed from its values. */
static void write_gradient(const struct self *self, struct location *location,
			   uint32_t batch, const struct fsdp_param *param,
			   void *to)
{
	const struct fsdp_policy *policy = &defs[location->group].policy;
	enum fsdp_dtype dtype =
		policy->input_dtype ? policy->input_dtype : param->dtype;
	size_t size = param->numel * fsdp_dtype_size(dtype);
	void *from = view_of(param), *view = memory_view(to, size);
	float value;

	for (location->i = 0; location->i < param->numel; location->i++) {
		value = read_value(param->dtype, from, location->i);
		value = gradient(location, self->rank, batch, value);
		write_value(dtype, view, location->i, value);
	}
	memory_put_view(to, view, size);
	memory_drop_view(from);
}

/* Computes the gradients from the whole parameters. */
static int write_gradients(struct self *self, size_t g, uint32_t batch)
{
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct location location = {.group = g, .step = self->step};
	void *to;
	int r = 0;

	for (size_t p = 0; p < defs[g].n; p++) {
		to = fsdp_input_data(self->groups[g], p);
		must(!to == defs[g].params[p].is_frozen);
		if (!to)
			continue;
		r = CALL(self, "param", fsdp_param(self->groups[g], p, &param));
		if (r < 0)
			return r;
		location.param = p;
		write_gradient(self, &location, batch, &param, to);
	}
	return 0;
}

/* With replicas the sums of the first batch wait for those of the last one.
 * Without replicas the last batch accumulates on the first. */
static int reduce(struct self *self, size_t g, uint32_t batch)
{
	bool has_replicas = self->board->n_shards < self->board->world;
	struct fsdp_reduce_options options = {
		.accumulates = !has_replicas && batch > 0,
		.no_all_reduce = has_replicas && batch + 1 < N_BATCHES,
		.has_factor = true,
		.factor = 1,
	};
	int r = CALL(self, "input", fsdp_input(self->groups[g], -1));

	if (r == 0)
		r = write_gradients(self, g, batch);
	if (r == 0)
		r = CALL(self, "reduce",
			 fsdp_reduce(self->groups[g], &options,
				     &self->reduced[g]));
	return r;
}

static int backward(struct self *self)
{
	int r = 0;

	for (size_t g = EXACT_GROUPS; r == 0 && g-- > 0;) {
		r = unshard(self, g);
		if (r == 0)
			r = look(self, g);
		for (uint32_t batch = 0; r == 0 && batch < N_BATCHES; batch++)
			r = reduce(self, g, batch);
		if (r == 0)
			r = reshard(self, g, 0);
	}
	for (size_t g = 0; r == 0 && g < EXACT_GROUPS; g++)
		r = wait_for(self, "wait for reduce", &self->reduced[g]);
	return r;
}

/* --- life ---------------------------------------------------------------- */

static int join(struct self *self)
{
	struct fsdp_comm_options options = {
		.n_shards = self->board->n_shards,
		.timeout_ms = TIMEOUT_MS,
	};
	uint64_t known = atomic_load(&self->board->max_step);
	uint64_t step;
	int r;

	memory_of_rank(self->rank, &options);
	r = CALL(self, "join",
		 fsdp_comm_join(self->client, self->board->comm,
				self->board->world, self->rank, &options,
				&self->comm));
	if (r < 0)
		return r;
	step = fsdp_comm_step(self->comm);
	if (step < known || step < self->step)
		give_up(self,
			"step %" PRIu64 " was committed, now it is %" PRIu64,
			known, step);
	check_step(self, step);
	self->step = step;
	raise_to(&self->board->max_step, step);
	advance(&self->model, self->board->world, step);
	return 0;
}

static int enter(struct self *self)
{
	int r = join(self);

	for (size_t g = 0; r == 0 && g < EXACT_GROUPS; g++)
		r = CALL(self, "group",
			 fsdp_group_register(
				 self->comm, defs[g].name, defs[g].params,
				 defs[g].n, &defs[g].policy, &self->groups[g]));
	if (r == 0 && self->step == 0)
		r = commit(self);
	return r;
}

static int attend(struct self *self)
{
	int r = enter(self);

	while (r == 0 && self->step < atomic_load(&self->board->last_step)) {
		r = look_at_all(self);
		if (r == 0)
			r = backward(self);
		if (r == 0)
			r = commit(self);
	}
	if (r == 0)
		r = look_at_all(self);
	if (r == 0)
		atomic_store(&self->shared->is_finished, true);
	begin_call(self, "leave");
	fsdp_comm_leave(self->comm);
	self->comm = NULL;
	return r;
}

/* After one rank has finished, no other joins again, and that rank has seen
 * that all values are right. */
static bool is_any_finished(const struct exact_board *board)
{
	for (uint32_t i = 0; i < board->world; i++) {
		if (atomic_load(&board->ranks[i].is_finished))
			return true;
	}
	return false;
}

/* Returns whether the rank can continue after that failure. */
static bool may_go_on(const struct self *self, int r)
{
	if (r == -ECONNABORTED || r == -ETIMEDOUT)
		return true;
	if (self->board->is_harsh && is_lost(r))
		_exit(EXACT_LOST);
	return self->board->is_harsh && is_shortage(r);
}

/* Forget that the others finished before this rank joined, perhaps again: no
 * death was told by that, but one may have been `told` before. */
static void forget_failure(struct self *self, const char *told)
{
	atomic_fetch_sub(&self->shared->n_failures, 1);
	snprintf(self->shared->sentence, sizeof(self->shared->sentence), "%s",
		 told);
}

void exact_train(struct exact_board *board, uint32_t rank)
{
	struct fsdp_connect_options options = {.path = board->socket};
	struct self self = {
		.board = board,
		.shared = &board->ranks[rank],
		.rank = rank,
	};
	char told[sizeof(self.shared->sentence)];
	int r;

	atomic_store(&self.shared->doing, "connect");
	r = fsdp_connect(&options, &self.client);
	if (r < 0 && board->is_harsh)
		_exit(EXACT_LOST);
	must(r == 0);
	r = -ECONNABORTED;
	while (r < 0 && !is_any_finished(board)) {
		memcpy(told, self.shared->sentence, sizeof(told));
		r = attend(&self);
		if (r < 0 && !may_go_on(&self, r))
			give_up(&self, "%d: %s", r, self.shared->sentence);
		if (r == -ETIMEDOUT && is_any_finished(board))
			forget_failure(&self, told);
	}
	begin_call(&self, "close");
	fsdp_close(self.client);
}
