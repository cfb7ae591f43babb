/*
 * A rank's own book-keeping: client/rank/comm.c and client/rank/group.c between
 * a broker that says what the test wants and memory of the test's own.
 */
#include "client/copy.h"
#include "client/handshake.h"
#include "client/places.h"
#include "client/rank/comm.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define N_SLOTS   6
#define SLOT_SIZE 512
enum { SHARDS_0 = 1, SHARDS_1, GRADS, FULL, INPUT };

/* --- the rest of the library --------------------------------------------- */

static struct {
	_Alignas(64) uint8_t memory[N_SLOTS][SLOT_SIZE];
	struct fsdp_tensor handles[N_SLOTS];
	int holds[N_SLOTS];
	bool is_writable[N_SLOTS];
	struct request asked;  /* what came last */
	struct request posted; /* likewise */
	struct post post;
	int n_asked, n_commands, n_posted;
	struct reply answer; /* to the next one */
	int code;            /* < 0: refuse it */
	int n_refusals;      /* and as many; 0: all that come */
	bool is_down;
} world;

static _Atomic uint32_t guard_word = 1;
static struct fsdp_client client = {
	.guard = {&guard_word},
	.comms_lock = PTHREAD_MUTEX_INITIALIZER,
};

/* Only devices want these. */
int64_t handshake_now_ms(void)
{
	cr_assert(false);
	return 0;
}

int fsdp_release_on(struct fsdp_tensor *tensor, void *stream)
{
	(void)tensor;
	(void)stream;
	cr_assert(false);
	return 0;
}

int fsdp_alloc_on(struct fsdp_client *of, const struct fsdp_device *device,
		  const struct fsdp_spec *specs_, size_t n,
		  const struct fsdp_access *access, int32_t timeout_ms,
		  struct fsdp_tensor **ret)
{
	(void)of;
	(void)device;
	(void)specs_;
	(void)n;
	(void)access;
	(void)timeout_ms;
	(void)ret;
	cr_assert(false);
	return 0;
}

int mappings_keep(struct mappings *mappings, uint32_t chunk, struct span *ret,
		  struct error *err)
{
	(void)mappings;
	(void)chunk;
	(void)ret;
	(void)err;
	cr_assert(false);
	return 0;
}

void mappings_let_go(struct mappings *mappings, uint32_t chunk)
{
	(void)mappings;
	(void)chunk;
	cr_assert(false);
}

bool mappings_is_gone(struct mappings *mappings, uint32_t chunk,
		      const struct table *table)
{
	(void)mappings;
	(void)chunk;
	(void)table;
	cr_assert(false);
	return false;
}

int client_refuse(const struct fsdp_client *of, struct error *err)
{
	(void)of;
	return error_set(err, -ECHILD, "forked");
}

int client_call(struct fsdp_client *of, const struct request *request,
		struct answer *ret, struct error *err)
{
	int r;

	cr_assert(eq(ptr, of, &client));
	world.asked = *request;
	world.n_asked++;
	if (world.code < 0) {
		r = error_set(err, world.code, "rank 1 has died");
		if (world.n_refusals && --world.n_refusals == 0)
			world.code = 0;
		return r;
	}
	*ret = (struct answer){.reply = world.answer};
	return 0;
}

int client_command(struct fsdp_client *of, const struct request *request,
		   struct error *err)
{
	struct answer answer;

	world.n_commands++;
	return client_call(of, request, &answer, err);
}

int client_post(struct fsdp_client *of, const struct request *request,
		const struct post *post, struct error *err)
{
	(void)err;
	cr_assert(eq(ptr, of, &client));
	world.posted = *request;
	world.post = *post;
	world.n_posted++;
	return 0;
}

void connection_forget_posts(struct connection *connection, const void *data)
{
	(void)connection;
	if (world.post.data == data)
		world.post.refused = NULL;
}

bool connection_is_down(struct connection *connection)
{
	(void)connection;
	return world.is_down;
}

void answer_deinit(struct answer *answer)
{
	(void)answer;
}

void places_take_chunks(struct fsdp_client *of, struct answer *answer,
			const struct chunk_ref *chunks, uint32_t n_chunks,
			uint16_t first_fd)
{
	(void)of;
	(void)answer;
	(void)chunks;
	(void)n_chunks;
	(void)first_fd;
}

