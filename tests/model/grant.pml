/*
 * Grants across crashes of the broker. The number of holds is granted + delta,
 * requests have numbers, and the broker uses the undo journal of
 * broker/catalog/catalog.h.
 *
 * There is one session and one slot, which is allocated again until the
 * requests are used up. The client's main thread sends one request at a time,
 * and releases by the file or by a request. Its second thread acquires tensors
 * that the first one knows, without a system call. The broker may be killed
 * after each store that outlives it. (What happens between two such stores has
 * no effect that anyone can observe.) The next broker adopts the catalog. The
 * variables of the old one and the requests in its socket are lost. Replies
 * that it has sent stay readable. After them the client reads the end of the
 * connection, says hello on a new one and sends the request again if it had no
 * reply.
 *
 * With LEASES, a get may also be for a large bundle of which the slot is a
 * member. Such a get takes only a lease (broker/tensor/lease.h), which keeps
 * the slot. The broker reads no request until the slot was granted and the
 * lease has ended.
 *
 * The client may die at any time. Before the broker takes notice, a dead client
 * is like one whose threads take no steps. So it dies when the broker takes
 * notice, and no earlier death is needed to see what follows from it.
 *
 * Safety: the memory of a holder exists until it releases. Liveness: in the end
 * the slot is free (the last assertion of the broker).
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   DOUBLE_GRANT    a request that is sent again grants again
 *   NO_JOURNAL      changes are not undone
 *   EARLY_REPLY     the reply is sent before the commit
 *   FORGET_GRANT    granted begins at 0 for each tensor in the slot, although
 *                   delta continues
 *   NO_GRACE        an adopted session has no holds until it has said hello
 *   DEAF_TO_HELLO   the broker does not update the state after a hello
 *   BELL0           a release rings only when delta becomes 0
 *   UNKEPT_LEASE    a lease does not keep the slot
 *   LOST_LEASE      a new broker ignores the lease that it finds
 *   SILENT_LEASE    the broker does not update the state when a lease ends
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

/* The kinds of requests. A reply is a generation, or 0 for a refusal. */
#define HELLO 0
#define GET 1
#define ALLOC 2
#define NAME 3
#define RELEASE 4
#define END 99 /* in place of a reply's number: the end of the connection */

/* At most two of each are there at a time. A third one has room, and spin reports
 * a sender that waits for ever. */
chan request = [3] of { byte, byte, byte }; /* number, kind, generation */
chan reply = [3] of { byte, byte };	    /* number, result */

/* The catalog, whose changes are in the journal. (`local` tells spin that only
 * one process uses the variable.) */
local short granted;
local bool has_name = true, is_gone;
local byte seen, outcome;

/* The lease of the session. LEASE: the slot must still be granted.
 * LEASE_OF_OTHERS: only other members must be. */
#define NO_LEASE 0
#define LEASE_OF_OTHERS 1
#define LEASE 2
local byte lease = NO_LEASE;
bool is_live = true;
byte generation = 1;

/* The journal: old values, and their number. */
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

byte word = WORD(1, PUBLISHED); /* in the state table */
short delta;			/* in the ref-counter file */
bool pending, bell;

byte connection; /* n_crashes of the broker that the client is connected to */
bool is_told;	 /* an END was sent, and the client has not connected since */
bool is_dead, may_die;
byte n_done, n_stopped; /* threads that are ready, and that died */
byte n_crashes;
local byte n_evictions;
byte known; /* the generation that the client's threads know */

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
	assert(is_live && generation == mine)
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

	{
		if
		:: n_done > 0
		:: d_step { known > 0 -> mine = known; delta++ }
			if
			:: word == WORD(mine, PUBLISHED) -> release()
			:: else ->
				d_step { delta--; looks = MUST_LOOK }
				look()
			fi
		fi;
		d_step { mine = 0; looks = true; n_done++ }
end_done:	false
	} unless {
		d_step { is_dead -> mine = 0; looks = true; n_stopped++ }
	}
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

/* A request to a dead broker is lost. */
inline send(what, how)
{
	atomic {
		if
		:: connection == n_crashes -> request!what, how, mine
		:: else
		fi
	}
}

/* Connects to the current broker. */
inline reconnect()
{
	is_told = false;
	connection = n_crashes
}

/* Sends a request and waits for the reply. After the end of a connection it
 * sends the request again on a new one. */
inline ask()
{
	send(number, kind);
	do
	:: d_step { reply?END, result -> reconnect() }
		send(HELLO, HELLO);
		send(number, kind)
	:: reply?eval(number), result -> break
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

	{
end_idle:
	do
	:: atomic { number < N_REQUESTS -> number++; choose() }
		ask()
	:: n_holds > 0 -> release(); n_holds--
	:: d_step { number < N_REQUESTS && n_holds == 0 -> number = N_REQUESTS }
	:: d_step { number == N_REQUESTS && n_holds == 0 -> number++; n_done++ }
	:: d_step { reply?END, result -> reconnect() }
		send(HELLO, HELLO)
	od
	} unless {
		d_step {
			is_dead -> n_stopped++;
			number = 0; kind = 0; mine = 0; result = 0; n_holds = 0;
			looks = true
		}
	}
}

/* --- the broker ------------------------------------------------------------ */

/* This follows each store that outlives the broker, in the same atomic block.
 * The requests in the socket are lost. */
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

/* In the broker, n_notes = 0 is the only store. The loop clears values that are
 * not used any more, so that spin recognizes equal states. */
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

inline answer_with(result)
{
	atomic {
		if
		:: is_dead
		:: else -> reply!number, result
		fi;
		crash()
	}
}

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

/* slot_update_state(): updates word and memory to match name and holds. */
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

/* The chore that makes the grants of a lease. It has two transactions, and
 * updates the state in a third one. */
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

/* Both threads stop where they are. Nobody will read their variables and
 * replies, so these are cleared, and spin recognizes equal states. (may_die is
 * kept: if a crash undoes is_gone, the next broker takes notice again.) */
inline die()
{
	atomic {
		may_die && !is_gone -> is_dead = true;
		n_stopped == 2;
		do
		:: nempty(reply) -> reply?number, answer
		:: empty(reply) -> break
		od;
		number = 0;
		answer = 0;
		known = 0;
		n_done = 0;
		connection = 0;
		is_told = false
	}
}

/* The state of a new process. */
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
	:: is_dead || is_told || connection == n_crashes
	:: d_step {
		!is_dead && !is_told && connection < n_crashes ->
		reply!END, 0;
		is_told = true
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
	:: die();
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
