/*
 * Slots: the file by which producers pass items to consumers without the
 * broker.
 *
 * There is one memfd for each channel, which all of its users map and write. An
 * item is in one of up to 64 buffers (tensor memory, which is not in this
 * file). Each buffer has one word here, which has its state and its owner:
 *
 *   FREE --CAS--> WRITING(p) --store--> QUEUED(p, ++order)
 *                                         |  to one of the consumers:
 *                                         +--CAS--> HELD(c) --CAS--> FREE
 *                                         |  to all of them (broadcast):
 *                                         +--by the last one--> FREE
 *
 * There is no ring buffer: its places are reserved before they are filled, and
 * a producer that dies in between would leave a hole. Here, a process that dies
 * leaves words that name it, and the broker frees them after the process has
 * exited, because until then it may write to the buffer. Queued items stay. The
 * number of an item gives its order; numbers may have gaps, because no process
 * waits for a certain number.
 *
 * A consumer takes the oldest item that it sees. It reads all words again and
 * again until it finds no older item: items that a producer published before
 * the item that was found were visible when it was found, so the next pass sees
 * them. So the items of one producer arrive in order, and so do those of
 * several producers unless they were published at the same time.
 *
 * In a broadcast the item stays QUEUED, and a mask has the consumers that still
 * need it. The producer writes the mask before it publishes the item, and then
 * checks which consumers have left meanwhile. The broker first removes a
 * consumer from the list of users and then from the masks. So one of the two
 * clears the bit.
 *
 * A broadcast with a limit of lag may cut a consumer that is alive: the broker
 * removes it in the same way, although it may be reading an item. So there is a
 * second mask, of the consumers that read the item. A consumer sets
 * its bit there, and then checks that it is still in the first mask. A process
 * that frees a slot reads the first mask and then the second one, and both must
 * be empty. If only consumers that were cut read an item, its buffer leaves the
 * channel, and their holds keep it.
 *
 * The broker may change the number of slots while they are used. New ones get
 * buffers and are FREE. If the number becomes smaller, the slots above it are
 * not claimed any more. Their items are received as usual, and when such a slot
 * is FREE, the broker makes it RETIRED, by CAS. The broker first writes the
 * number and then reads the words; a user that has freed a slot then reads the
 * number, and tells the broker. So one of the two sees the change.
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
 *      256      64    users: present, dead (number), ending   broker
 *      320    64*8    words                                   all, by CAS
 *      832    64*8    masks of a broadcast                    all, by AND
 *     1344   64*16    tensor of the buffer                    broker
 *     2368       8    producers that wait for a credit        these
 *     2432   64*64    users: CPU, counts, what it waits for   that user
 *     6528  64*1344   heads of the items                      their owners
 *    92544    64*8    masks of readers, with a limit of lag   all, by OR, AND
 *    93056    64*8    time of sending, with a limit of lag    its producer
 *    93568            padding
 *   131072            end
 *
 * The file is input, because other processes write it: each word is read once,
 * and a head is copied before it is checked. Users of a channel can damage the
 * channel but nothing else, because the broker decides which process may write
 * tensor memory.
 */
#pragma once
#include "shm/bell.h"
#include "shm/liveness.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

#define SLOTS_MAX   64
#define SLOTS_USERS 64 /* a bit of a mask for each user */
#define SLOTS_PARTS 16
#define SLOTS_TEXT  1024
#define SLOTS_DIMS  8
#define SLOTS_ALIGN 64 /* of parts in a buffer, in bytes */
#define SLOTS_NAME  16

enum slots_state {
	SLOTS_FREE = 0,
	SLOTS_WRITING = 1,
	SLOTS_QUEUED = 2,
	SLOTS_HELD = 3,
	SLOTS_RETIRED = 4, /* it has no buffer now */
};

enum slots_mode {
	SLOTS_SHARE = 0, /* an item goes to one consumer */
	SLOTS_BROADCAST = 1,
};

enum slots_kind {
	SLOTS_ITEM = 1,
	SLOTS_ERROR = 2, /* a text instead of parts */
};

/* One array of an item, which is contiguous. */
struct slots_part {
	uint32_t dtype, n_dims;
	uint64_t offset;
	int64_t shape[SLOTS_DIMS];
};

struct slots_head {
	_Alignas(64) uint32_t kind;
	uint32_t n_parts;
	uint64_t fence; /* 0: the contents are complete */
	union {
		struct slots_part parts[SLOTS_PARTS];
		char text[SLOTS_TEXT];
	};
};

/* The tensor that is used as the buffer. */
struct slots_buffer {
	_Atomic uint32_t slot;
	uint32_t reserved;
	_Atomic uint64_t generation;
};

enum slots_want { SLOTS_NOTHING = 0, SLOTS_WANTS_ITEM, SLOTS_WANTS_CREDIT };

