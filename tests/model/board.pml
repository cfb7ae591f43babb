/*
 * The barriers of shm/board.h with the bell of shm/bell.h. Ranks wait at
 * barriers, sleep and are woken. One of them may die before any of its steps;
 * then the broker ends the run.
 *
 * Every rank goes through N_STEPS barriers. Each word of `arrived` has one
 * writer. Sleeping is modelled as the kernel does it: in one step it compares
 * the word with the value that the rank has read, and queues the rank. A wake
 * empties the queue.
 *
 * These properties are checked:
 *   - A rank leaves a barrier only when all ranks have arrived there.
 *   - If no rank has died, the run is not ended.
 *   - No rank sleeps for ever. spin reports this as an invalid end state.
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   SLEEP_LATE    a rank checks its condition before it counts as a sleeper
 *   SEEN_LATE     a rank reads the word after it has checked its condition
 *   NO_BUMP       a waker does not change the word
 *   RING_FIRST    a rank rings before it has arrived
 *   WAKE_FIRST    the broker wakes before it writes the verdict
 *   DEAF          a sleeper does not check the verdict
 *   SILENT        the broker writes the verdict and does not wake
 *   EQUAL         a rank waits until the others are at this barrier, although
 *                 they may be at a later one
 */
#ifndef N
#define N 2
#endif
#ifndef N_STEPS
#define N_STEPS 3
#endif

byte arrived[N];
byte word, sleepers;
bool verdict;

/* the ranks in the kernel's queue */
bool sleeps[N];

/* Whether a rank may die. This is chosen at the start, because if a death were
 * possible at any time, it would hide that a rank sleeps for ever. */
bool is_mortal;

/* used only by the checks */
byte n_dead, n_ended;

#ifdef EQUAL
#define HAS_COME(r, s) (arrived[r] == s)
#else
#define HAS_COME(r, s) (arrived[r] >= s)
#endif
#if N == 2
#define ALL_CAME(s) (HAS_COME(0, s) && HAS_COME(1, s))
#else
#define ALL_CAME(s) (HAS_COME(0, s) && HAS_COME(1, s) && HAS_COME(2, s))
#endif

#define OTHER(r) (r == me || HAS_COME(r, step))
#if N == 2
#define ALL_BUT_ME(s) (OTHER(0) && OTHER(1))
#else
#define ALL_BUT_ME(s) (OTHER(0) && OTHER(1) && OTHER(2))
#endif

/* The process dies here, or continues. */
inline may_die()
{
	if
	:: atomic { is_mortal && n_dead == 0 -> n_dead++; goto ended }
	:: true
	fi
}

inline wake_all()
{
	atomic {
		i = 0;
		do
		:: i < N -> sleeps[i] = false; i++
		:: else -> break
		od;
		i = 0
	}
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

inline arrive()
{
#ifdef RING_FIRST
	if
	:: ALL_BUT_ME(step) -> ring()
	:: else
	fi;
	arrived[me] = step;
#else
	arrived[me] = step;
	may_die();
	if
	:: ALL_CAME(step) -> ring()
	:: else
	fi
#endif
}

inline queue()
{
	atomic {
		if
		:: word == seen -> sleeps[me] = true
		:: else
		fi
	};
	may_die_asleep()
}

/* The rank sleeps until it is woken. It may die while it sleeps. */
inline may_die_asleep()
{
	if
	:: !sleeps[me]
	:: atomic {
		sleeps[me] && is_mortal && n_dead == 0 ->
		n_dead++; sleeps[me] = false; goto ended
	   }
	fi
}

inline await()
{
	do
	:: ALL_CAME(step) -> break
	:: else ->
		if
		:: verdict -> is_over = true; break
		:: else
		fi;
#ifndef SEEN_LATE
		seen = word;
#endif
#ifdef SLEEP_LATE
		is_met = ALL_CAME(step) || verdict;
		may_die();
		sleepers++;
#else
		sleepers++;
		may_die();
#ifdef DEAF
		is_met = ALL_CAME(step);
#else
		is_met = ALL_CAME(step) || verdict;
#endif
#endif
#ifdef SEEN_LATE
		seen = word;
#endif
		if
		:: is_met
		:: else -> queue()
		fi;
		sleepers--
	od
}

proctype rank(byte me)
{
	byte step = 1, seen, i;
	bool is_over, is_met;

	do
	:: step <= N_STEPS ->
		may_die();
		arrive();
		await();
		if
		:: is_over -> break
		:: else
		fi;
		/* A rank at a later barrier has arrived here, too. */
		i = 0;
		do
		:: i < N -> assert(arrived[i] >= step); i++
		:: else -> break
		od;
		i = 0;
		step++
	:: else -> break
	od;
	assert(!is_over || n_dead > 0);
ended:
	n_ended++
}

proctype broker()
{
	byte i;

	if
	:: n_dead > 0 ->
#ifdef WAKE_FIRST
		word++;
		wake_all();
		verdict = true
#else
		verdict = true;
#ifndef SILENT
#ifndef NO_BUMP
		word++;
#endif
		wake_all()
#endif
#endif
	:: n_ended == N && n_dead == 0
	fi
}

init
{
	byte r = 0;

	if
	:: is_mortal = true
	:: true
	fi;
	atomic {
		do
		:: r < N -> run rank(r); r++
		:: else -> break
		od;
		run broker()
	}
}
