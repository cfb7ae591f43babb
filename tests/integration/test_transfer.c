/*
 * Tests messages between two ranks. Each arrives complete at the receive of its
 * tag, whatever the sizes and orders, and no rank waits for ever.
 */
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include "tests/lib/leaks.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_MESSAGES 12 /* from each rank to each other */
#define N_TAGS     3
#define MAX_SIZE   (700 * 1024)

static const struct crew DEFAULTS = {.n_layers = 0};
static const struct crew SHORT_TIMEOUT = {.options = {.timeout_ms = 5000}};

static uint64_t seed;

static void setup(void)
{
	crew_setup();
	seed = choose_seed("FSDP_TEST_TRANSFER_SEED");
}

CHECKED_SUITE(transfer, setup, crew_teardown, .timeout = 300);

static struct fsdp_comm *comm(void)
{
	return trainer()->comm;
}

/* --- messages that arrive ------------------------------------------------ */

struct message {
	uint32_t from, to, tag;
	size_t size;
	uint8_t *data;
	struct fsdp_transfer *transfer;
};

static uint8_t byte_of(const struct message *message, uint32_t number, size_t i)
{
	return (uint8_t)(i * 31 + i / 251 + message->from * 89 +
			 message->to * 57 + number * 7);
}

/* Make the `number`-th message from one rank to another. It is the same in
 * both. */
static struct message message_of(uint32_t from, uint32_t to, uint32_t number)
{
	struct chance chance = {seed + from * 1000 + to * 100 + number};
	struct message message = {.from = from, .to = to};

	(void)draw(&chance, 2);
	message.tag = draw(&chance, N_TAGS);
	message.size = draw(&chance, 3) ? draw(&chance, 3000)
					: draw(&chance, MAX_SIZE);
	message.data = malloc(message.size + 1);
	return message;
}

static int begin_send(struct message *message, uint32_t number)
{
	for (size_t i = 0; i < message->size; i++)
		message->data[i] = byte_of(message, number, i);
	return fsdp_send(comm(), FSDP_U8, message->data, message->size,
			 message->to, message->tag, &message->transfer);
}

static bool has_arrived(const struct message *message, uint32_t number)
{
	for (size_t i = 0; i < message->size; i++) {
		if (message->data[i] != byte_of(message, number, i)) {
			fprintf(stderr,
				"message %u from %u to %u, byte %zu of %zu, "
				"seed %llu\n",
				number, message->from, message->to, i,
				message->size, (unsigned long long)seed);
			return false;
		}
	}
	return true;
}

struct mail {
	struct message sent[RANKS_MAX][N_MESSAGES];
	struct message received[RANKS_MAX][N_MESSAGES];
};

/* Messages of one tag are received in the order in which they were sent. The
 * order of the tags does not matter. */
static int begin_receives(struct mail *mail, uint32_t from, uint32_t tag)
{
	int r = 0;

	for (uint32_t i = 0; i < N_MESSAGES && r == 0; i++) {
		struct message *it = &mail->received[from][i];

		if (it->tag == tag)
			r = fsdp_receive(comm(), FSDP_U8, it->data, it->size,
					 from, tag, &it->transfer);
	}
	return r;
}

static int end_all(struct mail *mail, uint32_t other)
{
	int r = 0;

	for (uint32_t i = N_MESSAGES; i-- > 0 && r == 0;) {
		struct message *it = &mail->received[other][i];
		uint32_t from = 99;

		r = fsdp_transfer_wait(it->transfer, -1, &from);
		if (r == 0)
			r = from == other && has_arrived(it, i) ? 0 : -EIO;
		if (r == 0)
			r = fsdp_transfer_wait(mail->sent[other][i].transfer,
					       -1, NULL);
		free(it->data);
		free(mail->sent[other][i].data);
	}
	return r;
}

