/*
 * Tests random groups on random meshes, through libfsdp, the broker and the
 * executor. The whole parameters must be those that were written. Every reduced
 * gradient must have the bits that docs/fsdp.md defines (tests/lib/property.h),
 * and be close to the same sum in f64. FSDP_PROPERTY_SEED repeats a run.
 */
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/memory.h"
#include "tests/lib/property.h"
#include "tests/lib/ranks.h"
#include "tests/lib/scalar.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#define N_CASES (are_on_devices() ? 20 : 60)
#define COLD                                                                   \
	"[memory]\nchunk_min = 2M\nwarm_ms = 20\n[quota]\nquota_groups = 64\n"

/* --- one rank ------------------------------------------------------------ */

struct group_state {
	struct element *elements[MAX_PARAMS]; /* of this rank's shards */
	bool has_grads, has_partial;
	/* These are the divisors of the partial sums. `is_mixed` is set when
	 * values with other divisors were added to a partial sum, because no
	 * bound holds for it then. */
	struct factors factors[MAX_PARAMS];
	bool is_mixed;
};

/* The ranks and the test share this memory. */
struct board {
	uint64_t seed; /* seed of the next case */
	struct {
		uint64_t whole, grads; /* digests of all bits */
		uint64_t hashes[MAX_GROUPS];
		uint64_t n_elements, n_bounded; /* gradients compared: with the
						 * reference, with f64 */
	} ranks[MAX_WORLD];
};

static struct board *board;
static struct daemon broker;
static struct fsdp_client *client; /* of a rank, for all cases */

struct self {
	uint32_t rank, replica, shard;
	struct property_case it;
	struct fsdp_comm *comm;
	struct fsdp_group *groups[MAX_GROUPS];
	struct group_state states[MAX_GROUPS];
	uint64_t step, n_reductions;
	uint64_t whole, grads; /* digests of all bits */
};

static int __attribute__((format(printf, 2, 3)))
complain(const struct self *self, const char *format, ...)
{
	va_list args;

	fprintf(stderr,
		"case %" PRIu64 ", rank %u of %u (%u shards), step %" PRIu64
		": ",
		self->it.seed, self->rank, self->it.world, self->it.n_shards,
		self->step);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return -EBADMSG;
}

static int refused(const struct self *self, const char *what, int r)
{
	if (r < 0)
		complain(self, "%s: %d: %s", what, r, fsdp_error());
	return rank_note(r);
}

static int differ(const struct self *self, const struct location *location,
		  const char *what, uint64_t seen, uint64_t expected)
{
	const struct param_case *param =
		&self->it.groups[location->group].params[location->param];

	return complain(self,
			"%s of group %zu, parameter %zu (%s, whole %s, reduced "
			"%s) at %" PRIu64 " is 0x%" PRIx64 ", not 0x%" PRIx64,
			what, location->group, location->param,
			fsdp_dtype_name(param->spec.spec.dtype),
			fsdp_dtype_name(param->full),
			fsdp_dtype_name(param->reduce), location->index, seen,
			expected);
}

static struct location location_of(const struct self *self, size_t g, size_t p)
{
	return (struct location){.it = &self->it, .group = g, .param = p};
}

static bool is_aligned(const void *data, size_t n)
{
	return (uintptr_t)data % n == 0;
}

/* --- shards -------------------------------------------------------------- */

/* Check that shards are cut as torch.chunk() does. */
static int check_cut(struct self *self, const struct param_case *param,
		     const struct fsdp_shard *shard)
{
	const struct fsdp_spec *spec = &param->spec.spec;
	int64_t size = spec->n_dims ? spec->shape[param->dim] : 1;
	int64_t n = self->it.n_shards, chunk = (size + n - 1) / n;
	int64_t start = chunk * self->shard, mine;
	uint64_t numel = 1;

	start = start < size ? start : size;
	mine = size - start < chunk ? size - start : chunk;
	for (uint32_t d = 0; d < shard->n_dims; d++) {
		int64_t expected = d == param->dim ? mine : spec->shape[d];

		numel *= (uint64_t)expected;
		if (shard->shape[d] != expected)
			return complain(self, "dimension %u is %" PRId64, d,
					shard->shape[d]);
	}
	if (shard->n_dims != (spec->n_dims ? spec->n_dims : 1) ||
	    shard->start != start || shard->numel != numel ||
	    shard->dtype != spec->dtype ||
	    !is_aligned(shard->next, fsdp_dtype_size(spec->dtype)))
		return complain(self, "a shard is not cut as it should be");
	return 0;
}

