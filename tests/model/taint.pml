/*
 * A tensor that is published before its contents are complete, and whose writer
 * may die before its device has written them.
 *
 * There is one slot. The writer's device writes the tensor and then raises a
 * counter. The tensor is published with a ready fence: the contents are
 * complete when the counter is 1. A reader acquires the tensor as in shm/refs.h
 * (without a system call if the word is exactly PUBLISHED, otherwise by a
 * request). It waits for the counter, checks whether the tensor is tainted,
 * reads, and releases. The writer may die at any time. The broker then taints
 * the tensor if it is not complete, and poisons the counter, which wakes those
 * who wait. The broker also removes the name and reclaims the memory.
 *
 * Safety: a reader of incomplete contents sees that they are tainted, and
 * memory that a device may still write is not used again. Liveness: no process
 * waits for ever, and in the end the slot is free.
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   POISON_FIRST    the broker poisons the counter before it taints the tensor
 *   LOOK_FIRST      the reader checks for the taint before it waits
 *   NO_POISON       the broker does not poison the counter
 *   IGNORE_ORDER    the broker frees the memory before the writer's device has
 *                   finished
 *   WHOLE_WORD      a release compares the whole word with LIMBO, including the
 *                   taint
 */
#define FREE 0
#define PUBLISHED 1
#define LIMBO 2
#define TAINTED 4
#define STATE(word) ((word) % TAINTED)
#define IS_TAINTED(word) ((word) >= TAINTED)
#define POISON 9

byte word = PUBLISHED;
byte counter;
bool is_written;
short delta; /* of the reader */
short granted;
bool is_pending, bell;
bool wants, is_refused, is_given; /* a request of the reader */
bool may_die, is_killed, is_idle, is_dead; /* of the writer */
bool is_done;

/* --- the writer's device --------------------------------------------------- */

proctype Device()
{
	{
		assert(STATE(word) != FREE);
		is_written = true;
		counter = 1
	} unless { is_killed };
	is_idle = true
}

/* The writer's pidfd becomes readable when its device has stopped. */
proctype Reaper()
{
	if
	:: may_die -> is_killed = true; is_idle; is_dead = true
	:: true
	fi
}

/* --- the reader ------------------------------------------------------------ */

inline look()
{
	if
#ifdef WHOLE_WORD
	:: word == LIMBO -> is_pending = true; bell = true
#else
	:: STATE(word) == LIMBO -> is_pending = true; bell = true
#endif
	:: else
	fi
}

inline release()
{
	delta--;
	look()
}

inline read()
{
#ifdef LOOK_FIRST
	tainted = IS_TAINTED(word);
#endif
	counter >= 1;
#ifndef LOOK_FIRST
	tainted = IS_TAINTED(word);
#endif
	assert(STATE(word) != FREE);
	assert(is_written || tainted);
	tainted = false
}

proctype Reader()
{
	bool tainted;

	delta++;
	if
	:: word == PUBLISHED -> read(); release()
	:: else ->
		release();
		wants = true;
		if
		:: is_given -> read(); release()
		:: is_refused
		fi
	fi;
	is_done = true
}

/* --- the broker ------------------------------------------------------------ */

inline update_state()
{
	word = (word - STATE(word)) + LIMBO;
	if
	:: granted + delta > 0 -> skip
	:: else ->
		if
#ifndef IGNORE_ORDER
		:: is_ordered && counter < 1 -> is_watched = true
		:: else -> word = FREE
#else
		:: true -> word = FREE
#endif
		fi
	fi
}

/* session_end() of broker/session/session_end.c */
inline bury()
{
#ifdef POISON_FIRST
	is_late = counter < 1;
	counter = POISON;
	if
	:: is_late -> word = word + TAINTED
	:: else
	fi;
#else
	if
	:: counter < 1 && STATE(word) != FREE -> word = word + TAINTED
	:: else
	fi;
#ifndef NO_POISON
	counter = POISON;
#endif
#endif
	is_ordered = false;
	is_buried = true;
	if
	:: STATE(word) == LIMBO -> update_state()
	:: else
	fi
}

active proctype Broker()
{
	bool is_named = true, is_ordered = true, is_buried, is_watched, is_late;

	do
	:: is_named -> is_named = false; update_state()
	:: wants ->
		wants = false;
		if
		:: is_named -> granted++; is_given = true
		:: else -> is_refused = true
		fi
	:: bell ->
		bell = false;
		if
		:: is_pending ->
			is_pending = false;
			if
			:: STATE(word) == LIMBO -> update_state()
			:: else
			fi
		:: else
		fi
	:: is_watched ->
		is_watched = false;
		if
		:: STATE(word) == LIMBO -> update_state()
		:: else
		fi
	:: is_dead && !is_buried -> bury()
	:: is_done && !is_named && !bell && !is_watched &&
	   is_buried == is_killed -> break
	od;
	assert(word == FREE)
}

init
{
	atomic {
		if
		:: may_die = true
		:: skip
		fi;
		run Device();
		run Reaper();
		run Reader()
	}
}
