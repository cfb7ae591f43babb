/*
 * A channel whose consumers share the work (shm/slots.h). There are K slots,
 * and one word holds the state and the owner of each. Processes sleep and wake
 * by two bells (shm/bell.h): an item wakes one sleeper, a credit wakes all. One
 * process dies at any step, and the broker then repairs its words.
 *
 * With -DWATCH a second consumer polls. One of its threads sleeps by the bell,
 * notifies its process and passes the wake-up on. Its process never takes an
 * item.
 *
 * With -DRESIZE the broker makes the channel one slot smaller while it is used,
 * and may make it larger again. The broker may die once at any step of this;
 * the next broker begins with the limit in the record. A process that has freed
 * a slot beyond the limit tells the broker.
 *
 * With -DENDING the broker may see that the process is ending before the kernel
 * reports its end, as soon as it runs no more: then the broker closes its
 * stream, or tells the producers that nobody receives, but repairs no words.
 *
 * Assertions:
 *   C1 at most one process uses the memory of a slot
 *   C2 every published item is taken at most once; it is lost only if its taker
 *      died
 *   C3 one consumer takes the items of one producer in order
 *   C4 in the end every slot is free again, so no credit is lost
 *   C5 no process sleeps for ever (invalid end states)
 *   C6 in the end every slot beyond the limit has left the channel
 *
 * Each mutation breaks one rule, and spin must find an error:
 *   SLEEP_LATE      a process checks its condition before it counts as a
 *                   sleeper
 *   ONE_SCAN        a consumer takes the oldest item of a single scan
 *   TWO_SCANS       a consumer always scans exactly twice
 *   FORGET_HELD     the broker does not reclaim slots in the state HELD
 *   FORGET_WRITING  the broker does not reclaim slots in the state WRITING
 *   EOF_IS_DEATH    the broker reclaims before the process has ended
 *   NO_WAKE         the broker reclaims without waking
 *   WAKE_ONE        after a death the broker wakes only one process, which may
 *                   not be the one that can continue
 *   OWNER_LATE      a consumer writes itself as owner after it has taken the
 *                   item
 *   KEEP_OPEN       the broker does not close the stream of a dead producer
 * With -DWATCH:
 *   KEEP_WAKE       the thread does not pass the wake-up on
 *   NO_WAKE         as above, when the process of the thread dies
 * With -DRESIZE:
 *   LIMIT_LATE      the broker reads the words before it writes the limit
 *   TELL_EARLY      a process reads the limit before it frees the slot
 *   FORGET_RETIRE   slots of a dead process are freed, but do not leave
 *   FORCE_OUT       a slot that was FREE is retired without CAS
 *   TAKE_LIMITED    consumers scan only slots below the limit
 *   FORGET_LIMIT    a new broker does not write the limit of the record
 * With -DENDING:
 *   FREE_ENDING     the broker frees the words of a process that is ending
 *   ENDING_IS_END   the broker does nothing more when the process has ended
 *   TRUST           the broker believes whoever says that a process is ending
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
#define ITEMS 3 /* from each producer */
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
/* The word of a bell is a counter, but a process only asks whether it has changed
 * since the process read it. So a bell is the set of the processes for which it
 * has not changed, and states do not differ by how often it has rung. */
byte items_bell, items_asleep, credits_bell, credits_asleep;
bit q_items[NPROC], q_credits[NPROC]; /* the processes in the kernel's queues */
bit is_deserted;		/* no consumer is left */
bit open[NP];		/* the producer has not closed */
/* how many slots may be claimed, and the limit in the broker's record */
byte limit = K, record = K;
bit told;		/* doorbell: a slot beyond the limit was freed */

/* Only the checks use these variables. */
bit dead[NPROC], doomed[NPROC], gone[NPROC], ended[NPROC], reclaimed;
byte n_dead;
byte maker[K], number[K];	/* producer and number of the slot's item */
byte using[K];			/* how many processes use its memory */
byte taken[NP];			/* items of the producer that were taken */
byte last[NP];			/* number of the newest of them, for C3 */
byte published[NP];
bit is_over;			/* the broker has finished */

#define ME (1 << me)
#define forget(bell) bell = bell & ~ME

/* A process may die before and after each step that others can see. This is part
 * of the atomic block of that step: nobody can tell a dead process from a slow
 * one until it is `dead` (with -DENDING, `doomed`), and that may be later. */
inline die_maybe()
{
	if
	:: n_dead == 0 ->
		n_dead = 1;
		doomed[me] = 1;
		items_bell = items_bell & ~ME;
		credits_bell = credits_bell & ~ME;
		goto died
	:: skip
	fi
}

