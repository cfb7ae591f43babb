/*
 * Slots: how producers hand items to consumers without the broker.
 *
 * One memfd for each channel, which all of its users map and write. An item
 * lies in one of up to 64 buffers (tensor memory, not in this file), and each
 * buffer has one word here, which is its whole state with its owner:
 *
 *   FREE --CAS--> WRITING(p) --store--> QUEUED(p, ++order)
 *                                         |  to one of the consumers:
 *                                         +--CAS--> HELD(c) --CAS--> FREE
 *                                         |  to all of them (broadcast):
 *                                         +--the last one lets go--> FREE
 *
 * There is no ring. A ring would need a place that is reserved before it is
 * filled, and a producer that dies in between would leave a hole in it. Here,
 * a process that dies leaves words that name it, and the broker frees them once
 * the process is gone, not before: until then it may write to the buffer. What
 * was queued stays. An item's number orders it; numbers may have gaps, and
 * nobody waits for one.
 *
 * A consumer takes the oldest item that it sees. It looks through the words
 * until a look finds nothing older: what a producer published before the item
 * that was found was visible when it was found, so the look after it sees it.
 * So the items of one producer come in order, and so do those of several as far
 * as they were not published at the same time.
 *
 * In a broadcast the item stays QUEUED, and a mask says which consumers have
 * not let go of it yet. The producer writes the mask before it publishes, and
 * looks afterwards who has gone meanwhile; the broker first takes a consumer
 * off the list and then out of the masks. So one of the two clears the bit.
 *
 * A broadcast with a limit of lag may cut a consumer that lives: the broker
 * does as above, although the consumer may be reading an item. So there is a
 * second mask, of the consumers that read the item. A consumer sets its bit
 * there, and then looks whether it is still in the first one; a process that
 * frees a slot reads the first mask, and then the second: both must be empty.
 * An item that is only read by consumers that were cut leaves the channel with
 * its buffer, which their holds keep.
 *
 * The broker may change the number of slots while they are used. New ones get
 * their buffers, and are FREE. Those beyond a smaller number are not claimed
 * any more; what they contain is received as ever, and when one of them is
 * FREE, the broker makes it RETIRED, by CAS. It first writes the number and
 * then looks at the words, and a user that has freed a slot then looks at the
 * number, and tells the broker: so one of the two sees it.
 *
 * LAYOUT
 *
 *   offset   size     meaning                                 writer
 *        0      40    magic "FSDPCHN1", version, number of    broker
 *                     slots, mode, slots that can be claimed,
 *                     capacity, channel
 *       64       8    bell of the items                       all
 *      128       8    bell of the credits                     all
 *      192       8    number of the newest item               producers
 *      256      64    who is there, and who has gone          broker
 *      320    64*8    words                                   all, by CAS
 *      832    64*8    masks of a broadcast                    all, by AND
 *     1344   64*16    which tensor the buffer is              broker
 *     2368       8    producers that wait for a credit        they
 *     2432   64*64    users: CPU, counts, what it waits for   that user
 *     6528  64*1344   heads of the items                      who holds it
 *    92544    64*8    masks of hands, with a limit of lag     all, by OR, AND
 *    93056    64*8    when the item was sent, likewise        its producer
 *    93568            padding
 *   131072            end
 *
 * It is input, like all memory that others write: each word is read once, a
 * head is copied before it is checked. Users of a channel can harm the channel,
 * but nothing else: the broker decides which process may write tensor memory.
 */
#pragma once
#include "shm/bell.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

#define SLOTS_MAX   64 /* slots */
#define SLOTS_USERS 64 /* a mask has them all */
#define SLOTS_PARTS 16
#define SLOTS_TEXT  1024
#define SLOTS_DIMS  8
#define SLOTS_ALIGN 64 /* of parts in a buffer */
#define SLOTS_NAME  16

enum slots_state {
	SLOTS_FREE = 0,
	SLOTS_WRITING = 1,
	SLOTS_QUEUED = 2,
	SLOTS_HELD = 3,
	SLOTS_RETIRED = 4, /* has no buffer now */
};

enum slots_mode {
	SLOTS_SHARE = 0, /* an item goes to one consumer */
	SLOTS_BROADCAST = 1,
};

enum slots_kind {
	SLOTS_ITEM = 1,
	SLOTS_ERROR = 2, /* a text instead of parts */
};

/* One array of an item; contiguous. */
struct slots_part {
	uint32_t dtype, n_dims;
	uint64_t offset;
	int64_t shape[SLOTS_DIMS];
};

struct slots_head {
	_Alignas(64) uint32_t kind;
	uint32_t n_parts;
	uint64_t fence; /* 0: the host has written it */
	union {
		struct slots_part parts[SLOTS_PARTS];
		char text[SLOTS_TEXT];
	};
};

