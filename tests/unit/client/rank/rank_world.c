/*
 * Replaces the parts of libfsdp that ranks use. It records the requests, and
 * gives the replies that the test chose.
 */
#include "tests/unit/client/rank/rank_world.h"
#include "client/copy.h"
#include "client/one_way.h"
#include "client/places.h"
#include "client/stream.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <string.h>

struct world world;
_Atomic uint32_t guard_word = 1;
struct fsdp_client client = {
	.guard = {&guard_word},
	.comms_lock = PTHREAD_MUTEX_INITIALIZER,
};

/* Only devices need these functions. */
int fsdp_release_on(struct fsdp_tensor *tensor, void *stream)
{
	(void)tensor;
	(void)stream;
	cr_assert(false);
	return 0;
}

int stream_mark(struct fsdp_tensor *const *tensors, size_t n, void *stream,
		struct fence *ret, const uint8_t **ret_event, struct error *err)
{
	(void)tensors;
	(void)n;
	(void)stream;
	(void)ret;
	(void)ret_event;
	(void)err;
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

int mappings_keep(struct mappings *mappings, uint32_t chunk, struct range *ret,
		  struct error *err)
{
	(void)mappings;
	(void)chunk;
	(void)ret;
	(void)err;
	cr_assert(false);
	return 0;
}

void mappings_end_keep(struct mappings *mappings, uint32_t chunk)
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
		struct received *ret, struct error *err)
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
	*ret = (struct received){.reply = world.received};
	return 0;
}

int client_command(struct fsdp_client *of, const struct request *request,
		   struct error *err)
{
	struct received received;

	world.n_commands++;
	return client_call(of, request, &received, err);
}

int client_send_one_way(struct fsdp_client *of, const struct request *request,
			const struct one_way *one_way, struct error *err)
{
	(void)err;
	cr_assert(eq(ptr, of, &client));
	world.sent_one_way = *request;
	world.one_way = *one_way;
	world.n_one_way++;
	return 0;
}

void connection_forget_one_way(struct connection *connection, const void *data)
{
	(void)connection;
	if (world.one_way.data == data)
		world.one_way.refused = NULL;
}

bool connection_is_down(struct connection *connection)
{
	(void)connection;
	return world.is_down;
}

void received_deinit(struct received *received)
{
	(void)received;
}

void places_take_chunks(struct fsdp_client *of, struct received *received,
			const struct chunk_ref *chunks, uint32_t n_chunks,
			uint16_t first_fd)
{
	(void)of;
	(void)received;
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

/* No memory here is on a device. */
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

struct tensor_place place_of(uint32_t slot, int64_t size)
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

const struct fsdp_param_spec specs[N_PARAMS] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {3, 2}}},
	{.name = "base", .spec = {FSDP_F32, 1, {4}}, .is_frozen = true},
	{.name = "scale", .spec = {FSDP_F64, 0, {0}}},
};
struct group_entry entries[N_PARAMS] = {
	{DTYPE_BF16, DTYPE_BF16, 0, 1, 16, 0, 0, 16},
	{DTYPE_F32, 0, 0, 2, 128, 64, 0, 0},
	{DTYPE_F64, DTYPE_F64, 0, 0, 200, 128, 64, 128},
};

struct reply group_reply(uint64_t step, uint32_t side)
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

struct fsdp_comm *join(uint64_t step)
{
	struct fsdp_comm *comm;

	world.received.comm = (struct comm_reply){.comm = 5, .step = step};
	cr_assert(zero(int, fsdp_comm_join(&client, "job", 2, 1, NULL, &comm)));
	return comm;
}

struct fsdp_group *new_group(struct fsdp_comm *comm, uint64_t step,
			     uint32_t side)
{
	struct fsdp_group *group;

	world.received = group_reply(step, side);
	cr_assert(zero(int, fsdp_group_register(comm, "layer", specs, 3, NULL,
						&group)),
		  "%s", fsdp_error());
	return group;
}

struct fsdp_work unshard(struct fsdp_group *group)
{
	struct fsdp_work work;

	cr_assert(zero(int, fsdp_unshard(group, &work)));
	return work;
}

/* Act as if the broker refused the one-way request. */
void refuse_one_way(const struct one_way *one_way)
{
	const struct error cause = {-EINVAL, "rank 0 unshards another"};

	one_way->refused(one_way->data, one_way->number, &cause);
}

/* Prepare a reply to a wait that contains one place. */
void answer_place(struct tensor_place *place)
{
	world.received.places = (struct places_reply){1, place, 0, NULL};
}

void commit_step(struct fsdp_comm *comm, uint64_t step)
{
	struct fsdp_work work;

	world.received.work.sequence = step;
	cr_assert(zero(int, fsdp_commit(comm, step, &work)));
	world.received.places = (struct places_reply){0};
	cr_assert(zero(int, fsdp_wait(&work, -1)));
}

struct fsdp_shard shard_of(struct fsdp_group *group, size_t param)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};

	cr_assert(zero(int, fsdp_shard(group, param, &shard)));
	return shard;
}

void world_open(void)
{
	memset(&world, 0, sizeof(world));
	memset(world.memory, 0xee, sizeof(world.memory));
}