void places_give_back(struct fsdp_client *of, const struct places_reply *places)
{
	(void)of;
	for (uint32_t i = 0; i < places->n_places; i++)
		world.holds[places->places[i].ref.slot]--;
}

int places_adopt_batch(struct fsdp_client *of,
		       const struct places_reply *places,
		       const struct places_use *use, struct fsdp_tensor **ret,
		       struct error *err)
{
	(void)err;
	cr_assert(eq(sz, use->n, places->n_places));
	for (uint32_t i = 0; i < places->n_places; i++) {
		uint32_t slot = places->places[i].ref.slot;

		ret[i] = &world.handles[slot];
		ret[i]->client = of;
		ret[i]->slot = slot;
		ret[i]->generation = places->places[i].ref.generation;
		ret[i]->data = world.memory[slot];
		world.is_writable[slot] = use->is_writable;
	}
	return 0;
}

void fsdp_free(struct fsdp_tensor *tensor)
{
	if (tensor)
		world.holds[tensor->slot]--;
}

void tensor_end(struct fsdp_tensor *tensor)
{
	fsdp_free(tensor);
}

/* Nothing here is on a device. */
int copiers_put(struct copiers *copiers, const struct device *device, void *to,
		const void *from, uint64_t size, struct error *err)
{
	(void)copiers, (void)device, (void)to, (void)from, (void)size;
	return error_set(err, -ENODEV, "no device");
}

int copiers_get(struct copiers *copiers, const struct device *device, void *to,
		const void *from, uint64_t size, struct error *err)
{
	return copiers_put(copiers, device, to, from, size, err);
}

/* --- what the broker says ------------------------------------------------ */

static struct tensor_place place_of(uint32_t slot, int64_t size)
{
	world.holds[slot]++;
	return (struct tensor_place){
		.ref = {slot, 7},
		.chunk = 1,
		.size = (uint64_t)size,
		.type = {DTYPE_U8, 1, {size}, {1}},
		.name = "",
	};
}

/*
 * Rank 1 of 2. "weight" is 3 x 2 f32, cut in chunks of two rows, of which this
 * rank has one and one of padding; "base" is frozen; "scale" is 0-d and rank
 * 0's.
 */
static const struct fsdp_param_spec specs[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {3, 2}}},
	{.name = "base", .spec = {FSDP_F32, 1, {4}}, .is_frozen = true},
	{.name = "scale", .spec = {FSDP_F64, 0, {0}}},
};
static struct group_entry entries[] = {
	{DTYPE_BF16, DTYPE_BF16, 0, 1, 16, 0, 0, 16},
	{DTYPE_F32, 0, 0, 2, 128, 64, 0, 0},
	{DTYPE_F64, DTYPE_F64, 0, 0, 200, 128, 64, 128},
};

static struct reply group_reply(uint64_t step, uint32_t side)
{
	struct reply reply = {.kind = MESSAGE_GROUP};

	reply.group = (struct group_reply){
		.group = 9,
		.step = step,
		.side = side,
		.n_places = 3,
		.n_entries = 3,
		.entries = entries,
	};
	reply.group.places[0] = place_of(SHARDS_0, 256);
	reply.group.places[1] = place_of(SHARDS_1, 256);
	reply.group.places[2] = place_of(GRADS, 256);
	return reply;
}

static struct fsdp_comm *join(uint64_t step)
{
	struct fsdp_comm *comm;

	world.answer.comm = (struct comm_reply){.comm = 5, .step = step};
	cr_assert(zero(int, fsdp_comm_join(&client, "job", 2, 1, NULL, &comm)));
	return comm;
}

static struct fsdp_group *enrol(struct fsdp_comm *comm, uint64_t step,
				uint32_t side)
{
	struct fsdp_group *group;

	world.answer = group_reply(step, side);
	cr_assert(zero(int, fsdp_group_register(comm, "layer", specs, 3, NULL,
						&group)),
		  "%s", fsdp_error());
	return group;
}

static struct fsdp_work unshard(struct fsdp_group *group)
{
	struct fsdp_work work;

	cr_assert(zero(int, fsdp_unshard(group, &work)));
	return work;
}

/* The broker refuses what was posted last. */
static void refuse_post(const struct post *post)
{
	const struct error cause = {-EINVAL, "rank 0 unshards another"};

	post->refused(post->data, post->number, &cause);
}