/* The tensor that the buffer is. */
struct slots_buffer {
	_Atomic uint32_t slot;
	uint32_t reserved;
	_Atomic uint64_t generation;
};

enum slots_want { SLOTS_NOTHING = 0, SLOTS_WANTS_ITEM, SLOTS_WANTS_CREDIT };

struct slots_user {
	_Alignas(64) _Atomic int32_t cpu; /* where it waited last; a hint */
	_Atomic uint32_t want;            /* enum slots_want */
	_Atomic uint64_t n_items;         /* sent, or received */
	_Atomic uint64_t n_waits;
	_Atomic uint64_t since_ns; /* of bell_now_ns(): wants it since */
	uint32_t pid;              /* this and the rest: the broker */
	char name[SLOTS_NAME];
	uint32_t knows_limit;
};

/* A line that only the broker writes. Masks of places. */
struct slots_people {
	_Alignas(64) _Atomic uint64_t producers;
	_Atomic uint64_t consumers;
	_Atomic uint32_t n_producers; /* that ever came */
	_Atomic uint32_t n_consumers;
	_Atomic uint32_t n_died; /* producers */
	uint32_t last_pid;       /* of the last of those, written before */
	char last_name[SLOTS_NAME];
};

struct slots_page {
	uint64_t magic;
	uint32_t version;
	_Atomic uint32_t n_slots; /* that are looked at */
	uint32_t mode;
	_Atomic uint32_t limit; /* slots that are claimed; 0: all of them,
				   since it was never resized */
	uint64_t capacity;
	uint64_t channel;
	struct bell items, credits;
	_Alignas(64) _Atomic uint64_t order;
	struct slots_people people;
	_Alignas(64) _Atomic uint64_t words[SLOTS_MAX];
	_Alignas(64) _Atomic uint64_t masks[SLOTS_MAX];
	_Alignas(64) struct slots_buffer buffers[SLOTS_MAX];
	_Alignas(64) _Atomic uint64_t hungry;
	struct slots_user users[SLOTS_USERS];
	struct slots_head heads[SLOTS_MAX];
	_Alignas(64) _Atomic uint64_t hands[SLOTS_MAX];
	_Atomic int64_t sent_ns[SLOTS_MAX]; /* of bell_now_ns() */
};

struct slots {
	struct slots_page *page; /* mapping; NULL when closed */
	int fd;                  /* owned; -1: closed, or not kept */
	enum slots_mode mode;    /* checked, as the rest */
	bool has_lag;            /* has a limit of lag */
	uint64_t capacity;
};

#define SLOTS_NULL ((struct slots){.fd = -1})

struct slots_form {
	uint64_t channel;
	enum slots_mode mode;
	bool has_lag;
	uint64_t capacity;
};

/* A new file (broker): all slots are RETIRED, and nobody is there. */
int slots_create(struct slots *ret, const struct slots_form *form,
		 struct error *err);
/* Map that of this channel: the broker after a restart, which keeps the fd, or
 * a user, whose children do not have it. Consumes `fd`, also on failure.
 * -EPROTO: it is another one's. */
enum slots_side { SLOTS_BROKER, SLOTS_USER };
int slots_open(struct slots *ret, int fd, const struct slots_form *form,
	       enum slots_side side, struct error *err);
void slots_close(struct slots *slots);

/* --- words ---------------------------------------------------------------- */

static inline uint64_t slots_word(uint64_t number, uint32_t owner,
				  enum slots_state state)
{
	return number << 16 | (uint64_t)owner << 3 | (uint64_t)state;
}

static inline enum slots_state slots_state(uint64_t word)
{
	return (enum slots_state)(word & 7);
}

static inline uint64_t slots_number(uint64_t word)
{
	return word >> 16;
}

/* The place of the owner, of a word that has one. A stranger's is beyond
 * SLOTS_USERS. */
static inline uint32_t slots_owner(uint64_t word)
{
	return (uint32_t)(word >> 3 & 0x1fff) - 1;
}

static inline uint64_t slots_bit(uint32_t place)
{
	return UINT64_C(1) << place;
}

/* Read once. */
uint64_t slots_load(const struct slots *slots, uint32_t at);

/* Who is there. */
static inline uint64_t slots_producers(const struct slots *slots)
{
	return atomic_load_explicit(&slots->page->people.producers,
				    memory_order_seq_cst);
}

static inline uint64_t slots_consumers(const struct slots *slots)
{
	return atomic_load_explicit(&slots->page->people.consumers,
				    memory_order_seq_cst);
}

/* --- one user ------------------------------------------------------------- */

/* What a user has in its hands. */
struct slots_hold {
	uint32_t at;
	uint64_t word; /* as it was left there */
};

/* The newest item that a consumer of a broadcast has had of each slot; private,
 * all 0 at first. Its threads share it. */
struct slots_seen {
	_Atomic uint64_t numbers[SLOTS_MAX];
};

