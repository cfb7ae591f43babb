/*
 * Giving up before publishing: a writer that lets its last hold go leaves
 * nothing behind, and one whose other thread publishes meanwhile loses nothing.
 *
 * One slot, WRITING, granted to one session whose two threads hold it once
 * each (granted 1, delta 1). One thread only releases. The other releases, or
 * publishes first; a publish is a request, so the broker serves it between two
 * of its own steps. After that anybody may take the name away. In the end
 * nobody holds the slot: it must be free if no name shows it.
 *
 * Mutations, each of which must be found out:
 *   SILENT_GIVEUP   a release rings only if it sees LIMBO (the rule without
 *                   WRITING): the slot stays WRITING for ever
 *   UNCOUNTED       a pending bit alone ends the writer
 *   LATE_LOOK       a release looks at the word before it lowers delta
 */
mtype = { WRITING, PUBLISHED, LIMBO, FREE };
mtype word = WRITING;
short delta = 1;
bool has_writer = true, is_named, is_pending, bell;
bool wants_publish, was_published;
byte holds = 2; /* what the client believes */
byte n_done;

#define GRANTED 1
#define IS_HELD (GRANTED + delta > 0)

inline look(seen)
{
	if
	:: word == LIMBO -> seen = true
#ifndef SILENT_GIVEUP
	:: word == WRITING -> seen = true
#endif
	:: else -> seen = false
	fi
}

inline release()
{
	assert(word != FREE);
#ifdef LATE_LOOK
	look(seen);
	d_step { delta--; holds-- };
#else
	d_step { delta--; holds-- };
	look(seen);
#endif
	if
	:: seen -> is_pending = true; bell = true
	:: else
	fi
}

proctype Releaser()
{
	bool seen;

	release();
	n_done++
}

proctype Publisher()
{
	bool seen;

	if
	:: wants_publish = true;
	   was_published;
	   assert(word == PUBLISHED || word == LIMBO)
	:: skip
	fi;
	release();
	n_done++
}

/* slot_update_state() of broker/tensor/slot.c */
inline update_state()
{
	if
#ifdef UNCOUNTED
	:: has_writer -> has_writer = false
#else
	:: has_writer && !IS_HELD -> has_writer = false
#endif
	:: else
	fi;
	if
	:: has_writer -> skip
	:: !has_writer && is_named -> word = PUBLISHED
	:: else ->
		word = LIMBO;
		if
		:: IS_HELD -> skip
		:: else -> word = FREE; assert(holds == 0)
		fi
	fi
}

active proctype Broker()
{
	do
	:: bell ->
		bell = false;
		if
		:: is_pending ->
			is_pending = false;
			if
			:: word != FREE -> update_state()
			:: else
			fi
		:: else
		fi
	:: wants_publish ->
		wants_publish = false;
		assert(has_writer);
		has_writer = false;
		is_named = true;
		update_state();
		was_published = true
	:: is_named ->
		is_named = false;
		update_state()
	:: n_done == 2 && !bell && !wants_publish && !is_named -> break
	od;
	assert(word == FREE)
}

init
{
	run Releaser();
	run Publisher()
}
