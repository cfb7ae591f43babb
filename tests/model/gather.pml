/*
 * The gathers of shm/gathers.h. Ranks gather groups into buffers, which they
 * choose with a lock. They copy pieces, read the parameters when all pieces are
 * there, and reshard. A limiter delays a gather until earlier ones are over.
 * One rank may die before any of its steps; then the broker ends the run.
 * board.pml models how ranks sleep. Here the check of a condition and the start
 * of the sleep are one step, and a ring or the verdict ends the sleep.
 *
 * The broker keeps the memory of a buffer until it recalls it. After that only
 * the ranks that have the memory keep it. A rank that leaves gives up its
 * memory. A rank that asks for memory that no process has is told so, and
 * writes on the board that the memory is lost.
 *
 * Every rank begins N_GATHERS gathers of two groups. Their order has the same
 * group twice in a row, too. There are only as many buffers as the limiter
 * needs, so buffers are used by several gathers.
 *
 * These properties are checked:
 *   - From the end of the wait to the reshard, the memory has the complete
 *     parameters of the gather's group.
 *   - A buffer is written only for its own group.
 *   - Memory is lost only if no process has it.
 *   - No process waits for ever.
 *   - If no rank has died, the run is not ended.
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   END_FIRST     a rank reshards before it has read for the last time
 *   NO_LAP        a buffer that is used for another gather keeps its lap
 *   NO_LOCK       a rank chooses without the lock
 *   DONE_FIRST    a rank counts a piece before it has copied it
 *   ANY_SPARE     a rank takes the buffer of a gather that is not over
 *   SHARE_DEAD    a rank shares the last buffer of its group without checking
 *                 that it still belongs to the group
 *   KEEP_LAST     a rank shares that buffer, but does not note its own gather
 *   QUIET_UNLOCK  a rank does not ring after it has released the lock
 *   QUIET_DONE    a rank does not ring after the last piece
 *   SILENT        the broker does not wake
 *   LOSE_TWICE    a rank marks memory as lost that another one has marked
 *   LOST_NO_LAP   new memory keeps the lap of lost memory
 *   VERSION_FIRST a rank changes the version of lost memory before the lap
 *   LAP_FIRST     a rank reads the lap before the version
 *   NO_LOSS       an assertion that memory is never lost; it must fail,
 *                 because otherwise the model would not test losses
 * A reshard without a ring is not a mutation, because it only delays: a rank
 * that waits for the limiter is woken by the next choice of the rank that it
 * waits for.
 */
#ifndef N
#define N 2
#endif
#ifndef N_GATHERS
#define N_GATHERS 4
#endif
#define N_GROUPS  2
#ifndef WINDOW
#define WINDOW    2
#endif
#define N_BUFFERS 3
#define N_PIECES  2
#define N_VERSIONS 4

/* The groups of the gathers 1, 2, 3 and 4 are 0, 1, 1 and 0. */
#define GROUP(n) (((n) / 2) % 2)

byte ended[N * N_GROUPS]; /* rank * N_GROUPS + group */
byte filling[N_GROUPS], where[N_GROUPS];
byte last[N_BUFFERS], group[N_BUFFERS], lap[N_BUFFERS];
byte next_lap[N_BUFFERS], taken[N_BUFFERS];
byte done_lap[N_BUFFERS], done[N_BUFFERS];
byte lock; /* rank + 1; 0: free */
/* The word of the bell is a counter, but a rank only asks whether it has changed
 * since the rank read it. So this is the set of the ranks for which it has not
 * changed, and states do not differ by how often it has rung. */
byte word;
bool verdict;

byte version[N_BUFFERS];

/* Memory of the broker, and grants of the ranks: version + 1, or 0. */
byte made[N_BUFFERS];
bool pinned[N_BUFFERS];
byte has[N * N_BUFFERS]; /* rank * N_BUFFERS + buffer */

/* Only the checks use these variables. The content is group + 1. */
byte content[N_BUFFERS * N_VERSIONS * N_PIECES];
byte n_dead, n_finished;

