/*
 * A broker with fsdp-worker as the executor, and ranks on fake devices. The
 * communicator is "job".
 */
#pragma once
#include "tests/lib/daemon.h"
#include "tests/lib/ranks.h"
#include "tests/lib/trainer.h"
#include <string.h>

#define EXECUTOR_N_PARAMS 3
#define EXECUTOR_N_LAYERS 2
extern const struct fsdp_param_spec EXECUTOR_PARAMS[EXECUTOR_N_PARAMS];
extern const struct layer EXECUTOR_LAYERS[EXECUTOR_N_LAYERS];

/* the second is that of another node */
extern struct daemon executor_daemon, executor_other;
extern struct ranks executor_ranks;
extern struct fsdp_client *executor_client; /* of the test itself */
/* of the communicator; 0 means the default */
extern int32_t executor_timeout_ms;
extern struct fsdp_comm_entry executor_seen; /* set by executor_note_comm() */

void executor_set_up(void);
void executor_tear_down(void);

/* Starts the broker and n ranks, which do not join yet. */
void executor_start_with(uint32_t n, size_t n_layers, const char *const *env);
void executor_start(uint32_t n, size_t n_layers);
/* Starts two ranks, which join and commit their first step. */
void executor_start_crew(void);

/* Notes the communicator in executor_seen. It is an fsdp_comm_fn. */
int executor_note_comm(const struct fsdp_comm_entry *entry, void *data);
#define executor_expect_says(rank, what)                                       \
	cr_expect(ne(ptr, strstr(executor_ranks.notes[rank].sentence, (what)), \
		     NULL),                                                    \
		  "\"%s\"", executor_ranks.notes[rank].sentence)

void executor_expect_all_told(const char *what);

/* These are calls of a rank with its first group. */
int executor_unshard(void);
int executor_reshard(void);
int executor_reduce(void);
int executor_see_whole(void);
int executor_join_anew(void);
void executor_must_train(void);
