/*
 * Guests: processes that share channels and a run with hostile processes, and
 * check that nothing else that they have is damaged.
 */
#include "client/fsdp_channel.h"
#include "client/fsdp_collective.h"
#include "client/fsdp_comm.h"
#include "tests/hostile/hostile.h"
#include "tests/lib/chaos.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CAPACITY   4096
#define N_HELD     3 /* items of a channel at a time */
#define WORLD      3
#define TIMEOUT_MS 300
#define NUMEL      (64 * 64)

/* --- calls --------------------------------------------------------------- */

static void begin_call(const struct guest *guest, const char *what)
{
	if (!guest->caller)
		return;
	atomic_store(&guest->caller->doing, what);
	atomic_store(&guest->caller->since_ms, clock_ms());
	atomic_fetch_add(&guest->caller->n_calls, 1);
}

static int end_call(const struct guest *guest, int r)
{
	if (!guest->caller)
		return r;
	atomic_store(&guest->caller->since_ms, 0);
	if (r < 0)
		atomic_fetch_add(&guest->caller->n_refused, 1);
	/* an error of the library itself, or one of an argument */
	/* The text of an item that is an error may be empty. */
	must(r >= 0 || r == -EREMOTEIO || (r != -EFAULT && *fsdp_error()));
	return r;
}

/* Counts it for a guest. */
#define count(guest, field)                                                    \
	do {                                                                   \
		if ((guest)->caller)                                           \
			atomic_fetch_add(&(guest)->caller->field, 1);          \
	} while (0)

#define CALL(guest, call) (begin_call(guest, #call), end_call(guest, call))

/* --- what must stay as it is --------------------------------------------- */

/* Tensors of the class of the channel that hostile processes may only read, and
 * of one that they may not even read. */
static struct fsdp_tensor *make(struct guest *guest, uint32_t i)
{
	static const struct fsdp_spec spec = {FSDP_U8, 1, {CAPACITY}};
	const struct fsdp_access access = {.gid = getegid(),
					   .mode = i % 2 ? 0640 : 0600};
	struct fsdp_tensor *tensor = NULL;
	int r = CALL(guest, fsdp_alloc(guest->client, &spec, 1, &access, 100,
				       &tensor));

	must(r == 0 || is_shortage(r));
	if (r == 0)
		pattern_fill(tensor, i);
	return tensor;
}

static void check(struct guest *guest)
{
	for (uint32_t i = 0; guest->caller && i < GUEST_KEPT; i++) {
		struct fsdp_tensor **kept = &guest->kept[i];

		must(!*kept || pattern_is(*kept, i));
		if (*kept && draw(&guest->chance, 2))
			continue;
		fsdp_free(*kept);
		*kept = make(guest, i);
	}
}

/* --- channels ------------------------------------------------------------ */

/* Hostile processes may write the memory of the first two, and only read that
 * of the third. */
static const struct {
	const char *name;
	struct fsdp_channel_options options;
} channels[] = {
	{"shared/share",
	 {.capacity = CAPACITY,
	  .n_slots = 5,
	  .access = {.mode = 0660},
	  .timeout_ms = TIMEOUT_MS}},
	{"shared/cast",
	 {.capacity = CAPACITY,
	  .n_slots = 5,
	  .access = {.mode = 0660},
	  .mode = FSDP_CHANNEL_BROADCAST,
	  .lag_ms = 30,
	  .timeout_ms = TIMEOUT_MS}},
	{"shared/read",
	 {.capacity = CAPACITY,
	  .n_slots = 5,
	  .access = {.mode = 0640},
	  .timeout_ms = TIMEOUT_MS}},
};
#define N_CHANNELS (sizeof(channels) / sizeof(channels[0]))

/* All processes use one of them, or the run, at the same time. */
static uint32_t turn(void)
{
	return (uint32_t)(clock_ms() / 256 % (N_CHANNELS + 1));
}

bool guest_is_run_time(void)
{
	return turn() == N_CHANNELS;
}

struct stream {
	struct fsdp_channel *channel;
	enum fsdp_channel_role role;
	struct fsdp_item *held[N_HELD];
	uint8_t *data[N_HELD];
	struct fsdp_tensor *kept;
};