static uint64_t whole_index(const struct param_case *param,
			    const struct fsdp_shard *shard, uint64_t i)
{
	const struct fsdp_spec *spec = &param->spec.spec;
	uint64_t row = 1, mine, size;

	if (spec->n_dims == 0)
		return i;
	for (uint32_t d = param->dim + 1; d < spec->n_dims; d++)
		row *= (uint64_t)spec->shape[d];
	mine = (uint64_t)shard->shape[param->dim] * row;
	size = (uint64_t)spec->shape[param->dim] * row;
	return i / mine * size + (uint64_t)shard->start * row + i % mine;
}

static size_t size_of(const struct fsdp_shard *shard)
{
	return shard->numel * fsdp_dtype_size(shard->dtype);
}

/* Check that `current` has the committed values. */
static int check_current(struct self *self, size_t g, size_t p,
			 const struct fsdp_shard *shard)
{
	const struct param_case *param = &self->it.groups[g].params[p];
	void *view = memory_view(shard->current, size_of(shard));
	struct location location = location_of(self, g, p);
	uint64_t bits, expected;
	int r = 0;

	for (uint64_t i = 0; r == 0 && i < shard->numel; i++) {
		location.index = whole_index(param, shard, i);
		expected = value_of_param(&location, self->replica, self->step);
		bits = scalar_load(shard->dtype, view, i);
		if (bits != expected)
			r = differ(self, &location, "the shard", bits,
				   expected);
	}
	memory_drop_view(view);
	return r;
}

/* Write the values of the next step. */
static void write_next(struct self *self, size_t g, size_t p,
		       const struct fsdp_shard *shard)
{
	const struct param_case *param = &self->it.groups[g].params[p];
	void *view = memory_view(shard->next, size_of(shard));
	struct location location = location_of(self, g, p);
	uint64_t bits;

	for (uint64_t i = 0; i < shard->numel; i++) {
		location.index = whole_index(param, shard, i);
		bits = value_of_param(&location, self->replica, self->step + 1);
		if (param->spec.is_frozen && self->step > 0)
			/* only the first values of frozen parameters are
			 * used */
			bits = 0;
		scalar_store(shard->dtype, view, i, bits);
	}
	memory_put_view(shard->next, view, size_of(shard));
}

static int fill_param(struct self *self, size_t g, size_t p)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	int r;

	r = refused(self, "shard", fsdp_shard(self->groups[g], p, &shard));
	if (r == 0)
		r = check_cut(self, &self->it.groups[g].params[p], &shard);
	if (r == 0 && self->step > 0)
		r = check_current(self, g, p, &shard);
	if (r == 0)
		write_next(self, g, p, &shard);
	return r;
}

static int commit(struct self *self)
{
	struct fsdp_work work;
	int r = 0;

	for (size_t g = 0; r == 0 && g < self->it.n_groups; g++) {
		for (size_t p = 0; r == 0 && p < self->it.groups[g].n; p++)
			r = fill_param(self, g, p);
	}
	if (r == 0)
		r = refused(self, "commit",
			    fsdp_commit(self->comm, self->step + 1, &work));
	if (r == 0)
		r = refused(self, "wait for commit", fsdp_wait(&work, -1));
	if (r == 0)
		self->step++;
	return r;
}

/* --- whole parameters ---------------------------------------------------- */

static uint64_t cast(enum fsdp_dtype from, enum fsdp_dtype to, uint64_t bits)
{
	return from == to ? bits : scalar_encode(to, scalar_decode(from, bits));
}

/* Check that every element is the committed one, cast. */
static int check_elements(struct self *self, size_t g, size_t p,
			  const void *data)
{
	const struct param_case *param = &self->it.groups[g].params[p];
	struct location location = location_of(self, g, p);
	uint64_t bits, expected;

	for (uint64_t i = 0; i < param->numel; i++) {
		location.index = i;
		expected = cast(
			param->spec.spec.dtype, param->full,
			value_of_param(&location, self->replica, self->step));
		bits = scalar_load(param->full, data, i);
		self->whole = mix(self->whole ^ bits);
		if (!scalar_is_same(param->full, bits, expected))
			return differ(self, &location, "the whole", bits,
				      expected);
	}
	return 0;
}