/* The broker answers a wait by one place. */
static void answer_place(struct tensor_place *place)
{
	world.answer.places = (struct places_reply){1, place, 0, NULL};
}

static void commit_step(struct fsdp_comm *comm, uint64_t step)
{
	struct fsdp_work work;

	world.answer.work.sequence = step;
	cr_assert(zero(int, fsdp_commit(comm, step, &work)));
	world.answer.places = (struct places_reply){0};
	cr_assert(zero(int, fsdp_wait(&work, -1)));
}

static struct fsdp_shard shard_of(struct fsdp_group *group, size_t param)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};

	cr_assert(zero(int, fsdp_shard(group, param, &shard)));
	return shard;
}

static void setup(void)
{
	memset(&world, 0, sizeof(world));
	memset(world.memory, 0xee, sizeof(world.memory));
}

TestSuite(rank, .init = setup);

/* --- joining and registering --------------------------------------------- */

Test(rank, what_is_left_out_of_a_join_gets_its_default)
{
	struct fsdp_comm_options options = {.n_shards = 1};
	struct fsdp_comm *comm = join(3);

	cr_expect(eq(u64, fsdp_comm_step(comm), 3));
	cr_expect(eq(u32, world.asked.comm_join.n_shards, 2));
	cr_expect(eq(int, world.asked.comm_join.timeout_ms, 60000));
	cr_expect(eq(u64, world.asked.comm_join.ttl_ms, 600000));
	cr_expect(eq(u32, world.asked.comm_join.n_inputs, 1));
	cr_expect(eq(u32, world.asked.comm_join.access.gid, GID_DEFAULT));
	fsdp_comm_leave(comm);
	cr_assert(zero(int,
		       fsdp_comm_join(&client, "job", 2, 1, &options, &comm)));
	cr_expect(eq(u32, world.asked.comm_join.n_shards, 1));
	cr_expect(eq(u32, world.asked.comm_join.access.gid, GID_DEFAULT));
	fsdp_comm_leave(comm);
	options.access = (struct fsdp_access){.gid = 7, .mode = 0660};
	cr_assert(zero(int,
		       fsdp_comm_join(&client, "job", 2, 1, &options, &comm)));
	cr_expect(eq(u32, world.asked.comm_join.access.gid, 7));
	fsdp_comm_leave(comm);
}

Test(rank, a_shard_is_this_ranks_part_of_the_parameter)
{
	struct fsdp_comm *comm = join(0);
	struct fsdp_group *group = enrol(comm, 0, 0);
	struct fsdp_shard shard = shard_of(group, 0);

	cr_expect(eq(u32, shard.dtype, FSDP_F32));
	cr_expect(eq(u32, shard.n_dims, 2));
	cr_expect(eq(i64, shard.shape[0], 1));
	cr_expect(eq(i64, shard.shape[1], 2));
	cr_expect(eq(i64, shard.start, 2));
	cr_expect(eq(u64, shard.numel, 2));
	cr_expect(zero(ptr, (void *)shard.current));
	cr_expect(eq(ptr, shard.next, world.memory[SHARDS_1] + 16));
	cr_expect(zero(ptr, shard.grad), "nothing was reduced");
	cr_expect(world.is_writable[SHARDS_0] && world.is_writable[GRADS]);
	cr_expect(zero(ptr, shard_of(group, 1).grad));
	/* A 0-d parameter is cut as one of one element. */
	shard = shard_of(group, 2);
	cr_expect(eq(u32, shard.n_dims, 1));
	cr_expect(eq(i64, shard.shape[0], 0));
	cr_expect(eq(i64, shard.start, 1));
	cr_expect(zero(u64, shard.numel));
	cr_expect(eq(int, fsdp_shard(group, 3, &shard), -EINVAL));
	fsdp_comm_leave(comm);
}

