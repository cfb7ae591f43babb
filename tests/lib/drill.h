/*
 * In a drill, ranks train (tests/lib/exact.h) while a process is killed: a
 * rank, the broker or fsdp-worker. Ranks that were killed start again. In the
 * end the numbers must be exact, every rank must have been told which process
 * died, and nothing of the communicator may remain.
 */
#pragma once
#include "tests/lib/chaos.h"
#include "tests/lib/exact.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum victim {
	NOBODY,
	RANK,
	BROKER,
	WORKER,
	/* the worker is stopped first, and killed while it has work */
	STOPPED_WORKER,
};

/* A rank kills this process before one of its calls. */
struct order {
	enum victim victim;
	uint32_t rank, n_calls;
};

/* The test shares this struct with the ranks. */
struct drill {
	struct exact_board board;
	struct order order;
	_Atomic pid_t dead;        /* the process that the order killed */
	_Atomic pid_t stopped;     /* the worker that the test must kill */
	char plan[48], points[48]; /* files of the first rank */
	bool is_planned;           /* the first rank dies by its plan */
};

extern struct drill *drill;
extern struct chaos drill_chaos;
extern struct fsdp_client *drill_watcher;

struct training {
	uint32_t world, n_shards;
	uint64_t last_step;
	pid_t pids[EXACT_MAX_RANKS]; /* 0 if the rank has ended well */
	pid_t first_victim;          /* rank that died first */
	unsigned int n_dead;         /* number of ranks that died */
};

/* Run these before and after each test. */
void drill_open(void);
void drill_close(void);
void drill_need_points(void);

/* Starts the ranks, and waits until each of them has trained to the end. */
void drill_start(struct training *training);
void drill_finish(struct training *training);
/* Starts the ranks again that were killed. Returns how many still run. */
uint32_t drill_take_ends(struct training *training);
/* Prints what each rank is doing. */
void drill_show(const struct training *training);
void drill_kill(struct training *training);

/* Checks that no worker outlives its broker. */
void drill_check_workers(void);
void drill_remove_comm(void);
/* Checks that nothing is charged and nothing runs any more. */
void drill_audit(void);
/* Starts the ranks, waits for them, removes the communicator, and checks the
 * counters. */
void drill_train(struct training *training);

/* Returns whether the rank was told this. On devices NCCL may report it
 * first. */
bool drill_is_told(const struct exact_rank *it, const char *words);
bool drill_is_told_of_broker(const struct exact_rank *it);
/* Checks that a rank failed at most once. Returns whether it failed. */
bool drill_has_failed_once(const struct training *training, uint32_t rank);
/* These check that each rank that failed was told of this death, and return how
 * many ranks failed. If runs go on without a broker, no rank may have failed by
 * its death. */
unsigned int drill_check_rank_death(const struct training *training,
				    uint32_t victim);
unsigned int drill_check_broker_death(const struct training *training);
unsigned int drill_check_worker_death(const struct training *training);
