/*
 * shm/bell.h and shm/board.h: ranks meet at barriers, sleep and are woken; one
 * of them may die before any of its steps, and the broker ends the run.
 *
 * Every rank comes to N_STEPS barriers. `arrived` has one writer each. Sleeping
 * is what the kernel does of it: one step compares the word with the one seen
 * and queues the rank, and a wake empties the queue.
 *
 * Checked: nobody comes back from a barrier that others have not come to; with
 * nobody dead no barrier is over; and nobody sleeps for ever, which spin finds
 * as an end state in which a process has not come to its end.
 *
 * Mutations:
 *   SLEEP_LATE    looks before it counts itself as a sleeper
 *   SEEN_LATE     reads the word after it has looked
 *   NO_BUMP       wakes without changing the word
 *   RING_FIRST    rings, then arrives
 *   WAKE_FIRST    the broker wakes, then writes the verdict
 *   DEAF          a sleeper looks for its barrier only
 *   SILENT        the broker writes the verdict and wakes nobody
 *   EQUAL         waits for this barrier's number, not for one that far
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

/* the kernel's queue */
bool sleeps[N];

/* May one die? Chosen once: else a death would hide that somebody sleeps. */
bool is_mortal;

/* what only the checks know */
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

/* A process ends here, or goes on. */
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

/* Asleep until woken; a signal may wake it, a death end it. */
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
		/* who is further has been here */
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
