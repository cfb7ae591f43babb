/*
 * A channel (shm/slots.h): K slots, each one word that is its whole state with
 * its owner; producers and consumers that share the work; sleep and wake by two
 * bells (shm/bell.h), of which an item wakes one sleeper and a credit all; one
 * of them dies at any step, and the broker puts its words right.
 *
 * -DWATCH: another consumer polls. A thread of it sleeps by the bell, tells its
 * process, and hands the wake-up on; its process never takes an item.
 *
 * -DRESIZE: the broker makes the channel one slot smaller while it is used, and
 * may make it as large again; it may itself die once at any step of that, and
 * the next one begins with what the record says. A user that has freed a slot
 * beyond the limit tells it.
 *
 * Assertions:
 *   C1 nobody has two owners' hands in one slot
 *   C2 every published item is taken at most once; not lost unless its taker
 *      died
 *   C3 items of one producer are taken in its order (by one consumer)
 *   C4 at the end every slot is free again: credits return
 *   C5 nobody sleeps for ever (invalid end states)
 *   C6 at the end every slot beyond the limit has left the channel
 *
 * Mutations, each of which must be found: SLEEP_LATE (looks before being
 * counted as a sleeper), ONE_SCAN (takes the oldest of one look), TWO_SCANS (of
 * always two), FORGET_HELD (the broker reclaims WRITING only), FORGET_WRITING,
 * EOF_IS_DEATH (reclaims before the process is gone), NO_WAKE (reclaims without
 * ringing), WAKE_ONE (rings for one after a death, who may not be the one that
 * can go on), OWNER_LATE (taken first, owner written afterwards), KEEP_OPEN (the
 * broker leaves a dead producer's end of stream open); of a watch: KEEP_WAKE
 * (hands no wake-up on), and NO_WAKE, as its death; of a resize: LIMIT_LATE (the
 * broker looks at the words before it writes the limit), TELL_EARLY (a user
 * looks at the limit before it frees the slot), FORGET_RETIRE (what the dead had
 * in their hands is freed, but does not leave), FORCE_OUT (a slot that was FREE
 * is retired without CAS), TAKE_LIMITED (consumers look only at slots that may
 * be claimed), FORGET_LIMIT (a new broker does not write the record's limit)
 */
#ifndef K
#define K 2
#endif
#ifndef NP
#define NP 1	/* producers */
#endif
#ifndef NC
#define NC 1	/* consumers */
#endif
#ifndef ITEMS
#define ITEMS 3 /* of each producer */
#endif
#if NP == 1 && NC == 1 && !defined(WATCH)
#define NPROC 2
#else
#define NPROC 3
#endif
#define FREE 0
#define WRITING 1
#define QUEUED 2
#define HELD 3
#define RETIRED 4
#ifdef RESIZE
#define LIMIT limit
#define WANTED record
#else
#define LIMIT K
#define WANTED K
#endif

typedef word { byte seq; byte owner; byte state };
word w[K];
byte order;
byte items_bell, items_asleep, credits_bell, credits_asleep;
bit q_items[NPROC], q_credits[NPROC]; /* in the kernel's queue */
bit is_deserted;		/* no consumer is left */
bit open[NP];		/* the producer has not closed */
byte limit = K, record = K; /* slots that may be claimed; as the broker has it */
bit told;		/* doorbell: a slot beyond the limit was freed */

/* ghosts */
bit dead[NPROC], doomed[NPROC], gone[NPROC], ended[NPROC], reclaimed;
byte n_dead;
byte maker[K], number[K];	/* whose item of which number the slot has */
byte using[K];			/* processes with their hands in it */
byte taken[NP];			/* items of the producer that were taken */
byte last[NP];			/* newest taken, with one consumer */
byte published[NP];
byte lost;			/* taken by one who died */
bit is_over;			/* the broker has nothing to do any more */

inline die_maybe()
{
	if
	:: atomic { n_dead == 0 -> n_dead = 1; doomed[me] = 1; goto died }
	:: skip
	fi
}

#define wake_one(queue)		/* whichever */				\
	atomic {							\
		if							\
		:: queue[0] -> queue[0] = 0				\
		:: queue[1] -> queue[1] = 0				\
		:: queue[NPROC - 1] -> queue[NPROC - 1] = 0		\
		:: else							\
		fi							\
	}