Test(rank, registering_zeroes_the_padding_of_what_may_be_written)
{
	static const uint8_t zeros[8];
	struct fsdp_comm *comm = join(0);
	uint8_t(*memory)[SLOT_SIZE] = world.memory;

	enrol(comm, 0, 0);
	/* Behind the row that this rank has. */
	for (int slot = SHARDS_0; slot <= SHARDS_1; slot++) {
		cr_expect(eq(u8, memory[slot][23], 0xee));
		cr_expect(zero(int, memcmp(memory[slot] + 24, zeros, 8)));
		cr_expect(eq(u8, memory[slot][32], 0xee));
		/* the 0-d parameter's chunk is all padding here */
		cr_expect(zero(int, memcmp(memory[slot] + 200, zeros, 8)));
		cr_expect(eq(u8, memory[slot][208], 0xee));
	}
	setup();
	/* What is committed may be read by others and is left alone. */
	enrol(comm, 4, 1);
	cr_expect(zero(int, memcmp(memory[SHARDS_0] + 24, zeros, 8)));
	cr_expect(eq(u8, memory[SHARDS_1][24], 0xee));
	fsdp_comm_leave(comm);
}

/* In place of the first. */
static const struct group_entry bad_entries[] = {
	{DTYPE_BF16, DTYPE_BF16, 0, 2, 16, 0, 0, 16}, /* another cut */
	{DTYPE_BF16, DTYPE_BF16, 1, 2, 16, 0, 0, 16}, /* of another dimension */
	{DTYPE_BF16, DTYPE_BF16, 2, 1, 16, 0, 0, 16}, /* of none */
	{DTYPE_BF16, DTYPE_BF16, 0, 1, 248, 0, 0, 16}, /* padding is outside */
	{DTYPE_BF16, DTYPE_BF16, 0, 1, 16, 0, 0, 252}, /* so is the gradient */
	{DTYPE_BF16, 0, 0, 1, 16, 0, 0, 16}, /* gradients of no dtype */
	{DTYPE_BF16, DTYPE_C128, 0, 1, 16, 0, UINT64_MAX - 64, 16},
	{DTYPE_BF16, DTYPE_BF16, 0, 1, 16, UINT64_MAX, 0, 16},
	{DTYPE_BF16, DTYPE_BF16, 0, 1, 16, 0, UINT64_MAX, 16},
};
#define N_BAD (sizeof(bad_entries) / sizeof(*bad_entries))

Test(rank, a_group_that_does_not_fit_its_memory_is_refused_and_let_go)
{
	struct fsdp_comm *comm = join(0);
	struct group_entry good = entries[0];
	struct fsdp_group *group;

	for (size_t i = 0; i < N_BAD; i++) {
		entries[0] = bad_entries[i];
		world.answer = group_reply(0, 0);
		cr_expect(eq(int,
			     fsdp_group_register(comm, "layer", specs, 3, NULL,
						 &group),
			     -EPROTO),
			  "%zu", i);
		cr_expect(zero(int, world.holds[SHARDS_0]));
		cr_expect(zero(int, world.holds[GRADS]));
	}
	entries[0] = good;
	world.answer = group_reply(0, 0);
	world.answer.group.n_entries = 2;
	cr_expect(eq(int,
		     fsdp_group_register(comm, "layer", specs, 3, NULL, &group),
		     -EPROTO));
	world.answer = group_reply(0, 0);
	world.answer.group.n_places = 2; /* but something is trainable */
	world.holds[GRADS]--;
	cr_expect(eq(int,
		     fsdp_group_register(comm, "layer", specs, 3, NULL, &group),
		     -EPROTO));
	cr_expect(zero(ptr, comm->groups));
	fsdp_comm_leave(comm);
}

Test(rank, a_policy_is_sent_as_it_is)
{
	struct fsdp_comm *comm = join(0);
	struct fsdp_policy policy = {.param_dtype = FSDP_BF16,
				     .input_dtype = FSDP_F64,
				     .reduce_dtype = FSDP_F32,
				     .layout = FSDP_LAYOUT_FLAT,
				     .reduce_cap_mb = 25,
				     .stays_unsharded = true};
	struct fsdp_group *group;

	world.answer = group_reply(0, 0);
	cr_assert(zero(int, fsdp_group_register(comm, "layer", specs, 3,
						&policy, &group)));
	cr_expect(eq(u64, world.asked.group.comm, 5));
	cr_expect(eq(u32, world.asked.group.param_dtype, DTYPE_BF16));
	cr_expect(eq(u32, world.asked.group.input_dtype, DTYPE_F64));
	cr_expect(eq(u32, world.asked.group.reduce_dtype, DTYPE_F32));
	cr_expect(eq(u32, world.asked.group.layout, 1));
	cr_expect(world.asked.group.stays_unsharded);
	cr_expect(zero(u32, world.asked.group.n_gather_caps));
	cr_expect(eq(u32, world.asked.group.n_reduce_caps, 1));
	cr_expect(eq(int,
		     fsdp_group_register(comm, "many", specs,
					 FSDP_MAX_PARAMS + 1, NULL, &group),
		     -E2BIG));
	fsdp_comm_leave(comm);
}

