/* Tests the limiter: the reference's event queue, case by case, and the window
 * with random requests. */
#include "collective/limiter.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct limiter *make(enum limiter_kind kind, uint32_t limit,
			    uint64_t limit_bytes)
{
	const struct limiter_options options = {
		.kind = kind, .limit = limit, .limit_bytes = limit_bytes};
	struct limiter *limiter;

	cr_assert(zero(int, limiter_new(&options, &limiter, NULL)));
	return limiter;
}

static uint64_t request(struct limiter *limiter, uint64_t bytes)
{
	uint64_t ticket;

	cr_assert(zero(int,
		       limiter_request(limiter, bytes, false, &ticket, NULL)));
	return ticket;
}

static struct limiter_state state_of(const struct limiter *limiter)
{
	struct limiter_state state;

	limiter_state(limiter, &state);
	return state;
}

/* ------------------------------------------------------ the FSDP1 form */

#define N_LAYERS 5

/* Unshard a layer, whose number is that of its ticket and begins with 1. It
 * must wait for `event`, or for no event if that is 0. The event then
 * completes. */
static void unshard(struct limiter *limiter, uint64_t layer, uint64_t event)
{
	cr_assert(eq(u64, request(limiter, 1), layer));
	cr_expect(eq(u64, limiter_waited_for(limiter, layer), event),
		  "layer %u", (unsigned int)layer);
	if (event) {
		cr_expect(not(limiter_is_admitted(limiter, layer)));
		limiter_complete(limiter, event);
	}
	cr_assert(limiter_is_admitted(limiter, layer));
}

static void reshard(struct limiter *limiter, uint64_t layer)
{
	limiter_free_ticket(limiter, layer, true);
}

/* Unshard layers 1 to n, each of which is resharded before the next. The first
 * `limit` of them wait for no event, the others for the one that is `limit`
 * older. Returns how many are left in the queue. */
static uint32_t run_layers(uint32_t limit, uint64_t n)
{
	struct limiter *limiter = make(LIMITER_FSDP1, limit, 0);
	uint32_t n_left;

	for (uint64_t i = 1; i <= n; i++) {
		unshard(limiter, i, i > limit ? i - limit : 0);
		reshard(limiter, i);
	}
	n_left = state_of(limiter).n_events;
	limiter_free(limiter);
	return n_left;
}

/* case 1 */
Test(limiter, fsdp1_the_third_unshard_waits_for_the_first)
{
	struct limiter *limiter = make(LIMITER_FSDP1, 0, 0);

	unshard(limiter, 1, 0);
	reshard(limiter, 1);
	unshard(limiter, 2, 0);
	reshard(limiter, 2);
	unshard(limiter, 3, 1);
	cr_assert(eq(u32, state_of(limiter).n_events, 1));
	cr_assert(eq(u64, state_of(limiter).n_waits, 1));
	limiter_free(limiter);
}

/* cases 2 and 4 */
Test(limiter, fsdp1_a_layer_waits_for_the_layer_that_is_the_limit_earlier)
{
	cr_expect(eq(u32, run_layers(2, N_LAYERS), 2));
	cr_expect(eq(u32, run_layers(1, N_LAYERS), 1));
	cr_expect(eq(u32, run_layers(3, 3), 3));
}

/* case 3 */
Test(limiter, fsdp1_prefetching_leaves_three_events)
{
	struct limiter *limiter = make(LIMITER_FSDP1, 2, 0);

	unshard(limiter, 1, 0);
	for (uint64_t i = 1; i <= N_LAYERS; i++) {
		if (i < N_LAYERS)
			unshard(limiter, i + 1, i >= 3 ? i - 2 : 0);
		reshard(limiter, i);
	}
	cr_assert(eq(u32, state_of(limiter).n_events, 3));
	/* The events that are left are for the next iteration. */
	unshard(limiter, N_LAYERS + 1, 3);
	limiter_free(limiter);
}

/* case 7 */
Test(limiter, fsdp1_a_reshard_that_frees_no_memory_queues_no_event)
{
	struct limiter *limiter = make(LIMITER_FSDP1, 2, 0);

	for (uint64_t i = 1; i <= 10; i++) {
		unshard(limiter, i, 0);
		limiter_free_ticket(limiter, i, false);
	}
	unshard(limiter, 11, 0);
	limiter_free(limiter);
}