static int exchange_mail(void)
{
	static struct mail mail;
	uint32_t self = rank_self(), n = rank_world();
	int r = 0;

	for (uint32_t other = 0; other < n; other++) {
		for (uint32_t i = 0; other != self && i < N_MESSAGES; i++) {
			mail.sent[other][i] = message_of(self, other, i);
			mail.received[other][i] = message_of(other, self, i);
			r = r ? r : begin_send(&mail.sent[other][i], i);
		}
	}
	for (uint32_t other = 0; other < n; other++)
		for (uint32_t t = 0; other != self && t < N_TAGS; t++)
			r = r ? r
			      : begin_receives(&mail, other,
					       (t + self) % N_TAGS);
	for (uint32_t other = 0; other < n; other++)
		if (other != self)
			r = r ? r : end_all(&mail, other);
	return rank_note(r);
}

Test(transfer, all_messages_are_complete_and_in_order_for_each_tag)
{
	for (uint32_t n = 2; n <= 4; n++) {
		crew_start(n, &DEFAULTS);
		cr_assert(zero(int, ranks_run(&ranks, exchange_mail)),
			  "seed %llu", (unsigned long long)seed);
		ranks_stop(&ranks);
	}
}

/* Rank 0 receives from any rank. Each message contains the number of its
 * sender. */
static int receive_from_any(void)
{
	uint32_t number = rank_self(), from;
	struct fsdp_transfer *transfer;
	uint64_t seen = 0;
	int r;

	if (rank_self()) {
		r = fsdp_send(comm(), FSDP_U32, &number, 1, 0, 5, &transfer);
		return rank_note(r ? r
				   : fsdp_transfer_wait(transfer, -1, NULL));
	}
	for (uint32_t i = 1; i < rank_world(); i++) {
		must(fsdp_receive(comm(), FSDP_U32, &number, 1, FSDP_ANY_RANK,
				  5, &transfer) == 0);
		r = fsdp_transfer_wait(transfer, -1, &from);
		if (r < 0)
			return rank_note(r);
		must(from == number);
		seen |= UINT64_C(1) << from;
	}
	return seen == (UINT64_C(1) << rank_world()) - 2 ? 0 : -EIO;
}

Test(transfer, a_receive_from_any_rank_reports_the_sender)
{
	crew_start(4, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, receive_from_any)));
}

static char large[2][MAX_SIZE];

/* Both ranks do an all-reduce while the large message is under way. */
static int send_large_around_a_collective(void)
{
	struct fsdp_transfer *out, *in;
	float number = 1;
	int r;

	memset(large[0], 'a' + (int)rank_self(), sizeof(large[0]));
	must(fsdp_send(comm(), FSDP_U8, large[0], sizeof(large[0]),
		       1 - rank_self(), 1, &out) == 0);
	r = fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, &number, &number, 1);
	must(r == 0 && number == 2);
	must(fsdp_receive(comm(), FSDP_U8, large[1], sizeof(large[1]),
			  1 - rank_self(), 1, &in) == 0);
	r = fsdp_transfer_wait(out, -1, NULL);
	if (r == 0)
		r = fsdp_transfer_wait(in, -1, NULL);
	return r == 0 && large[1][MAX_SIZE - 1] != 'b' - (int)rank_self()
		       ? -EIO
		       : rank_note(r);
}

Test(transfer, a_collective_between_transfers_does_not_disturb_them)
{
	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, send_large_around_a_collective)));
}

/* --- messages that do not arrive ----------------------------------------- */

static int number = 7;

static int begin_receive(struct fsdp_transfer **ret)
{
	return fsdp_receive(comm(), FSDP_I32, &number, 1, rank_world() - 1, 3,
			    ret);
}

static int receive_one(void)
{
	struct fsdp_transfer *transfer;
	int r = begin_receive(&transfer);

	return rank_note(r ? r : fsdp_transfer_wait(transfer, -1, NULL));
}

static int send_one(void)
{
	struct fsdp_transfer *transfer;
	int r = fsdp_send(comm(), FSDP_I32, &number, 1, 0, 3, &transfer);

	return rank_note(r ? r : fsdp_transfer_wait(transfer, -1, NULL));
}