/* A slot to write. False: there is none, or it is others' turn, who have
 * fewer. */
bool slots_claim(struct slots *slots, uint32_t place, struct slots_hold *ret);
/* Its item is whole: the head is copied, and one consumer, or all, are woken.
 * After it the slot is no longer the caller's. */
void slots_publish(struct slots *slots, uint32_t place,
		   const struct slots_hold *hold,
		   const struct slots_head *head);
/* Give back what was not published. */
void slots_cancel(struct slots *slots, const struct slots_hold *hold);

/* The oldest item that is there. */
bool slots_take(struct slots *slots, uint32_t place, struct slots_seen *seen,
		struct slots_hold *ret);
/* Copy its head, which the caller has to check. */
void slots_read(const struct slots *slots, const struct slots_hold *hold,
		struct slots_head *ret);
/* Not received after all: the next consumer gets it. */
void slots_put_back(struct slots *slots, uint32_t place,
		    struct slots_seen *seen, const struct slots_hold *hold);
/* Has been used. */
void slots_release(struct slots *slots, uint32_t place,
		   const struct slots_hold *hold);

/* A slot that was freed: is it to leave? Then the broker has to be told. */
bool slots_is_surplus(const struct slots *slots, uint32_t at);

/* Is one there? What slots_claim() and slots_take() may then find taken. */
bool slots_has_credit(const struct slots *slots, uint32_t place);
bool slots_has_item(const struct slots *slots, uint32_t place,
		    const struct slots_seen *seen);

struct slots_wait {
	struct slots *slots;
	uint32_t place;                /* who waits */
	const struct slots_seen *seen; /* a consumer's */
	bell_look_fn *is_over;
	const void *data; /* of is_over */
	/* A thread that only tells its process that there is something. It
	 * sleeps at once, and takes no wake-up from those who would act. */
	bool is_watch;
	/* Since when it waits; 0: it has not begun. Those who wait on after an
	 * outcome keep it, so that others see one wait. */
	int64_t since_ns;
};

/* BELL_MET: try again. */
enum bell_outcome slots_wait_item(struct slots_wait *wait, int64_t until_ns);
enum bell_outcome slots_wait_credit(struct slots_wait *wait, int64_t until_ns);

/* Wake all who wait, since something has changed that they look at. */
void slots_ring(struct slots *slots);

/* --- the broker ----------------------------------------------------------- */

/* The users that are there, as masks. A user in none of them has gone. */
struct slots_roll {
	uint64_t producers, consumers;
};
struct slots_newcomer {
	uint32_t place, pid;
	const char *name;
	bool knows_limit;
};
void slots_enrol(struct slots *slots, const struct slots_roll *roll,
		 const struct slots_newcomer *who);

/* After a restart: who is there now. */
void slots_call_roll(struct slots *slots, const struct slots_roll *roll);

/* This user has gone, as the roll says already: free what names it and wake
 * all. `died`: without saying goodbye, so what it would have sent is missing.
 * Its process has exited, or has left the channel. */
void slots_bury(struct slots *slots, const struct slots_roll *roll,
		uint32_t place, bool died);

/* The consumers that have not let go of the oldest item, which was sent before
 * then; 0: all have let go of it, or a producer can write a slot now. */
uint64_t slots_find_late(const struct slots *slots, int64_t sent_before_ns);
/* These consumers have been cut, as the roll says already: what they have not
 * in their hands does not wait for them any more. */
void slots_cut(struct slots *slots, const struct slots_roll *roll,
	       uint64_t consumers);
/* The slot loses its buffer, if only consumers that were cut have its item in
 * their hands. */
bool slots_take_away(struct slots *slots, uint32_t at);

/* From now on only so many slots are claimed. slots_retire() comes after it. */
void slots_set_limit(struct slots *slots, uint32_t limit);
/* 0: none was ever set. */
uint32_t slots_limit(const struct slots *slots);
/* The slot loses its buffer, if it is FREE. */
bool slots_retire(struct slots *slots, uint32_t at);

/* Give a slot a buffer: it is FREE. */
void slots_admit(struct slots *slots, uint32_t at, uint32_t slot,
		 uint64_t generation);
/* The slot loses its buffer, in which this consumer holds an item; false: it
 * does not. */
bool slots_take_out(struct slots *slots, uint32_t at, uint32_t place);
/* It has no buffer, whatever its word says. */
void slots_force_out(struct slots *slots, uint32_t at);

/* What a user does. */
struct slots_status {
	uint64_t n_items, n_waits;
	enum slots_want want;
	uint64_t wait_ns; /* since when it wants that */
};
void slots_look(const struct slots *slots, uint32_t place,
		struct slots_status *ret);

/* Items that wait to be taken, slots that can be written, and those in
 * somebody's hands. */
void slots_count(const struct slots *slots, uint32_t *ret_queued,
		 uint32_t *ret_free, uint32_t *ret_held);