#define wake_every(queue)						\
	atomic {							\
		x = 0;							\
		do							\
		:: x < NPROC -> queue[x] = 0; x++			\
		:: else -> break					\
		od;							\
		x = 0							\
	}

#define ring(bell, asleep, wake, queue)					\
	if								\
	:: asleep > 0 ->						\
		bell++;							\
		die_maybe();						\
		wake(queue)						\
	:: else								\
	fi

inline claim()		/* got: slot, or K */
{
	at = 0; got = K; lim = LIMIT;
	do
	:: at < lim && got == K ->
		atomic {
			if
			:: w[at].state == FREE ->
				w[at].state = WRITING; w[at].owner = me; got = at
			:: else -> at++
			fi
		}
	:: else -> break
	od
}

#ifdef TAKE_LIMITED
#define TAKEN LIMIT
#else
#define TAKEN K
#endif

inline scan()
{
	at = 0;
	do
	:: at < TAKEN ->
		atomic {
			if
			:: w[at].state == QUEUED && (best == 255 || w[at].seq < best) ->
				best = w[at].seq; slot = at
			:: else
			fi;
			at++
		}
	:: else -> break
	od
}

inline take()		/* got: slot, or K */
{
	got = K;
	do
	:: got == K ->
		best = 255; slot = K;
#ifdef ONE_SCAN
		scan();
#else
#ifdef TWO_SCANS
		scan(); scan();
#else
		/* again until a scan changes nothing */
		do
		:: true ->
			before = best;
			scan();
			if
			:: before == best -> break
			:: else
			fi
		od;
#endif
#endif
		if
		:: slot == K -> break
		:: else ->
			atomic {
				if
				:: w[slot].state == QUEUED && w[slot].seq == best ->
					w[slot].state = HELD;
#ifndef OWNER_LATE
					w[slot].owner = me;
#endif
					got = slot;
					taken[maker[slot]]++;
					assert(taken[maker[slot]] <= published[maker[slot]]);	/* C2 */
#if NC == 1
					assert(number[slot] > last[maker[slot]]);		/* C3 */
					last[maker[slot]] = number[slot]
#endif
				:: else
				fi
			};
#ifdef OWNER_LATE
			if
			:: got != K -> die_maybe(); w[got].owner = me
			:: else
			fi
#endif
		fi
	:: else -> break
	od
}

#define SLEEP(TRY, COND2, bell, asleep, queue)				\
	do								\
	:: TRY;								\
		if							\
		:: got != K || (COND2) -> break				\
		:: else							\
		fi;							\
		seen = bell;						\
		asleep++;						\
		die_maybe();						\
		TRY;							\
		if							\
		:: got != K || (COND2) -> asleep--; break		\
		:: else							\
		fi;							\
		die_maybe();						\
		atomic {						\
			if						\
			:: bell == seen -> queue[me] = 1		\
			:: else						\
			fi						\
		};							\
		if							\
		:: queue[me] == 0					\
		:: queue[me] == 1 -> die_maybe(); queue[me] == 0	\
		fi;							\
		asleep--						\
	od

#define SLEEP_LATE_(TRY, COND2, bell, asleep, queue)			\
	do								\
	:: TRY;								\
		if							\
		:: got != K || (COND2) -> break				\
		:: else							\
		fi;							\
		seen = bell;						\
		die_maybe();						\
		asleep++;						\
		atomic {						\
			if						\
			:: bell == seen -> queue[me] = 1		\
			:: else						\
			fi						\
		};							\
		queue[me] == 0;						\
		asleep--						\
	od

#ifdef SLEEP_LATE
#define AWAIT SLEEP_LATE_
#else
#define AWAIT SLEEP
#endif

inline touch(slot_)	/* hands in the memory for a while: C1 */
{
	atomic { assert(using[slot_] == 0); using[slot_]++ };
	die_maybe();
	using[slot_]--
}