static int check_whole(struct self *self, size_t g, size_t p)
{
	const struct param_case *param = &self->it.groups[g].params[p];
	struct fsdp_param whole = {.struct_size = sizeof(whole)};
	void *view;
	int r;

	r = refused(self, "param", fsdp_param(self->groups[g], p, &whole));
	if (r < 0)
		return r;
	if (whole.numel != param->numel || whole.dtype != param->full ||
	    whole.n_dims != param->spec.spec.n_dims ||
	    memcmp(whole.shape, param->spec.spec.shape,
		   whole.n_dims * sizeof(whole.shape[0])) != 0 ||
	    !is_aligned(whole.data, 64))
		return complain(self,
				"parameter %zu of group %zu has another "
				"form or address",
				p, g);
	view = memory_view(whole.data,
			   whole.numel * fsdp_dtype_size(whole.dtype));
	r = check_elements(self, g, p, view);
	memory_drop_view(view);
	return r;
}

static int look(struct self *self, size_t g, const struct fsdp_work *work,
		uint32_t n_mesh)
{
	int r = refused(self, "wait for unshard", fsdp_wait(work, -1));

	for (size_t p = 0; r == 0 && p < self->it.groups[g].n; p++)
		r = check_whole(self, g, p);
	if (r == 0)
		r = refused(self, "reshard",
			    fsdp_reshard(self->groups[g], n_mesh));
	return r;
}

static int unshard_all(struct self *self, const struct step_case *step)
{
	struct fsdp_work works[MAX_GROUPS];
	int r = 0;

	for (size_t i = 0; r == 0 && i < self->it.n_groups; i++)
		r = refused(
			self, "unshard",
			fsdp_unshard(self->groups[step->order[i]], &works[i]));
	for (size_t i = 0; r == 0 && i < self->it.n_groups; i++)
		r = look(self, step->order[i], &works[i],
			 step->n_mesh[step->order[i]]);
	return r;
}

/* Unshard again. The parameters come from the copy that was kept for the
 * smaller mesh. */
static int unshard_kept(struct self *self, const struct step_case *step)
{
	struct fsdp_work work;
	int r = 0;

	for (size_t g = 0; r == 0 && g < self->it.n_groups; g++) {
		if (!step->n_mesh[g])
			continue;
		r = refused(self, "unshard again",
			    fsdp_unshard(self->groups[g], &work));
		if (r == 0)
			r = look(self, g, &work, 0);
	}
	return r;
}

/* --- gradients ----------------------------------------------------------- */

static void fill_input(struct self *self, size_t g, uint32_t round)
{
	const struct group_case *group = &self->it.groups[g];
	struct location location;
	void *data, *view;
	size_t size;

	for (size_t p = 0; p < group->n; p++) {
		data = fsdp_input_data(self->groups[g], p);
		must(!group->params[p].reduce || data ||
		     !group->params[p].numel);
		must(group->params[p].reduce || !data);
		if (!data)
			continue;
		must(is_aligned(data, 64));
		size = group->params[p].numel *
		       fsdp_dtype_size(group->params[p].input);
		view = memory_view(data, size);
		location = location_of(self, g, p);
		location.step = self->step;
		location.round = round + 1;
		for (location.index = 0;
		     location.index < group->params[p].numel; location.index++)
			scalar_store(group->params[p].input, view,
				     location.index,
				     value_of_gradient(&location, self->rank));
		memory_put_view(data, view, size);
	}
}

/* Compute in this process the reduction that the executor does. */
static int reduce_param(struct self *self, size_t g, size_t p, uint32_t round,
			const struct fsdp_reduce_options *options)
{
	const struct param_case *param = &self->it.groups[g].params[p];
	struct group_state *state = &self->states[g];
	struct reduction reduction = {
		.it = &self->it,
		.param = param,
		.options = options,
		.factors = factors_of(&self->it, param->reduce, options),
		.location = location_of(self, g, p),
		.is_put_off = options->no_all_reduce && self->it.n_replicas > 1,
		.has_partial = state->has_partial,
		.has_grads = state->has_grads,
	};
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	int r;

	if (state->has_partial && memcmp(&state->factors[p], &reduction.factors,
					 sizeof(reduction.factors)) != 0)
		state->is_mixed = true;
	state->factors[p] = reduction.factors;
	r = refused(self, "shard", fsdp_shard(self->groups[g], p, &shard));

	if (r < 0)
		return r;
	reduction.location.step = self->step;
	reduction.location.round = round + 1;
	for (uint64_t i = 0; i < shard.numel; i++) {
		reduction.location.index = whole_index(param, &shard, i);
		reduction_apply(&reduction, &state->elements[p][i]);
	}
	return 0;
}