/* case 7 */
Test(limiter, fsdp1_a_request_takes_only_one_event)
{
	struct limiter *limiter = make(LIMITER_FSDP1, 2, 0);

	for (uint64_t i = 1; i <= 5; i++)
		unshard(limiter, i, 0);
	for (uint64_t i = 1; i <= 5; i++)
		reshard(limiter, i);
	cr_assert(eq(u32, state_of(limiter).n_events, 5));
	unshard(limiter, 6, 1);
	cr_assert(eq(u32, state_of(limiter).n_events, 4));
	limiter_free(limiter);
}

Test(limiter, fsdp1_a_complete_event_is_taken_without_waiting)
{
	struct limiter *limiter = make(LIMITER_FSDP1, 1, 0);

	unshard(limiter, 1, 0);
	reshard(limiter, 1);
	limiter_complete(limiter, 1);
	cr_assert(eq(u64, request(limiter, 1), 2));
	cr_assert(limiter_is_admitted(limiter, 2));
	cr_assert(eq(u64, limiter_waited_for(limiter, 2), 1));
	cr_assert(zero(u64, state_of(limiter).n_waits));
	limiter_free(limiter);
}

Test(limiter, fsdp1_requests_are_admitted_in_order)
{
	struct limiter *limiter = make(LIMITER_FSDP1, 1, 0);

	unshard(limiter, 1, 0);
	reshard(limiter, 1);
	cr_assert(eq(u64, request(limiter, 1), 2)); /* waits for 1 */
	/* for no event, but for 2 */
	cr_assert(eq(u64, request(limiter, 1), 3));
	cr_assert(not(limiter_is_admitted(limiter, 3)));
	limiter_free_ticket(limiter, 2, true); /* withdrawn: no event */
	cr_assert(limiter_is_admitted(limiter, 3));
	cr_assert(zero(u32, state_of(limiter).n_events));
	limiter_complete(limiter, 1); /* has no waiter any more */
	limiter_free(limiter);
}

/* --------------------------------------------------------------- the window */

Test(limiter, two_requests_are_in_flight_by_default)
{
	struct limiter *limiter = make(LIMITER_WINDOW, 0, 0);

	for (int i = 0; i < 3; i++)
		request(limiter, UINT64_MAX / 4);
	cr_assert(limiter_is_admitted(limiter, 2));
	cr_assert(not(limiter_is_admitted(limiter, 3)));
	limiter_free_ticket(limiter, 1, true);
	cr_assert(limiter_is_admitted(limiter, 3));
	cr_assert(zero(u32, state_of(limiter).n_events));
	limiter_free(limiter);
}

Test(limiter, freeing_admits_as_many_as_fit)
{
	struct limiter *limiter = make(LIMITER_WINDOW, 8, 100);

	request(limiter, 90);
	for (int i = 0; i < 4; i++)
		request(limiter, 30);
	cr_assert(eq(u32, state_of(limiter).n_waiting, 4));
	limiter_free_ticket(limiter, 1, false);
	cr_assert(eq(u32, state_of(limiter).n_in_flight, 3));
	cr_assert(eq(u64, state_of(limiter).bytes_in_flight, 90));
	cr_assert(not(limiter_is_admitted(limiter, 5)));
	limiter_free(limiter);
}

Test(limiter, a_request_larger_than_the_limit_runs_alone_and_in_order)
{
	struct limiter *limiter = make(LIMITER_WINDOW, 2, 100);

	request(limiter, 10);
	request(limiter, 500);
	request(limiter, 10); /* would fit, but comes later */
	cr_assert(not(limiter_is_admitted(limiter, 2)));
	cr_assert(not(limiter_is_admitted(limiter, 3)));
	limiter_free_ticket(limiter, 1, false);
	cr_assert(limiter_is_admitted(limiter, 2));
	cr_assert(not(limiter_is_admitted(limiter, 3)));
	limiter_free_ticket(limiter, 2, false);
	cr_assert(limiter_is_admitted(limiter, 3));
	limiter_free(limiter);
}