#if N == 2
#define OVER(n, g) (ended[g] >= n && ended[N_GROUPS + g] >= n)
#define SOME_HAVE(b, v) (has[b] == v || has[N_BUFFERS + b] == v)
#else
#define OVER(n, g)                                                             \
	(ended[g] >= n && ended[N_GROUPS + g] >= n &&                          \
	 ended[2 * N_GROUPS + g] >= n)
#define SOME_HAVE(b, v)                                                        \
	(has[b] == v || has[N_BUFFERS + b] == v || has[2 * N_BUFFERS + b] == v)
#endif
#define HAS(b)    has[me * N_BUFFERS + b]
#define IS_KEPT(b) (pinned[b] || SOME_HAVE(b, made[b]))
#define CONTENT(i) content[(mine * N_VERSIONS + my_version) * N_PIECES + i]
#define NOT_OVER(n) (n < self && !OVER(n, GROUP(n)) -> 1 : 0)
#define ADMITTED (NOT_OVER(1) + NOT_OVER(2) + NOT_OVER(3) < WINDOW)
#define UNUSED(b) (last[b] == 0 || OVER(last[b], group[b]))
#define WHOLE (done_lap[mine] > my_lap || \
	       (done_lap[mine] == my_lap && done[mine] >= N_PIECES))

/* This is part of the atomic block of the step before or after: nobody can tell
 * a dead rank from a slow one until the broker has seen the death, and that may
 * be later. */
inline may_die()
{
	if
	:: n_dead == 0 -> n_dead++; goto finished
	:: true
	fi
}

#define ME (1 << me)

inline ring()
{
	word = 0
}

/* Waits for the condition. If it is not met, sleeps until the bell rings after
 * the check. The broker rings it, too, after it has written the verdict. */
#define AWAIT(condition)                                                       \
	do                                                                     \
	:: atomic { (condition) -> break }                                     \
	:: atomic { !(condition) && verdict -> goto finished }                 \
	:: atomic { !(condition) && !verdict -> word = word | ME };            \
		!(word & ME)                                                   \
	od

inline spare()
{
	b = 0;
	do
#ifdef ANY_SPARE
	:: b < N_BUFFERS - 1 && last[b] != 0 && !UNUSED(b) && b == 0 -> break
#endif
	:: b < N_BUFFERS && !UNUSED(b) -> b++
	:: else -> break
	od;
	assert(b < N_BUFFERS)
}

inline choose()
{
	b = where[g];
	if
	:: filling[g] >= self
#ifdef SHARE_DEAD
	:: filling[g] < self && filling[g] != 0 ->
#else
	:: filling[g] < self && filling[g] != 0 && group[b] == g &&
	   last[b] == filling[g] && !UNUSED(b) ->
#endif
#ifndef KEEP_LAST
		last[b] = self;
#endif
		filling[g] = self
	:: else ->
		spare();
		group[b] = g;
		atomic {
#ifndef NO_LAP
			lap[b]++;
#endif
			may_die()
		};
		last[b] = self;
		where[g] = b;
		filling[g] = self
	fi
}

inline find()
{
	do
	:: filling[g] >= self -> break
	:: else ->
#ifdef NO_LOCK
		choose()
#else
		if
		:: atomic { lock == 0 -> lock = me + 1; may_die() };
			choose();
			atomic { may_die(); lock = 0 };
#ifndef QUIET_UNLOCK
			ring()
#endif
		:: else -> AWAIT(lock == 0)
		fi
#endif
	od;
	mine = where[g];
#ifdef LAP_FIRST
	my_lap = lap[mine];
	my_version = version[mine]
#else
	my_version = version[mine];
	my_lap = lap[mine]
#endif
}

inline make()
{
	made[mine] = my_version + 1;
	pinned[mine] = true;
	HAS(mine) = my_version + 1
}

