/*
 * What other users do, each in a process of its own (actor.h), by raw frames:
 * requests, and tries of what the broker only promises on the memory itself.
 *
 * What an act is about, and what came of it, is shared with the test.
 */
#pragma once
#include "proto/error.h"
#include "tests/lib/wire.h"
#include <stdbool.h>
#include <stdint.h>

#define ACT_SIZE (INT64_C(1) << 20) /* of tensors */

/* What the processes of a test say to each other. */
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

/* Mapped by the test, MAP_SHARED, before the actors begin. */
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
/* Entries of that name in all pages; gives in `shared->n` of how many the
 * process is told that made them. */
int do_list(void);
int do_who(void);
int do_who_slot(void);
/* How many clients it is shown that are not its own user's. */
int do_clients(void);
int do_reset(void); /* of the status */
/* How many first components it is shown. */
int do_prefixes(void);
int do_chunk(void);
int do_map(void);
int do_protect(void);
int do_reopen_chunk(void);
int do_reopen_table(void);
int do_map_table_writable(void);
int do_map_table_and_protect(void);
/* Does a store to the tensor fault? */
int do_store(void);
int do_fill(void);
/* Words of the pattern in the chunk that is mapped, wherever. */
int do_scan(void);
/* Scan every chunk that this process can have; gives the finds, and in
 * `shared->n` how many chunks those were. */
int do_scan_all(void);
/* Come back with somebody else's secrets. */
int do_steal(void);
int do_tell_secrets(void);
int do_ping(void);