/* Returns how far the value may be from the sum in f64. A negative result
 * permits any distance, because a value may have overflowed. */
static double bound_of(const struct self *self, const struct location *location,
		       const struct element *element)
{
	const struct param_case *param =
		&self->it.groups[location->group].params[location->param];
	enum fsdp_dtype a = param->reduce, b = param->spec.spec.dtype;
	double epsilon = fmax(scalar_epsilon(a), scalar_epsilon(b));
	double n = (double)(2 * self->it.world + 4 + 4 * self->n_reductions);

	if (param->is_wild || self->states[location->group].is_mixed ||
	    ((a == FSDP_F16 || b == FSDP_F16) && element->size > 10000))
		return -1;
	return n *
	       (element->size * epsilon + scalar_least(a) + scalar_least(b));
}

/* Returns whether the order of the sum is the documented one. NCCL has an order
 * of its own. */
static bool is_by_order(enum fsdp_dtype dtype)
{
	return !are_on_devices() || !scalar_is_float(dtype);
}

static int check_element(struct self *self, const struct location *location,
			 const struct element *element, uint64_t bits)
{
	const struct param_case *param =
		&self->it.groups[location->group].params[location->param];
	enum fsdp_dtype dtype = param->spec.spec.dtype;
	double bound, distance;

	self->grads = mix(self->grads ^ bits);
	board->ranks[self->rank].n_elements++;
	if (is_by_order(dtype) && !scalar_is_same(dtype, bits, element->grad))
		return differ(self, location, "the gradient", bits,
			      element->grad);
	if (!scalar_is_float(dtype))
		return 0;
	bound = bound_of(self, location, element);
	distance = fabs(scalar_decode(dtype, bits) - element->oracle);
	if (bound < 0)
		return 0;
	board->ranks[self->rank].n_bounded++;
	if (distance <= bound)
		return 0;
	return complain(self,
			"group %zu, parameter %zu (%s, reduced %s): %g is %g "
			"from %g, more than %g",
			location->group, location->param,
			fsdp_dtype_name(dtype), fsdp_dtype_name(param->reduce),
			scalar_decode(dtype, bits), distance, element->oracle,
			bound);
}

static int check_grads(struct self *self, size_t g)
{
	const struct group_case *group = &self->it.groups[g];
	struct location location;
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	void *view;
	int r = 0;

	for (size_t p = 0; r == 0 && p < group->n; p++) {
		if (!group->params[p].reduce)
			continue;
		r = refused(self, "shard",
			    fsdp_shard(self->groups[g], p, &shard));
		if (r < 0)
			return r;
		view = memory_view(shard.grad, size_of(&shard));
		location = location_of(self, g, p);
		for (uint64_t i = 0; r == 0 && i < shard.numel; i++) {
			location.index =
				whole_index(&group->params[p], &shard, i);
			r = check_element(self, &location,
					  &self->states[g].elements[p][i],
					  scalar_load(shard.dtype, view, i));
		}
		memory_drop_view(view);
	}
	return r;
}

static int play_round(struct self *self, size_t g, uint32_t round,
		      const struct fsdp_reduce_options *options,
		      struct fsdp_work *ret)
{
	const struct group_case *group = &self->it.groups[g];
	struct group_state *state = &self->states[g];
	int r = refused(self, "input", fsdp_input(self->groups[g], -1));

	if (r < 0)
		return r;
	fill_input(self, g, round);
	r = refused(self, "reduce", fsdp_reduce(self->groups[g], options, ret));
	for (size_t p = 0; r == 0 && p < group->n; p++) {
		if (group->params[p].reduce)
			r = reduce_param(self, g, p, round, options);
	}
	state->has_partial = options->no_all_reduce && self->it.n_replicas > 1;
	state->has_grads |= !state->has_partial;
	self->n_reductions++;
	return r;
}

