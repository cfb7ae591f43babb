/*
 * The rounds of shm/boxes.h. Ranks pass bytes to each other through slots of
 * their boxes. One rank may die before any of its steps.
 *
 * Every rank puts and takes N_ROUNDS rounds. It puts up to AHEAD rounds before
 * it takes the first of them. In each round it reads the slot of another rank
 * or none, because collectives with a root do not read all slots. A slot has
 * the number of its round, or TORN while it is written. board.pml models how
 * ranks sleep. Here a rank just waits for its condition or the verdict.
 *
 * The rounds up to N_SHARED are those of an exchange of shares: every rank folds
 * what the others have put in a round into a part of its own slot of that round,
 * before it puts the next round. Others may read that part when it has put the
 * next round. The last of these rounds has no bytes.
 *
 * These properties are checked:
 *   - All bytes of a slot are of the round that the reader expects.
 *   - No rank waits for ever.
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   PUT_FIRST     a rank counts a round as put before it has written the slot
 *   TAKE_FIRST    a rank counts a round as taken before it has read
 *   NO_CREDIT     a rank does not wait until the others have taken
 *   ONE_CREDIT    a rank waits only until the next rank has taken
 *   LATE_CREDIT   a rank may put one round more than there are slots
 *   TOO_FAR       a rank puts more rounds ahead than there are slots
 *   DEAF          a rank does not check the verdict
 *   FOLD_LATE     a rank puts the next round before it folds
 *   READ_EARLY    a rank reads a folded part before its rank has put the next
 *                 round
 */
#ifndef N
#define N 3
#endif
#define SLOTS 2
#ifdef TOO_FAR
#define AHEAD 3
#else
#define AHEAD 2
#endif
#ifndef N_ROUNDS
#define N_ROUNDS 4
#endif
#ifndef N_SHARED
#define N_SHARED 0
#endif
#define TORN 255
/* the last round of the exchange that a rank is in */
#define END (m < N_SHARED -> N_SHARED : N_ROUNDS)

byte put[N], taken[N];
byte slot[N * SLOTS]; /* rank * SLOTS + round % SLOTS */
byte folded[N * SLOTS]; /* the folded part of each slot, at the same index */
bool verdict, is_mortal;
byte n_dead, n_ended;

#define SLOT(r, n) slot[(r) * SLOTS + (n) % SLOTS]
#define FOLDED(r, n) folded[(r) * SLOTS + (n) % SLOTS]
#ifdef READ_EARLY
#define NEXT(n) (n)
#else
#define NEXT(n) ((n) + 1)
#endif
#ifdef DEAF
#define OVER false
#else
#define OVER verdict
#endif
#ifdef LATE_CREDIT
#define CREDIT(r) (taken[r] + SLOTS + 1 >= n)
#else
#define CREDIT(r) (taken[r] + SLOTS >= n)
#endif
#ifdef NO_CREDIT
#define CREDITS true
#else
#ifdef ONE_CREDIT
#define CREDITS (CREDIT(me) && CREDIT((me + 1) % N))
#else
#if N == 2
#define CREDITS (CREDIT(0) && CREDIT(1))
#else
#define CREDITS (CREDIT(0) && CREDIT(1) && CREDIT(2))
#endif
#endif
#endif

inline may_die()
{
	if
	:: atomic { is_mortal && n_dead == 0 -> n_dead++; goto ended }
	:: true
	fi
}

inline wait(condition)
{
	if
	:: condition
	:: OVER -> goto ended
	fi
}

inline write()
{
	SLOT(me, n) = TORN;
	may_die();
	SLOT(me, n) = n
}

inline read(from)
{
	wait(put[from] >= m);
	assert(SLOT(from, m) == m);
	may_die();
	assert(SLOT(from, m) == m)
}

inline look(from)
{
	wait(put[from] >= n - 1);
	assert(SLOT(from, n - 1) == n - 1);
	may_die();
	assert(SLOT(from, n - 1) == n - 1)
}

/* Fold round n - 1. */
inline fold()
{
	if
	:: n > 1 && n <= N_SHARED ->
		look((me + 1) % N);
#if N > 2
		look((me + 2) % N);
#endif
		FOLDED(me, n - 1) = TORN;
		may_die();
		FOLDED(me, n - 1) = n - 1
	:: else
	fi
}

inline read_folded(from)
{
	wait(put[from] >= NEXT(m));
	assert(FOLDED(from, m) == m);
	may_die();
	assert(FOLDED(from, m) == m)
}

inline put_one()
{
	n++;
#ifndef FOLD_LATE
	fold();
#endif
	wait(CREDITS);
	may_die();
#ifdef PUT_FIRST
	put[me] = n;
	write()
#else
	write();
	put[me] = n;
#endif
#ifdef FOLD_LATE
	fold()
#endif
}

inline take_one()
{
	m++;
#ifdef TAKE_FIRST
	taken[me] = m;
#endif
	if
	:: m < N_SHARED -> read_folded((me + 1) % N)
	:: m < N_SHARED -> read_folded((me + N - 1) % N)
	:: m > N_SHARED -> read((me + 1) % N)
	:: m > N_SHARED -> read((me + N - 1) % N)
	:: m > 1 || m < N_SHARED
	fi;
	may_die();
#ifndef TAKE_FIRST
	taken[me] = m
#endif
}

proctype rank(byte me)
{
	byte n, m; /* the rounds that were put and taken last */

	do
	:: m == N_ROUNDS -> break
	:: n < END && n < m + AHEAD -> put_one()
	:: m < N_ROUNDS && !(n < END && n < m + AHEAD) -> take_one()
	od;
ended:
	n_ended++
}

/* After a death the broker writes the verdict. */
proctype broker()
{
	if
	:: n_dead > 0 -> verdict = true
	:: n_ended == N && n_dead == 0
	fi
}

init {
	byte i;

	atomic {
		if
		:: is_mortal = true
		:: skip
		fi;
		run broker();
		i = 0;
		do
		:: i < N -> run rank(i); i++
		:: else -> break
		od
	}
}