static int send_two(void)
{
	static int numbers[2];
	struct fsdp_transfer *transfer;
	int r = fsdp_send(comm(), FSDP_I32, numbers, 2, 0, 3, &transfer);

	return rank_note(r ? r : fsdp_transfer_wait(transfer, -1, NULL));
}

Test(transfer, both_ranks_get_an_error_if_a_receive_has_another_size)
{
	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, rank_run(&ranks, 1, send_two)));
	cr_assert(eq(int, rank_run(&ranks, 0, receive_one), -ECONNABORTED));
	assert_says(0, "rank 1 sends rank 0 8 bytes of i32 with tag 3, but "
		       "the receiver expects 4 bytes of i32");
	cr_assert(eq(int, rank_run(&ranks, 1, send_one), -ECONNABORTED));
	assert_says(1, "the receiver expects 4 bytes of i32");
}

static struct fsdp_transfer *pending;

static int look_for_one(void)
{
	int r = pending ? 0 : begin_receive(&pending);

	return rank_note(r ? r : fsdp_transfer_wait(pending, 0, NULL));
}

/* --- a broker that is not told ------------------------------------------- */

static struct fsdp_client *impatient;
static struct fsdp_comm *doomed;
static bool is_tired;

static int ask_whether_tired(void *unused)
{
	(void)unused;
	return is_tired;
}

static int join_other(void)
{
	const struct fsdp_connect_options options = {
		.path = daemon_.socket, .interrupted = ask_whether_tired};

	must(fsdp_connect(&options, &impatient) == 0);
	must(fsdp_comm_join(impatient, "other", 2, rank_self(), NULL,
			    &doomed) == 0);
	return rank_note(fsdp_barrier(doomed, -1));
}

static int send_long(void)
{
	static char bytes[16];
	struct fsdp_transfer *sent;

	return rank_note(
		fsdp_send(doomed, FSDP_U8, bytes, sizeof(bytes), 0, 1, &sent));
}

static int receive_short(void)
{
	static char bytes[8];
	struct fsdp_transfer *received;

	is_tired = true;
	return rank_note(fsdp_receive(doomed, FSDP_U8, bytes, sizeof(bytes), 1,
				      1, &received));
}

static int receive_another(void)
{
	static char bytes[8];
	struct fsdp_transfer *received;

	is_tired = false;
	return rank_note(fsdp_receive(doomed, FSDP_U8, bytes, sizeof(bytes), 1,
				      2, &received));
}

static int close_impatient(void)
{
	return rank_note(fsdp_close(impatient));
}

/* The first receive failed, so its memory may have been freed. */
Test(transfer, a_receive_after_a_failure_unknown_to_the_broker_is_refused)
{
	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, join_other)));
	cr_assert(zero(int, rank_run(&ranks, 1, send_long)));
	cr_assert(zero(int, kill(daemon_.pid, SIGSTOP)));
	cr_expect(eq(int, rank_run(&ranks, 0, receive_short), -ECONNABORTED));
	cr_expect(eq(int, rank_run(&ranks, 0, receive_another), -ECONNABORTED));
	assert_says(0, "sends rank 0 16 bytes");
	cr_assert(zero(int, kill(daemon_.pid, SIGCONT)));
	cr_assert(zero(int, ranks_run(&ranks, close_impatient)));
}

Test(transfer, a_transfer_that_is_not_complete_can_be_waited_for_again)
{
	crew_start(2, &DEFAULTS);
	for (int i = 0; i < 2; i++) {
		cr_assert(
			eq(int, rank_run(&ranks, 0, look_for_one), -ETIMEDOUT));
		assert_says(0, ") has not sent all of a message of tag 3 yet");
	}
	cr_assert(zero(int, rank_run(&ranks, 1, send_one)));
	cr_assert(zero(int, rank_run(&ranks, 0, look_for_one)));
}

