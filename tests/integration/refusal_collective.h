/*
 * Bad input for collectives, by raw frames. The broker refuses it with its code
 * and a sentence that names the object, nothing changes, and the next requests
 * of the ranks succeed.
 *
 *	CHECKED_SUITE(refusal_collective, refusal_setup, refusal_teardown,
 *		      .timeout = 300);
 */
#pragma once
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include "tests/lib/wire.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define COMM "test/job"
#define NONE 999999 /* neither a communicator nor a group */

extern struct wire *me, *peer; /* ranks 0 and 1 of COMM */
/* reads the status, and is the rank of "test/solo" */
extern struct wire *other;
extern uint64_t comm, solo;
extern uint64_t first, second, frozen; /* groups of COMM, as registered */
extern uint64_t elsewhere;             /* group of "test/solo" */
extern uint64_t step;                  /* the step that was committed last */
extern uint64_t n_unshards, n_reductions;

/* Start the broker, connect the three clients, make the objects above, and
 * commit a step. */
void refusal_setup(void);
void refusal_teardown(void);

/* --- requests ------------------------------------------------------------ */

struct request join_of(const char *name, uint32_t n_ranks, uint32_t rank);
struct request leave_of(uint64_t id);
struct request remove_of(const char *name);
struct request unshard_of(uint64_t group);
struct request reshard_of(uint64_t group, uint32_t n_mesh);
struct request input_of(uint64_t group);
struct request reduce_of(uint64_t group, const struct slot_ref *input);
struct request divided_by(uint64_t group, const struct slot_ref *input,
			  double factor);
struct request commit_of(uint64_t id, uint64_t at);
/* Returns a request that does not block. */
struct request wait_of(uint64_t id, uint64_t group, enum work_kind kind,
		       uint64_t sequence);
struct request group_of(uint64_t id, const char *name,
			struct group_param *params, uint32_t n);
struct group_param vector(const char *name, uint32_t dtype, int64_t size);
struct group_param matrix(const char *name, int64_t n, int64_t m);

/* --- calls that must succeed --------------------------------------------- */

void ask(struct wire *wire, struct request request);
/* Both ranks send their request. The first gets its reply when the second has
 * sent its own. */
void both(struct request mine, struct request theirs);
uint64_t register_both(const char *name, struct group_param *params,
		       uint32_t n);
void wait_both(uint64_t group, enum work_kind kind, uint64_t sequence);
struct slot_ref take_input(struct wire *wire, uint64_t group);
/* Make a whole step. A refused request must not disturb it. */
void check_good_round(void);

/* --- checks -------------------------------------------------------------- */

/* This is more than the broker has. */
#define N_VALUES 128

/* All values of the broker's status. */
struct figures {
	uint32_t n;
	char names[N_VALUES][32];
	uint64_t values[N_VALUES];
};

void read_figures(struct figures *ret);
/* Check that no value differs, except those that every request changes. */
void check_unchanged(const struct figures *before, const char *what);

/* Check the code of the last reply, and a part of its sentence. */
void check_answer(struct wire *wire, const char *what, int code,
		  const char *says);
/* Send the request, and check that it is refused and changes nothing. */
void refuse(struct wire *wire, const char *what, struct request request,
	    int code, const char *says);

/* A request that is refused, with the code and a part of the sentence. */
struct refusal {
	const char *what;
	struct request request;
	int code;
	const char *says;
};

void check_refusals(struct wire *wire, const struct refusal *all, size_t n);
#define CHECK(wire, all) check_refusals(wire, all, sizeof(all) / sizeof(*(all)))