static void produce(struct guest *guest, struct stream *stream, uint32_t i)
{
	static const struct fsdp_spec spec = {FSDP_U8, 1, {CAPACITY}};
	struct fsdp_item **item = &stream->held[i];
	void *data = NULL;

	if (!*item) {
		if (CALL(guest, fsdp_item_begin(stream->channel, 2, item)) < 0)
			*item = NULL;
		else if (CALL(guest, fsdp_item_part(*item, &spec, &data)) == 0)
			memset(stream->data[i] = data, 0x55, CAPACITY);
		return;
	}
	memset(stream->data[i], 0xaa, CAPACITY);
	if (draw(&guest->chance, 8))
		(void)CALL(guest, fsdp_item_send(*item));
	else
		fsdp_item_cancel(*item);
	*item = NULL;
}

/* Read all bytes, which must be mapped. */
static void look_at(struct guest *guest, const struct fsdp_item *item)
{
	struct fsdp_item_view view = {.struct_size = sizeof(view)};

	for (uint32_t i = 0; i < fsdp_item_n_parts(item); i++) {
		if (CALL(guest, fsdp_item_view(item, i, &view)) < 0)
			continue;
		for (uint64_t j = 0; j < view.size; j++)
			(void)((const volatile uint8_t *)view.data)[j];
	}
}

static void keep(struct guest *guest, struct stream *stream,
		 struct fsdp_item *item)
{
	struct fsdp_tensor *kept = NULL;

	if (CALL(guest, fsdp_item_keep(item, 0, &kept)) < 0)
		return;
	fsdp_free(stream->kept);
	stream->kept = kept;
}

static void consume(struct guest *guest, struct stream *stream, uint32_t i)
{
	struct fsdp_item **item = &stream->held[i];

	if (!*item) {
		if (CALL(guest, fsdp_item_receive(stream->channel, 2, item)) <
		    0)
			*item = NULL;
		else
			count(guest, n_items);
		return;
	}
	look_at(guest, *item);
	if (draw(&guest->chance, guest->caller ? 8 : 2) == 0)
		keep(guest, stream, *item);
	(void)CALL(guest, fsdp_item_release(*item));
	*item = NULL;
}

static int open_stream(struct guest *guest, struct stream *stream)
{
	uint32_t i = turn() % N_CHANNELS;
	struct fsdp_channel_options options = channels[i].options;
	const char *name = channels[i].name;

	options.access.gid = getegid();
	stream->role = draw(&guest->chance, 8) < 1 + 3 * guest->rank
			       ? FSDP_CONSUMER
			       : FSDP_PRODUCER;
	/* only the guests make the channels, so these are theirs */
	if (!guest->caller)
		options = (struct fsdp_channel_options){0};
	return CALL(guest, fsdp_channel_open(guest->client, name, &options,
					     stream->role, &stream->channel));
}

void guest_use_channel(struct guest *guest)
{
	struct stream stream = {.kept = NULL};
	struct fsdp_channel_info info = {.struct_size = sizeof(info)};
	uint32_t n = 20 + draw(&guest->chance, 500), at_turn = turn();

	if (open_stream(guest, &stream) < 0)
		return;
	for (uint32_t i = 0; i < n && turn() == at_turn; i++) {
		uint32_t at = draw(&guest->chance, N_HELD);

		if (stream.role == FSDP_PRODUCER)
			produce(guest, &stream, at);
		else
			consume(guest, &stream, at);
		(void)CALL(guest, fsdp_channel_info(stream.channel, &info));
		if (draw(&guest->chance, 4) == 0)
			check(guest);
		if (draw(&guest->chance, 200) == 0)
			(void)CALL(guest,
				   fsdp_channel_resize(
					   stream.channel,
					   1 + draw(&guest->chance, 6), 5));
	}
	(void)CALL(guest, fsdp_channel_close(stream.channel));
	fsdp_free(stream.kept);
}

/* --- a run --------------------------------------------------------------- */

static const struct fsdp_param_spec PARAMS[] = {
	{.name = "w", .spec = {FSDP_F32, 2, {64, 64}}},
};

static int gather(struct guest *guest, struct fsdp_group *group)
{
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_work work;
	int r = CALL(guest, fsdp_unshard(group, &work));

	if (r == 0)
		r = CALL(guest, fsdp_wait(&work, 1000));
	if (r == 0)
		r = CALL(guest, fsdp_param(group, 0, &param));
	for (uint64_t i = 0; r == 0 && i < param.numel; i++)
		(void)((const volatile float *)param.data)[i];
	return r < 0 ? r : CALL(guest, fsdp_reshard(group, 0));
}