/* --- committing ---------------------------------------------------------- */

Test(rank, a_commit_swaps_the_shards_when_it_was_waited_for)
{
	struct fsdp_comm *comm = join(0);
	struct fsdp_group *group = enrol(comm, 0, 0);
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_work work, other;

	world.answer.work.sequence = 3;
	cr_assert(zero(int, fsdp_commit(comm, 3, &work)));
	/* Nobody knows here which is which before the wait. */
	cr_expect(eq(int, fsdp_shard(group, 0, &shard), -EBUSY));
	cr_expect(eq(int, fsdp_commit(comm, 4, &other), -EBUSY));
	cr_expect(eq(int, fsdp_unshard(group, &other), -EBUSY));
	cr_expect(eq(int, fsdp_input(group, 0), -EBUSY));
	world.code = -ETIMEDOUT;
	cr_expect(eq(int, fsdp_wait(&work, 0), -ETIMEDOUT));
	cr_expect(eq(int, fsdp_shard(group, 0, &shard), -EBUSY));
	world.code = 0;
	world.answer.places = (struct places_reply){0};
	cr_expect(zero(int, fsdp_wait(&work, -1)));
	cr_expect(eq(u64, fsdp_comm_step(comm), 3));
	shard = shard_of(group, 0);
	cr_expect(eq(ptr, (void *)shard.current, world.memory[SHARDS_1] + 16));
	cr_expect(eq(ptr, shard.next, world.memory[SHARDS_0] + 16));
	/* Waiting for what is done asks nobody. */
	world.n_asked = 0;
	cr_expect(zero(int, fsdp_wait(&work, 0)));
	cr_expect(zero(int, world.n_asked));
	cr_expect(eq(ptr, shard_of(group, 0).next, shard.next));
	fsdp_comm_leave(comm);
}

Test(rank, a_commit_carries_frozen_parameters_over)
{
	struct fsdp_comm *comm = join(0);
	struct fsdp_group *group = enrol(comm, 0, 0);

	/* The first time the rank writes it like all others. */
	memset(shard_of(group, 1).next, 0x11, 8);
	commit_step(comm, 1);
	cr_expect(eq(u8, world.memory[SHARDS_1][128], 0x11));
	cr_expect(eq(u8, world.memory[SHARDS_0][128], 0xee));
	/* Then a commit does, also over what the rank wrote there. */
	commit_step(comm, 2);
	cr_expect(eq(u8, world.memory[SHARDS_0][128], 0x11));
	cr_expect(eq(u8, world.memory[SHARDS_0][135], 0x11));
	cr_expect(eq(u8, world.memory[SHARDS_0][136], 0xee));
	memset(shard_of(group, 1).next, 0x22, 8);
	commit_step(comm, 3);
	cr_expect(eq(u8, *(const uint8_t *)shard_of(group, 1).current, 0x11));
	/* A parameter that is trained is the rank's to write. */
	memset(shard_of(group, 0).next, 0x33, 8);
	commit_step(comm, 4);
	cr_expect(eq(u8, *(const uint8_t *)shard_of(group, 0).current, 0x33));
	fsdp_comm_leave(comm);
}

/* --- whole parameters and gradients -------------------------------------- */

Test(rank, whole_parameters_are_there_from_the_wait_to_the_reshard)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct tensor_place place = place_of(FULL, 136);

	cr_expect(eq(int, fsdp_param(group, 0, &param), -EINVAL));
	answer_place(&place);
	cr_assert(zero(int, fsdp_wait(&work, 250)));
	cr_expect(eq(int, world.asked.wait.timeout_ms, 250));
	cr_expect(eq(u64, world.asked.wait.group, 9));
	cr_assert(zero(int, fsdp_param(group, 1, &param)));
	cr_expect(eq(ptr, (void *)param.data, world.memory[FULL] + 64));
	cr_expect(eq(u64, param.numel, 4));
	cr_assert(zero(int, fsdp_param(group, 0, &param)));
	cr_expect(eq(u32, param.dtype, FSDP_BF16));
	cr_expect(eq(i64, param.shape[0], 3));
	cr_expect(not(world.is_writable[FULL]));
	world.n_asked = 0;
	cr_expect(zero(int, fsdp_wait(&work, -1)));
	cr_expect(zero(int, world.n_asked));
	cr_expect(eq(int, world.holds[FULL], 1));
	cr_assert(zero(int, fsdp_reshard(group, 0)));
	cr_expect(zero(int, world.holds[FULL]));
	cr_expect(eq(int, fsdp_param(group, 0, &param), -EINVAL));
	cr_expect(eq(int, fsdp_reshard(group, 0), -EINVAL));
	cr_expect(zero(int, fsdp_wait(&work, -1)));
	fsdp_comm_leave(comm);
}

