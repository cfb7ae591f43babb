/*
 * Grants across crashes of the broker: holds = granted + delta, requests with
 * numbers, and the undo journal of broker/catalog/catalog.h.
 *
 * One session, one slot that is allocated anew while requests last. The
 * client's main thread sends requests, one at a time, and releases by file or
 * by request; its second thread acquires what the first one knows without a
 * system call. The broker may be killed after each store that outlives it (what
 * lies between two of them nobody can tell apart) and adopts the catalog; its
 * own variables and the requests in the old socket are lost. Replies sent stay
 * readable; then the client reads the end of the connection, says hello on a
 * new one and sends again what was not answered.
 *
 * With LEASES, a get may also be of a large bundle that the slot is a member
 * of: it only takes a lease then (broker/tensor/lease.h), which keeps the slot, and
 * the broker reads no request until the slot was granted and the lease is over.
 *
 * The client may die at any time. Its threads need no killing for that: a dead
 * one is one that takes no further step, and nothing they do after is_dead is
 * looked at.
 *
 * Safe: a holder finds its memory until it lets go. Live: when all is over,
 * the slot is free (the broker's last assertion).
 *
 * Mutations, each of which must be found out:
 *   DOUBLE_GRANT    a repeated number grants again
 *   NO_JOURNAL      changes are not undone
 *   EARLY_REPLY     the answer leaves before the commit
 *   FORGET_GRANT    granted starts at 0 with each life of the slot, though
 *                   delta runs on
 *   NO_GRACE        an adopted session holds nothing until it is back
 *   DEAF_TO_HELLO   no state is updated when it is back
 *   BELL0           release rings only when delta reaches 0
 *   UNKEPT_LEASE    a lease keeps nothing
 *   LOST_LEASE      a broker that finds a lease forgets it
 *   SILENT_LEASE    no state is updated when a lease is over
 */
#ifndef N_CRASHES
#define N_CRASHES 2
#endif
#ifndef N_REQUESTS
#define N_REQUESTS 2
#endif

#define FREE 0
#define PUBLISHED 1
#define LIMBO 2
#define WORD(number, state) ((number) * 4 + (state))
#define STATE(word) ((word) % 4)

/* Requests; a reply is a generation, 0 for a refusal. */
#define HELLO 0
#define GET 1
#define ALLOC 2
#define NAME 3
#define RELEASE 4
#define END 99 /* in place of a reply's number: the connection is over */

chan request = [8] of { byte, byte, byte }; /* number, kind, generation */
chan reply = [8] of { byte, byte };	    /* number, result */

/* The catalog, journaled. (local: for spin, used by one process only) */
local short granted;
local bool has_name = true, is_gone;
local byte seen, outcome;

/* The session's lease: of what is still to be granted, or of other members. */
#define NO_LEASE 0
#define LEASE_OF_OTHERS 1
#define LEASE 2
local byte lease = NO_LEASE;
bool is_live = true;
byte generation = 1;

/* The journal: old values, and how many stand. */
#define F_GRANTED 1
#define F_NAME 2
#define F_LIVE 3
#define F_GONE 4
#define F_GENERATION 5
#define F_SEEN 6
#define F_OUTCOME 7
#define F_LEASE 8
#define N_NOTES 6
local byte n_notes, note_field[N_NOTES];
local short note_value[N_NOTES];

byte word = WORD(1, PUBLISHED); /* state table */
short delta;			/* ref-counter file */
bool pending, bell;

byte connection; /* which broker the client talks to, by n_crashes */
bool is_told;	 /* an END is on its way: no connection was made since */
bool is_dead, may_die;
byte n_done;
byte n_crashes;
local byte n_evictions;
byte known; /* generation that the client's threads know */

/* --- the client ------------------------------------------------------------ */

#ifdef BELL0
#define MUST_LOOK (delta == 0)
#else
#define MUST_LOOK true
#endif

inline look()
{
	if
	:: looks && STATE(word) == LIMBO -> pending = true; bell = true
	:: else
	fi
}

inline must_be_there()
{
	assert(is_dead || is_live && generation == mine)
}

inline release()
{
	d_step { must_be_there(); delta--; looks = MUST_LOOK }
	look()
}

proctype Second()
{
	byte mine;
	bool looks = true;

	if
	:: n_done > 0 || is_dead
	:: d_step { known > 0 -> mine = known; delta++ }
		if
		:: word == WORD(mine, PUBLISHED) -> release()
		:: else ->
			d_step { delta--; looks = MUST_LOOK }
			look()
		fi
	fi;
	n_done++
}

