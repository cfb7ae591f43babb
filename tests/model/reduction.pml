/*
 * The reductions of shm/board.h and shm/pieces.h. Ranks hand in inputs, take
 * pieces, sleep and are woken. One rank may die before any of its steps. The
 * broker then ends the run, and frees the memory of the run when no living rank
 * holds it.
 *
 * Every rank does N_STEPS reductions of one input. All of them use the same
 * words of the board, so that laps follow one another there. Each reduction has
 * N_PIECES pieces. A piece reads the inputs of all ranks.
 *
 * These properties are checked:
 *   - A piece is reduced once, and only when all inputs of the step are there.
 *   - No input is written while a piece reads it.
 *   - Memory that was freed is not used.
 *   - When a rank returns from a step and the run has not ended, all pieces are
 *     reduced.
 *   - If no rank has died, the run is not ended.
 *   - No rank sleeps for ever (an invalid end state).
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   SLEEP_LATE    a rank checks its condition before it counts as a sleeper
 *   NO_BUMP       a waker does not change the word
 *   WAKE_FIRST    the broker wakes before it writes the verdict
 *   DEAF          a sleeper does not check the verdict
 *   RING_FIRST    a rank rings before it counts the last piece
 *   DONE_FIRST    a rank counts a piece before it has reduced it
 *   REUSE_EARLY   a rank writes its next input when all pieces are taken, but
 *                 not all are done
 *   NO_LAP        a rank takes the count of the previous step for that of its
 *                 own step
 *   OPEN_LATE     a rank opens `next` before `done`
 *   FREE_AT_ONCE  the broker frees the memory together with the verdict
 */
#define N        2
#define N_STEPS  2
#define N_PIECES 2

byte handed_in[N];
byte next_lap, next_n; /* in one word */
byte done_lap, done_n; /* in one word */
byte word, sleepers;
bool verdict;
bool sleeps[N]; /* the ranks in the kernel's queue */

/* used only by the checks */
bool is_mortal, is_freed;
byte n_dead, n_ended;
bool holds[N];
byte filled[N];          /* the step of the input */
byte readers;            /* number of pieces that are reading the inputs */
byte reduced[N_PIECES];  /* the step of the reduced piece */

#define ALL_IN(s) (handed_in[0] >= s && handed_in[1] >= s)
#ifdef NO_LAP
#define DONE(s)   (done_n == N_PIECES)
#else
#define DONE(s)   (done_lap > s || (done_lap == s && done_n == N_PIECES))
#endif

inline may_die()
{
	if
	:: atomic { is_mortal && n_dead == 0 -> n_dead++; goto ended }
	:: true
	fi
}

inline wake_all()
{
	d_step { sleeps[0] = false; sleeps[1] = false }
}

inline ring()
{
	if
	:: sleepers > 0 ->
#ifndef NO_BUMP
		word++;
#endif
		may_die();
		wake_all()
	:: else
	fi
}

inline queue()
{
	atomic {
		if
		:: word == seen -> sleeps[me] = true
		:: else
		fi
	};
	if
	:: !sleeps[me]
	:: atomic {
		sleeps[me] && is_mortal && n_dead == 0 ->
		n_dead++; sleeps[me] = false; goto ended
	   }
	fi
}

#ifdef DEAF
#define AWAKE(COND) (COND)
#else
#define AWAKE(COND) ((COND) || verdict)
#endif

inline await(COND)
{
	do
	:: COND -> break
	:: else ->
		if
		:: verdict -> is_over = true; break
		:: else
		fi;
		seen = word;
#ifdef SLEEP_LATE
		is_met = AWAKE(COND);
		may_die();
		sleepers++;
#else
		sleepers++;
		may_die();
		is_met = AWAKE(COND);
#endif
		if
		:: is_met
		:: else -> queue()
		fi;
		sleepers--
	od
}