Test(rank, an_unshard_is_told_to_be_refused_by_its_wait)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work = unshard(group), again = unshard(group);
	struct tensor_place place = place_of(FULL, 136);

	cr_expect(eq(int, world.n_posted, 1)); /* the same work */
	cr_expect(eq(u64, again.sequence, work.sequence));
	cr_expect(eq(u64, world.posted.unshard.group, 9));
	refuse_post(&world.post);
	world.code = -EINVAL;
	world.n_asked = 0;
	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	cr_expect(eq(str, (char *)fsdp_error(), "rank 0 unshards another"));
	cr_expect(eq(int, world.n_asked, 1));
	cr_expect(zero(u64, world.asked.wait.sequence));
	/* It is not open any more; nothing is asked for it. */
	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	cr_expect(eq(int, fsdp_reshard(group, 0), -EINVAL));
	cr_expect(eq(int, world.n_asked, 1));
	world.code = 0;
	answer_place(&place);
	again = unshard(group);
	cr_expect(zero(int, fsdp_wait(&again, -1)));
	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	fsdp_comm_leave(comm);
}

/* The broker hears of both before we hear of the first. */
Test(rank, a_refusal_is_not_told_of_the_next_unshard)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct post first = world.post;
	struct tensor_place place = place_of(FULL, 136);

	cr_assert(zero(int, fsdp_reshard(group, 0)));
	work = unshard(group);
	refuse_post(&first);
	world.code = -ETIMEDOUT;
	cr_expect(eq(int, fsdp_wait(&work, 0), -ETIMEDOUT));
	world.code = 0;
	answer_place(&place);
	cr_expect(zero(int, fsdp_wait(&work, -1)));
	fsdp_comm_leave(comm);
}

/* The broker had no room for one more answer: the unshard is sent again. */
Test(rank, a_wait_that_came_before_its_unshard_is_asked_again)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct tensor_place place = place_of(FULL, 136);

	world.code = -EINVAL;
	world.n_refusals = 3;
	world.n_asked = 0;
	answer_place(&place);
	cr_expect(zero(int, fsdp_wait(&work, -1)));
	cr_expect(eq(int, world.n_asked, 4));
	fsdp_comm_leave(comm);
}

Test(rank, what_is_posted_tells_nobody_who_has_left)
{
	struct fsdp_comm *comm = join(4);

	unshard(enrol(comm, 4, 0));
	fsdp_comm_leave(comm);
	cr_expect(zero(ptr, (void *)(uintptr_t)world.post.refused));
}

Test(rank, a_refused_mesh_leaves_the_group_whole)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct tensor_place place = place_of(FULL, 136);
	struct fsdp_param param = {.struct_size = sizeof(param)};

	answer_place(&place);
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	world.code = -EINVAL;
	cr_expect(eq(int, fsdp_reshard(group, 3), -EINVAL));
	cr_expect(zero(int, fsdp_param(group, 0, &param)));
	world.code = 0;
	cr_expect(zero(int, fsdp_reshard(group, 1)));
	cr_expect(eq(u32, world.asked.reshard.n_mesh, 1));
	cr_expect(zero(int, world.holds[FULL]));
	fsdp_comm_leave(comm);
}

/* So that no pointer reaches outside of what is mapped. */
Test(rank, whole_parameters_that_are_too_small_are_refused)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct tensor_place place = place_of(FULL, 135);

	answer_place(&place);
	cr_expect(eq(int, fsdp_wait(&work, -1), -EPROTO));
	cr_expect(zero(int, world.holds[FULL]));
	world.answer.places = (struct places_reply){0};
	cr_expect(eq(int, fsdp_wait(&work, -1), -EPROTO));
	fsdp_comm_leave(comm);
}

