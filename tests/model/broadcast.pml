/*
 * A broadcast (shm/slots.h): an item stays QUEUED until all consumers that were
 * there when it was sent have let go of it. A mask says which have not. One
 * consumer dies at any step; the broker takes it off the list of consumers, and
 * then out of the masks.
 *
 * -DLAG: with a limit of lag, the broker also cuts a consumer that lives, in the
 * same way and at any step. A second mask says which consumers have an item in
 * their hands; what only the one that was cut has there leaves the channel with
 * its buffer, and another buffer takes its place. The other consumer takes few
 * steps then; the one that was cut may keep what it has for ever. -DONE: there is one slot only. -DALIVE: nobody dies.
 *
 * Assertions:
 *   B1 nobody reads a slot that is being written
 *   B2 a consumer that lives, and was not cut, has every item, in order
 *   B3 in the end every slot is free
 *   B4 nobody waits for ever (invalid end states)
 *
 * Mutations, each of which must be found: NO_RECHECK (the producer does not look
 * who has gone since it wrote the mask), MASK_LATE (the mask is written after
 * the item is published), ROLL_LATE (the broker clears the masks first, and then
 * takes the consumer off the list), FORGET_LAST (the broker does not free what
 * the dead one was the last to let go of), EOF_IS_DEATH (the broker clears the
 * masks before the process is gone), RELEASE_FIRST (a consumer lets go before it
 * has read); with LAG, NO_HANDS (the mask of hands is not looked at), LOOK_FIRST
 * (a consumer looks at the first mask before it sets its bit in the second),
 * HANDS_FIRST (who frees a slot reads the second mask first), KEEP_HANDS (a new
 * buffer is admitted with the hands of the old one), NO_SETTLE (a consumer that
 * was too late does not look whether it was the last that the slot waited for)
 */
#ifndef ITEMS
#define ITEMS 3
#endif
#define K 2
#define N 2 /* consumers */
#define FREE 0
#define WRITING 1
#define QUEUED 2

#define RETIRED 3

byte state[K], seq[K], mask[K], hands[K];
byte buffer[K];		/* that the slot has: 0, then 1 */
byte order;
byte list = 3;		/* the consumers */

/* ghosts */
byte using[K * 2], hand[N];	/* how many have a buffer in their hands; which */
bit is_cut[N], has_cut;
bit dead[N], doomed[N], done[N], is_buried, is_sent;
#ifdef ALIVE
byte n_dead = 1;
#else
byte n_dead;
#endif

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

inline settle(at)
{
	atomic { number = seq[at]; word = state[at] };
#ifdef HANDS_FIRST
	others = hands[at];
	seen = mask[at];
#else
	seen = mask[at];
#ifndef NO_HANDS
	others = hands[at];
#endif
#endif
	atomic {
		if
		:: word == QUEUED && seen == 0 && others == 0 -> finish(at, number)
		:: else
		fi;
		word = 0; number = 0; seen = 0; others = 0
	}
}

/* let_go(), settle(): without LAG, the hands are empty. */
inline finish_if_last(at, number, left)
{
#ifdef LAG
	settle(at)
#else
	if
	:: left == 0 -> finish(at, number)
	:: else
	fi
#endif
}

proctype producer()
{
	byte n = 1, at, m, gone, left, word, number, seen, others;

	do
	:: n <= ITEMS ->
		if
		:: atomic { list != 0 && state[0] == FREE -> state[0] = WRITING; at = 0 }
		:: atomic { list != 0 && state[1] == FREE -> state[1] = WRITING; at = 1 }
		:: list == 0 -> break
		fi;
		assert(using[at + K * buffer[at]] == 0);	/* B1 */
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
			finish_if_last(at, n, left)
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
	byte at, left, last, word, number, seen, others, mine;

	do
	:: last < ITEMS ->
		if
		:: atomic { state[0] == QUEUED && seq[0] > last && (mask[0] & BIT(me)) && (state[1] != QUEUED || seq[1] <= last || seq[1] > seq[0] || !(mask[1] & BIT(me))) -> at = 0; mine = seq[0] }
		:: atomic { state[1] == QUEUED && seq[1] > last && (mask[1] & BIT(me)) && (state[0] != QUEUED || seq[0] <= last || seq[0] > seq[1] || !(mask[0] & BIT(me))) -> at = 1; mine = seq[1] }
		:: is_cut[me] -> break
		fi;
#ifdef LAG
		die_maybe();
#ifdef LOOK_FIRST
		seen = mask[at];
		hands[at] = hands[at] | BIT(me);
#else
		hands[at] = hands[at] | BIT(me);
		die_maybe();
		seen = mask[at];
#endif
		atomic {
			word = state[at] == QUEUED && seq[at] == mine && (seen & BIT(me));
			if
			:: word -> hand[me] = at + K * buffer[at] + 1; using[hand[me] - 1]++
			:: else
			fi
		};
		if
		:: !word ->
			hands[at] = hands[at] & ~BIT(me);
			die_maybe();
#ifndef NO_SETTLE
			settle(at);
#endif
			assert(is_cut[me]);
			break
		:: else
		fi;
		assert(is_cut[me] || mine == last + 1);	/* B2 */
		last = mine;
		die_maybe();
		if
		:: is_cut[me] -> done[me] = 1; goto end	/* keeps it for ever */
		:: true
		fi;
		atomic { using[hand[me] - 1]--; hand[me] = 0; word = 0; seen = 0 };
#else
		assert(mine == last + 1);	/* B2 */
		last = mine;
#ifndef RELEASE_FIRST
		atomic { assert(state[at] == QUEUED && seq[at] == last); using[at]++; hand[me] = at + 1 };
		die_maybe();
		atomic { using[at]--; hand[me] = 0 };
#endif
#endif
		die_maybe();
		atomic { left = mask[at] & ~BIT(me); mask[at] = left };
		die_maybe();
		finish_if_last(at, last, left);
#ifdef LAG
		die_maybe();
		hands[at] = hands[at] & ~BIT(me);
		die_maybe();
		settle(at);
#endif
#ifdef RELEASE_FIRST
		atomic { assert(state[at] == QUEUED && seq[at] == last); using[at]++ };
		using[at]--;
#endif
		die_maybe()
	:: else -> break
	od;
	done[me] = 1;
	goto end;
died:
	dead[me] = 1;
end:
	skip
}