static int reduce_group(struct self *self, const struct step_case *step,
			size_t g)
{
	uint32_t n = step->n_rounds[g];
	struct fsdp_work work;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < n; i++) {
		const struct round_case *round = &step->rounds[g][i];

		r = play_round(self, g, i, &round->options, &work);
		if (r == 0 && (round->waits || i + 1 == n))
			r = refused(self, "wait for reduce",
				    fsdp_wait(&work, -1));
		if (r == 0 && (round->waits || i + 1 == n) &&
		    self->states[g].has_grads)
			r = check_grads(self, g);
	}
	return r;
}

/* --- a case -------------------------------------------------------------- */

static int play_step(struct self *self, const struct step_case *step)
{
	int r = unshard_all(self, step);

	if (r == 0)
		r = unshard_kept(self, step);
	for (size_t i = self->it.n_groups; r == 0 && i-- > 0;)
		r = reduce_group(self, step, step->order[i]);
	return r < 0 ? r : commit(self);
}

static int register_group(struct self *self, size_t g)
{
	struct group_case *group = &self->it.groups[g];
	struct fsdp_param_spec specs[MAX_PARAMS];
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	int r;

	for (size_t p = 0; p < group->n; p++) {
		specs[p] = group->params[p].spec;
		specs[p].name = group->params[p].name;
	}
	r = refused(self, "group",
		    fsdp_group_register(self->comm, group->name, specs,
					group->n, &group->policy,
					&self->groups[g]));
	for (size_t p = 0; r == 0 && p < group->n; p++) {
		r = refused(self, "shard",
			    fsdp_shard(self->groups[g], p, &shard));
		if (r < 0)
			return r;
		self->states[g].elements[p] =
			calloc(shard.numel + 1, sizeof(struct element));
		must(self->states[g].elements[p]);
	}
	return r;
}

struct plan_check {
	const struct self *self;
	uint64_t hash, n;
	bool is_right;
};

static int check_plan_entry(const struct fsdp_plan_entry *entry, void *data)
{
	struct plan_check *check = data;
	bool is_flat = entry->layout == FSDP_LAYOUT_FLAT;

	if (check->n++ > 0 && entry->hash != check->hash)
		check->is_right = false;
	check->hash = entry->hash;
	/* Entries begin at a cache line. So do all chunks in the flat
	 * layout. */
	if (entry->hash == 0 || entry->shard_offset % 64 != 0 ||
	    entry->full_offset % 64 != 0 || entry->input_offset % 64 != 0 ||
	    entry->grad_offset % 64 != 0 ||
	    (is_flat && entry->shard_stride % 64 != 0) ||
	    entry->shard_stride < entry->chunk_bytes ||
	    entry->n_shards != check->self->it.n_shards)
		check->is_right = false;
	return 0;
}

static int check_plan(struct self *self, size_t g)
{
	struct plan_check check = {.self = self, .is_right = true};
	int r = refused(self, "plan",
			fsdp_group_plan(client, "prop", self->it.groups[g].name,
					check_plan_entry, &check));

	if (r == 0 && (!check.is_right || check.n != self->it.groups[g].n))
		r = complain(self, "the plan of group %zu is not right", g);
	board->ranks[self->rank].hashes[g] = check.hash;
	return r;
}

static int play(struct self *self)
{
	int r;

	memory_of_rank(self->rank, &self->it.options);
	/* The bits do not depend on the executor. */
	if (!are_on_devices() && self->it.seed % 3 == 0)
		self->it.options.executor = FSDP_EXECUTOR_WORKER;
	r = refused(self, "join",
		    fsdp_comm_join(client, "prop", self->it.world, self->rank,
				   &self->it.options, &self->comm));

	for (size_t g = 0; r == 0 && g < self->it.n_groups; g++)
		r = register_group(self, g);
	for (size_t g = 0; r == 0 && g < self->it.n_groups; g++)
		r = check_plan(self, g);
	if (r == 0)
		r = commit(self);
	for (size_t s = 0; r == 0 && s < N_STEPS; s++)
		r = play_step(self, &self->it.steps[s]);
	if (r == 0)
		r = unshard_all(self, &self->it.steps[0]);
	return r;
}

