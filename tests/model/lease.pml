/*
 * Acquire, hold, release and reclaim, as shm/refs.h has them: no system call,
 * no lock, and no memory freed under a holder or left behind for ever.
 *
 * One slot; two client threads that share a session or have one each; one
 * broker. The client writes delta and reads the word; the broker writes the
 * word and reads delta; every access is a statement of its own, so spin tries
 * every order of them. Besides, a holder names what was in limbo or the broker
 * evicts; a client dies at some statement or the slot is used a second time.
 * The broker does not die here (grant.pml).
 *
 * Safe: whoever holds a generation finds its memory, to the last moment before
 * it lets go. Live: once nobody holds anything and every ring was answered, the
 * slot is free; else the broker waits for ever (an invalid end state) or ends
 * with the slot in limbo (its last assertion).
 *
 * Mutations, each of which must be found out:
 *   CHECK_BEFORE_COUNT  acquire looks at the word, then counts
 *   SCAN_BEFORE_LIMBO   reclaim counts, then stores LIMBO
 *   SILENT_BACKOUT      an acquire that backs out does not ring
 *   BELL0               release rings only when delta reaches 0
 *   EVICT_UNCOUNTED     eviction frees without looking for holders
 *   DEAF_TO_DEATH       a pidfd does not make the broker look at limbo
 */
#ifndef N_TRIES /* of the second client to acquire what it was not granted */
#define N_TRIES 1
#endif
#define FREE 0
#define PUBLISHED 1
#define LIMBO 2
#define WORD(generation, state) ((generation) * 4 + (state))
#define STATE(word) ((word) % 4)

byte word = WORD(1, PUBLISHED); /* state table */
short delta[2];			/* ref-counter files */
bool pending[2];		/* the slot's bits there (pending.pml has more) */
bool bell[2];			/* eventfds */

short granted[2];  /* catalog */
bool gone[2];	   /* catalog: the session is forgotten */
bool name = true;  /* the slot's keeper */
byte alive = 1;	   /* generation whose memory is there; 0: freed */

byte gift[2];	   /* a reply on its way: generation of a granted hold */
byte wish;	   /* a request: name this generation again */
bool dead[2];	   /* what pidfds say */
bool is_shared;	   /* both threads are of session 0 */
bool is_over;	   /* no more gifts will come */
/* What may happen besides, in this run: chosen at the start. */
byte n_wishes, n_evictions, n_deaths, n_reuses;
byte n_done;

/* --- clients --------------------------------------------------------------- */

#ifdef BELL0
#define MUST_LOOK (delta[s] == 0)
#else
#define MUST_LOOK true
#endif

/* Behind each decrement. `looks` is what the decrement left behind. */
inline look(s)
{
	if
	:: looks && STATE(word) == LIMBO ->
		pending[s] = true;
		bell[s] = true
	:: else
	fi
}

/* The last moment at which the memory may be read. */
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

/* A holder may hold twice, may ask for a name, and lets go. */
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
	} unless { dead[s] }
	n_done++
}

/* --- broker ---------------------------------------------------------------- */

/* One session after the other, as the broker reads their files. */
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

/* Nothing keeps the slot: free it unless a session holds it. */
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

/* The next tensor in the slot: one hold is granted to a session. */
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

inline bury(i)
{
	gone[i] = true;
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
	:: dead[0] && !gone[0] -> bury(0)
	:: dead[1] && !gone[1] -> bury(1)
	:: n_done == 2 && !name && !bell[0] && !bell[1] && wish == 0 &&
	   gone[0] == dead[0] && gone[1] == dead[1] -> break
	od;
	assert(alive == 0)
}

proctype Reaper()
{
	if
	:: n_deaths > 0 && !is_shared -> dead[1] = true
	:: n_deaths > 0 -> dead[0] = true
	:: skip
	fi
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
		:: n_reuses = 1
		fi;
		/* The first session wrote the tensor and still holds it. */
		granted[0] = 1;
		gift[0] = 1;
		run Thread(0, 1);
		if
		:: is_shared = true; run Thread(0, N_TRIES)
		:: run Thread(1, N_TRIES)
		fi;
		run Broker();
		run Reaper()
	}
}