/* Asks the broker for the memory of the buffer. */
inline ask()
{
	atomic {
		is_lost = false;
		if
		:: HAS(mine) == my_version + 1
		:: HAS(mine) != my_version + 1 && made[mine] < my_version + 1 ->
			make()
		:: HAS(mine) != my_version + 1 && made[mine] == my_version + 1 &&
		   IS_KEPT(mine) -> HAS(mine) = my_version + 1
		:: else -> is_lost = true
		fi
	}
}

inline lose()
{
	if
#ifndef LOSE_TWICE
	:: version[mine] != my_version
#endif
	:: else ->
		assert(!SOME_HAVE(mine, version[mine] + 1));
#ifdef VERSION_FIRST
		version[mine]++;
#endif
		atomic {
#ifndef LOST_NO_LAP
			lap[mine]++;
#endif
			may_die()
		};
#ifndef VERSION_FIRST
		version[mine]++
#endif
	fi
}

inline find_filled()
{
	do
	:: true ->
		find();
		ask();
		if
		:: !is_lost -> break
		:: else ->
#ifdef NO_LOSS
			assert(false);
#endif
			if
			:: atomic { lock == 0 -> lock = me + 1 };
				lose();
				atomic { may_die(); lock = 0 };
				ring()
			:: else -> AWAIT(lock == 0)
			fi
		fi
	od
}

/* pieces_take(): each atomic block is one CAS. */
inline take()
{
	if
	:: atomic { done_lap[mine] < my_lap ->
		done_lap[mine] = my_lap; done[mine] = 0 }
	:: else
	fi;
	atomic {
		may_die();
		if
		:: next_lap[mine] < my_lap ->
			next_lap[mine] = my_lap; taken[mine] = 1; piece = 0
		:: next_lap[mine] == my_lap && taken[mine] < N_PIECES ->
			piece = taken[mine]; taken[mine]++
		:: else -> piece = N_PIECES
		fi;
		may_die()
	}
}

inline copy()
{
	assert(group[mine] == g && HAS(mine) == my_version + 1);
	CONTENT(piece) = g + 1
}

inline count()
{
	atomic {
		is_last = false;
		if
		:: done_lap[mine] == my_lap ->
			done[mine]++; is_last = done[mine] == N_PIECES
		:: else
		fi;
		may_die()
	};
	if
#ifndef QUIET_DONE
	:: is_last -> ring()
#endif
	:: else
	fi
}

inline fill()
{
	do
	:: true ->
		take();
		if
		:: piece == N_PIECES -> break
		:: else
		fi;
#ifdef DONE_FIRST
		count();
		copy()
#else
		copy();
		count()
#endif
	od
}

inline see()
{
	assert(CONTENT(0) == g + 1 && CONTENT(1) == g + 1)
}

inline end()
{
	atomic { ended[me * N_GROUPS + g] = self; may_die() };
	if
	:: OVER(self, g) -> ring()
	:: else
	fi
}

proctype rank(byte me)
{
	byte self = 1, g, b, mine, my_lap, my_version, piece;
	bool is_last, is_lost;

	do
	:: self <= N_GATHERS ->
		atomic { g = GROUP(self); may_die() };
		AWAIT(ADMITTED);
		find_filled();
		fill();
		AWAIT(WHOLE);
		atomic { see(); may_die() };
#ifdef END_FIRST
		end();
		see();
#else
		see();
		end();
#endif
		self++
	:: else -> break
	od;
	assert(n_dead > 0 || !verdict);
finished:
	atomic {
		word = word & ~ME;
		b = 0;
		do
		:: b < N_BUFFERS -> HAS(b) = 0; b++
		:: else -> break
		od;
		n_finished++
	}
}

proctype broker()
{
	if
	:: n_dead > 0 ->
		verdict = true;
#ifndef SILENT
		ring()
#endif
	:: n_finished == N && n_dead == 0
	fi
}

/* The broker recalls its memory. Once is enough, because after that any memory
 * can be lost. */
active proctype recall()
{
	atomic { pinned[0] = false; pinned[1] = false; pinned[2] = false }
}

init
{
	byte r = 0;

	atomic {
		do
		:: r < N -> run rank(r); r++
		:: else -> break
		od;
		run broker()
	}
}