/* Each rank runs this. */
static int play_case(void)
{
	struct fsdp_connect_options options = {.path = daemon_socket(&broker)};
	struct self *self = calloc(1, sizeof(*self));
	int r;

	must(self);
	case_draw(board->seed, &self->it);
	self->rank = rank_self();
	self->replica = self->rank / self->it.n_shards;
	self->shard = self->rank % self->it.n_shards;
	memset(&board->ranks[self->rank], 0, sizeof(board->ranks[0]));
	if (!client)
		must(fsdp_connect(&options, &client) == 0);
	r = self->rank < self->it.world ? play(self) : 0;
	fsdp_comm_leave(self->comm);
	board->ranks[self->rank].whole = self->whole;
	board->ranks[self->rank].grads = self->grads;
	for (size_t g = 0; g < MAX_GROUPS; g++) {
		for (size_t p = 0; p < MAX_PARAMS; p++)
			free(self->states[g].elements[p]);
	}
	free(self);
	return r;
}

/* --- the tests ----------------------------------------------------------- */

static struct fsdp_client *watcher;
static struct ranks ranks;

static void set_up(void)
{
	const struct daemon_options options = {.config = COLD};
	struct fsdp_connect_options connect = {0};

	board = shared_memory(sizeof(*board));
	daemon_start_with(&broker, &options);
	ranks_start(&ranks, MAX_WORLD);
	connect.path = daemon_socket(&broker);
	must(fsdp_connect(&connect, &watcher) == 0);
}

static void tear_down(void)
{
	fsdp_close(watcher);
	ranks_stop(&ranks);
	daemon_stop(&broker);
}

TestSuite(collective_property, .init = set_up, .fini = tear_down,
	  .timeout = 1000);

/* Remove the communicator, and check that all of it is freed. */
static void remove_comm(const struct figures *before)
{
	int r = -EBUSY;

	while (r == -EBUSY)
		r = fsdp_comm_remove(watcher, "prop");
	cr_assert(eq(int, r, 0), "%s", fsdp_error());
	cr_assert(figures_await(watcher, before));
}

static void check_agreement(const struct property_case *it)
{
	for (uint32_t rank = 0; rank < it->world; rank++) {
		uint32_t first = rank / it->n_shards * it->n_shards;

		for (size_t g = 0; g < it->n_groups; g++)
			cr_assert(eq(u64, board->ranks[rank].hashes[g],
				     board->ranks[0].hashes[g]));
		cr_assert(eq(u64, board->ranks[rank].whole,
			     board->ranks[first].whole));
	}
}

static int connect_only(void)
{
	struct fsdp_connect_options options = {.path = daemon_socket(&broker)};

	return client ? 0 : fsdp_connect(&options, &client);
}

static void play_once(uint64_t seed, const struct figures *before)
{
	static struct property_case it;

	board->seed = seed;
	cr_assert(eq(int, ranks_run(&ranks, play_case), 0),
		  "FSDP_PROPERTY_SEED=%llu fails", (unsigned long long)seed);
	case_draw(seed, &it);
	check_agreement(&it);
	remove_comm(before);
}

Test(collective_property, all_bits_are_as_documented)
{
	uint64_t seed = choose_seed("FSDP_PROPERTY_SEED"), n = 0, n_bounded = 0;
	struct board first;
	struct figures before;

	fprintf(stderr, "FSDP_PROPERTY_SEED=%llu\n", (unsigned long long)seed);
	cr_assert(eq(int, ranks_run(&ranks, connect_only), 0));
	figures_read(watcher, &before);
	/* The broker remembers the grant of a slot for the session's next
	 * use. */
	before.grants = FIGURE_ANY;
	for (uint64_t i = 0; i < N_CASES; i++) {
		play_once(seed + i, &before);
		for (uint32_t rank = 0; rank < MAX_WORLD; rank++) {
			n += board->ranks[rank].n_elements;
			n_bounded += board->ranks[rank].n_bounded;
		}
		if (i % 3)
			continue;
		/* The same case gives the same bits again, including NaNs. */
		first = *board;
		play_once(seed + i, &before);
		cr_assert(eq(int, memcmp(&first, board, sizeof(first)), 0));
	}
	fprintf(stderr, "%llu gradients compared, %llu of them with f64\n",
		(unsigned long long)n, (unsigned long long)n_bounded);
	cr_assert(gt(u64, n_bounded, 10000));
}