proctype producer(byte me)
{
	byte n = 1, at, got, seen, x, seq, lim;

	do
	:: n <= ITEMS ->
		AWAIT(claim(), is_deserted, credits_bell, credits_asleep, q_credits);
		if
		:: got == K -> break	/* -EPIPE */
		:: else
		fi;
		die_maybe();
		touch(got);
		order++; seq = order;
		die_maybe();
		atomic {
			maker[got] = me; number[got] = n; published[me]++;
			w[got].seq = seq; w[got].owner = 0; w[got].state = QUEUED
		};
		die_maybe();
		ring(items_bell, items_asleep, wake_one, q_items);
		n++
	:: else -> break
	od;
	open[me] = 0;
	die_maybe();
	/* end of stream: all consumers look */
	items_bell++;
	wake_every(q_items);
	ended[me] = 1;
	goto end;
died:
	dead[me] = 1;
end:
	skip
}

#if NP == 2
#define CLOSED (open[0] == 0 && open[1] == 0)
#else
#define CLOSED (open[0] == 0)
#endif

proctype consumer(byte me)
{
	byte at, got, seen, x, best, slot, before;
	bit was_closed, is_surplus;

	do
	:: true ->
		/* closed is looked at before the slots are */
		do
		:: true ->
			was_closed = CLOSED;
			take();
			if
			:: got != K || was_closed -> break
			:: else
			fi;
			seen = items_bell;
#ifndef SLEEP_LATE
			items_asleep++;
			die_maybe();
			was_closed = CLOSED;
			take();
			if
			:: got != K || was_closed -> items_asleep--; break
			:: else
			fi;
			die_maybe();
#else
			die_maybe();
			items_asleep++;
#endif
			atomic {
				if
				:: items_bell == seen -> q_items[me] = 1
				:: else
				fi
			};
			if
			:: q_items[me] == 0
			:: q_items[me] == 1 -> die_maybe(); q_items[me] == 0
			fi;
			items_asleep--
		od;
		if
		:: got == K -> break
		:: else
		fi;
		die_maybe();
		touch(got);
#ifdef TELL_EARLY
		is_surplus = got >= LIMIT;
		die_maybe();
#endif
		atomic { w[got].owner = 0; w[got].state = FREE };
		die_maybe();
		ring(credits_bell, credits_asleep, wake_every, q_credits);
#ifdef RESIZE
#ifndef TELL_EARLY
		is_surplus = got >= LIMIT;
#endif
		if
		:: is_surplus -> die_maybe(); told = 1
		:: else
		fi
#endif
	od;
	ended[me] = 1;
	goto end;
died:
	dead[me] = 1;
end:
	skip
}

/* Sleeps once for each time that its process, which may come late or not at
 * all, has found nothing. */
proctype watch(byte me)
{
	byte i, seen, x;
	bit is_met;

#define LOOK								\
	atomic {							\
		is_met = false; i = 0;					\
		do							\
		:: i < K -> is_met = is_met || w[i].state == QUEUED; i++	\
		:: else -> break					\
		od;							\
		i = 0							\
	}

	do
	:: true ->
		seen = items_bell;
		items_asleep++;
		die_maybe();
		LOOK;
		if
		:: !is_met && !CLOSED ->
			die_maybe();
			atomic {
				if
				:: items_bell == seen -> q_items[me] = 1
				:: else
				fi
			};
			if
			:: q_items[me] == 0
			:: q_items[me] == 1 -> die_maybe(); q_items[me] == 0
			fi;
			die_maybe();
			LOOK
		:: else
		fi;
		items_asleep--;
		die_maybe();
#ifndef KEEP_WAKE
		if
		:: is_met -> ring(items_bell, items_asleep, wake_one, q_items)
		:: else
		fi;
#endif
		if
		:: CLOSED -> break
		:: is_met -> break
		:: !is_met
		fi
	od;
	ended[me] = 1;
	goto end;
died:
	dead[me] = 1;
end:
	skip
}

#if NPROC == 2
#define n_ended (ended[0] + ended[1])
#else
#define n_ended (ended[0] + ended[1] + ended[2])
#endif

#define die_once							\
	if								\
	:: atomic { !has_restarted -> has_restarted = 1; goto adopt }	\
	:: skip								\
	fi

/* What is FREE beyond the limit leaves. */
inline retire()
{
	i = limit;
	do
	:: i < K ->
#ifdef FORCE_OUT
		v = w[i].state;
		die_once;
		if
		:: v == FREE -> w[i].state = RETIRED
		:: else
		fi;
#else
		atomic {
			if
			:: w[i].state == FREE -> w[i].state = RETIRED
			:: else
			fi
		};
		die_once;
#endif
		i++
	:: else -> break
	od;
	v = 0
}