/* One message is put aside, one has arrived in part, and one was never sent. */
static int forget_some(void)
{
	struct fsdp_transfer *other;

	must(fsdp_receive(comm(), FSDP_U8, large[0], sizeof(large[0]), 1, 1,
			  &other) == 0);
	must(begin_receive(&pending) == 0);
	must(fsdp_transfer_wait(pending, 0, NULL) == -ETIMEDOUT);
	return trainer_leave();
}

static int send_some(void)
{
	struct fsdp_transfer *transfer;
	int r = fsdp_send(comm(), FSDP_I32, &number, 1, 0, 9, &transfer);

	if (r == 0)
		r = fsdp_send(comm(), FSDP_U8, large[0], sizeof(large[0]), 0, 1,
			      &transfer);
	return rank_note(r);
}

/* Builds with sanitizers check that they are freed. */
Test(transfer, transfers_that_were_not_waited_for_end_with_the_communicator)
{
	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, rank_run(&ranks, 1, send_some)));
	cr_assert(zero(int, rank_run(&ranks, 0, forget_some)));
	cr_assert(zero(int, rank_run(&ranks, 1, trainer_leave)));
}

Test(transfer, both_ranks_get_an_error_that_names_the_late_rank)
{
	crew_start(2, &SHORT_TIMEOUT);
	cr_assert(eq(int, rank_run(&ranks, 0, receive_one), -ECONNABORTED));
	assert_says(0, ") has not sent a message of tag 3 to rank 0 within "
		       "5000 ms");
	cr_assert(eq(int, rank_run(&ranks, 1, send_one), -ECONNABORTED));
}

Test(transfer, a_waiting_rank_gets_an_error_when_another_leaves)
{
	crew_start(2, &DEFAULTS);
	actor_begin(&ranks.actors[0], receive_one);
	cr_assert(zero(int, rank_run(&ranks, 1, send_one)));
	cr_assert(zero(int, actor_end(&ranks.actors[0])));
	actor_begin(&ranks.actors[0], receive_one);
	cr_assert(zero(int, rank_run(&ranks, 1, crew_leave_comm)));
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, " left");
}

static int receive_any(void)
{
	struct fsdp_transfer *transfer;
	int r = fsdp_receive(comm(), FSDP_I32, &number, 1, FSDP_ANY_RANK, 3,
			     &transfer);

	return rank_note(r ? r : fsdp_transfer_wait(transfer, -1, NULL));
}

/* Rank 0 waits for rank 1 or rank 2. */
Test(transfer, a_receive_from_any_rank_goes_on_when_one_of_them_leaves)
{
	crew_start(3, &DEFAULTS);
	actor_begin(&ranks.actors[0], receive_any);
	ranks_await_still(&ranks, 1);
	cr_assert(zero(int, rank_run(&ranks, 1, crew_leave_comm)));
	cr_assert(zero(int, rank_run(&ranks, 2, send_one)));
	cr_assert(zero(int, actor_end(&ranks.actors[0])), "%s", sentence(0));
}

Test(transfer, a_receive_from_any_rank_gets_the_message_of_one_that_left)
{
	crew_start(3, &SHORT_TIMEOUT);
	cr_assert(zero(int, rank_run(&ranks, 1, send_one)));
	cr_assert(zero(int, rank_run(&ranks, 1, crew_leave_comm)));
	cr_assert(zero(int, rank_run(&ranks, 0, receive_any)), "%s",
		  sentence(0));
}

static const char *hold_plan(void)
{
	static char path[64];

	(void)snprintf(path, sizeof(path), "%s/hold", daemon_.dir);
	return path;
}

/* Look for the message, and stop in the middle of that. */
static int look_slowly(void)
{
	must(setenv("FSDP_STOP_PLAN", hold_plan(), 1) == 0);
	return look_for_one();
}

Test(transfer, a_rank_that_checks_liveness_receives_from_a_sender_that_left)
{
	if (!chaos_has_points())
		cr_skip_test("built without points");
	crew_start(2, &DEFAULTS);
	plan_death(hold_plan(), "await.looked", 1);
	actor_begin(&ranks.actors[0], look_slowly);
	while (!plan_is_done(hold_plan()))
		nap_ms(1);
	ranks_await_still(&ranks, 1);
	cr_assert(zero(int, rank_run(&ranks, 1, send_one)));
	cr_assert(zero(int, rank_run(&ranks, 1, crew_leave_comm)));
	must(kill(ranks.actors[0].pid, SIGCONT) == 0);
	cr_assert(zero(int, actor_end(&ranks.actors[0])), "%s", sentence(0));
}