Test(limiter, an_exempt_group_counts_its_bytes_but_blocks_no_single_request)
{
	struct limiter *limiter = make(LIMITER_WINDOW, 1, 100);
	uint64_t root;

	cr_assert(zero(int, limiter_request(limiter, 60, true, &root, NULL)));
	request(limiter, 30); /* 2 */
	/* ticket 3: does not fit with ticket 2, but may run with the root
	 * alone */
	request(limiter, 50);
	cr_assert(limiter_is_admitted(limiter, 2));
	cr_assert(not(limiter_is_admitted(limiter, 3)));
	limiter_free_ticket(limiter, 2, false);
	cr_assert(limiter_is_admitted(limiter, 3));
	cr_assert(eq(u64, state_of(limiter).bytes_in_flight, 110));
	limiter_free(limiter);
}

Test(limiter, withdrawing_a_waiting_request_admits_the_next_one)
{
	struct limiter *limiter = make(LIMITER_WINDOW, 3, 100);

	request(limiter, 60);
	request(limiter, 60);
	request(limiter, 20);
	limiter_free_ticket(limiter, 2, false);
	cr_assert(limiter_is_admitted(limiter, 3));
	cr_assert(zero(u32, state_of(limiter).n_waiting));
	cr_assert(eq(u64, state_of(limiter).n_waits, 2));
	limiter_free(limiter);
}

/* A model of the window, which only checks the limiter's decisions. */
#define N_STEPS 600

struct model {
	struct limiter *limiter;
	struct model_ticket {
		uint64_t bytes;
		bool is_exempt, is_admitted, is_freed;
	} tickets[N_STEPS + 1];
	uint64_t n, limit, limit_bytes;
	uint64_t n_counted, bytes;
	uint64_t random;
};

static uint64_t draw(struct model *model, uint64_t n)
{
	model->random ^= model->random << 13;
	model->random ^= model->random >> 7;
	model->random ^= model->random << 17;
	return model->random % n;
}

/* Returns whether the model permits to admit the ticket now. */
static bool fits(const struct model *model, const struct model_ticket *ticket)
{
	bool has_place = ticket->is_exempt || model->n_counted < model->limit;

	return has_place &&
	       (model->bytes + ticket->bytes <= model->limit_bytes ||
		model->n_counted == 0);
}

/* Check the tickets that the last step admitted: they are in order and within
 * the limits, and no other ticket could have been admitted. */
static void follow(struct model *model)
{
	bool is_blocked = false;

	for (uint64_t i = 1; i <= model->n; i++) {
		struct model_ticket *ticket = &model->tickets[i];

		if (ticket->is_freed || ticket->is_admitted)
			continue;
		if (!limiter_is_admitted(model->limiter, i)) {
			if (!is_blocked)
				cr_assert(not(fits(model, ticket)),
					  "waits without need");
			is_blocked = true;
			continue;
		}
		cr_assert(not(is_blocked), "overtook an earlier one");
		cr_assert(fits(model, ticket), "over the limit");
		ticket->is_admitted = true;
		model->n_counted += !ticket->is_exempt;
		model->bytes += ticket->bytes;
	}
	cr_assert(eq(u64, state_of(model->limiter).bytes_in_flight,
		     model->bytes));
}

static void ask(struct model *model)
{
	struct model_ticket *ticket = &model->tickets[++model->n];
	uint64_t number;

	ticket->bytes = draw(model, 130); /* some above the limit */
	ticket->is_exempt = draw(model, 10) == 0;
	cr_assert(zero(int, limiter_request(model->limiter, ticket->bytes,
					    ticket->is_exempt, &number, NULL)));
	cr_assert(eq(u64, number, model->n));
	follow(model);
}

static void let_go(struct model *model, uint64_t number)
{
	struct model_ticket *ticket = &model->tickets[number];

	if (ticket->is_freed)
		return;
	ticket->is_freed = true;
	if (ticket->is_admitted) {
		model->n_counted -= !ticket->is_exempt;
		model->bytes -= ticket->bytes;
	}
	limiter_free_ticket(model->limiter, number, draw(model, 2));
	follow(model);
}

/* If only tickets are freed that are not exempt, all are admitted in the
 * end. */