struct slots_user {
	_Alignas(64) _Atomic int32_t cpu; /* where it waited last; a hint */
	_Atomic uint32_t want;            /* enum slots_want */
	_Atomic uint64_t n_items;         /* sent or received */
	_Atomic uint64_t n_waits;
	_Atomic uint64_t since_ns; /* of bell_now_ns(): begin of the wait */
	/* The broker writes the fields from here on. */
	_Atomic uint32_t pid;
	char name[SLOTS_NAME];
	uint32_t knows_limit;
};

/* The users, as masks of their places. Only the broker writes it. */
struct slots_people {
	_Alignas(64) _Atomic uint64_t producers;
	_Atomic uint64_t consumers;
	_Atomic uint32_t n_producers; /* all that have opened the channel */
	_Atomic uint32_t n_consumers;
	_Atomic uint32_t n_died; /* number of producers that have died */
	uint32_t last_pid;       /* of the last one; written before n_died */
	char last_name[SLOTS_NAME];
	/* those present whose process is ending (ending.h) */
	_Atomic uint64_t ending;
};

struct slots_page {
	uint64_t magic;
	uint32_t version;
	_Atomic uint32_t n_slots; /* slots that users read */
	uint32_t mode;
	/* number of slots that may be claimed; 0: all, it was never resized */
	_Atomic uint32_t limit;
	uint64_t capacity;
	uint64_t channel;
	struct bell items, credits;
	_Alignas(64) _Atomic uint64_t order;
	struct slots_people people;
	_Alignas(64) _Atomic uint64_t words[SLOTS_MAX];
	_Alignas(64) _Atomic uint64_t masks[SLOTS_MAX];
	_Alignas(64) struct slots_buffer buffers[SLOTS_MAX];
	_Alignas(64) _Atomic uint64_t starved;
	struct slots_user users[SLOTS_USERS];
	struct slots_head heads[SLOTS_MAX];
	_Alignas(64) _Atomic uint64_t readers[SLOTS_MAX];
	_Atomic int64_t sent_ns[SLOTS_MAX]; /* of bell_now_ns() */
};

struct slots {
	struct slots_page *page; /* mapping; NULL when closed */
	int fd;                  /* owned; -1: closed or not kept */
	enum slots_mode mode;    /* valid, as are the fields below */
	bool has_lag;            /* there is a limit of lag */
	uint64_t capacity;
	struct liveness liveness; /* looks of this process at other users */
};

#define SLOTS_NULL ((struct slots){.fd = -1})

struct slots_form {
	uint64_t channel;
	enum slots_mode mode;
	bool has_lag;
	uint64_t capacity;
};

/* Makes a new file without users (broker). All slots are RETIRED. */
int slots_create(struct slots *ret, const struct slots_form *form,
		 struct error *err);
/* Maps the file of this channel. The broker does so after a restart, and keeps
 * the fd. The forked children of a user do not inherit the mapping. Consumes
 * `fd`, also on failure. Returns -EPROTO if it is not the file of this
 * channel. */
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

/* Returns the place of the owner of a word that has an owner. It may be
 * invalid, which means SLOTS_USERS or more. */
static inline uint32_t slots_owner(uint64_t word)
{
	return (uint32_t)(word >> 3 & 0x1fff) - 1;
}

static inline uint64_t slots_bit(uint32_t place)
{
	return UINT64_C(1) << place;
}

/* Reads the word once. */
uint64_t slots_load(const struct slots *slots, uint32_t at);

/* These return the users that are present, as masks of their places. */
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

/* Returns those of the present users that may still send or receive: their
 * processes are not ending. The caller must have read `present` before, because
 * a place that becomes free may be used again. */
static inline uint64_t slots_living(const struct slots *slots, uint64_t present)
{
	return present & ~atomic_load_explicit(&slots->page->people.ending,
					       memory_order_seq_cst);
}

/* --- one user ------------------------------------------------------------- */

/* A slot that a user has claimed or taken. */
struct slots_hold {
	uint32_t at;
	uint64_t word; /* the word of the slot after that */
};

/* The newest item of each slot that a consumer of a broadcast has received. It
 * is private memory of the consumer, which its threads share, and all 0 at the
 * beginning. */
struct slots_seen {
	_Atomic uint64_t numbers[SLOTS_MAX];
};

/* Claims a slot to write. Returns false if there is none, or if the slot is
 * left to other producers, which have fewer. */
bool slots_claim(struct slots *slots, uint32_t place, struct slots_hold *ret);
/* Publishes the item: copies its head, and wakes one consumer or all. The slot
 * is then no longer the caller's. */
void slots_publish(struct slots *slots, uint32_t place,
		   const struct slots_hold *hold,
		   const struct slots_head *head);
/* Gives the slot back without an item. */
void slots_cancel(struct slots *slots, const struct slots_hold *hold);

/* Takes the oldest item. Returns false if there is no item, or if other users
 * change the words so fast that none is found. */
bool slots_take(struct slots *slots, uint32_t place, struct slots_seen *seen,
		struct slots_hold *ret);