inline choose()
{
	if
	:: kind = GET
	:: n_holds == 0 -> kind = ALLOC
	:: n_holds > 0 -> kind = NAME
	:: n_holds > 0 -> must_be_there(); n_holds--; kind = RELEASE
	fi
}

/* What goes into the socket of a dead broker is lost. */
inline send(what, how)
{
	atomic {
		if
		:: connection == n_crashes -> request!what, how, mine
		:: else
		fi
	}
}

/* From here on the client talks to the broker there is now. */
inline reconnect()
{
	is_told = false;
	connection = n_crashes
}

/* Send and wait for the answer, over as many connections as it takes. */
inline ask()
{
	send(number, kind);
	do
	:: d_step { reply?END, result -> reconnect() }
		send(HELLO, HELLO);
		send(number, kind)
	:: reply?eval(number), result -> break
	:: is_dead -> goto dead
	od;
	if
	:: (kind == GET || kind == ALLOC) && result > 0 ->
		d_step { n_holds++; mine = result; known = result }
	:: else
	fi;
	d_step { kind = 0; result = 0 }
}

proctype Main()
{
	byte number, kind, mine, result, n_holds;
	bool looks = true;

end_idle:
	do
	:: is_dead -> break
	:: atomic { number < N_REQUESTS -> number++; choose() }
		ask()
	:: n_holds > 0 -> release(); n_holds--
	:: d_step { number < N_REQUESTS && n_holds == 0 -> number = N_REQUESTS }
	:: d_step { number == N_REQUESTS && n_holds == 0 -> number++; n_done++ }
	:: d_step { reply?END, result -> reconnect() }
		send(HELLO, HELLO)
	od;
dead:	skip
}

/* --- the broker ------------------------------------------------------------ */

/* Behind each store that outlives the broker, in one atomic with it. What is
 * in its socket is lost. */
inline crash()
{
	if
	:: n_crashes < N_CRASHES ->
		n_crashes++;
		do
		:: nempty(request) -> request?number, kind, theirs
		:: empty(request) -> break
		od;
		goto boot
	:: skip
	fi
}

inline set(field, place, value)
{
#ifndef NO_JOURNAL
	atomic {
		note_field[n_notes] = field;
		note_value[n_notes] = place;
		n_notes++;
		crash()
	};
#endif
	atomic { place = value; crash() }
}

inline set_word(state) { atomic { word = WORD(generation, state); crash() } }

/* One store; the rest only keeps equal states equal. */
inline forget()
{
	d_step {
		n_notes = 0;
		clear = 0;
		do
		:: clear < N_NOTES ->
			note_field[clear] = 0;
			note_value[clear] = 0;
			clear++
		:: else -> break
		od;
		clear = 0
	}
}

inline commit() { atomic { forget(); crash() } }

inline answer_with(result) { atomic { reply!number, result; crash() } }

inline put_back(field, value)
{
	if
	:: field == F_GRANTED -> granted = value
	:: field == F_NAME -> has_name = value
	:: field == F_LIVE -> is_live = value
	:: field == F_GONE -> is_gone = value
	:: field == F_GENERATION -> generation = value
	:: field == F_SEEN -> seen = value
	:: field == F_OUTCOME -> outcome = value
	:: field == F_LEASE -> lease = value
	fi
}

inline undo()
{
	do
	:: n_notes > 0 ->
		atomic {
			put_back(note_field[n_notes - 1],
				 note_value[n_notes - 1]);
			crash()
		};
		n_notes--
	:: else -> break
	od;
	commit()
}

inline count()
{
#ifdef NO_GRACE
	held = !is_gone && is_attached && granted + delta > 0
#else
	held = !is_gone && (!is_attached || granted + delta > 0)
#endif
}

inline free_it()
{
	set(F_LIVE, is_live, false);
#ifdef FORGET_GRANT
	set(F_GRANTED, granted, 0);
#endif
	set_word(FREE)
}

/* Bring word and memory in line with name and holds (slot_update_state()). */
inline update_state()
{
	if
	:: !is_live -> set_word(FREE)
	:: is_live && has_name -> set_word(PUBLISHED)
	:: else ->
		set_word(LIMBO);
		count();
		if
#ifndef UNKEPT_LEASE
		:: held || lease != NO_LEASE -> held = false
#else
		:: held -> held = false
#endif
		:: else -> free_it()
		fi
	fi
}

