/*
 * A drill: ranks train (tests/lib/exact.h) while some process is killed, a
 * rank, the broker or fsdp-worker. Ranks that were killed begin again. In the
 * end the numbers must be exact, every rank must have been told who died, and
 * nothing may be left of the communicator.
 */
#pragma once
#include "tests/lib/chaos.h"
#include "tests/lib/exact.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A whole training takes a tenth of a second. */
#define DRILL_PATIENCE_MS 120000

enum victim {
	NOBODY,
	RANK,
	BROKER,
	WORKER,
	STOPPED_WORKER, /* killed when it has work that it does not do */
};

/* Who dies, by the hand of a rank before one of its calls. */
struct order {
	enum victim victim;
	uint32_t rank, n_calls;
};

/* What the test shares with the ranks. */
struct drill {
	struct exact_board board;
	struct order order;
	_Atomic pid_t dead;        /* whom the order killed */
	_Atomic pid_t stopped;     /* worker that the test shall kill */
	char plan[48], points[48]; /* the first rank's own */
	bool is_planned;           /* it dies by its plan */
};

extern struct drill *drill;
extern struct chaos drill_chaos;
extern struct fsdp_client *drill_watcher;

struct training {
	uint32_t world, n_shards;
	uint64_t last_step;
	pid_t pids[EXACT_MAX_RANKS]; /* 0: it has ended well */
	pid_t first_victim;          /* rank that died first */
	unsigned int n_dead;         /* ranks */
};

/* Before and after each test. */
void drill_open(void);
void drill_close(void);
void drill_need_points(void);

/* Start the ranks; and wait until each of them has trained to the end. */
void drill_start(struct training *training);
void drill_finish(struct training *training);
/* Start again those that were killed. Returns how many go on. */
uint32_t drill_take_ends(struct training *training);
/* Print what each rank is doing. */
void drill_show(const struct training *training);
void drill_kill(struct training *training);

/* No worker may outlive its broker. */
void drill_check_workers(void);
void drill_remove_comm(void);
/* Nothing is charged, and nothing runs any more. */
void drill_audit(void);
/* All of it: start, finish, remove, audit. */
void drill_train(struct training *training);

/* What a rank was told. On devices NCCL may say it first. */
bool drill_is_told(const struct exact_rank *it, const char *words);
bool drill_is_told_of_broker(const struct exact_rank *it);
/* A rank fails at most once for one death. */
bool drill_has_failed_once(const struct training *training, uint32_t rank);
/* Each rank that failed was told of this death. Return how many were. */
unsigned int drill_check_rank_death(const struct training *training,
				    uint32_t victim);
unsigned int drill_check_broker_death(const struct training *training);
unsigned int drill_check_worker_death(const struct training *training);
