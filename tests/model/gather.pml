/*
 * shm/gathers.h: ranks gather groups into buffers that they choose with a lock,
 * copy pieces, look at what is whole, and reshard; a limiter follows from what
 * is over. One rank may die before any of its steps, and the broker ends the
 * run. How they sleep is board.pml's matter: here a wait is a wake of the bell
 * or the verdict, after a look that no step of others comes between.
 *
 * The broker keeps the memory of a buffer until it recalls it, from then on the
 * ranks that have it do. A rank that leaves gives up what it has. Who asks for
 * memory that nobody has is told so, and says on the board that it is lost.
 *
 * Every rank begins N_GATHERS gathers, of two groups by turns in a pattern that
 * has the same group twice in a row, too. There are as many buffers as the
 * window lets through, so that they change hands.
 *
 * Checked: what is whole is its group's from the wait to the reshard; a buffer
 * is written by its own group only; memory is lost only if nobody has it; nobody
 * waits for ever; with nobody dead the run is not over.
 *
 * Mutations:
 *   END_FIRST     reshards, then looks for the last time
 *   NO_LAP        a buffer that changes hands keeps the lap of its pieces
 *   NO_LOCK       chooses without the lock
 *   DONE_FIRST    counts a piece, then copies it
 *   ANY_SPARE     takes a buffer of a gather that is not over
 *   SHARE_DEAD    shares the group's last buffer without a look whose it is
 *   KEEP_LAST     shares it, but leaves it to the gather before
 *   QUIET_UNLOCK  rings nobody after the lock
 *   QUIET_DONE    rings nobody after the last piece
 *   SILENT        the broker wakes nobody
 *   LOSE_TWICE    loses memory that another rank has lost already
 *   LOST_NO_LAP   takes the pieces of lost memory for those of the new one
 *   VERSION_FIRST gives lost memory its new version, then the lap
 *   LAP_FIRST     reads the lap, then the version that it belongs to
 *   NO_LOSS       fails, as if lost memory could not be
 * A reshard that rings nobody is no such mutation: who waits for the limiter is
 * woken by the next choice of the rank that it waits for, only later.
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

/* 0 1 1 0 */
#define GROUP(n) (((n) / 2) % 2)

byte ended[N * N_GROUPS]; /* rank * N_GROUPS + group */
byte filling[N_GROUPS], where[N_GROUPS];
byte last[N_BUFFERS], group[N_BUFFERS], lap[N_BUFFERS];
byte next_lap[N_BUFFERS], taken[N_BUFFERS];
byte done_lap[N_BUFFERS], done[N_BUFFERS];
byte lock; /* rank + 1 */
byte word; /* of the bell */
bool verdict;

byte version[N_BUFFERS];

/* the broker's, and the ranks' grants: version + 1 */
byte made[N_BUFFERS];
bool pinned[N_BUFFERS];
byte has[N * N_BUFFERS]; /* rank * N_BUFFERS + buffer */

bool is_mortal;

/* what only the checks know: group + 1 */
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

inline may_die()
{
	if
	:: atomic { is_mortal && n_dead == 0 -> n_dead++; goto finished }
	:: true
	fi
}

inline ring()
{
	word++
}

/* Looks; else sleeps until the bell rings after the look, or the verdict's
 * wake, which is a ring, too. */
#define AWAIT(condition)                                                       \
	do                                                                     \
	:: atomic { (condition) -> break }                                     \
	:: atomic { !(condition) && verdict -> goto finished }                 \
	:: atomic { !(condition) && !verdict -> seen = word };                 \
		word != seen                                                   \
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
#ifndef NO_LAP
		lap[b]++;
#endif
		may_die();
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
		:: atomic { lock == 0 -> lock = me + 1 };
			may_die();
			choose();
			may_die();
			lock = 0;
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

/* What the broker answers. */
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
#ifndef LOST_NO_LAP
		lap[mine]++;
#endif
		may_die();
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
				may_die();
				lock = 0;
				ring()
			:: else -> AWAIT(lock == 0)
			fi
		fi
	od
}

/* CASes: atomic. */
inline take()
{
	if
	:: atomic { done_lap[mine] < my_lap ->
		done_lap[mine] = my_lap; done[mine] = 0 }
	:: else
	fi;
	may_die();
	atomic {
		if
		:: next_lap[mine] < my_lap ->
			next_lap[mine] = my_lap; taken[mine] = 1; piece = 0
		:: next_lap[mine] == my_lap && taken[mine] < N_PIECES ->
			piece = taken[mine]; taken[mine]++
		:: else -> piece = N_PIECES
		fi
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
		fi
	};
	may_die();
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
		may_die();
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
	ended[me * N_GROUPS + g] = self;
	may_die();
	if
	:: OVER(self, g) -> ring()
	:: else
	fi
}

proctype rank(byte me)
{
	byte self = 1, g, b, mine, my_lap, my_version, piece, seen;
	bool is_last, is_lost;

	do
	:: self <= N_GATHERS ->
		g = GROUP(self);
		may_die();
		AWAIT(ADMITTED);
		find_filled();
		fill();
		AWAIT(WHOLE);
		see();
		may_die();
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

/* Memory is short: once is enough to lose any of it. */
active proctype recall()
{
	atomic { pinned[0] = false; pinned[1] = false; pinned[2] = false }
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