Test(rank, an_input_is_the_ranks_from_asking_to_reducing)
{
	struct fsdp_reduce_options options = {
		.accumulates = true, .has_factor = true, .factor = 3};
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct tensor_place place = place_of(INPUT, 72);
	struct fsdp_work work;

	cr_expect(eq(int, fsdp_reduce(group, NULL, &work), -EINVAL));
	cr_expect(zero(ptr, fsdp_input_data(group, 0)));
	answer_place(&place);
	cr_assert(zero(int, fsdp_input(group, -1)));
	cr_expect(world.is_writable[INPUT]);
	cr_expect(eq(ptr, fsdp_input_data(group, 0), world.memory[INPUT]));
	cr_expect(eq(ptr, fsdp_input_data(group, 2), world.memory[INPUT] + 64));
	cr_expect(zero(ptr, fsdp_input_data(group, 1))); /* frozen */
	cr_expect(zero(ptr, fsdp_input_data(group, 3)));
	cr_expect(eq(int, fsdp_input(group, -1), -EBUSY));
	world.answer.work.sequence = 2;
	cr_assert(zero(int, fsdp_reduce(group, &options, &work)));
	cr_expect(eq(u32, world.asked.reduce.input.slot, INPUT));
	cr_expect(eq(u64, world.asked.reduce.input.generation, 7));
	cr_expect(eq(u32, world.asked.reduce.flags, REDUCE_ACCUMULATE));
	cr_expect(eq(dbl, world.asked.reduce.factor, 3));
	cr_expect(zero(ptr, fsdp_input_data(group, 0)));
	world.answer.places = (struct places_reply){0};
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	cr_expect(zero(int, world.holds[INPUT]));
	cr_expect(eq(u32, world.asked.wait.kind, WORK_REDUCE));
	world.n_asked = 0;
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	cr_expect(zero(int, world.n_asked));
	fsdp_comm_leave(comm);
}

static void reduce(struct fsdp_group *group, uint64_t sequence,
		   bool no_all_reduce, struct fsdp_work *ret)
{
	struct fsdp_reduce_options options = {.no_all_reduce = no_all_reduce};
	struct tensor_place place = place_of(INPUT, 72);

	answer_place(&place);
	cr_assert(zero(int, fsdp_input(group, -1)));
	world.answer = (struct reply){.work = {.sequence = sequence}};
	cr_assert(zero(int, fsdp_reduce(group, &options, ret)));
}

Test(rank, gradients_show_once_a_reduction_was_waited_for)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work;

	reduce(group, 1, false, &work);
	cr_expect(zero(ptr, shard_of(group, 0).grad), "not waited for");
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	cr_expect(eq(ptr, shard_of(group, 0).grad, world.memory[GRADS] + 16));
	cr_expect(zero(ptr, shard_of(group, 1).grad), "frozen");
	fsdp_comm_leave(comm);
}

Test(rank, sums_that_wait_for_an_all_reduce_are_no_gradients)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work;

	comm->n_replicas = 2;
	reduce(group, 1, true, &work);
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	cr_expect(zero(ptr, shard_of(group, 0).grad));
	reduce(group, 2, false, &work);
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	cr_expect(eq(ptr, shard_of(group, 0).grad, world.memory[GRADS] + 16));
	fsdp_comm_leave(comm);
}

Test(rank, a_null_handle_is_refused)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_group *group;
	struct fsdp_work work;

	cr_expect(eq(int, fsdp_shard(NULL, 0, &shard), -EINVAL));
	cr_expect(eq(int, fsdp_param(NULL, 0, &param), -EINVAL));
	cr_expect(eq(int, fsdp_unshard(NULL, &work), -EINVAL));
	cr_expect(eq(int, fsdp_reshard(NULL, 0), -EINVAL));
	cr_expect(eq(int, fsdp_input(NULL, 0), -EINVAL));
	cr_expect(zero(ptr, fsdp_input_data(NULL, 0)));
	cr_expect(eq(int, fsdp_reduce(NULL, NULL, &work), -EINVAL));
	cr_expect(eq(int, fsdp_wait(NULL, 0), -EINVAL));
	cr_expect(eq(int, fsdp_commit(NULL, 1, &work), -EINVAL));
	cr_expect(zero(u64, fsdp_comm_step(NULL)));
	cr_expect(eq(int, fsdp_group_register(NULL, "l", NULL, 0, NULL, &group),
		     -EINVAL));
}