static void check_nobody_starves(struct model *model)
{
	for (uint64_t i = 1; i <= model->n; i++) {
		struct model_ticket *ticket = &model->tickets[i];

		if (ticket->is_freed)
			continue;
		cr_assert(ticket->is_admitted, "ticket %u starves",
			  (unsigned int)i);
		if (!ticket->is_exempt)
			let_go(model, i);
	}
	cr_assert(zero(u32, state_of(model->limiter).n_waiting));
}

/* invariant 8.2.4 */
Test(limiter, the_window_is_not_exceeded_under_random_work)
{
	static struct model model;

	for (uint64_t seed = 1; seed <= 8; seed++) {
		model = (struct model){.random = seed * 0x9e3779b97f4a7c15,
				       .limit = 1 + seed % 4,
				       .limit_bytes = 100};
		model.limiter = make(LIMITER_WINDOW, (uint32_t)model.limit,
				     model.limit_bytes);
		for (int i = 0; i < N_STEPS; i++) {
			if (draw(&model, 2))
				ask(&model);
			else if (model.n)
				let_go(&model, 1 + draw(&model, model.n));
		}
		check_nobody_starves(&model);
		limiter_free(model.limiter);
	}
}

Test(limiter, invalid_options_and_overflowing_sizes_are_refused)
{
	const struct limiter_options options = {.kind = 7};
	struct limiter *limiter = NULL;
	struct error err = ERROR_NULL;
	uint64_t ticket = 77;

	cr_assert(eq(int, limiter_new(&options, &limiter, &err), -EINVAL));
	cr_assert(strstr(err.msg, "kind 7") != NULL);
	cr_assert(zero(ptr, limiter));
	limiter = make(LIMITER_WINDOW, 2, 0);
	request(limiter, UINT64_MAX - 1);
	cr_assert(eq(int, limiter_request(limiter, 2, true, &ticket, &err),
		     -EOVERFLOW));
	cr_assert(eq(u64, ticket, 77));
	cr_assert(eq(u32, state_of(limiter).n_in_flight, 1));
	limiter_free(limiter);
	limiter_free(NULL);
}

/* ------------------------------------------ the window of what is not over */

#define N_RULE 40

/* A caller that keeps no tickets passes the rule those that are not over. Check
 * that it finds the same ones admitted as a caller with tickets, in whatever
 * order tickets are freed. */
static void compare_rule(uint32_t seed)
{
	const struct limiter_options options = {
		.limit = 1 + seed % 3, .limit_bytes = seed % 2 ? 10 : 0};
	struct limiter *limiter;
	uint64_t bytes[N_RULE];
	bool is_exempt[N_RULE], is_over[N_RULE] = {false};

	cr_assert(zero(int, limiter_new(&options, &limiter, NULL)));
	srand(seed);
	for (uint32_t n = 0; n < N_RULE; n++) {
		struct window window = window_of(&options);
		bool is_admitted = true;
		uint64_t ticket;

		bytes[n] = (uint64_t)rand() % 8;
		is_exempt[n] = rand() % 4 == 0;
		cr_assert(zero(int,
			       limiter_request(limiter, bytes[n], is_exempt[n],
					       &ticket, NULL)));
		for (uint32_t i = 0; i <= n; i++) {
			if (is_over[i])
				continue;
			is_admitted =
				is_admitted &&
				window_admit(&window, bytes[i], is_exempt[i]);
			cr_assert(eq(int, is_admitted,
				     limiter_is_admitted(limiter, i + 1)));
		}
		for (uint32_t i = 0; i <= n; i++) {
			if (is_over[i] || rand() % 6)
				continue;
			is_over[i] = true;
			limiter_free_ticket(limiter, i + 1, true);
		}
	}
	limiter_free(limiter);
}

Test(limiter, the_admission_rule_agrees_with_the_limiter)
{
	for (uint32_t seed = 1; seed < 200; seed++)
		compare_rule(seed);
}

Test(limiter, the_sum_of_bytes_saturates_at_its_maximum)
{
	const struct limiter_options options = {0};
	struct window window = window_of(&options);

	cr_expect(window_admit(&window, UINT64_MAX, true));
	cr_expect(window_admit(&window, UINT64_MAX, true));
	cr_expect(eq(u64, window.bytes, UINT64_MAX));
}