static int swap_until_told(void)
{
	uint32_t n = rank_world(), self = rank_self();
	struct fsdp_transfer *out, *in;
	int r;

	do {
		r = fsdp_send(comm(), FSDP_U8, large[0], sizeof(large[0]),
			      (self + 1) % n, 1, &out);
		if (r == 0)
			r = fsdp_receive(comm(), FSDP_U8, large[1],
					 sizeof(large[1]), (self + n - 1) % n,
					 1, &in);
		if (r == 0)
			r = fsdp_transfer_wait(in, -1, NULL);
		if (r == 0)
			r = fsdp_transfer_wait(out, -1, NULL);
	} while (r == 0);
	return rank_note(r);
}

Test(transfer, a_rank_that_dies_at_any_failpoint_leaves_no_rank_waiting)
{
	static const char *const points[] = {"transfer.sent", "mail.counted",
					     "transfer.received",
					     "bell.counted", "bell.bumped"};

	if (!chaos_has_points())
		cr_skip_test("built without points");
	for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
		crew_start_mortal(3, &DEFAULTS);
		(void)expect_death_is_told(&(struct death){points[i], 3, NULL},
					   swap_until_told);
	}
}

static int refuse_badly(void)
{
	struct fsdp_transfer *transfer;

	must(fsdp_send(NULL, FSDP_U8, large, 1, 1, 0, &transfer) == -EINVAL);
	must(fsdp_send(comm(), FSDP_U8, large, 1, 0, 0, &transfer) == -EINVAL);
	must(fsdp_send(comm(), FSDP_U8, large, 1, 2, 0, &transfer) == -EINVAL);
	must(fsdp_send(comm(), FSDP_U8, large, 1, FSDP_ANY_RANK, 0,
		       &transfer) == -EINVAL);
	must(fsdp_send(comm(), FSDP_U8, NULL, 1, 1, 0, &transfer) == -EINVAL);
	must(fsdp_receive(comm(), 77, large, 1, 1, 0, &transfer) == -EINVAL);
	must(fsdp_receive(comm(), FSDP_F64, large, UINT64_MAX / 8 + 1, 1, 0,
			  &transfer) == -EINVAL);
	must(fsdp_transfer_wait(NULL, 0, NULL) == -EINVAL);
	return 0;
}

Test(transfer, a_bad_argument_is_refused)
{
	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, rank_run(&ranks, 0, refuse_badly)));
}

/* --- a hostile rank ------------------------------------------------------ */

static int flood(void)
{
	struct fsdp_transfer *transfer;
	int r = 0;

	for (uint64_t tag = 100; r == 0; tag++) {
		r = fsdp_send(comm(), FSDP_U8, large, 1, 1, tag, &transfer);
		if (r == 0)
			r = fsdp_transfer_wait(transfer, -1, NULL);
	}
	return rank_note(r);
}

static int receive_what_never_comes(void)
{
	struct fsdp_transfer *transfer;
	int r = fsdp_receive(comm(), FSDP_U8, large, 1, 0, 1, &transfer);

	if (r == 0)
		r = fsdp_transfer_wait(transfer, -1, NULL);
	return rank_note(r);
}

Test(transfer, the_error_names_a_rank_whose_messages_are_not_received)
{
	crew_start(2, &DEFAULTS);
	actor_begin(&ranks.actors[1], receive_what_never_comes);
	cr_assert(eq(int, rank_run(&ranks, 0, flood), -ECONNABORTED));
	cr_assert(eq(int, actor_end(&ranks.actors[1]), -ECONNABORTED));
	assert_says(1, "rank 0 sends rank 1 more messages than it receives");
}