/* With LAG: the consumer that is not cut takes few steps. */
proctype other(byte me)
{
	byte at, last;

	do
	:: last < ITEMS ->
		last++;
		if
		:: atomic { state[0] == QUEUED && seq[0] == last && (mask[0] & BIT(me)) -> at = 0; hands[at] = hands[at] | BIT(me) }
		:: atomic { state[1] == QUEUED && seq[1] == last && (mask[1] & BIT(me)) -> at = 1; hands[at] = hands[at] | BIT(me) }
		fi;
		atomic {
			mask[at] = mask[at] & ~BIT(me);
			hands[at] = hands[at] & ~BIT(me);
			if
			:: mask[at] == 0 && hands[at] == 0 -> state[at] = FREE
			:: else
			fi
		}
	:: else -> break
	od;
	done[me] = 1
}

inline clear(at)
{
	word = state[at];
	number = seq[at];
	atomic { left = mask[at] & ~BIT(v); mask[at] = left };
#ifndef FORGET_LAST
#ifdef LAG
	settle(at)
#else
	if
	:: word == QUEUED && left == 0 -> finish(at, number)
	:: else
	fi
#endif
#endif
}

/* slots_take_away(), and later slots_admit(). One more buffer is enough. */
inline replace(at)
{
	atomic { word = state[at]; number = seq[at] };
	seen = mask[at];
	others = hands[at];
	atomic {
		if
		:: word == QUEUED && seen == 0 && (others & ~list) && state[at] == QUEUED && seq[at] == number && buffer[at] == 0 -> state[at] = RETIRED
		:: else
		fi;
		word = 0; number = 0; seen = 0; others = 0
	};
	if
	:: state[at] == RETIRED ->
		buffer[at] = 1;
#ifndef KEEP_HANDS
		hands[at] = 0;
#endif
		state[at] = FREE
	:: else
	fi
}

inline strike()
{
#ifndef ROLL_LATE
	list = list & ~BIT(v);
#endif
	clear(0);
	clear(1);
#ifdef ROLL_LATE
	list = list & ~BIT(v);
#endif
}

proctype broker()
{
	byte v, left, word, number, seen, others;

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
#ifdef LAG
		hands[0] = hands[0] & ~BIT(v);
		hands[1] = hands[1] & ~BIT(v);
#endif
		strike();
		is_buried = 1
#ifdef LAG
	:: atomic { !has_cut && !dead[0] && !done[0] -> has_cut = 1; is_cut[0] = 1; v = 0 };
		strike()
	:: has_cut && buffer[0] == 0 && state[0] == QUEUED && mask[0] == 0 && hands[0] ->
		replace(0)
#ifndef ONE
	:: has_cut && buffer[1] == 0 && state[1] == QUEUED && mask[1] == 0 && hands[1] ->
		replace(1)
#endif
#endif
	:: is_sent && (done[0] || is_buried && doomed[0]) &&
	   (done[1] || is_buried && doomed[1]) -> break
	od;
#ifdef LAG
	replace(0);
#ifndef ONE
	replace(1);
#endif
#endif
#ifdef ONE
	assert(state[0] == FREE)
#else
	assert(state[0] == FREE && state[1] == FREE)	/* B3 */
#endif
}

init
{
	atomic {
#ifdef ONE
		state[1] = RETIRED;
#endif
		run producer(); run consumer(0); run broker();
#ifdef LAG
		run other(1)
#else
		run consumer(1)
#endif
	}
}