/* The chore: two transactions, and what is updated later in a third. */
inline grant_leased()
{
	set(F_GRANTED, granted, granted + 1);
	set(F_LEASE, lease, LEASE_OF_OTHERS);
	commit()
}

inline end_lease()
{
	set(F_LEASE, lease, NO_LEASE);
	commit();
#ifndef SILENT_LEASE
	update_state();
	commit()
#endif
}

inline record(result)
{
	set(F_OUTCOME, outcome, result);
	set(F_SEEN, seen, number)
}

inline grant()
{
	set(F_GRANTED, granted, granted + 1);
#ifdef EARLY_REPLY
	answer_with(generation);
#endif
	record(generation);
	answer = generation
}

inline run_it()
{
	if
	:: kind == GET && is_live && has_name -> grant()
#ifdef LEASES
	:: kind == GET && is_live && has_name ->
		set(F_LEASE, lease, LEASE);
		record(generation);
		answer = generation
#endif
	:: kind == ALLOC && !is_live ->
		set(F_GENERATION, generation, generation + 1);
		set(F_LIVE, is_live, true);
		set_word(LIMBO);
		grant()
	:: kind == NAME && is_live && generation == theirs ->
		set(F_NAME, has_name, true);
		record(generation);
		update_state();
		answer = generation
	:: kind == RELEASE && is_live && generation == theirs ->
		set(F_GRANTED, granted, granted - 1);
		record(generation);
		update_state();
		answer = generation
	:: else -> answer = 0
	fi;
	commit()
}

inline serve()
{
	if
#ifndef DOUBLE_GRANT
	:: number <= seen -> answer = outcome
	:: else -> run_it()
#else
	:: number <= seen && kind != GET -> answer = outcome
	:: else -> run_it()
#endif
	fi;
#ifdef EARLY_REPLY
	if
	:: kind == NAME || kind == RELEASE || answer == 0 ->
		answer_with(answer)
	:: else
	fi;
#else
	answer_with(answer);
#endif
	d_step { number = 0; kind = 0; theirs = 0; answer = 0 }
}

inline hello()
{
	is_attached = true;
#ifndef DEAF_TO_HELLO
	update_state();
	commit()
#endif
}

inline evict()
{
	set_word(LIMBO);
	count();
	if
	:: held -> held = false; set_word(PUBLISHED)
	:: else ->
		set(F_NAME, has_name, false);
		free_it();
		commit()
	fi
}

/* What a new process starts with. */
inline reset()
{
	held = false;
	is_attached = n_crashes == 0;
	number = 0;
	kind = 0;
	theirs = 0;
	answer = 0
}

inline adopt()
{
	undo();
#ifndef LOST_LEASE
	if
	:: lease == LEASE -> grant_leased()
	:: else
	fi;
#endif
	if
	:: lease != NO_LEASE -> set(F_LEASE, lease, NO_LEASE); commit()
	:: else
	fi;
	update_state();
	commit();
	if
	:: is_told || connection == n_crashes
	:: d_step {
		!is_told && connection < n_crashes -> reply!END, 0; is_told = true
	   }
	fi
}

proctype Broker()
{
	byte number, kind, theirs, answer, clear;
	bool held, is_attached;
boot:	skip;
	d_step { reset() };
	if
	:: n_crashes > 0 -> adopt()
	:: else
	fi;
	do
	:: atomic { lease == NO_LEASE && nempty(request) ->
			request?number, kind, theirs; crash() }
		if
		:: number == HELLO && !is_gone -> hello()
		:: number > 0 && !is_gone -> assert(is_attached); serve()
		:: is_gone
		fi
	:: has_name -> set(F_NAME, has_name, false); update_state(); commit()
	:: has_name && lease == NO_LEASE && n_evictions < 1 ->
		n_evictions++; evict()
	:: lease == LEASE -> grant_leased()
	:: lease == LEASE_OF_OTHERS -> end_lease()
	:: atomic { bell && is_attached -> bell = false; crash() }
		if
		:: atomic { pending -> pending = false; crash() }
			update_state();
			commit()
		:: else
		fi
	:: may_die && !is_dead -> is_dead = true
	:: is_dead && !is_gone ->
		set(F_GONE, is_gone, true);
		set(F_LEASE, lease, NO_LEASE);
		update_state();
		commit()
	:: (n_done == 2 && is_attached && !bell || is_gone) && !has_name &&
	   empty(request) && lease == NO_LEASE -> break
	od;
	assert(!is_live)
}

init
{
	atomic {
		if
		:: may_die = true
		:: skip
		fi;
		run Main();
		run Second();
		run Broker()
	}
}