/* What is missing below the limit gets a buffer. */
inline refill()
{
	i = 0;
	do
	:: i < limit ->
		atomic {
			if
			:: w[i].state == RETIRED -> w[i].state = FREE
			:: else
			fi
		};
		i++
	:: else -> break
	od;
	credits_bell++;
	wake_every(q_credits)
}

proctype broker()
{
	byte i, v, x;
	bit has_shrunk, has_grown, has_restarted;

	goto begin;
adopt:
#ifndef FORGET_LIMIT
	limit = record;
#endif
	retire();
	refill();
begin:
	do
#ifdef RESIZE
	:: !has_shrunk ->
		atomic { has_shrunk = 1; record = K - 1 };
		die_once;
#ifdef LIMIT_LATE
		atomic { limit = record; retire(); limit = K };
		limit = record;
#else
		limit = record;
		die_once;
		retire();
#endif
	:: told ->
		told = 0;
		die_once;
		retire();
	:: has_shrunk && !has_grown ->
		atomic { has_grown = 1; record = K };
		die_once;
		limit = record;
		die_once;
		refill();
#endif
#ifdef EOF_IS_DEATH
	:: n_dead && !reclaimed ->
		/* its hands may still be in the memory */
		v = 0;
		do
		:: v < NPROC && !doomed[v] -> v++
		:: else -> break
		od;
#else
	:: (dead[0] || dead[1] || dead[NPROC - 1]) && !reclaimed ->
		v = 0;	/* the pidfd */
		do
		:: v < NPROC && !dead[v] -> v++
		:: else -> break
		od;
		/* ghost: the dead one's hands are out */
		atomic {
			i = 0;
			do
			:: i < K ->
				if
				:: w[i].owner == v && (w[i].state == WRITING || w[i].state == HELD) -> using[i] = 0
				:: else
				fi;
				i++
			:: else -> break
			od;
			i = 0
		};
#endif
		/* out of the kernel's queues */
		atomic { q_items[v] = 0; q_credits[v] = 0 };
		i = 0;
		do
		:: i < K ->
			atomic {
				if
#ifndef FORGET_WRITING
				:: w[i].state == WRITING && w[i].owner == v -> w[i].state = FREE
#endif
#ifndef FORGET_HELD
				:: w[i].state == HELD && w[i].owner == v -> w[i].state = FREE; lost++
#endif
				:: else
				fi
			};
			i++
		:: else -> break
		od;
		if
#ifdef KEEP_OPEN
		:: v < NP -> skip
#else
		:: v < NP -> open[v] = 0
#endif
		:: v == NP && NC == 1 -> is_deserted = 1
		:: else
		fi;
		items_bell++; credits_bell++;
#ifdef NO_WAKE
#else
#ifdef WAKE_ONE
		wake_one(q_credits); 
#else
		wake_every(q_items);
		wake_every(q_credits);
#endif
#endif
#ifdef RESIZE
#ifndef FORGET_RETIRE
		retire();
#endif
#endif
		reclaimed = 1
	:: (!n_dead || reclaimed) && n_ended == NPROC - n_dead && !told -> break
	od;
	is_over = 1
}

/* With all gone, what is left? */
proctype judge()
{
	byte i;
	byte living_c;

	atomic {
		is_over ->
		/* with a consumer left everything was consumed */
		i = NP; living_c = 0;
		do
		:: i < NP + NC -> living_c = living_c + ended[i]; i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < K ->
			assert(w[i].state == (i < WANTED -> FREE : RETIRED) || (living_c == 0 && w[i].state == QUEUED)); /* C4, C6 */
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NP ->
			assert(living_c == 0 || taken[i] == published[i]);	/* C2 */
			i++
		:: else -> break
		od
	}
}

init
{
	byte i = 0;
	atomic {
		do
		:: i < K -> w[i].owner = 0; i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NP -> open[i] = 1; run producer(i); i++
		:: else -> break
		od;
		do
		:: i < NP + NC -> run consumer(i); i++
		:: else -> break
		od;
#ifdef WATCH
		run watch(i);
#endif
		run broker();
		run judge()
	}
}