static int reduce(struct guest *guest, struct fsdp_group *group)
{
	struct fsdp_work work;
	float *input;
	int r = CALL(guest, fsdp_input(group, 1000));

	if (r < 0)
		return r;
	input = fsdp_input_data(group, 0);
	for (uint64_t i = 0; input && i < NUMEL; i++)
		input[i] = 1;
	r = CALL(guest, fsdp_reduce(group, NULL, &work));
	return r < 0 ? r : CALL(guest, fsdp_wait(&work, 1000));
}

static int commit(struct guest *guest, struct fsdp_comm *comm,
		  struct fsdp_group *group)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_work work;
	int r = CALL(guest, fsdp_shard(group, 0, &shard));

	if (r < 0)
		return r;
	for (uint64_t i = 0; i < shard.numel; i++)
		((float *)shard.next)[i] = 1;
	r = CALL(guest, fsdp_commit(comm, fsdp_comm_step(comm) + 1, &work));
	return r < 0 ? r : CALL(guest, fsdp_wait(&work, 1000));
}

static int exchange(struct guest *guest, struct fsdp_comm *comm)
{
	static float in[NUMEL], out[NUMEL];
	struct fsdp_transfer *sent = NULL, *received = NULL;
	uint32_t next = (guest->rank + 1) % WORLD;
	int r = CALL(guest,
		     fsdp_all_reduce(comm, FSDP_F32, FSDP_SUM, in, out, NUMEL));

	if (r == 0)
		r = CALL(guest, fsdp_barrier(comm, 1000));
	if (r == 0)
		r = CALL(guest,
			 fsdp_send(comm, FSDP_F32, in, NUMEL, next, 7, &sent));
	if (r == 0)
		r = CALL(guest, fsdp_receive(comm, FSDP_F32, out, NUMEL,
					     FSDP_ANY_RANK, 7, &received));
	if (r == 0)
		r = CALL(guest, fsdp_transfer_wait(received, 1000, NULL));
	return r < 0 ? r : CALL(guest, fsdp_transfer_wait(sent, 1000, NULL));
}

static int train(struct guest *guest, struct fsdp_comm *comm)
{
	const struct fsdp_policy policy = {.layout = FSDP_LAYOUT_FLAT};
	struct fsdp_group *group = NULL;
	int r = CALL(guest, fsdp_group_register(comm, "g", PARAMS, 1, &policy,
						&group));

	if (r == 0)
		r = commit(guest, comm, group);
	for (int i = 0; r == 0 && i < 30; i++) {
		r = gather(guest, group);
		if (r == 0)
			r = reduce(guest, group);
		if (r == 0)
			r = exchange(guest, comm);
		if (r == 0)
			r = commit(guest, comm, group);
		if (r == 0)
			count(guest, n_steps);
	}
	return r;
}

void guest_use_run(struct guest *guest)
{
	const struct fsdp_comm_options options = {
		.access = {.gid = getegid(), .mode = 0660},
		.timeout_ms = TIMEOUT_MS,
		.ttl_ms = 1,
	};
	struct fsdp_comm *comm = NULL;

	if (CALL(guest, fsdp_comm_join(guest->client, "shared/run", WORLD,
				       guest->rank, &options, &comm)) < 0)
		return;
	(void)train(guest, comm);
	check(guest);
	(void)CALL(guest, fsdp_comm_leave(comm));
}

/* --- a guest -------------------------------------------------------------- */

void guest_live(void *data)
{
	const struct life *life = data;
	const struct fsdp_connect_options options = {
		.path = life->siege->socket};
	struct guest guest = {.siege = life->siege,
			      .chance = {life->seed},
			      .caller = &life->siege->guests[life->number],
			      .rank = life->number};

	siege_become(life->siege, USER_GUEST);
	must(fsdp_connect(&options, &guest.client) == 0);
	while (!atomic_load(&life->siege->must_end)) {
		if (guest_is_run_time())
			guest_use_run(&guest);
		else
			guest_use_channel(&guest);
	}
	check(&guest);
	must(fsdp_close(guest.client) == 0);
}
