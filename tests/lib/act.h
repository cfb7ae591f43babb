/*
 * Functions that a test runs as other users, each in a process of its own
 * (actor.h). They send raw frames: valid requests, and attempts that the broker
 * prevents only by the protection of the memory itself.
 *
 * The test shares the arguments and results of an act with the process.
 */
#pragma once
#include "proto/error.h"
#include "tests/lib/wire.h"
#include <stdbool.h>
#include <stdint.h>

#define ACT_SIZE (INT64_C(1) << 20) /* bytes of each tensor */

/* The test and its actors exchange arguments and results in this struct. */
struct act_shared {
	char path[96];
	char name[64];
	uint32_t flags;
	struct access_class access;
	struct tensor_place place;
	uint8_t ticket[TICKET_SIZE];
	uint64_t session;
	uint8_t token[TOKEN_SIZE];
	bool is_trust_set;
	uint32_t trusted_uid;
	int protection, open_flags;
	int n;
	char sentence[ERROR_MSG_SIZE];
};

/* The test maps it with MAP_SHARED before the actors begin. */
extern struct act_shared *shared;

/* --- acts: actor_fn ------------------------------------------------------ */

int do_connect(void);
int do_alloc(void);
int do_publish(void);
int do_release(void);
int do_get(void);
int do_remove(void);
int do_ticket(void);
int do_redeem(void);
/* Counts the entries of that name in all pages. Sets `shared->n` to the number
 * of entries whose maker the broker shows to this process. */
int do_list(void);
int do_who(void);
int do_who_slot(void);
/* Counts the clients of other users that the broker shows. */
int do_clients(void);
int do_reset(void); /* of the counters in the status */
/* Counts the prefixes that the broker shows. */
int do_prefixes(void);
int do_chunk(void);
int do_map(void);
int do_protect(void);
int do_reopen_chunk(void);
int do_reopen_table(void);
int do_map_table_writable(void);
int do_map_table_and_protect(void);
/* Returns whether a store to the tensor faults. */
int do_store(void);
int do_fill(void);
/* Counts the words of the pattern anywhere in the mapped chunk. */
int do_scan(void);
/* Scans every chunk that this process can get. Returns the number of words
 * found, and sets `shared->n` to the number of chunks. */
int do_scan_all(void);
/* Tries to reconnect to another user's session with stolen secrets. */
int do_steal(void);
int do_tell_secrets(void);
int do_ping(void);
