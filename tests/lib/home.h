/*
 * A broker with fsdp-worker as the executor, and ranks on fake devices. The
 * communicator is "job".
 */
#pragma once
#include "tests/lib/daemon.h"
#include "tests/lib/ranks.h"
#include "tests/lib/trainer.h"
#include <string.h>

#define HOME_N_PARAMS 3
#define HOME_N_LAYERS 2
extern const struct fsdp_param_spec HOME_PARAMS[HOME_N_PARAMS];
extern const struct layer HOME_LAYERS[HOME_N_LAYERS];

extern struct daemon home_daemon, home_other; /* of another node */
extern struct ranks home_ranks;
extern struct fsdp_client *home_client; /* the test's own */
extern int32_t home_timeout_ms; /* of the communicator; 0: the default */
extern struct fsdp_comm_entry home_seen; /* by home_note_comm() */

void home_set_up(void);
void home_tear_down(void);

/* Start the broker and n ranks, which do not join yet. */
void home_start_with(uint32_t n, size_t n_layers, const char *const *env);
void home_start(uint32_t n, size_t n_layers);
/* Start two ranks, which join and commit their first step. */
void home_start_crew(void);

/* This function is an fsdp_comm_fn. */
int home_note_comm(const struct fsdp_comm_entry *entry, void *data);
#define home_expect_says(rank, what)                                           \
	cr_expect(ne(ptr, strstr(home_ranks.notes[rank].sentence, (what)),     \
		     NULL),                                                    \
		  "\"%s\"", home_ranks.notes[rank].sentence)

void home_expect_all_told(const char *what);

/* A rank does these calls with its first group. */
int home_unshard(void);
int home_reshard(void);
int home_reduce(void);
int home_see_whole(void);
int home_see_mean(void);
int home_join_anew(void);
void home_must_train(void);
