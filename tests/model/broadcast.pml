/*
 * A broadcast channel (shm/slots.h). An item stays QUEUED until all consumers
 * that existed when it was sent have released it. A mask has the consumers that
 * have not. One consumer dies at any step. The broker then removes it from the
 * list of consumers, and after that from the masks.
 *
 * With -DLAG the lag of consumers is limited. The broker also cuts a consumer
 * that is alive: it removes it in the same way, at any step. A second mask, the
 * hands, has the consumers that are reading an item. If only the consumer that
 * was cut still reads an item, the slot leaves the channel together with its
 * buffer, and gets another buffer. In this variant the other consumer takes few
 * steps, and the one that was cut may keep its item for ever. With -DONE there
 * is only one slot. With -DALIVE no consumer dies.
 *
 * Assertions:
 *   B1 no consumer reads a slot while it is written
 *   B2 a consumer that is alive and was not cut gets every item, in order
 *   B3 in the end every slot is free
 *   B4 no process waits for ever (invalid end states)
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   NO_RECHECK     the producer does not check which consumers were removed
 *                  since it wrote the mask
 *   MASK_LATE      the mask is written after the item is published
 *   ROLL_LATE      the broker clears the masks before it removes the consumer
 *                  from the list
 *   FORGET_LAST    the broker does not free a slot whose last reader has died
 *   EOF_IS_DEATH   the broker clears the masks before the process has ended
 *   RELEASE_FIRST  a consumer releases an item before it has read it
 * With -DLAG:
 *   NO_HANDS       the mask of hands is ignored
 *   LOOK_FIRST     a consumer reads the first mask before it sets its bit in
 *                  the hands
 *   HANDS_FIRST    a process that may free a slot reads the hands before the
 *                  first mask
 *   KEEP_HANDS     a new buffer begins with the hands of the old one
 *   NO_SETTLE      a consumer that was too late does not check whether the slot
 *                  waited only for it
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
byte buffer[K];		/* the number of the slot's buffer: 0, then 1 */
byte order;
byte list = 3;		/* the consumers */

/* Only the checks use these variables. */
/* how many consumers read each buffer; the buffer that each reads, plus 1 */
byte using[K * 2], hand[N];
bit is_cut[N], has_cut;
bit dead[N], doomed[N], done[N], is_buried, is_sent;
#ifdef ALIVE
byte n_dead = 1;
#else
byte n_dead;
#endif

#define BIT(me) (1 << (me))

/* This is part of the atomic block of the step before or after: nobody can tell
 * a dead consumer from a slow one until it is `dead`, and that may be later. */
inline die_maybe()
{
	if
	:: n_dead == 0 -> n_dead = 1; doomed[me] = 1; goto died
	:: skip
	fi
}

inline finish(at, number)
{
	atomic {
		if
		:: state[at] == QUEUED && seq[at] == number ->
			state[at] = FREE;
			seq[at] = 0	/* nobody reads it again */
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

/* clear_mask() and free_if_unused() of shm/slots.c. Without LAG no hands are
 * used. */
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
#ifdef LOOK_FIRST
		seen = mask[at];
		hands[at] = hands[at] | BIT(me);
#else
		atomic {
			die_maybe();
			hands[at] = hands[at] | BIT(me);
			die_maybe()
		};
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
			atomic { hands[at] = hands[at] & ~BIT(me); die_maybe() };
#ifndef NO_SETTLE
			settle(at);
#endif
			assert(is_cut[me]);
			break
		:: else
		fi;
		assert(is_cut[me] || mine == last + 1);	/* B2 */
		atomic { last = mine; die_maybe() };
		if
		:: is_cut[me] -> done[me] = 1; goto end	/* never released */
		:: true
		fi;
		atomic { using[hand[me] - 1]--; hand[me] = 0; word = 0; seen = 0 };
#else
		assert(mine == last + 1);	/* B2 */
		last = mine;
#ifndef RELEASE_FIRST
		atomic {
			die_maybe();
			assert(state[at] == QUEUED && seq[at] == last);
			using[at]++;
			hand[me] = at + 1;
			die_maybe()
		};
		atomic { using[at]--; hand[me] = 0 };
#endif
#endif
		atomic {
			die_maybe();
			left = mask[at] & ~BIT(me);
			mask[at] = left;
			die_maybe()
		};
		finish_if_last(at, last, left);
#ifdef LAG
		atomic {
			die_maybe();
			hands[at] = hands[at] & ~BIT(me);
			die_maybe()
		};
		settle(at);
#endif
#ifdef RELEASE_FIRST
		atomic { assert(state[at] == QUEUED && seq[at] == last); using[at]++ };
		using[at]--;
#endif
		atomic { die_maybe() }
	:: else -> break
	od;
	done[me] = 1;
	goto end;
died:
	dead[me] = 1;
end:
	skip
}

/* The consumer that is not cut, with LAG. Its steps are coarse, so that spin
 * has fewer states to search. */
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
			:: mask[at] == 0 && hands[at] == 0 ->
				state[at] = FREE;
				seq[at] = 0
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

/* slots_take_away() and then slots_admit(). Each slot gets a new buffer at most
 * once. */
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
		atomic { state[at] = FREE; seq[at] = 0 }
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
		/* for the checks: a dead process reads no buffer */
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
