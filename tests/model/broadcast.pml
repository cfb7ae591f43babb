/*
 * A broadcast (shm/slots.h): an item stays QUEUED until all consumers that were
 * there when it was sent have let go of it. A mask says which have not. One
 * consumer dies at any step; the broker takes it off the list of consumers, and
 * then out of the masks.
 *
 * Assertions:
 *   B1 nobody reads a slot that is being written
 *   B2 a consumer that lives has every item, in order
 *   B3 in the end every slot is free
 *   B4 nobody waits for ever (invalid end states)
 *
 * Mutations, each of which must be found: NO_RECHECK (the producer does not look
 * who has gone since it wrote the mask), MASK_LATE (the mask is written after
 * the item is published), ROLL_LATE (the broker clears the masks first, and then
 * takes the consumer off the list), FORGET_LAST (the broker does not free what
 * the dead one was the last to let go of), EOF_IS_DEATH (the broker clears the
 * masks before the process is gone), RELEASE_FIRST (a consumer lets go before it
 * has read)
 */
#ifndef ITEMS
#define ITEMS 3
#endif
#define K 2
#define N 2 /* consumers */
#define FREE 0
#define WRITING 1
#define QUEUED 2

byte state[K], seq[K], mask[K];
byte order;
byte list = 3;		/* the consumers */

/* ghosts */
byte using[K], hand[N];	/* how many have a slot in their hands; which one */
bit dead[N], doomed[N], done[N], is_buried, is_sent;
byte n_dead;

#define BIT(me) (1 << (me))

inline die_maybe()
{
	if
	:: atomic { n_dead == 0 -> n_dead = 1; doomed[me] = 1; goto died }
	:: skip
	fi
}

inline finish(at, number)
{
	atomic {
		if
		:: state[at] == QUEUED && seq[at] == number -> state[at] = FREE
		:: else
		fi
	}
}

proctype producer()
{
	byte n = 1, at, m, gone, left;

	do
	:: n <= ITEMS ->
		if
		:: atomic { list != 0 && state[0] == FREE -> state[0] = WRITING; at = 0 }
		:: atomic { list != 0 && state[1] == FREE -> state[1] = WRITING; at = 1 }
		:: list == 0 -> break
		fi;
		assert(using[at] == 0);	/* B1 */
		m = list;
#ifndef MASK_LATE
		mask[at] = m;
#endif
		atomic { order++; seq[at] = order; state[at] = QUEUED };
#ifdef MASK_LATE
		mask[at] = m;
#endif
#ifndef NO_RECHECK
		gone = m & ~list;
		if
		:: gone || m == 0 ->
			atomic { left = mask[at] & ~gone; mask[at] = left };
			if
			:: left == 0 -> finish(at, n)
			:: else
			fi
		:: else
		fi;
#endif
		n++
	:: else -> break
	od;
	is_sent = 1
}

proctype consumer(byte me)
{
	byte at, left, last;

	do
	:: last < ITEMS ->
		if
		:: atomic { state[0] == QUEUED && seq[0] == last + 1 && (mask[0] & BIT(me)) -> at = 0 }
		:: atomic { state[1] == QUEUED && seq[1] == last + 1 && (mask[1] & BIT(me)) -> at = 1 }
		fi;
		last++;
#ifndef RELEASE_FIRST
		atomic { assert(state[at] == QUEUED && seq[at] == last); using[at]++; hand[me] = at + 1 };
		die_maybe();
		atomic { using[at]--; hand[me] = 0 };
#endif
		die_maybe();
		atomic { left = mask[at] & ~BIT(me); mask[at] = left };
		die_maybe();
		if
		:: left == 0 -> finish(at, last)
		:: else
		fi;
#ifdef RELEASE_FIRST
		atomic { assert(state[at] == QUEUED && seq[at] == last); using[at]++ };
		using[at]--;
#endif
		die_maybe()
	:: else -> break
	od;
	done[me] = 1;	/* B2: it had them all */
	goto end;
died:
	dead[me] = 1;
end:
	skip
}

inline clear(at)
{
	word = state[at];
	number = seq[at];
	atomic { left = mask[at] & ~BIT(v); mask[at] = left };
#ifndef FORGET_LAST
	if
	:: word == QUEUED && left == 0 -> finish(at, number)
	:: else
	fi
#endif
}

proctype broker()
{
	byte v, left, word, number;

	do
#ifdef EOF_IS_DEATH
	:: (doomed[0] || doomed[1]) && !is_buried ->
		v = (doomed[0] -> 0 : 1);
#else
	:: (dead[0] || dead[1]) && !is_buried ->
		v = (dead[0] -> 0 : 1);
		/* ghost: its hands are out */
		atomic {
			if
			:: hand[v] -> using[hand[v] - 1]--; hand[v] = 0
			:: else
			fi
		};
#endif
#ifndef ROLL_LATE
		list = list & ~BIT(v);
#endif
		clear(0);
		clear(1);
#ifdef ROLL_LATE
		list = list & ~BIT(v);
#endif
		is_buried = 1
	:: is_sent && (done[0] || is_buried && doomed[0]) &&
	   (done[1] || is_buried && doomed[1]) -> break
	od;
	assert(state[0] == FREE && state[1] == FREE)	/* B3 */
}

init
{
	atomic { run producer(); run consumer(0); run consumer(1); run broker() }
}
