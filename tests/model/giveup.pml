/*
 * A writer that gives up before it has published. When it drops its last hold,
 * nothing stays behind. If its other thread publishes at the same time, nothing
 * is lost.
 *
 * There is one slot in the state WRITING. It is granted to one session with two
 * threads, each of which holds it once (the grant is 1, the delta is 1). One
 * thread only releases. The other thread publishes before it releases, or only
 * releases. A publish is a request, so the broker executes it between two of
 * its own steps. After that the name may be removed at any time. In the end no
 * thread holds the slot, so it must be free unless it has a name.
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   SILENT_GIVEUP   a release rings only if the state is LIMBO, not WRITING, so
 *                   the slot stays WRITING for ever
 *   UNCOUNTED       a pending bit ends the writer without a check of the count
 *   LATE_LOOK       a release reads the word before it lowers delta
 */
mtype = { WRITING, PUBLISHED, LIMBO, FREE };
mtype word = WRITING;
short delta = 1;
bool has_writer = true, is_named, is_pending, bell;
bool wants_publish, was_published;
byte holds = 2; /* the holds that the client has */
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

/* slot_update_state() of broker/tensor/slot_state.c */
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
