/*
 * Acquire, hold, release and reclaim as in shm/refs.h. There is no system call
 * and no lock. Memory must not be freed while it is held, and must not stay for
 * ever.
 *
 * There is one slot, one broker and two threads of clients. The threads share
 * one session or have one each. The client writes delta and reads the word; the
 * broker writes the word and reads delta. Every access is a statement of its
 * own, so spin tries all orders. In addition, a holder gives a name to a tensor
 * in limbo, or the broker evicts; and a client dies at any statement, or the
 * slot is used for a second tensor. grant.pml models the death of the broker.
 *
 * Safety: the memory of a generation exists while it is held, until the
 * release. Liveness: when nothing is held and the broker has handled every
 * ring, the slot is free. Otherwise the broker waits for ever (an invalid end
 * state), or ends with the slot in limbo (its last assertion).
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   CHECK_BEFORE_COUNT  acquire reads the word before it counts the hold
 *   SCAN_BEFORE_LIMBO   reclaim counts before it stores LIMBO
 *   SILENT_BACKOUT      acquire does not ring when it fails and drops its hold
 *   BELL0               a release rings only when delta becomes 0
 *   EVICT_UNCOUNTED     eviction does not count the holds
 *   DEAF_TO_DEATH       the broker does not update the state after a death
 */
/* How often the second client tries to acquire without a grant. */
#ifndef N_TRIES
#define N_TRIES 1
#endif
#define FREE 0
#define PUBLISHED 1
#define LIMBO 2
#define WORD(generation, state) ((generation) * 4 + (state))
#define STATE(word) ((word) % 4)

byte word = WORD(1, PUBLISHED); /* in the state table */
short delta[2];			/* in the ref-counter files */
bool pending[2];		/* the slot's bits there (pending.pml) */
bool bell[2];			/* eventfds */

short granted[2];  /* in the catalog */
bool gone[2];	   /* in the catalog: the session has ended */
bool name = true;  /* the slot has a name, which keeps it */
byte alive = 1;	   /* the generation whose memory exists; 0: it is freed */

byte gift[2];	   /* a reply that was sent: generation of a granted hold */
byte wish;	   /* a request to give a name to this generation */
bool is_shared;	   /* both threads are of session 0 */
bool is_over;	   /* no more holds will be granted */
/* The other events of this run. They are chosen at the start. */
byte n_wishes, n_evictions, n_deaths, n_reuses;
byte n_threads[2]; /* threads of the session that still run */

/* --- clients --------------------------------------------------------------- */

#ifdef BELL0
#define MUST_LOOK (delta[s] == 0)
#else
#define MUST_LOOK true
#endif

/* This follows each decrement, which sets `looks`. */
inline look(s)
{
	if
	:: looks && STATE(word) == LIMBO ->
		pending[s] = true;
		bell[s] = true
	:: else
	fi
}

/* Until the decrement the memory may be read. */
inline release(s)
{
	d_step {
		assert(alive == generation);
		delta[s]--;
		looks = MUST_LOOK
	}
	look(s)
}

inline back_out(s)
{
#ifdef SILENT_BACKOUT
	delta[s]--
#else
	d_step { delta[s]--; looks = MUST_LOOK }
	look(s)
#endif
}

/* A holder may hold twice or ask for a name, and then releases. */
inline use(s)
{
	if
	:: delta[s]++; release(s)
	:: d_step { n_wishes > 0 -> n_wishes--; wish = generation }
	:: skip
	fi;
	release(s)
}

inline acquire(s)
{
#ifdef CHECK_BEFORE_COUNT
	if
	:: word == WORD(generation, PUBLISHED) -> delta[s]++; use(s)
	:: else
	fi
#else
	delta[s]++;
	if
	:: word == WORD(generation, PUBLISHED) -> use(s)
	:: else -> back_out(s)
	fi
#endif
}