/* Copies the head of the item, which the caller must check. */
void slots_read(const struct slots *slots, const struct slots_hold *hold,
		struct slots_head *ret);
/* Puts the item back, so that the next consumer, or the next thread of this
 * one, gets it. */
void slots_put_back(struct slots *slots, uint32_t place,
		    struct slots_seen *seen, const struct slots_hold *hold);
/* Releases an item that the caller does not need any more. */
void slots_release(struct slots *slots, uint32_t place,
		   const struct slots_hold *hold);

/* Returns whether the slot, which the caller has freed, is above the limit. The
 * caller must then tell the broker. */
bool slots_is_surplus(const struct slots *slots, uint32_t at);

/* These return whether slots_claim() or slots_take() could succeed. Another
 * user may be faster. */
bool slots_has_credit(const struct slots *slots, uint32_t place);
bool slots_has_item(const struct slots *slots, uint32_t place,
		    const struct slots_seen *seen);

struct slots_wait {
	struct slots *slots;
	uint32_t place;                /* of the user that waits */
	const struct slots_seen *seen; /* of a consumer */
	bell_look_fn *is_over;
	const void *data; /* for is_over */
	/* The thread only notifies its process. It sleeps at once, and does not
	 * keep a wake-up from threads that would take an item. */
	bool is_watch;
	/* Begin of the wait; 0: it has not begun. A caller that waits again
	 * keeps the value, so that it is counted as one wait. */
	int64_t since_ns;
	/* Set by the functions below: a user that the wait depends on and whose
	 * process is ending, for which the caller has to ask the broker;
	 * LIVENESS_NONE: there is none. */
	uint32_t ending;
};

/* After BELL_MET the caller tries again to take an item or to claim a slot. */
enum bell_outcome slots_wait_item(struct slots_wait *wait, int64_t until_ns);
enum bell_outcome slots_wait_credit(struct slots_wait *wait, int64_t until_ns);

/* Wakes all waiters, because a condition may have changed. */
void slots_ring(struct slots *slots);

/* --- the broker ----------------------------------------------------------- */

/* The users that are present, as masks. A user in neither of them has left. */
struct slots_present {
	uint64_t producers, consumers;
};
struct slots_newcomer {
	uint32_t place, pid;
	const char *name;
	bool knows_limit;
};
void slots_add_user(struct slots *slots, const struct slots_present *present,
		    const struct slots_newcomer *who);

/* Sets the users that are present after a restart. */
void slots_set_users(struct slots *slots, const struct slots_present *present);

/* Tells the users that the process of this one is ending, and counts the death
 * of a producer. It has no effect if the user is not present. The words that
 * name the user are freed by slots_remove_user() only, since its memory may be
 * in use until its process has exited. */
void slots_note_ending(struct slots *slots, uint32_t place);

/* Removes a user that has left: frees the words that name it, and wakes all
 * waiters. `present` is without it already. Its process has exited or closed
 * the channel; `died` means that it did not close it, so items may be missing.
 */
void slots_remove_user(struct slots *slots, const struct slots_present *present,
		       uint32_t place, bool died);

/* Returns the consumers that still need the oldest item, if it was sent before
 * that time. Returns 0 if there are none, or if a producer can claim a slot. */
uint64_t slots_find_late(const struct slots *slots, int64_t sent_before_ns);
/* Cuts these consumers. `present` is without them already. Only items that they
 * are reading wait for them from now on. */
void slots_cut(struct slots *slots, const struct slots_present *present,
	       uint64_t consumers);
/* Removes the buffer of the slot if only consumers that were cut still read its
 * item. Returns whether it did so. */
bool slots_take_away(struct slots *slots, uint32_t at);

/* Sets the number of slots that may be claimed. The broker must call
 * slots_retire() after it. */
void slots_set_limit(struct slots *slots, uint32_t limit);
/* Returns 0 if no limit was ever set. */
uint32_t slots_limit(const struct slots *slots);
/* Removes the buffer of the slot if it is FREE. Returns whether it did so. */
bool slots_retire(struct slots *slots, uint32_t at);

/* Gives a buffer to the slot, which is then FREE. */
void slots_admit(struct slots *slots, uint32_t at, uint32_t slot,
		 uint64_t generation);
/* Removes the buffer of the slot if this consumer holds its item. Returns
 * whether it did so. */
bool slots_take_out(struct slots *slots, uint32_t at, uint32_t place);
/* Removes the buffer of the slot in any state. */
void slots_force_out(struct slots *slots, uint32_t at);

/* The state of a user, for display. */
struct slots_status {
	uint64_t n_items, n_waits;
	enum slots_want want;
	uint64_t wait_ns; /* time for which it has waited for that */
};
void slots_look(const struct slots *slots, uint32_t place,
		struct slots_status *ret);

/* Counts the items that wait to be taken, the slots that can be written, and
 * the slots that users write or read. */
void slots_count(const struct slots *slots, uint32_t *ret_queued,
		 uint32_t *ret_free, uint32_t *ret_held);