inline open_done(s)
{
	atomic {
		if
		:: done_lap < s -> done_lap = s; done_n = 0
		:: else
		fi
	}
}

/* Each atomic block with a comparison is one CAS of `next`, which fails if the
 * word has changed since it was read. */
inline take(s)
{
	got = false;
	do
	:: atomic { lap = next_lap; n = next_n };
		if
		:: lap > s || (lap == s && n == N_PIECES) -> break
		:: lap < s ->
#ifndef OPEN_LATE
			open_done(s);
			may_die();
#endif
			atomic {
				if
				:: next_lap == lap && next_n == n ->
					next_lap = s; next_n = 1;
					piece = 0; got = true
				:: else
				fi
			};
#ifdef OPEN_LATE
			if
			:: got -> may_die(); atomic { done_lap = s; done_n = 0 }
			:: else
			fi;
#endif
			if
			:: got -> break
			:: else
			fi
		:: else ->
			atomic {
				if
				:: next_lap == lap && next_n == n ->
					next_n = n + 1; piece = n; got = true
				:: else
				fi
			};
			if
			:: got -> break
			:: else
			fi
		fi
	od
}

inline reduce(s)
{
	atomic {
		assert(!is_freed);
		assert(filled[0] == s && filled[1] == s);
		readers++
	};
	may_die_reading();
	atomic {
		assert(!is_freed);
		assert(reduced[piece] == s - 1); /* only once */
		reduced[piece] = s;
		readers--
	}
}

inline may_die_reading()
{
	if
	:: atomic {
		is_mortal && n_dead == 0 ->
		n_dead++; readers--; goto ended
	   }
	:: true
	fi
}

inline count()
{
	atomic { done_n++; is_last = done_n == N_PIECES }
}

inline pieces(s)
{
	do
	:: verdict -> is_over = true; break
	:: else ->
		take(s);
		if
		:: !got -> break
		:: else
		fi;
		may_die();
#ifdef DONE_FIRST
		count();
		reduce(s);
#else
		reduce(s);
		may_die();
#ifdef RING_FIRST
		if
		:: done_n == N_PIECES - 1 -> ring()
		:: else
		fi;
		count();
		is_last = false;
#else
		count();
#endif
#endif
		may_die();
		if
		:: is_last -> ring()
		:: else
		fi
	od
}

proctype rank(byte me)
{
	byte s = 1, seen, lap, n, piece;
	bool is_over, is_met, got, is_last;

	do
	:: s <= N_STEPS ->
		/* No other rank reads the input now. */
		atomic {
			assert(readers == 0);
			assert(!is_freed);
			filled[me] = s
		};
		may_die();
		handed_in[me] = s;
		may_die();
		if
		:: ALL_IN(s) -> ring()
		:: else
		fi;
		await(ALL_IN(s));
		if
		:: is_over -> break
		:: else
		fi;
		if
		:: DONE(s)
		:: else -> pieces(s)
		fi;
#ifndef REUSE_EARLY
		if
		:: is_over -> break
		:: else
		fi;
		await(DONE(s));
		if
		:: is_over -> break
		:: else
		fi;
		assert(reduced[0] == s && reduced[1] == s);
#endif
		s++
	:: else -> break
	od;
	assert(!is_over || n_dead > 0);
ended:
	atomic { holds[me] = false; n_ended++ }
}

proctype broker()
{
	if
	:: n_dead > 0 ->
#ifdef WAKE_FIRST
		word++;
		wake_all();
		verdict = true;
#else
		verdict = true;
#ifndef NO_BUMP
		word++;
#endif
		wake_all();
#endif
#ifndef FREE_AT_ONCE
		!holds[0] && !holds[1];
#endif
		is_freed = true
	:: n_ended == N && n_dead == 0
	fi
}

init
{
	if
	:: is_mortal = true
	:: true
	fi;
	atomic {
		holds[0] = true; holds[1] = true;
		run rank(0); run rank(1); run broker()
	}
}
