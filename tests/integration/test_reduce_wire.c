/*
 * Tests inputs of reductions that libfsdp would never hand in, by raw frames.
 */
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/leaks.h"
#include "tests/lib/wire.h"
#include <errno.h>

static struct daemon daemon_;

static void setup(void)
{
	daemon_start(&daemon_);
}

static void teardown(void)
{
	daemon_stop(&daemon_);
}

CHECKED_SUITE(reduce_wire, setup, teardown, .timeout = 300);

static struct wire *wire;
static struct request asked;

/* The communicator has one rank, and two groups. */
static uint64_t wire_group(uint64_t comm, const char *name)
{
	struct group_param param = {
		.name = "weight",
		.type = {.dtype = DTYPE_F32, .n_dims = 1, .shape = {16}},
	};

	param.type.strides[0] = 1;
	asked = (struct request){
		.kind = MESSAGE_GROUP,
		.group = {.comm = comm,
			  .name = name,
			  .n_params = 1,
			  .params = &param},
	};
	cr_assert(eq(int, wire_call(wire, &asked), 0), "%s",
		  wire_sentence(wire));
	return wire->reply.group.group;
}

static uint64_t wire_join(void)
{
	asked = (struct request){
		.kind = MESSAGE_COMM_JOIN,
		.comm_join = {.name = "alone",
			      .access = {.gid = GID_DEFAULT},
			      .n_ranks = 1,
			      .n_shards = 1,
			      .timeout_ms = 10000,
			      .ttl_ms = 10000,
			      .n_inputs = 2},
	};
	cr_assert(eq(int, wire_call(wire, &asked), 0), "%s",
		  wire_sentence(wire));
	return wire->reply.comm.comm;
}

static struct slot_ref wire_input(uint64_t group)
{
	asked = (struct request){
		.kind = MESSAGE_INPUT,
		.input = {.group = group},
	};
	asked.input.timeout_ms = -1;
	cr_assert(eq(int, wire_call(wire, &asked), 0), "%s",
		  wire_sentence(wire));
	cr_assert(eq(u32, wire->reply.places.n_places, 1));
	return wire->reply.places.places[0].ref;
}

static int wire_reduce(uint64_t group, struct slot_ref input)
{
	asked = (struct request){
		.kind = MESSAGE_REDUCE,
		.reduce = {.group = group, .input = input},
	};
	return wire_call(wire, &asked);
}

static int wire_wait(uint64_t comm, uint64_t group, uint64_t sequence)
{
	asked = (struct request){
		.kind = MESSAGE_WAIT,
		.wait = {.comm = comm,
			 .group = group,
			 .kind = WORK_REDUCE,
			 .sequence = sequence,
			 .timeout_ms = -1},
	};
	return wire_call(wire, &asked);
}

Test(reduce_wire, an_input_is_accepted_once_and_only_for_its_group)
{
	struct slot_ref input, other;
	uint64_t comm, a, b;

	wire = wire_open(daemon_socket(&daemon_));
	comm = wire_join();
	a = wire_group(comm, "a");
	b = wire_group(comm, "b");
	input = wire_input(a);
	other = wire_input(b);
	cr_assert(eq(int, wire_reduce(b, input), -EINVAL));
	cr_assert(eq(int, wire_reduce(a, input), 0), "%s", wire_sentence(wire));
	cr_assert(lt(int, wire_reduce(a, input), 0));
	cr_assert(lt(int, wire_reduce(b, input), 0));
	cr_assert(eq(int, wire_reduce(b, other), 0), "%s", wire_sentence(wire));
	cr_assert(eq(int, wire_wait(comm, a, 1), 0), "%s", wire_sentence(wire));
	cr_assert(eq(int, wire_wait(comm, b, 1), 0), "%s", wire_sentence(wire));
	cr_assert(eq(int, wire_wait(comm, b, 2), -EINVAL));
	wire_goodbye(wire);
}

Test(reduce_wire, other_memory_is_refused_as_input)
{
	struct tensor_place tensor;
	struct slot_ref stale;
	uint64_t comm, group;

	wire = wire_open(daemon_socket(&daemon_));
	comm = wire_join();
	group = wire_group(comm, "a");
	cr_assert(eq(int, wire_alloc(wire, 64, NULL, -1, &tensor), 0));
	cr_assert(eq(int, wire_reduce(group, tensor.ref), -EINVAL));
	stale = wire_input(group);
	cr_assert(eq(int, wire_reduce(group, tensor.ref), -EINVAL));
	stale.generation++;
	cr_assert(eq(int, wire_reduce(group, stale), -ESTALE));
	stale.generation--;
	cr_assert(eq(int, wire_reduce(group, stale), 0), "%s",
		  wire_sentence(wire));
	wire_goodbye(wire);
}

Test(reduce_wire, an_input_that_was_released_still_belongs_to_the_rank)
{
	struct slot_ref input;
	uint64_t comm, group;

	wire = wire_open(daemon_socket(&daemon_));
	comm = wire_join();
	group = wire_group(comm, "a");
	input = wire_input(group);
	cr_assert(eq(int, wire_release(wire, &input), 0));
	cr_assert(eq(int, wire_reduce(group, input), 0), "%s",
		  wire_sentence(wire));
	cr_assert(eq(int, wire_wait(comm, group, 1), 0), "%s",
		  wire_sentence(wire));
	wire_goodbye(wire);
}