Test(rank, no_work_is_refused)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_work work = {0};

	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	work = (struct fsdp_work){.comm = comm, .kind = WORK_UNSHARD};
	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	work.kind = 4;
	cr_expect(eq(int, fsdp_wait(&work, -1), -EINVAL));
	fsdp_comm_leave(comm);
}

/* --- the end ------------------------------------------------------------- */

Test(rank, a_failure_is_remembered_with_its_sentence)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work;
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};

	work = unshard(group);
	world.code = -ECONNABORTED;
	cr_expect(eq(int, fsdp_wait(&work, -1), -ECONNABORTED));
	world.code = 0;
	world.n_asked = world.n_posted = 0;
	cr_expect(eq(int, fsdp_unshard(group, &work), -ECONNABORTED));
	cr_expect(zero(int, world.n_posted));
	cr_expect(eq(int, fsdp_input(group, 0), -ECONNABORTED));
	cr_expect(eq(int, fsdp_commit(comm, 5, &work), -ECONNABORTED));
	cr_expect(eq(int, fsdp_param(group, 0, &param), -ECONNABORTED));
	cr_expect(eq(int, fsdp_shard(group, 0, &shard), -ECONNABORTED));
	cr_expect(eq(str, (char *)fsdp_error(), "rank 1 has died"));
	cr_expect(zero(int, world.n_asked));
	/* The broker waits for its survivors to leave. */
	fsdp_comm_leave(comm);
	cr_expect(eq(int, world.n_commands, 1));
	cr_expect(eq(u64, world.asked.comm_leave.comm, 5));
}

Test(rank, a_broker_that_does_not_come_back_is_the_end)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work;

	world.code = -ENOENT;
	work = unshard(group);
	cr_expect(eq(int, fsdp_wait(&work, -1), -ENOENT));
	world.is_down = true;
	cr_expect(eq(int, fsdp_wait(&work, -1), -ECONNABORTED));
	world.code = 0;
	world.is_down = false;
	cr_expect(eq(int, fsdp_unshard(group, &work), -ECONNABORTED));
	fsdp_comm_leave(comm);
}

Test(rank, leaving_gives_everything_back)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work = unshard(group);
	struct tensor_place full = place_of(FULL, 136);
	struct tensor_place input = place_of(INPUT, 72);

	answer_place(&full);
	cr_assert(zero(int, fsdp_wait(&work, -1)));
	answer_place(&input);
	cr_assert(zero(int, fsdp_input(group, -1)));
	fsdp_comm_leave(comm);
	for (int slot = 0; slot < N_SLOTS; slot++)
		cr_expect(zero(int, world.holds[slot]), "%d", slot);
	cr_expect(zero(ptr, client.comms));
	fsdp_comm_leave(NULL);
}

/* It would wait for the broker to come back, which knows nothing of us then. */
Test(rank, leaving_says_nothing_to_a_broker_that_is_away)
{
	struct fsdp_comm *comm = join(4);

	world.is_down = true;
	fsdp_comm_leave(comm);
	cr_expect(zero(int, world.n_commands));
}

Test(rank, closing_forgets_communicators_and_groups)
{
	struct fsdp_comm *first = join(4), *second = join(4);

	enrol(first, 4, 0);
	enrol(second, 4, 0);
	comm_free_all(&client);
	cr_expect(zero(ptr, client.comms));
	/* Their handles end with the connection. */
	cr_expect(eq(int, world.holds[GRADS], 2));
}

Test(rank, a_forked_child_is_refused)
{
	struct fsdp_comm *comm = join(4);
	struct fsdp_group *group = enrol(comm, 4, 0);
	struct fsdp_work work = {0};

	guard_word = 0;
	cr_expect(eq(int, fsdp_unshard(group, &work), -ECHILD));
	cr_expect(eq(int, fsdp_wait(&work, 0), -EINVAL));
	cr_expect(eq(int, fsdp_comm_remove(&client, "job"), -ECHILD));
	fsdp_comm_leave(comm); /* leaves the parent's alone */
	cr_expect(eq(ptr, client.comms, comm));
	guard_word = 1;
	fsdp_comm_leave(comm);
}