#define wake_one(queue)		/* any of them */			\
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
		bell = 0;						\
		atomic { die_maybe(); wake(queue) }			\
	:: else								\
	fi

inline claim()		/* sets `got` to a slot, or to K if none is free */
{
	at = 0; got = K; lim = LIMIT;
	do
	:: atomic {
		at < lim && got == K ->
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
	:: atomic {
		at < TAKEN ->
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

inline take()		/* sets `got` to a slot, or to K if there is no item */
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
		/* Scan again until a scan finds no older item. */
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
					w[slot].seq = 0;
#ifndef OWNER_LATE
					w[slot].owner = me;
#endif
					got = slot;
					taken[maker[slot]]++;
					assert(taken[maker[slot]] <= published[maker[slot]]);	/* C2 */
#if NC == 1
					assert(number[slot] > last[maker[slot]]);		/* C3 */
					last[maker[slot]] = number[slot];
#endif
					/* nobody reads them again */
					number[slot] = 0;
					maker[slot] = 0
				:: else
				fi
			};
#ifdef OWNER_LATE
			if
			:: atomic { got != K -> die_maybe(); w[got].owner = me }
			:: else
			fi
#endif
		fi
	:: else -> break
	od
}

#define wait(bell, queue)						\
	atomic {							\
		die_maybe();						\
		if							\
		:: bell & ME -> queue[me] = 1				\
		:: else							\
		fi;							\
		forget(bell);						\
		die_maybe()						\
	};								\
	queue[me] == 0

#define SLEEP(TRY, COND2, bell, asleep, queue)				\
	do								\
	:: TRY;								\
		if							\
		:: got != K || (COND2) -> break				\
		:: else							\
		fi;							\
		bell = bell | ME;					\
		atomic { asleep++; die_maybe() };			\
		TRY;							\
		if							\
		:: atomic {						\
			got != K || (COND2) ->				\
			asleep--;					\
			forget(bell);					\
			break						\
		   }							\
		:: else							\
		fi;							\
		wait(bell, queue);					\
		asleep--						\
	od

#define SLEEP_LATE_(TRY, COND2, bell, asleep, queue)			\
	do								\
	:: TRY;								\
		if							\
		:: got != K || (COND2) -> break				\
		:: else							\
		fi;							\
		atomic { bell = bell | ME; die_maybe() };		\
		asleep++;						\
		wait(bell, queue);					\
		asleep--						\
	od

#ifdef SLEEP_LATE
#define AWAIT SLEEP_LATE_
#else
#define AWAIT SLEEP
#endif

inline touch(slot_)	/* uses the memory for a while: C1 */
{
	atomic {
		die_maybe();
		assert(using[slot_] == 0);
		using[slot_]++;
		die_maybe()
	};
	using[slot_]--
}

proctype producer(byte me)
{
	byte n = 1, at, got, x, seq, lim;

	do
	:: n <= ITEMS ->
		AWAIT(claim(), is_deserted, credits_bell, credits_asleep, q_credits);
		if
		:: got == K -> break	/* -EPIPE */
		:: else
		fi;
		touch(got);
		atomic { order++; seq = order; die_maybe() };	/* one fetch_add */
		atomic {
			maker[got] = me; number[got] = n; published[me]++;
			w[got].seq = seq; w[got].owner = 0; w[got].state = QUEUED;
			die_maybe()
		};
		ring(items_bell, items_asleep, wake_one, q_items);
		n++
	:: else -> break
	od;
	atomic { open[me] = 0; die_maybe() };
	/* The end of the stream wakes all consumers. */
	items_bell = 0;
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
	byte at, got, x, best, slot, before;
	bit was_closed, is_surplus;

	do
	:: true ->
		/* Check for the end of the stream before the slots, because
		 * an item can be published between the two checks. */
		do
		:: true ->
			was_closed = CLOSED;
			take();
			if
			:: got != K || was_closed -> break
			:: else
			fi;
			items_bell = items_bell | ME;
#ifndef SLEEP_LATE
			atomic { items_asleep++; die_maybe() };
			was_closed = CLOSED;
			take();
			if
			:: atomic {
				got != K || was_closed ->
				items_asleep--;
				forget(items_bell);
				break
			   }
			:: else
			fi;
#else
			atomic { die_maybe(); items_asleep++ };
#endif
			wait(items_bell, q_items);
			items_asleep--
		od;
		if
		:: got == K -> break
		:: else
		fi;
		touch(got);
#ifdef TELL_EARLY
		is_surplus = got >= LIMIT;
#endif
		atomic {
			die_maybe();
			w[got].owner = 0;
			w[got].state = FREE;
			die_maybe()
		};
		ring(credits_bell, credits_asleep, wake_every, q_credits);
#ifdef RESIZE
#ifndef TELL_EARLY
		is_surplus = got >= LIMIT;
#endif
		if
		:: atomic { is_surplus -> die_maybe(); told = 1 }
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

/* The thread sleeps once each time that its process has found no item. The
 * process may check late or never. */
proctype watch(byte me)
{
	byte i, x;
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
		items_bell = items_bell | ME;
		atomic { items_asleep++; die_maybe() };
		LOOK;
		if
		:: !is_met && !CLOSED ->
			wait(items_bell, q_items);
			atomic { die_maybe(); LOOK }
		:: else -> forget(items_bell)
		fi;
		atomic { items_asleep--; die_maybe() };
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
	:: !has_restarted -> has_restarted = 1; goto adopt		\
	:: skip								\
	fi

/* Slots beyond the limit that are FREE leave the channel. */
inline retire()
{
	i = limit;
	do
	:: i < K ->
#ifdef FORCE_OUT
		atomic { v = w[i].state; die_once };
		if
		:: v == FREE -> w[i].state = RETIRED
		:: else
		fi;
#else
		atomic {
			if
			:: w[i].state == FREE -> w[i].state = RETIRED
			:: else
			fi;
			die_once
		};
#endif
		i++
	:: else -> break
	od;
	v = 0
}

/* Slots below the limit that have no buffer get one. */
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
	credits_bell = 0;
	wake_every(q_credits)
}

inline find_doomed()
{
	v = 0;
	do
	:: v < NPROC && !doomed[v] -> v++
	:: else -> break
	od
}

inline reclaim()
{
	i = 0;
	do
	:: i < K ->
		atomic {
			if
#ifndef FORGET_WRITING
			:: w[i].state == WRITING && w[i].owner == v ->
				w[i].state = FREE; w[i].owner = 0
#endif
#ifndef FORGET_HELD
			:: w[i].state == HELD && w[i].owner == v ->
				w[i].state = FREE; w[i].owner = 0
#endif
			:: else
			fi
		};
		i++
	:: else -> break
	od
}

inline unlist()
{
	if
#ifdef KEEP_OPEN
	:: v < NP -> skip
#else
	:: v < NP -> open[v] = 0
#endif
	:: v == NP && NC == 1 -> is_deserted = 1
	:: else
	fi;
	items_bell = 0; credits_bell = 0
}

proctype broker()
{
	byte i, v, x;
	bit has_shrunk, has_grown, has_restarted, has_looked;

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
		atomic { has_shrunk = 1; record = K - 1; die_once };
#ifdef LIMIT_LATE
		atomic { limit = record; retire(); limit = K };
		limit = record;
#else
		atomic { limit = record; die_once };
		retire();
#endif
	:: told ->
		atomic { told = 0; die_once };
		retire();
	:: has_shrunk && !has_grown ->
		atomic { has_grown = 1; record = K; die_once };
		atomic { limit = record; die_once };
		refill();
#endif
#ifdef ENDING
#ifdef TRUST
	:: !has_looked && !reclaimed ->
		v = 0;
#else
	:: n_dead && !has_looked && !reclaimed ->
		find_doomed();
#endif
#ifdef FREE_ENDING
		reclaim();
#endif
		unlist();
		wake_every(q_items);
		wake_every(q_credits);
#ifdef ENDING_IS_END
		reclaimed = 1;
#endif
		has_looked = 1
#endif
#ifdef EOF_IS_DEATH
	:: n_dead && !reclaimed ->
		find_doomed(); /* It may still use the memory. */
#else
	:: (dead[0] || dead[1] || dead[NPROC - 1]) && !reclaimed ->
		v = 0;	/* its pidfd has become readable */
		do
		:: v < NPROC && !dead[v] -> v++
		:: else -> break
		od;
		/* for the checks: a dead process uses no memory */
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
		/* The kernel removes a dead process from its queues. */
		atomic { q_items[v] = 0; q_credits[v] = 0 };
		reclaim();
		unlist();
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

/* Checks the final state, when all processes have ended. */
proctype judge()
{
	byte i;
	byte living_c;

	atomic {
		is_over ->
		/* If a consumer is alive, every item must have been taken. */
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