proctype Thread(byte s; byte n_tries)
{
	byte generation = 1;
	bool looks = true;
	{
		do
		:: n_tries > 0 -> n_tries--; acquire(s)
		:: d_step { gift[s] > 0 -> generation = gift[s]; gift[s] = 0 }
		   use(s)
		:: n_tries == 0 && gift[s] == 0 && is_over -> break
		od
	} unless { gone[s] };
	atomic { generation = 0; n_tries = 0; looks = true; n_threads[s]-- }
}

/* --- broker ---------------------------------------------------------------- */

/* The broker reads the files of sessions one after another. */
inline count()
{
	held = !gone[0] && granted[0] + delta[0] > 0;
	if
	:: !held && !is_shared ->
		held = !gone[1] && granted[1] + delta[1] > 0
	:: else
	fi
}

inline free_it()
{
	alive = 0;
	word = WORD(generation, FREE)
}

/* No keeper has the slot, so it is freed unless a session holds it. */
inline reclaim()
{
#ifdef SCAN_BEFORE_LIMBO
	count();
	word = WORD(generation, LIMBO);
#else
	word = WORD(generation, LIMBO);
	count();
#endif
	if
	:: held -> held = false
	:: else -> free_it()
	fi
}

inline update_state()
{
	if
	:: alive == 0 || name
	:: else -> reclaim()
	fi
}

inline collect(i)
{
	if
	:: d_step { pending[i] -> pending[i] = false } update_state()
	:: else
	fi
}

inline evict()
{
	word = WORD(generation, LIMBO);
#ifdef EVICT_UNCOUNTED
	held = false;
#else
	count();
#endif
	if
	:: held -> held = false; word = WORD(generation, PUBLISHED)
	:: else -> name = false; free_it()
	fi
}

/* Allocates the next tensor in the slot, and grants one hold to a session. */
inline alloc()
{
	d_step { generation++; alive = generation; name = true }
	word = WORD(generation, PUBLISHED);
	if
	:: d_step { granted[0]++; gift[0] = generation; is_over = true }
	:: d_step {
		!is_shared ->
		granted[1]++;
		gift[1] = generation;
		is_over = true
	   }
	fi
}

/* A process dies. Before the broker takes notice, it is like one whose threads
 * take no steps. So they stop now, and what nobody will read is cleared, so
 * that spin recognizes equal states. */
inline bury(i, is_mortal)
{
	atomic {
		n_deaths > 0 && is_mortal -> n_deaths--;
		gone[i] = true;
		n_threads[i] == 0;
		granted[i] = 0;
		delta[i] = 0;
		gift[i] = 0
	};
#ifndef DEAF_TO_DEATH
	update_state()
#endif
}

proctype Broker()
{
	byte generation = 1;
	bool held;

	do
	:: name -> name = false; reclaim()
	:: name && n_evictions > 0 -> n_evictions--; evict()
	:: bell[0] -> bell[0] = false; collect(0)
	:: bell[1] -> bell[1] = false; collect(1)
	:: wish > 0 ->
		if
		:: wish == alive ->
			name = true;
			word = WORD(generation, PUBLISHED)
		:: else
		fi;
		wish = 0
	:: alive == 0 && n_reuses > 0 -> n_reuses--; alloc()
	:: bury(0, is_shared)
	:: bury(1, !is_shared)
	:: n_threads[0] == 0 && n_threads[1] == 0 && !name && !bell[0] &&
	   !bell[1] && wish == 0 -> break
	od;
	assert(alive == 0)
}

init
{
	atomic {
		if
		:: n_wishes = 1
		:: n_evictions = 1
		fi;
		if
		:: n_deaths = 1; is_over = true
		:: is_over = true
		:: n_reuses = 1
		fi;
		/* The first session wrote the tensor and still holds it. */
		granted[0] = 1;
		gift[0] = 1;
		n_threads[0]++;
		run Thread(0, 1);
		if
		:: is_shared = true; n_threads[0]++; run Thread(0, N_TRIES)
		:: n_threads[1]++; run Thread(1, N_TRIES)
		fi;
		run Broker()
	}
}
