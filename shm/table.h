/*
 * The state table has the state of every slot, for all processes of the node.
 *
 * It is one memfd, which the broker writes and clients map read-only.
 *
 * LAYOUT
 *
 *   offset     size   meaning
 *        0        8   magic "FSDPTAB1"
 *        8        4   layout version
 *       12        4   number of slots
 *       16        8   epoch of the broker; grows with each start
 *       24        8   number of retired chunks; when it changes, clients
 *                     go through the chunk list and unmap retired chunks
 *       32        4   era: clients note it at acquire (CLOCK eviction)
 *       64     8192   chunk list: 1,024 words, id of the chunk or 0
 *     8256    32704   verdicts: 4,088 words, run of a communicator << 1 |
 *                     failed, or 0; the first one is not used
 *    40960          padding
 *    65536   8*slots  words: generation << 3 | SLOT_TAINTED | enum slot_state
 *
 * The table is not authoritative: when the broker starts, it computes every
 * word from its catalog.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

#define TABLE_SLOTS  (UINT32_C(1) << 20)
#define TABLE_CHUNKS 1024
#define TABLE_RUNS   4088

enum slot_state {
	SLOT_FREE = 0,
	SLOT_WRITING = 1,
	SLOT_PUBLISHED = 2,
	SLOT_LIMBO = 3,
};
/* A flag in addition to the state: the writer died before its work on the
 * device was complete. A tainted tensor can be acquired only by a request. */
#define SLOT_TAINTED    4u
#define SLOT_STATE_BITS 3 /* including SLOT_TAINTED */

struct table_header {
	uint64_t magic;
	uint32_t version;
	uint32_t n_slots;
	_Atomic uint64_t epoch;
	_Atomic uint64_t chunks_retired;
	_Atomic uint32_t era;
	uint32_t reserved[7];
	_Atomic uint64_t chunks[TABLE_CHUNKS];
	_Atomic uint64_t verdicts[TABLE_RUNS];
};

struct table {
	struct table_header *header; /* mapping; NULL when closed */
	_Atomic uint64_t *words;
	int fd; /* owned; -1 when closed */
};

#define TABLE_NULL ((struct table){.fd = -1})

static inline uint64_t table_word(uint64_t generation, enum slot_state state)
{
	return generation << SLOT_STATE_BITS | (uint64_t)state;
}

static inline uint64_t table_word_generation(uint64_t word)
{
	return word >> SLOT_STATE_BITS;
}

static inline enum slot_state table_word_state(uint64_t word)
{
	return (enum slot_state)(word & (SLOT_TAINTED - 1));
}

static inline bool table_word_is_tainted(uint64_t word)
{
	return word & SLOT_TAINTED;
}

/* seq_cst in both functions: one half of the argument in refs.h. */
static inline uint64_t table_load(const struct table *table, uint32_t slot)
{
	return atomic_load_explicit(&table->words[slot], memory_order_seq_cst);
}

static inline void table_store(struct table *table, uint32_t slot,
			       uint64_t word)
{
	atomic_store_explicit(&table->words[slot], word, memory_order_seq_cst);
}

/* Returns the word of a run (its id is below 2^63) that is alive or has failed.
 * A later run may use the same word of the table: a rank that finds neither of
 * its two values learns that its run is over, but not why. */
static inline uint64_t table_verdict(uint64_t run, bool is_failed)
{
	return run << 1 | is_failed;
}

/* release: a rank that sees that its run is over can request the reason */
static inline void table_set_verdict(struct table *table, uint32_t i,
				     uint64_t word)
{
	atomic_store_explicit(&table->header->verdicts[i], word,
			      memory_order_release);
}

/* Returns whether the run that has word `i` is still alive. It is one load. */
static inline bool table_is_alive(const struct table *table, uint32_t i,
				  uint64_t run)
{
	return atomic_load_explicit(&table->header->verdicts[i],
				    memory_order_acquire) ==
	       table_verdict(run, false);
}

/* Makes a new table, mapped writable (broker). */
int table_create(struct table *ret, struct error *err);
/* Maps an existing table. Consumes `fd`, also on failure. */
int table_open(struct table *ret, int fd, bool is_writable, struct error *err);
void table_close(struct table *table);
