/*
 * shm/boxes.h: ranks pass each other bytes in rounds, through the slots of
 * their boxes; one of them may die before any of its steps.
 *
 * Every rank puts and takes N_ROUNDS rounds, and puts up to AHEAD rounds before
 * it takes the first of them. In a round it may read the slot of another rank
 * or not, as collectives with a root do. A slot holds the number of its round,
 * or TORN while it is written. How a rank sleeps and is woken is in board.pml:
 * here it just waits until its condition or the verdict is true.
 *
 * Checked: a slot that is read has the round from the first byte to the last;
 * and nobody waits for ever.
 *
 * Mutations:
 *   PUT_FIRST     says that it has put, then writes the slot
 *   TAKE_FIRST    says that it has taken, then reads
 *   NO_CREDIT     does not wait until others have taken
 *   ONE_CREDIT    waits for the next rank only
 *   LATE_CREDIT   lets a rank put a round more than there are slots
 *   TOO_FAR       puts more rounds ahead than there are slots
 *   DEAF          waits for its condition only
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
#define TORN 255

byte put[N], taken[N];
byte slot[N * SLOTS]; /* of rank r: r * SLOTS + round % SLOTS */
bool verdict, is_mortal;
byte n_dead, n_ended;

#define SLOT(r, n) slot[(r) * SLOTS + (n) % SLOTS]
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

inline put_one()
{
	n++;
	wait(CREDITS);
	may_die();
#ifdef PUT_FIRST
	put[me] = n;
	write()
#else
	write();
	put[me] = n
#endif
}

inline take_one()
{
	m++;
#ifdef TAKE_FIRST
	taken[me] = m;
#endif
	if
	:: read((me + 1) % N)
	:: read((me + N - 1) % N)
	:: m > 1
	fi;
	may_die();
#ifndef TAKE_FIRST
	taken[me] = m
#endif
}

proctype rank(byte me)
{
	byte n, m; /* put and taken */

	do
	:: m == N_ROUNDS -> break
	:: n < N_ROUNDS && n < m + AHEAD -> put_one()
	:: m < N_ROUNDS && !(n < N_ROUNDS && n < m + AHEAD) -> take_one()
	od;
ended:
	n_ended++
}

/* It sees a death, and nothing else. */
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
